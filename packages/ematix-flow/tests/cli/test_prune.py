"""``flow runs prune`` and ``run_log_keep``: old runs go, with their log lines."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from cli.conftest import Flow
from ematix_flow.run.log import open_run_log
from ematix_flow.run.logs import run_log_file
from ematix_flow.run.records import RunRecord, utc_now
from ematix_flow.run.retention import tidy

DAYS = {"r1": 200, "r2": 100, "r3": 95, "r4": 1}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of these ages; the second of them never ended, the third is its pipeline's last."""
    monkeypatch.chdir(tmp_path)
    log = open_run_log()
    for run_id, days in DAYS.items():
        began = utc_now() - timedelta(days=days)
        record = RunRecord(
            run_id=run_id,
            pipeline="rare" if run_id == "r3" else "orders",
            target="t",
            trigger="cli",
            started_at=began,
        )
        log.begin(record)
        if run_id != "r2":
            log.finish(record.closed("succeeded", finished_at=began))
        lines = run_log_file(run_id)
        lines.parent.mkdir(parents=True, exist_ok=True)
        lines.write_text("a line\n")
        os.utime(lines, (began.timestamp(), began.timestamp()))
    log.close()


def left() -> tuple[set[str], set[str]]:
    log = open_run_log()
    found = {r.run_id for r in log.list()}
    log.close()
    return found, {run_id for run_id in DAYS if run_log_file(run_id).exists()}


def test_old_runs_go_with_their_lines(flow: Flow) -> None:
    said = flow("runs", "prune", "--older-than", "90d", "--dry-run")
    assert said.out == "1 run would be removed.\n"
    assert left() == (set(DAYS), set(DAYS))
    assert flow("runs", "prune", "--older-than", "90d").out == "1 run removed.\n"
    rest = set(DAYS) - {"r1"}
    assert left() == (rest, rest)
    again = flow("runs", "prune", "--older-than", "90d", "--format", "json")
    assert again.json == {"removed": 0, "runs": []}


def test_the_project_says_how_long(flow: Flow) -> None:
    said = flow("runs", "prune")
    assert said.code == 2
    assert "give --older-than 90d, or write run_log_keep" in said.err
    Path(".ematix-flow.toml").write_text('[project]\nrun_log_keep = "150d"\n')
    assert flow("runs", "prune", "--format", "json").json == {"removed": 1, "runs": ["r1"]}


@pytest.mark.parametrize("age", ["90", "d", "0d", "-1d", "many days", "99999999999w"])
def test_an_age_that_is_none(flow: Flow, age: str) -> None:
    said = flow("runs", "prune", f"--older-than={age}")
    assert said.code == 2
    assert "--older-than must be a length of time" in said.err


def test_runs_tidy_up_once_a_day() -> None:
    log = open_run_log()
    assert tidy(log) == frozenset()
    Path(".ematix-flow.toml").write_text('[project]\nrun_log_keep = "90d"\n')
    assert tidy(log) == {"r1"}
    began = utc_now() - timedelta(days=300)
    old = RunRecord(run_id="r0", pipeline="orders", target="t", trigger="cli", started_at=began)
    log.finish(old.closed("failed", finished_at=began))
    assert tidy(log) == frozenset()
    assert "r0" in left()[0]
    log.close()
