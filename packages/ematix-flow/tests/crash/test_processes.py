"""Processes that die in the middle of Spark's work, stop for a while, or lose a worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from crash.child import Child, Gate, Trap
from crash.life import Life
from crash.processes import java_below, wait_for_end_of
from crash.tales import tale
from crash.test_kill import fresh_rows
from crash.world import World, after
from ematix_flow.errors import EngineError

pytestmark = [pytest.mark.needs("source", "replace", "revise"), pytest.mark.slow]


def go_on(life: Life) -> None:
    """The next run succeeds and clears the target of what the one before it has left."""
    rows = life.arriving()
    outcome = life.world.run(**life.tale.order(rows))
    assert outcome.result is not None
    life.took(rows, outcome.result["run_id"])
    # The folder of a dead Spark goes when the next one starts in a process; here none does.
    assert life.world.backend.litter(life.world.target) == []


@pytest.mark.one_of_a_sort
@pytest.mark.parametrize(
    "name",
    ["scd2", *(pytest.param(n, marks=pytest.mark.soak) for n in ("truncate", "merge", "events"))],
)
def test_a_run_killed_while_spark_stages_takes_spark_with_it(
    world: World, tmp_path: Path, name: str
) -> None:
    """Spark in the process itself, as most users have it, with an open copy to the target."""
    life = Life(world, tale(name))
    life.run()
    gate = Gate(tmp_path)
    order = life.tale.order(life.arriving())
    child = Child(world.order(**order, remote=None, gate=gate))
    worker = gate.held()
    child.signal(signal.SIGKILL)
    assert child.exit_code() == -signal.SIGKILL
    life.untouched()

    go_on(life)
    wait_for_end_of(worker)
    assert world.record(child.pid).status == "failed"


@pytest.mark.one_of_a_sort
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("point", "name"),
    [
        ("loading", "merge"),
        *(
            pytest.param(point, name, marks=pytest.mark.soak)
            for point in ("staging", "loading", "staged", "committing", "applied")
            for name in ("merge", "events")
            if (point, name) != ("loading", "merge")
        ),
    ],
)
def test_a_run_whose_jvm_is_killed_leaves_before_or_after(
    world: World, tmp_path: Path, point: str, name: str
) -> None:
    """A commit that a database does by itself goes on without Spark."""
    life = Life(world, tale(name))
    if point not in ("loading", *life.run()):
        return
    gate = Gate(tmp_path) if point == "loading" else None
    rows = life.arriving()
    order = world.order(**life.tale.order(rows), remote=None, gate=gate, pause_at=(point,))
    child = Child(order)
    if gate is None:
        child.reach(point)
    else:
        gate.held()
    jvm = java_below(child.pid)
    os.kill(jvm, signal.SIGKILL)
    wait_for_end_of(jvm)
    if gate is None:
        child.go_on()
    else:
        gate.release()
    outcome = child.outcome()
    if outcome.result is not None:
        assert point not in ("staging", "loading")
        life.took(rows, outcome.result["run_id"])
    else:
        assert outcome.error == "EngineError", outcome.text
        assert "JVM" in outcome.text
        life.untouched()
        assert world.record(child.pid).status == "failed"
    go_on(life)


@pytest.mark.in_turn(2)
def test_a_run_whose_spark_lives_on_does_not_hold_up_the_next(world: World, tmp_path: Path) -> None:
    """On a cluster, executors go on for a while when their driver is gone."""
    gate = Gate(tmp_path)
    child = Child(world.order(rows=fresh_rows(4), gate=gate))
    gate.held()
    child.signal(signal.SIGKILL)
    assert child.exit_code() == -signal.SIGKILL
    rows = fresh_rows(2)
    try:
        world.run(rows=rows)
        assert world.rows() == after(None, "append", rows)
        assert world.litter() == []
    finally:
        gate.release()


def test_a_stopped_process_cannot_undo_what_happened_meanwhile(world: World) -> None:
    """Where only one process may have the file, the second is refused and the first goes on."""
    sleeper = Child(world.order(rows=[(1, "sleeper")], pause_at=("staged",)))
    sleeper.reach("staged")
    sleeper.signal(signal.SIGSTOP)
    other = Child(world.order(rows=[(2, "other")])).outcome()
    sleeper.signal(signal.SIGCONT)
    sleeper.go_on()
    woken = sleeper.outcome()
    if other.error is None:
        assert (woken.error, world.rows()) == ("Fenced", [(2, "other")])
    else:
        assert (other.error, other.points) == ("Transient", ())
        assert "in use by another process" in other.text
        assert (woken.error, world.rows()) == (None, [(1, "sleeper")])
    assert world.litter() == []
    assert sorted(r.status for r in world.records()) == ["failed", "succeeded"]


@pytest.mark.in_turn(2)
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "name",
    ["merge", *(pytest.param(n, marks=pytest.mark.soak) for n in ("truncate", "scd2", "events"))],
)
def test_the_loss_of_a_python_worker_leaves_the_target_alone(place: World, name: str) -> None:
    life = Life(place, tale(name))
    life.sync()
    with pytest.raises(EngineError, match="Python worker"):
        life.pipeline(life.arriving(), gate=Trap()).sync()
    life.untouched()
    assert place.litter() == []
    life.sync()
    assert place.litter() == []
