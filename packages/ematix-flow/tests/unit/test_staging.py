"""Stage folders: alive while their process is, swept when it is not, whatever races."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.backends import staging
from ematix_flow.backends.staging import LOCK_FILE, StageFolder
from ematix_flow.errors import RunError

HOLDER = """
import sys
from pathlib import Path
from ematix_flow.backends.staging import StageFolder

folder = StageFolder(Path(sys.argv[1]), sys.argv[2])
(folder.path / "rows.bin").write_bytes(b"x" * 1000)
print("ready", flush=True)
sys.stdin.read()
"""


def start_holder(root: Path, run_id: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root), run_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder


def end(holder: subprocess.Popen[str], how: signal.Signals) -> None:
    holder.send_signal(how)
    holder.wait()
    for stream in (holder.stdin, holder.stdout):
        if stream is not None:
            stream.close()


def test_a_folder_is_made_and_removed_with_its_root(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "stage"
    folder = StageFolder(root, "run-1")
    (folder.path / "part").mkdir()
    (folder.path / "part" / "a.bin").write_bytes(b"1")
    folder.remove()
    folder.remove()
    assert not root.exists()
    assert root.parent.exists()


def test_the_root_stays_while_another_run_uses_it(tmp_path: Path) -> None:
    root = tmp_path / "stage"
    with StageFolder(root, "run-1") as first:
        with StageFolder(root, "run-2"):
            pass
        assert first.path.is_dir()
        assert [p.name for p in root.iterdir()] == ["run-1"]


def test_a_living_run_is_never_swept(tmp_path: Path) -> None:
    root = tmp_path / "stage"
    with StageFolder(root, "mine") as mine:
        assert StageFolder.sweep(root) == []
        assert (mine.path / LOCK_FILE).exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_is_swept_and_a_living_one_is_not(tmp_path: Path, how: signal.Signals) -> None:
    root = tmp_path / "stage"
    doomed, living = start_holder(root, "doomed"), start_holder(root, "living")
    try:
        assert StageFolder.sweep(root) == []
        end(doomed, how)
        assert StageFolder.sweep(root) == ["doomed"]
        assert [p.name for p in root.iterdir()] == ["living"]
        assert (root / "living" / "rows.bin").stat().st_size == 1000
    finally:
        end(living, signal.SIGKILL)
    assert StageFolder.sweep(root) == ["living"]
    assert not root.exists()


def test_the_lock_does_not_leak_into_children(tmp_path: Path) -> None:
    root = tmp_path / "stage"
    folder = StageFolder(root, "parent")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        folder.remove()
        (root / "parent").mkdir(parents=True)
        assert StageFolder.sweep(root) == ["parent"]
    finally:
        child.communicate(b"\n")


def test_folders_without_a_lock_file_are_litter_and_files_are_left(tmp_path: Path) -> None:
    root = tmp_path / "stage"
    (root / "half-made").mkdir(parents=True)
    (root / "note.txt").write_text("not a stage folder")
    assert StageFolder.sweep(root) == ["half-made"]
    assert [p.name for p in root.iterdir()] == ["note.txt"]


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("keep")
    root = tmp_path / "stage"
    root.mkdir()
    (root / "link").symlink_to(precious)
    (root / "dead").mkdir()
    (root / "dead" / "inner").symlink_to(precious)
    assert StageFolder.sweep(root) == ["dead"]
    assert (precious / "data").read_text() == "keep"


def test_sweeping_where_nothing_is(tmp_path: Path) -> None:
    assert StageFolder.sweep(tmp_path / "absent") == []


def test_settling_happens_before_removal_and_under_the_lock(tmp_path: Path) -> None:
    root = tmp_path / "stage"
    end(start_holder(root, "doomed"), signal.SIGKILL)
    seen: list[tuple[str, int]] = []

    def settle(path: Path) -> None:
        seen.append((path.name, (path / "rows.bin").stat().st_size))
        assert StageFolder.sweep(root) == []

    assert StageFolder.sweep(root, settle=settle) == ["doomed"]
    assert seen == [("doomed", 1000)]


def test_a_file_in_the_way_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "stage").write_text("a file")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        StageFolder(tmp_path / "stage", "run")


def test_one_folder_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_PATIENCE_SECONDS", 0.05)
    with StageFolder(tmp_path / "stage", "run"), pytest.raises(RunError, match="another run"):
        StageFolder(tmp_path / "stage", "run")


def _churn(root: Path, worker: int, rounds: int) -> None:
    for n in range(rounds):
        with StageFolder(root, f"run-{worker}-{n}") as folder:
            mark = folder.path / "mark"
            mark.write_text(str(os.getpid()))
            StageFolder.sweep(root)
            if mark.read_text() != str(os.getpid()):
                raise AssertionError("a living folder was taken")
            if not (folder.path / LOCK_FILE).exists():
                raise AssertionError("a living lock was taken")


def test_creating_and_sweeping_at_once(tmp_path: Path) -> None:
    root = tmp_path / "stage"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_churn, args=(root, n, 150)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert not root.exists()
