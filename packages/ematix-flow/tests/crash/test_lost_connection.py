"""A database server that goes away at any step of a run: certain, or honestly uncertain."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from crash.child import Gate
from crash.line import Line, Wired
from crash.racer import Racer
from crash.tales import tale
from crash.world import World
from ematix_flow.errors import EngineError, RunError, Transient

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("engine")]

Begin = Callable[[str], Wired]


@pytest.fixture
def life(place: World) -> Iterator[Begin]:
    """Starts the life of a table behind a line, by the name of its tale."""
    address = urlsplit(str(getattr(place.target, "url", "")))
    line = Line(str(address.hostname), address.port or 0)
    url = address.geturl().replace(f":{address.port}/", f":{line.port}/")
    # What is encrypted cannot be told apart.
    plain = "?ssl_disabled=true" if place.backend.kind == "mysql" else ""
    through = dataclasses.replace(place.target, url=f"{url}{plain}")

    def begun(name: str) -> Wired:
        told = Wired(place, tale(name), through=through, line=line)
        told.sync()
        return told

    yield begun
    line.close()


def soak(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.soak) for name in names]


@pytest.mark.every_harness
@pytest.mark.parametrize("name", ["scd2", *soak("append", "truncate", "merge", "events")])
def test_sessions_that_the_server_ends_at_any_point(life: Begin, name: str, tmp_path: Path) -> None:
    """The driver's and, while rows are on their way, those of Spark's workers."""
    told = life(name)
    gate = Gate(tmp_path)
    for point in ("staging", "loading", "staged", "committing", "applied"):
        rows = told.arriving()
        run = told.race(rows, point, gate=gate if point == "loading" else None)
        if point == "loading":
            told.loading(gate)
        else:
            assert run.reach() == point
        told.end_sessions()
        gate.release()
        run.end()
        assert isinstance(run.error, Transient), (point, run.error)
        told.untouched()
    rows = told.arriving()
    run = told.race(rows, "committed")
    assert run.reach() == "committed"
    told.end_sessions()
    run.end()
    assert run.result is not None, run.error
    told.took(rows, run.result.run_id)
    told.sync()
    assert told.world.litter() == []
    assert told.statuses() == ["succeeded", *["failed"] * 5, "succeeded", "succeeded"]


@pytest.mark.parametrize("name", ["scd2", *soak("append", "merge", "events")])
def test_the_loss_of_the_worker_that_writes_changes_nothing(
    life: Begin, name: str, tmp_path: Path
) -> None:
    told = life(name)
    gate = Gate(tmp_path)
    run = told.race(told.arriving(), gate=gate)
    os.kill(told.loading(gate), signal.SIGKILL)
    gate.release()
    run.end()
    assert isinstance(run.error, EngineError), run.error
    assert "Python worker" in str(run.error)
    told.untouched()
    assert told.world.litter() == []
    told.sync()
    assert told.world.litter() == []


@pytest.mark.parametrize(
    "name", ["merge", *soak("append", "truncate", "scd2", "events", "incremental")]
)
def test_a_line_cut_inside_the_commit_changes_nothing(life: Begin, name: str) -> None:
    told = life(name)
    run = told.race(told.arriving(), "applied")
    assert run.reach() == "applied"
    told.line.cut()
    run.end()
    assert isinstance(run.error, Transient), run.error
    told.untouched()
    told.sync()
    assert told.world.litter() == []
    assert told.statuses() == ["succeeded", "failed", "succeeded"]


@pytest.mark.parametrize("name", ["merge", *soak("append", "truncate", "scd2", "events")])
def test_a_commit_that_was_not_asked_for_is_not_looked_up(life: Begin, name: str) -> None:
    """Nobody answers any more, and nobody has to: it is plain that nothing was written."""
    told = life(name)
    run = told.race(told.arriving(), "applied")
    assert run.reach() == "applied"
    told.line.cut(dead=True)
    run.end()
    assert isinstance(run.error, Transient), run.error
    told.untouched()
    told.line.mend()
    told.sync()
    assert told.world.litter() == []
    assert told.statuses() == ["succeeded", "failed", "succeeded"]


@pytest.mark.soak
@pytest.mark.every_harness
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("name", ["merge", "scd2", "events"])
def test_a_line_that_breaks_at_any_message(life: Begin, name: str, heard: bool) -> None:
    """From the stage of a run to its last word, one message further each time."""
    told = life(name)
    for number in itertools.count(1):
        rows = told.arriving()
        run = told.race(rows, "staging")
        assert run.reach() == "staging"
        told.line.break_at(number, heard=heard)
        run.end()
        if run.result is not None:
            told.took(rows, run.result.run_id)
        else:
            assert isinstance(run.error, Transient), (number, run.error)
            told.untouched()
        if not told.line.is_broken:
            break
    assert told.world.litter() == []
    assert "failed" in told.statuses()
    assert "lost" not in told.statuses()


def commit_unheard(told: Wired, run: Racer) -> None:
    """Let a run commit without hearing the answer."""
    before = told.world.stored(told.table)
    assert run.reach() == "applied"
    told.line.mute_after(b"COMMIT")
    run.pause_no_more()
    run.go_on()
    while told.world.stored(told.table) == before:
        assert run.error is None


@pytest.mark.parametrize("name", ["scd2", *soak("append", "merge", "events")])
def test_a_commit_whose_answer_is_lost_is_looked_up(life: Begin, name: str) -> None:
    told = life(name)
    rows = told.arriving()
    run = told.race(rows, "applied")
    commit_unheard(told, run)
    told.line.cut()
    run.end()
    assert run.result is not None, run.error
    told.took(rows, run.result.run_id)
    told.sync()
    assert told.world.litter() == []
    assert told.statuses() == ["succeeded"] * 3


@pytest.mark.parametrize("name", ["append", *soak("merge", "scd2")])
def test_a_commit_that_cannot_be_looked_up_is_called_neither(life: Begin, name: str) -> None:
    told = life(name)
    rows = told.arriving()
    run = told.race(rows, "applied")
    commit_unheard(told, run)
    told.line.cut(dead=True)
    run.end()
    assert isinstance(run.error, RunError), run.error
    assert "does not answer whether it took place" in str(run.error)
    assert told.statuses() == ["succeeded", "lost"]
    lost = told.world.records()[-1].run_id
    with pytest.raises(Transient):
        told.pipeline(rows).sync()
    assert told.statuses() == ["succeeded", "lost", "failed"]
    told.line.mend()
    told.took(rows, lost)
    told.sync()
    assert told.statuses() == ["succeeded", "succeeded", "failed", "succeeded"]
    assert told.world.litter() == []


LOCKED_OUT = {
    "postgres": "SELECT '', count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND datname = current_database()",
    # Not `innodb_trx`: who reads that all the time is shown an old copy all the time.
    "mysql": "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
}


@pytest.mark.every_harness
@pytest.mark.parametrize("name", ["append", *soak("merge", "scd2")])
def test_a_commit_still_on_its_way_when_the_line_is_cut_is_waited_for(
    life: Begin, name: str
) -> None:
    """A server goes on with what it hears at last: who asks too early would be told no."""
    told = life(name)
    rows = told.arriving()
    run = told.race(rows, "applied")
    assert run.reach() == "applied"
    told.line.delay(b"COMMIT")
    run.pause_no_more()
    run.go_on()
    while int(told.ask(LOCKED_OUT[told.kind])[0][1]) == 0:
        assert run.error is None, run.error
    told.untouched()
    told.line.deliver()
    run.end()
    assert run.result is not None, run.error
    told.took(rows, run.result.run_id)
    told.sync()
    assert told.world.litter() == []
    assert told.statuses() == ["succeeded"] * 3
