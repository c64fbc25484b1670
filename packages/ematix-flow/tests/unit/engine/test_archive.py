"""When a class archive is used, and when it is not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ematix_flow.engine import archive
from ematix_flow.engine.archive import archive_flags, archive_path, discard, flavour, is_sound
from ematix_flow.engine.cache import CACHE_VARIABLE, file_lock
from ematix_flow.engine.java import Java
from ematix_flow.engine.jvm import JvmPlan

GIB = 1 << 30


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def java(tmp_path: Path) -> Java:
    (tmp_path / "jdk" / "lib" / "server").mkdir(parents=True)
    (tmp_path / "jdk" / "lib" / "server" / "classes.jsa").write_bytes(b"")
    return Java(home=tmp_path / "jdk", major=17, build="17.0.15/1/1")


def plan(java: Java, **changes: int) -> JvmPlan:
    return JvmPlan(java=java, **{"heap_bytes": 2 * GIB, "cores": 2, **changes})


def put(path: Path, content: bytes = b"archive" * 100) -> Path:
    path.write_bytes(content)
    found = path.stat()
    note = {
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "sha256": archive._digest(path),
    }
    path.with_name(f"{path.name}.json").write_text(json.dumps(note))
    return path


def test_a_sound_archive_is_used(java: Java) -> None:
    path = put(archive_path(plan(java)))
    assert archive_flags(plan(java)) == (f"-XX:SharedArchiveFile={path}", "-Xshare:auto")


def test_newer_java_uses_its_own_kind(java: Java) -> None:
    newer = Java(home=java.home, major=25, build="25")
    path = put(archive_path(plan(newer)))
    assert archive_flags(plan(newer)) == (f"-XX:AOTCache={path}",)


def test_java_without_an_archive_of_its_own_has_none(java: Java) -> None:
    (java.home / "lib" / "server" / "classes.jsa").unlink()
    assert flavour(java) is None
    put(archive_path(plan(java)))
    assert archive_flags(plan(java)) == ()


def test_every_change_that_matters_changes_the_key(java: Java) -> None:
    same = archive_path(plan(java))
    assert archive_path(plan(java, heap_bytes=4 * GIB)) == same
    others = {
        archive_path(plan(java, heap_bytes=40 * GIB)),
        archive_path(plan(java, cores=8)),
        archive_path(plan(Java(home=java.home, major=17, build="17.0.16/1/1"))),
    }
    assert len(others | {same}) == 4


def test_a_damaged_archive_is_not_used(java: Java) -> None:
    path = put(archive_path(plan(java)))
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"", b"x" * len(whole)):
        put(path, whole)
        path.write_bytes(damaged)
        os.utime(path, ns=(time.time_ns(), time.time_ns() + 1_000_000_000))
        assert not is_sound(path)
        assert archive_flags(plan(java)) == ()


def test_a_note_that_is_missing_or_garbage_means_no(java: Java) -> None:
    path = put(archive_path(plan(java)))
    note = path.with_name(f"{path.name}.json")
    for text in ("", "[]", "{}", '{"size": "x"}'):
        note.write_text(text)
        assert not is_sound(path)
    note.unlink()
    assert not is_sound(path)


def test_a_copied_archive_is_checked_by_its_content(java: Java) -> None:
    path = put(archive_path(plan(java)))
    os.utime(path, (1, 1))
    assert is_sound(path)


def test_discarding_leaves_nothing(java: Java) -> None:
    path = put(archive_path(plan(java)))
    discard(path)
    discard(path)
    assert [p.name for p in path.parent.iterdir()] == []


def test_the_background_builder_stands_back(monkeypatch: pytest.MonkeyPatch, java: Java) -> None:
    started: list[object] = []
    monkeypatch.setattr("ematix_flow.engine.classic.default_plan", lambda: plan(java))
    monkeypatch.setattr(os, "posix_spawn", lambda *a, **k: started.append(a))
    path = archive_path(plan(java))

    with file_lock(archive._lock(path)):
        assert not archive.build_archive_in_background()
    archive._failure(path).write_text("now")
    assert not archive.build_archive_in_background()
    archive._failure(path).unlink()
    put(path)
    assert not archive.build_archive_in_background()
    assert started == []
    discard(path)
    assert archive.build_archive_in_background()
    assert len(started) == 1


def test_old_archives_go(java: Java) -> None:
    folder = archive_path(plan(java)).parent
    for n in range(7):
        os.utime(put(folder / f"{n}.jsa"), (n, n))
    archive._prune(folder)
    assert sorted(p.name for p in folder.glob("*.jsa")) == ["3.jsa", "4.jsa", "5.jsa", "6.jsa"]
    assert len(list(folder.glob("*.json"))) == 4
