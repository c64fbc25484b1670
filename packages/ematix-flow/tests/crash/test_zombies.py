"""A run that was taken for dead and wakes up: it changes nothing, and says why."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from crash.life import Life
from crash.racer import Racer
from crash.tales import Tale, tale
from crash.world import World
from ematix_flow.errors import EmatixError, Fenced
from ematix_flow.run import batch
from ematix_flow.run.records import RunRecord
from oracle.state import Row

pytestmark = [
    pytest.mark.needs("source", "replace", "revise"),
    pytest.mark.usefixtures("engine"),
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def stopped_hearts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that sleeps here is a thread, and its heart would go on beating."""
    monkeypatch.setattr(batch, "HEARTBEAT_INTERVAL", timedelta(hours=1))


def expire(home: Path) -> None:
    """Let every run under way look like one of another machine that is silent for years."""
    with contextlib.closing(sqlite3.connect(home / "run_log.db")) as raw, raw:
        raw.execute(
            "UPDATE runs SET host = 'elsewhere', heartbeat_at = '2020-01-01T00:00:00+00:00' "
            "WHERE status = 'running'"
        )


def without_key(told: Tale) -> list[Row]:
    """Rows that no run may load."""
    first, *others = told.source(0)
    key = next(iter(first))
    return [{**first, key: None}, *others]


def record_of(place: World, run_id: str) -> RunRecord:
    (found,) = (r for r in place.records() if r.run_id == run_id)
    return found


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("pause", "name"),
    [
        ("staged", "merge"),
        ("committing", "events"),
        *(
            pytest.param(pause, name, marks=pytest.mark.soak)
            for pause in ("staging", "staged", "committing")
            for name in ("append", "truncate", "merge", "scd2", "events", "incremental")
            if (pause, name) not in (("staged", "merge"), ("committing", "events"))
        ),
    ],
)
def test_a_run_given_up_for_dead_never_commits(place: World, pause: str, name: str) -> None:
    """Into a table that is not there yet, then into one that is; who gives it up fails itself."""
    life = Life(place, tale(name))
    for _ in range(2):
        sleeper = Racer(life.pipeline(life.arriving()), pause)
        assert sleeper.reach() == pause
        (asleep,) = (r for r in place.records() if r.status == "running")
        expire(place.home)
        with pytest.raises(EmatixError, match="NULL"):
            life.pipeline(without_key(life.tale)).sync()
        assert record_of(place, asleep.run_id).status == "failed"

        sleeper.end()
        assert isinstance(sleeper.error, Fenced), sleeper.error
        assert f"pipeline 'tell_{name}' was given up for dead" in str(sleeper.error)
        assert record_of(place, asleep.run_id).status == "failed"
        life.untouched()
        assert place.litter() == []
        life.sync()


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("pause", ["committing", "staged"])
def test_a_run_given_up_for_dead_stays_so_after_its_successor(place: World, pause: str) -> None:
    life = Life(place, tale("scd2"))
    life.sync()
    sleeper = Racer(life.pipeline(life.arriving()), pause)
    assert sleeper.reach() == pause
    expire(place.home)
    life.sync()
    sleeper.end()
    assert isinstance(sleeper.error, Fenced), sleeper.error
    life.untouched()
    assert place.litter() == []
    life.sync()


def test_a_run_that_committed_before_it_was_given_up_is_recorded_so(place: World) -> None:
    life = Life(place, tale("merge"))
    rows = life.arriving()
    sleeper = Racer(life.pipeline(rows), "committed")
    assert sleeper.reach() == "committed"
    (asleep,) = (r for r in place.records() if r.status == "running")
    expire(place.home)
    with pytest.raises(EmatixError, match="NULL"):
        life.pipeline(without_key(life.tale)).sync()
    settled = record_of(place, asleep.run_id)
    assert (settled.status, settled.rows_inserted) == ("succeeded", len(rows))
    sleeper.end()
    assert sleeper.result is not None, sleeper.error
    life.took(rows, asleep.run_id)
    assert record_of(place, asleep.run_id).status == "succeeded"
    life.sync()
    assert place.litter() == []
