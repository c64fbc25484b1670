"""What a run of several targets finds out about the run before it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ematix_flow import BigInt, DuckDBConnection, Target, ematix, register_connection
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.function import RunInfo
from ematix_flow.run.journal import already_loaded, opened_records
from ematix_flow.run.log import RunLog, open_run_log


@ematix.table(schema="j")
class First:
    id: BigInt


@ematix.table(schema="j")
class Second:
    id: BigInt


@pytest.fixture
def log() -> Iterator[RunLog]:
    with contextlib.closing(open_run_log()) as held:
        yield held


@pytest.fixture
def held(tmp_path: Path) -> Pipeline:
    """A pipeline whose last run loaded both of its targets."""
    register_connection(DuckDBConnection(name="w", path=str(tmp_path / "w.duckdb")))

    @ematix.pipeline(
        targets=[Target(table=First, connection="w"), Target(table=Second, connection="w")]
    )
    def load(conn: Any) -> str:
        return "SELECT 1::BIGINT AS id"

    return load


def loaded(log: RunLog, held: Pipeline, **parameters: str) -> dict[str, str]:
    run = RunInfo(id="another", parameters=parameters)
    return already_loaded(log, held.spec, opened_records(held.spec, run, "python"))


def retold(log: RunLog, held: Pipeline, status: str, **changes: Any) -> str:
    """Another run like the last, whose second target came to this end."""
    result = held.sync(all_targets=True)
    first, second = sorted(log.get(result.run_id), key=lambda r: r.target)
    # The log keeps the first word on a run, so the story is told of a new one.
    run_id = f"{result.run_id}-told"
    for record in (first, dataclasses.replace(second, status=status)):
        log.begin(dataclasses.replace(record, run_id=run_id, **changes))
    return run_id


def test_a_run_that_was_complete_is_no_reason_to_skip(log: RunLog, held: Pipeline) -> None:
    assert loaded(log, held) == {}
    held.sync()
    assert loaded(log, held) == {}


def test_the_target_is_asked(log: RunLog, held: Pipeline, tmp_path: Path) -> None:
    run_id = retold(log, held, "failed")
    assert loaded(log, held) == {}, "no target knows that run"
    with duckdb.connect(str(tmp_path / "w.duckdb")) as raw:
        raw.execute("UPDATE ematix_flow.run_history SET run_id = ?", [run_id])
    assert loaded(log, held) == {"j.first": run_id}


@pytest.mark.parametrize(
    ("status", "changes", "parameters"),
    [
        ("running", {}, {}),
        ("failed", {}, {"day": "another"}),
        ("failed", {"mode": "truncate"}, {}),
        ("succeeded", {}, {}),
    ],
)
def test_what_is_another_load(
    log: RunLog,
    held: Pipeline,
    *,
    tmp_path: Path,
    status: str,
    changes: dict[str, Any],
    parameters: dict[str, str],
) -> None:
    run_id = retold(log, held, status, **changes)
    with duckdb.connect(str(tmp_path / "w.duckdb")) as raw:
        raw.execute("UPDATE ematix_flow.run_history SET run_id = ?", [run_id])
    assert loaded(log, held, **parameters) == {}
