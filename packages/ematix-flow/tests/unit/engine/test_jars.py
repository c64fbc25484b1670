"""Jars are what the lock says, or they are not used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.engine import jars
from ematix_flow.engine.cache import CACHE_VARIABLE
from ematix_flow.engine.jars import LOCK_FILE, ensure_jars, read_lock
from ematix_flow.errors import EngineError, UnknownName

CONTENT = b"PK\x03\x04 not really a jar"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local Maven repository, reached through the user's own Ivy settings."""
    home = tmp_path / "home"
    (home / ".ivy2").mkdir(parents=True)
    repository = tmp_path / "repository"
    folder = repository / "org" / "example" / "thing" / "1.0"
    folder.mkdir(parents=True)
    (folder / "thing-1.0.jar").write_bytes(CONTENT)
    (home / ".ivy2" / "ivysettings.xml").write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers>'
        f'<ibiblio name="here" m2compatible="true" root="{repository.as_uri()}/"/>'
        "</resolvers></ivysettings>"
    )
    monkeypatch.setenv("HOME", str(home))
    return repository


def lock(tmp_path: Path, sha256: str, *, coordinate: str = "org.example:thing:1.0") -> Path:
    path = tmp_path / f"jars-{sha256[:8]}.lock"
    path.write_text(json.dumps({"thing": [{"coordinate": coordinate, "sha256": sha256}]}))
    return path


def litter(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "jars").iterdir() if not p.name.endswith(".lock"))


def test_the_lock_of_the_package_is_well_formed() -> None:
    locked = read_lock()
    assert "postgres" in locked
    for entries in locked.values():
        assert entries
        for jar in entries:
            assert re.fullmatch(r"[0-9a-f]{64}", jar.sha256)
            assert len(jar.coordinate.split(":")) == 3
    assert "://" not in LOCK_FILE.read_text()


def test_a_jar_is_fetched_once_and_kept(
    tmp_path: Path, cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = lock(tmp_path, hashlib.sha256(CONTENT).hexdigest())
    (path,) = ensure_jars(["thing", "thing"], lock=locked)
    assert path.read_bytes() == CONTENT
    assert litter(cache) == ["thing-1.0.jar"]
    monkeypatch.setattr(jars, "fetch", lambda *_: pytest.fail("fetched again"))
    assert ensure_jars(["thing"], lock=locked) == [path]


def test_other_bytes_than_locked_are_thrown_away(
    tmp_path: Path, cache: Path, repository: Path
) -> None:
    with pytest.raises(EngineError, match=r"org\.example:thing:1\.0 was fetched with SHA-256"):
        ensure_jars(["thing"], lock=lock(tmp_path, "0" * 64))
    assert litter(cache) == []


def test_a_jar_changed_in_the_cache_is_fetched_anew(
    tmp_path: Path, cache: Path, repository: Path
) -> None:
    locked = lock(tmp_path, hashlib.sha256(CONTENT).hexdigest())
    (path,) = ensure_jars(["thing"], lock=locked)
    path.write_bytes(b"tampered with")
    assert ensure_jars(["thing"], lock=locked) == [path]
    assert path.read_bytes() == CONTENT


def test_a_jar_copied_by_hand_needs_no_network(tmp_path: Path, cache: Path) -> None:
    (cache / "jars").mkdir(parents=True)
    (cache / "jars" / "thing-1.0.jar").write_bytes(CONTENT)
    locked = lock(tmp_path, hashlib.sha256(CONTENT).hexdigest())
    assert ensure_jars(["thing"], lock=locked) == [cache / "jars" / "thing-1.0.jar"]


def test_a_jar_nobody_has_is_named_with_the_folder_to_put_it(
    tmp_path: Path, cache: Path, repository: Path
) -> None:
    locked = lock(tmp_path, "0" * 64, coordinate="org.example:missing:2.0")
    with pytest.raises(EngineError) as caught:
        ensure_jars(["thing"], lock=locked)
    assert "org.example:missing:2.0" in str(caught.value)
    assert str(cache / "jars") in str(caught.value)
    assert litter(cache) == []


def test_an_unknown_name_suggests_the_known(cache: Path) -> None:
    with pytest.raises(UnknownName, match=r"'oracle'.*postgres"):
        ensure_jars(["oracle"])


def test_two_processes_at_once_fetch_one_jar(tmp_path: Path, cache: Path, repository: Path) -> None:
    locked = lock(tmp_path, hashlib.sha256(CONTENT).hexdigest())
    code = (
        "import sys; from pathlib import Path; from ematix_flow.engine.jars import ensure_jars\n"
        "print(ensure_jars(['thing'], lock=Path(sys.argv[1]))[0])"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(locked)],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        for _ in range(2)
    ]
    said = [process.communicate()[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    assert litter(cache) == ["thing-1.0.jar"]
