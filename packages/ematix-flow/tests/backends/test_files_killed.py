"""A run killed inside the commit of a folder of files: before or after, never between.

The kill tests of all targets go through whole runs; these take the commit alone, without Spark.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backends.file_loads import NAME, data_names, land, load, rows_of, store
from ematix_flow.backends.manifest import ManifestLog

if TYPE_CHECKING:
    from ematix_flow.engine.session import Engine

# Commits one row without Spark: what is staged is written by pyarrow.
DOOMED = """
import os, signal, sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from backends.file_loads import load, store
from ematix_flow.backends.base import Staged
from ematix_flow.backends.file_landing import StagedFiles
from ematix_flow.backends.manifest import DataFile, Layout
from ematix_flow.change import Counts

root, mode, point = sys.argv[1:]

def die(at):
    if at == point:
        os.kill(os.getpid(), signal.SIGKILL)

with store(Path(root)).land(load(mode, announce=die, pipeline="doomed")) as landing:
    stage = landing.stage_folder.path / "step-0"
    stage.mkdir()
    pq.write_table(pa.table({"id": [7], "note": ["doomed"]}), stage / "part-0.parquet")
    name = str((stage / "part-0.parquet").relative_to(landing.folder))
    file = DataFile(name, 1, 100, Layout("parquet", {}, ("id", "note")))
    removed = None if mode == "truncate" else frozenset()
    handle = StagedFiles((file,), (), removed, None, Counts(read=1, inserted=1))
    landing.commit(Staged(1, 100, handle), keep=True)
"""


def run_doomed(root: Path, mode: str, point: str) -> None:
    tests = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tests)!r})\n" + DOOMED,
         str(root), mode, point],
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize(
    ("point", "mode"),
    [("committing", "append"), ("committing", "truncate"), ("committed", "truncate")],
)
def test_a_killed_run_leaves_before_or_after(
    tmp_path: Path, engine: Engine, point: str, mode: str
) -> None:
    files, folder = store(tmp_path), tmp_path / "shop/orders"
    land(files, engine, load(), [(1, "a")])
    run_doomed(tmp_path, mode, point)
    before = [(1, "a")]
    after = [(7, "doomed")] if mode == "truncate" else [(1, "a"), (7, "doomed")]
    expected = after if point == "committed" else before
    assert sorted(rows_of(files, engine)) == expected
    land(files, engine, load(), [(2, "b")])
    assert sorted(rows_of(files, engine)) == sorted([*expected, (2, "b")])
    newest = ManifestLog(folder).newest()
    assert newest is not None
    assert data_names(folder) == sorted(f.name for f in newest.files)
    assert not (folder / "_ematix" / "stage").exists()


@pytest.mark.parametrize("point", ["committing", "committed"])
def test_a_killed_first_run(tmp_path: Path, engine: Engine, point: str) -> None:
    files, folder = store(tmp_path), tmp_path / "shop/orders"
    run_doomed(tmp_path, "append", point)
    expected = [(7, "doomed")] if point == "committed" else []
    assert (files.inspect(NAME) is not None) == bool(expected)
    land(files, engine, load(), [(2, "b")])
    assert sorted(rows_of(files, engine)) == [(2, "b"), *expected]
    assert len(data_names(folder)) == 1 + len(expected)
