"""What a run of several targets finds out about the run before it."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pytest

from ematix_flow import (
    BigInt,
    DuckDBConnection,
    String,
    Target,
    Text,
    config,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.errors import DataError, TargetsFailed
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
    found = already_loaded(log, held.spec, opened_records(held.spec, run, "python"))
    return {label: known.run_id for label, known in found.items()}


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


@ematix.table(schema="j")
class Words:
    id: Annotated[BigInt, pk()]
    word: Text


@ematix.table(schema="j")
class Short:
    id: BigInt
    word: String[3]


@pytest.fixture
def raw(tmp_path: Path) -> Callable[[str], list[Any]]:
    """The database whose table ``given`` is the source, in the target's own database."""
    path = str(tmp_path / "same.duckdb")
    register_connection(DuckDBConnection(name="same", path=path))

    def ask(sql: str) -> list[Any]:
        with duckdb.connect(path) as held:
            return held.execute(sql).fetchall()

    ask("CREATE TABLE given (id BIGINT, word VARCHAR)")
    return ask


def inside(mode: str) -> Pipeline:
    @ematix.pipeline(
        targets=[
            Target(table=Words, connection="same", mode=mode),
            Target(table=Short, connection="same"),
        ],
        source_table="given",
    )
    def fan() -> None: ...

    return fan


@pytest.mark.parametrize("mode", ["append", "merge", "truncate", "scd2"])
def test_the_same_rows_are_skipped_in_any_order(raw: Callable[[str], list[Any]], mode: str) -> None:
    raw("INSERT INTO given VALUES (1, 'ok'), (2, 'long')")
    fan = inside(mode)
    with pytest.raises(TargetsFailed, match=r"committed: j\.words"):
        fan.sync()
    raw("ALTER TABLE given RENAME TO before")
    raw("CREATE TABLE given AS SELECT * FROM before ORDER BY id DESC")
    with pytest.raises(TargetsFailed) as caught:
        fan.sync()
    assert caught.value.results["j.words"].status == "skipped"
    assert caught.value.results["j.words"].path == ""


def test_new_rows_are_loaded_where_old_ones_do_no_harm(raw: Callable[[str], list[Any]]) -> None:
    raw("INSERT INTO given VALUES (1, 'long')")
    fan = inside("merge")
    with pytest.raises(TargetsFailed):
        fan.sync()
    raw("UPDATE given SET word = 'ok'")
    raw("INSERT INTO given VALUES (2, 'new')")
    assert {r.status for r in fan.sync().targets.values()} == {"succeeded"}
    for table in ("words", "short"):
        assert raw(f"SELECT id, word FROM j.{table} ORDER BY id") == [(1, "ok"), (2, "new")]


def test_new_rows_are_not_appended_unasked(raw: Callable[[str], list[Any]]) -> None:
    raw("INSERT INTO given VALUES (1, 'long')")
    fan = inside("append")
    with pytest.raises(TargetsFailed):
        fan.sync()
    raw("UPDATE given SET id = 2, word = 'new'")
    for attempt in range(3):
        with pytest.raises(DataError, match=r"other rows .* appended to j\.words") as caught:
            fan.sync()
        assert "nothing was written" in str(caught.value), attempt
    assert raw("SELECT id FROM j.words") == [(1,)]
    assert fan.sync(all_targets=False).targets["j.words"].status == "skipped"
    assert (raw("SELECT id FROM j.words"), raw("SELECT id FROM j.short")) == ([(1,)], [(2,)])
    raw("UPDATE given SET id = 3, word = 'long'")
    with pytest.raises(TargetsFailed):
        fan.sync()
    raw("UPDATE given SET id = 4, word = 'new'")
    assert fan.sync(all_targets=True).counts.inserted == 2
    assert raw("SELECT id FROM j.words ORDER BY id") == [(1,), (3,), (4,)]


def test_a_run_without_a_fingerprint_is_not_taken_for_the_same(
    raw: Callable[[str], list[Any]], log: RunLog
) -> None:
    """As an older version has left it."""
    raw("INSERT INTO given VALUES (1, 'long')")
    fan = inside("append")
    with pytest.raises(TargetsFailed):
        fan.sync()
    with sqlite3.connect(config.home() / "run_log.db") as file:
        file.execute("UPDATE runs SET metrics = '{}'")
    file.close()
    with pytest.raises(DataError, match="is not known; nothing was written"):
        fan.sync()
    assert raw("SELECT count(*) FROM j.words") == [(1,)]
