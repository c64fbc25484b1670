"""Runs at the same moment: one wins or both do, nothing is doubled, readers see no half state."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crash.child import Events, Others
from crash.life import Life
from crash.racer import Racer, loading
from crash.tales import tale
from crash.world import Found, World, after, plain
from ematix_flow.backends.loading import load_backend
from ematix_flow.errors import Fenced, Transient
from ematix_flow.pipeline import Pipeline
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


@pytest.mark.in_turn(2)
@pytest.mark.needs("revise")
@pytest.mark.parametrize(
    ("pause", "name"),
    [
        ("committing", "merge"),
        ("applied", "scd2"),
        *(
            pytest.param(pause, name, marks=pytest.mark.soak)
            for pause, name in itertools.product(
                ("committing", "applied"), ("append", "truncate", "events", "incremental")
            )
        ),
    ],
)
def test_of_two_runs_at_once_one_wins(place: World, pause: str, name: str) -> None:
    """The first-ever two, then two more: the first commit has a race of its own."""
    life = Life(place, tale(name))
    for _ in range(2):
        rows = life.arriving()
        winner = Racer(life.pipeline(rows), "staged", pause)
        loser = Racer(life.pipeline(rows[:-1]), "staged", "committing")
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
        assert winner.result is not None
        assert isinstance(loser.error, Fenced), loser.error
        assert f"another run of pipeline 'tell_{name}'" in str(loser.error)
        life.took(rows, winner.result.run_id)
    assert place.litter() == []


@pytest.mark.in_turn(2)
@pytest.mark.needs("revise")
@pytest.mark.parametrize("name", ["truncate", "merge"])
def test_a_run_that_wakes_after_a_newer_one_changes_nothing(place: World, name: str) -> None:
    life = Life(place, tale(name))
    sleeper = Racer(life.pipeline(life.arriving()), "staged")
    assert sleeper.reach() == "staged"
    life.sync()
    sleeper.end()
    assert isinstance(sleeper.error, Fenced), sleeper.error
    life.untouched()
    assert place.litter() == []


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
    # Replaced files go with the commit: a reader of them may have to run again, but never
    # sees half.
    assert [e for e in failed if not isinstance(e, Transient)] == []
    assert [rows for rows in seen if rows not in allowed] == []
