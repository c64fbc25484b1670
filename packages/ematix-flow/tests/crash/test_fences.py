"""A run over files that is given up: its manifest was linked before, or never is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.backends.manifest import TOUCHED, DataFile, Layout, Manifest, ManifestLog
from ematix_flow.backends.staging import StageFolder

RUN = "0a1b"
FILE = f"{RUN}-00000.csv"


@pytest.fixture
def log(tmp_path: Path) -> ManifestLog:
    return ManifestLog(tmp_path / "table")


@pytest.fixture
def stage(log: ManifestLog) -> Iterator[StageFolder]:
    """The stage of a run that has moved its file and is about to commit."""
    with StageFolder(log.stage_root, RUN) as held:
        (log.table_folder / FILE).write_text("a\n1\n", encoding="utf-8")
        touched = json.dumps({"added": [FILE], "replaced": []})
        (held.path / TOUCHED).write_text(touched, encoding="utf-8")
        yield held


def commit(log: ManifestLog, stage: StageFolder) -> bool:
    layout = Layout("csv", {}, ("a",))
    made = Manifest((), (DataFile(FILE, 1, 4, layout),), run={"run_id": RUN}, number=1)
    return log.create(made, scratch=stage.path / "manifest.tmp")


def test_a_run_without_its_stage_cannot_commit(log: ManifestLog, stage: StageFolder) -> None:
    assert stage.is_ours()
    assert log.fence_off(RUN) is None
    assert not stage.is_ours()
    with pytest.raises(FileNotFoundError):
        commit(log, stage)
    assert log.newest() is None
    assert not (log.table_folder / FILE).exists()
    assert not log.stage_root.exists()


def test_a_stage_that_spark_makes_anew_is_not_the_runs(
    log: ManifestLog, stage: StageFolder
) -> None:
    log.fence_off(RUN)
    (stage.path / "rows").mkdir(parents=True)
    assert not stage.is_ours()
    stage.remove()
    assert not log.stage_root.exists()


def test_a_commit_that_came_before_is_found(log: ManifestLog, stage: StageFolder) -> None:
    assert commit(log, stage)
    found = log.fence_off(RUN)
    assert found is not None
    assert found.run == {"run_id": RUN}
    stage.remove()
    # What it still had to clear away, the next run does.
    assert log.stage_root.exists()
    StageFolder.sweep(log.stage_root, settle=log.settle)
    assert not log.stage_root.exists()
    assert (log.table_folder / FILE).exists()
