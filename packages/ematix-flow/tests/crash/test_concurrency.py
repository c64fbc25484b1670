"""Runs at the same moment: one wins or both do, nothing is doubled, readers see no half state."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crash.child import Events, Others
from crash.racer import Racer, loading
from crash.world import Found, after, plain
from ematix_flow.backends.loading import load_backend
from ematix_flow.errors import Fenced, Transient
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.log import open_run_log
from harness.base import Harness

pytestmark = [
    pytest.mark.needs("source", "replace"),
    pytest.mark.usefixtures("engine"),
    pytest.mark.slow,
]

Declare = Callable[..., Pipeline]


@pytest.fixture
def declare(backend: Harness, private_home: Path) -> Declare:
    """Declares a pipeline of this process into the backend."""

    def declared(**details: Any) -> Pipeline:
        return loading(backend.connection("target"), private_home, **details)

    return declared


def rows_in(backend: Harness, table: type = Events) -> Found:
    return plain(backend.rows(backend.connection("target"), table.__table__))


@pytest.mark.every_harness
@pytest.mark.parametrize("pause", ["committing", "applied"])
def test_of_two_runs_at_once_one_wins(backend: Harness, declare: Declare, pause: str) -> None:
    """The first-ever two, then two more: the first commit has a race of its own."""
    expected: Found = []
    for turn in range(2):
        winner = Racer(declare(rows=[(turn, "winner")]), "staged", pause)
        loser = Racer(declare(rows=[(turn, "loser")]), "staged", "committing")
        assert (winner.reach(), loser.reach()) == ("staged", "staged")
        winner.go_on()
        loser.go_on()
        assert loser.reach() == "committing"
        # Inside the winner's transaction, where there is one, the loser runs into it.
        if winner.reach() == "applied":
            loser.go_on()
        winner.end()
        loser.end()
        assert winner.error is None
        assert isinstance(loser.error, Fenced), loser.error
        assert "another run of pipeline 'load_events'" in str(loser.error)
        expected.append((turn, "winner"))
        assert rows_in(backend) == expected
    assert backend.litter(backend.connection("target")) == []


@pytest.mark.every_harness
def test_a_run_that_wakes_after_a_newer_one_changes_nothing(
    backend: Harness, declare: Declare
) -> None:
    for mode in ("append", "truncate"):
        sleeper = Racer(declare(rows=[(1, "old")], mode=mode), "staged")
        assert sleeper.reach() == "staged"
        declare(rows=[(2, mode)], mode=mode).sync()
        seen = rows_in(backend)
        sleeper.end()
        assert isinstance(sleeper.error, Fenced), sleeper.error
        assert rows_in(backend) == seen
    assert backend.litter(backend.connection("target")) == []


def test_a_run_given_up_for_dead_that_succeeds_after_all_is_recorded_so(
    backend: Harness, declare: Declare, private_home: Path
) -> None:
    sleeper = Racer(declare(rows=[(1, "late")]), "staged")
    assert sleeper.reach() == "staged"
    file = private_home / "run_log.db"
    with contextlib.closing(sqlite3.connect(file)) as raw, raw:
        raw.execute(
            "UPDATE runs SET host = 'elsewhere', heartbeat_at = '2020-01-01T00:00:00+00:00'"
        )
    with pytest.raises(Exception, match="NULL"):
        declare(rows=[(None, "bad")]).sync()
    log = open_run_log(str(file))
    given_up = log.list()[-1]
    assert given_up.status == "failed"
    sleeper.end()
    assert sleeper.result is not None, sleeper.error
    assert rows_in(backend) == [(1, "late")]
    (recorded,) = log.get(sleeper.result.run_id)
    log.close()
    assert (recorded.status, recorded.rows_inserted) == ("succeeded", 1)
    assert recorded.run_id == given_up.run_id
    assert recorded.error_text is None


def test_two_first_commits_into_one_empty_place_both_succeed(
    backend: Harness, declare: Declare
) -> None:
    racers = [
        Racer(declare(rows=[(1, "a")], pipeline="first"), "committing"),
        Racer(declare(rows=[(2, "b")], pipeline="second", table=Others), "committing"),
    ]
    assert [r.reach() for r in racers] == ["committing", "committing"]
    for racer in racers:
        racer.go_on()
    for racer in racers:
        racer.end()
    assert [r.error for r in racers] == [None, None]
    assert rows_in(backend) == [(1, "a")]
    assert rows_in(backend, Others) == [(2, "b")]
    assert backend.litter(backend.connection("target")) == []


def test_two_pipelines_into_one_table_both_count(backend: Harness, declare: Declare) -> None:
    """Both mean to create it: the second may be asked to run again, and then it succeeds."""
    pipelines = {n: declare(rows=[(n, "x")], pipeline=f"load_{n}") for n in (1, 2)}
    racers = {n: Racer(pipeline, "committing") for n, pipeline in pipelines.items()}
    assert {r.reach() for r in racers.values()} == {"committing"}
    for racer in racers.values():
        racer.go_on()
    for n, racer in racers.items():
        racer.end()
        if racer.error is not None:
            assert isinstance(racer.error, Transient), racer.error
            assert "created by somebody else" in str(racer.error)
            pipelines[n].sync()
    assert rows_in(backend) == [(1, "x"), (2, "x")]
    racers = {n: Racer(pipeline, "committing") for n, pipeline in pipelines.items()}
    assert {r.reach() for r in racers.values()} == {"committing"}
    for racer in racers.values():
        racer.end()
    assert [r.error for r in racers.values()] == [None, None]
    assert rows_in(backend) == [(1, "x"), (1, "x"), (2, "x"), (2, "x")]


def test_a_reader_sees_the_old_rows_or_the_new_ones(backend: Harness, declare: Declare) -> None:
    old = [(n, "old") for n in range(50)]
    new = [(n, "new") for n in range(70)]
    declare(rows=old, mode="truncate").sync()
    product = load_backend(backend.connection("target"))
    select = f"SELECT event_id, name FROM {backend.spelled(Events.__table__.name)}"
    allowed = [after(None, "truncate", old), after(None, "truncate", new)]

    def read() -> Found:
        with product.open() as live:
            return plain(live.query(select))

    seen: list[Found] = []
    failed: list[Exception] = []
    stopped, reading = threading.Event(), threading.Event()

    def poll() -> None:
        while not stopped.is_set():
            try:
                seen.append(read())
                reading.set()
            except Exception as error:  # noqa: BLE001 - all of them are looked at below
                failed.append(error)

    reader = threading.Thread(target=poll, daemon=True)
    reader.start()
    assert reading.wait(60)
    points = ("staging", "staged", "committing", "applied", "committed")
    run = Racer(declare(rows=new, mode="truncate"), *points)
    while (point := run.reach()) != "end":
        assert read() == allowed[point == "committed"], point
        run.go_on()
    stopped.set()
    reader.join(60)
    run.end()
    assert run.error is None
    assert read() == allowed[1]
    # Replaced files go with the commit: a reader of them may fail, but never sees half.
    assert [e for e in failed if "FILE_NOT_EXIST" not in str(e)] == []
    assert [rows for rows in seen if rows not in allowed] == []
