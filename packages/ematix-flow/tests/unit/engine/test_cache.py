"""The cache folder is private, and locks work between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.engine.cache import (
    CACHE_VARIABLE,
    cache_dir,
    file_lock,
    private_folder,
    write_in_place,
)
from ematix_flow.errors import ConfigError


def test_the_folder_is_found_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "named"))
    assert cache_dir() == tmp_path / "named"
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "ematix-flow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "ematix-flow"


def test_nobody_else_may_look_inside(tmp_path: Path) -> None:
    assert private_folder(tmp_path / "new").stat().st_mode & 0o777 == 0o700
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o777)
    assert private_folder(open_to_all).stat().st_mode & 0o777 == 0o700


def test_a_folder_of_someone_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    with pytest.raises(ConfigError, match="belongs to another user"):
        private_folder(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=CACHE_VARIABLE):
        private_folder(tmp_path / "file" / "cache")


def test_a_lock_is_held_against_other_processes_and_lost_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys; from pathlib import Path; from ematix_flow.engine.cache import file_lock\n"
        "with file_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with file_lock(path, wait=False) as free:
            assert not free
        holder.kill()
        holder.wait()
        with file_lock(path, wait=False) as free:
            assert free


def test_files_appear_whole_and_private(tmp_path: Path) -> None:
    write_in_place(tmp_path / "note", "one")
    write_in_place(tmp_path / "note", "two")
    assert (tmp_path / "note").read_text() == "two"
    assert (tmp_path / "note").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
