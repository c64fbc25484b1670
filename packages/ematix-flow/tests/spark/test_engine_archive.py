"""A real class archive: built, used, and survived when it is damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.engine.archive import archive_flags, archive_path, build_archive, is_sound
from ematix_flow.engine.cache import CACHE_VARIABLE
from ematix_flow.engine.classic import default_plan
from ematix_flow.engine.java import bundled_home
from unit.engine import child

COUNT = """
from ematix_flow.engine import derive, open_engine
from ematix_flow.engine.classic import launch
engine = launch(derive(), log_classes=True) if {logged} else open_engine(derive())
print(engine.spark.range(10).count())
if {logged}:
    classes = engine.loaded_classes()
    print(sum("org.apache.spark." in c and "shared objects file" in c for c in classes) > 1000)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["found", "bundled"])
def java_home(request: pytest.FixtureRequest) -> str:
    if request.param == "bundled":
        return str(bundled_home())
    return os.environ.get("JAVA_HOME", "")


@pytest.fixture(scope="module")
def cache(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache with an archive that was really built, once per kind of Java.

    The one for Spark's usual Java was built by ``make setup``, as a rule; the other is built here.
    """
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", java_home)
        users = archive_path(default_plan())
        patch.setenv(CACHE_VARIABLE, str(folder))
        if java_home != str(bundled_home()) and is_sound(users):
            ours = archive_path(default_plan())
            for file in (users, users.with_name(f"{users.name}.json")):
                shutil.copy2(file, ours.parent)
        build_archive()
        yield folder


def count(cwd: Path, *, logged: bool = False) -> list[str]:
    code, out, err = child.run(COUNT.format(logged=logged), cwd=cwd)
    assert (code, err) == (0, "")
    return out.split()


def test_it_is_private_recorded_and_used(cache: Path, tmp_path: Path) -> None:
    path = archive_path(default_plan())
    assert is_sound(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not [p.name for p in path.parent.iterdir() if p.name.startswith("building-")]
    assert str(path) in "".join(archive_flags(default_plan()))
    assert count(tmp_path, logged=True) == ["10", "True"]
    before = path.stat()
    assert build_archive() == path
    assert path.stat() == before, "a sound archive is not built again"


def test_a_damaged_one_never_stops_a_run(cache: Path, tmp_path: Path) -> None:
    path = archive_path(default_plan())
    note = path.with_name(f"{path.name}.json")
    kept = tmp_path / "kept"
    path.rename(kept)
    kept_note = note.read_text()
    try:
        with kept.open("rb") as file:
            path.write_bytes(file.read(kept.stat().st_size // 3))
        assert archive_flags(default_plan()) == ()

        # Even if the note vouches for it, the JVM dies and a second one starts without it.
        found = path.stat()
        vouching = {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": ""}
        note.write_text(json.dumps(vouching))
        assert archive_flags(default_plan()) != ()
        assert count(tmp_path) == ["10"]
        assert {p.name for p in tmp_path.iterdir()} == {"kept", "program.py"}, "no crash report"
    finally:
        kept.replace(path)
        note.write_text(kept_note)
    assert is_sound(path)
