"""SIGKILL at every point a run announces: the target is before or after, and the log is true."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from crash.child import Events, Others
from crash.world import World, after, first_of_their_kind, plain
from ematix_flow.backends.loading import load_backend
from harness.base import all_harnesses

pytestmark = pytest.mark.slow

VERBS = {"append": "insert", "truncate": "replace"}
BEFORE_THE_COMMIT = ("staging", "staged", "committing")
ORDER = [cls.name for cls in all_harnesses()]

_numbers = itertools.count(1)


def fresh_rows(count: int) -> list[tuple[int, str | None]]:
    """Rows that no other run of this session loads."""
    return [(next(_numbers), text) for text in ("a", None, "", "d", "e")[:count]]


def announced(world: World, mode: str = "append") -> list[str]:
    """Load some rows; the points that the target announces on the way, by their first word."""
    points = world.run(rows=fresh_rows(3), mode=mode).points
    kinds = list(dict.fromkeys(p.split()[0] for p in points))
    assert {*BEFORE_THE_COMMIT, "committed"} <= {*kinds}
    assert kinds[-1] == "committed"
    return kinds


def modes_of(world: World) -> list[str]:
    """The modes that the target declares."""
    verbs = load_backend(world.target).capabilities.verbs
    return [mode for mode, verb in VERBS.items() if verb in verbs]


def kill_and_recover(world: World, point: str, mode: str) -> None:
    """A run dies at a point; the target, the next run and the log are what they must be."""
    before, rows = world.standing(), fresh_rows(4)
    pid = world.kill(point, mode=mode, rows=rows)

    committed = point == "committed"
    found = world.standing()
    assert found == (after(before, mode, rows) if committed else before)
    assert world.shown(pid) == "lost"

    more = fresh_rows(2)
    world.run(mode="append", rows=more)
    assert world.rows() == after(found, "append", more)
    assert world.litter() == []

    settled = world.record(pid)
    counts = (settled.rows_read, settled.rows_inserted, settled.rows_deleted)
    if committed:
        gone = len(before or ()) if mode == "truncate" else 0
        assert (settled.status, *counts) == ("succeeded", 4, 4, gone)
        assert settled.error_text is None
    else:
        assert (settled.status, *counts) == ("failed", 0, 0, 0)
        assert "died before its commit" in str(settled.error_text)


@pytest.mark.every_harness
def test_a_killed_run_leaves_before_or_after(world: World) -> None:
    """Every point once for every kind of target, the modes by turns.

    The second and later harnesses of a kind take one point each; ``make soak`` takes all.
    """
    turn = ORDER.index(world.backend.name)
    points, modes = announced(world), modes_of(world)
    chosen = [(point, modes[(turn + n) % len(modes)]) for n, point in enumerate(points)]
    if world.backend.name not in first_of_their_kind():
        chosen = [chosen[turn % len(chosen)]]
    for point, mode in chosen:
        kill_and_recover(world, point, mode)


@pytest.mark.soak
@pytest.mark.every_harness
@pytest.mark.timeout(1200)
def test_a_run_killed_at_any_point_in_any_mode(world: World) -> None:
    for mode in modes_of(world):
        for point in announced(world, mode):
            kill_and_recover(world, point, mode)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point == "committing" else pytest.mark.soak)
        for point in BEFORE_THE_COMMIT
    ],
)
def test_a_first_run_that_is_killed_leaves_no_table(world: World, point: str) -> None:
    kill_and_recover(world, point, "append")


@pytest.mark.needs("source")
def test_what_a_killed_run_had_read_is_swept(world: World) -> None:
    """A source that spools its rows leaves them in the temporary folder when it is killed."""
    source = world.backend.connection("source")
    rows = fresh_rows(3)
    # The pipeline reads "source" through its own backend, so it is filled through it too.
    held = World(world.backend, world.home, world.scratch, world.remote, place="source")
    held.run(rows=rows, pipeline="fill_source")
    copy = {
        "connections": (world.target, source),
        "source_table": world.backend.spelled(Events.__table__.name),
        "pipeline": "copy_events",
    }
    pid = world.kill("staged", **copy)
    assert world.standing() is None
    world.run(**copy)
    assert world.rows() == after(None, "append", rows)
    assert world.litter() == []
    assert world.record(pid).status == "failed"


@pytest.mark.needs("same_database")
@pytest.mark.parametrize("point", ["applied", "committed"])
def test_a_copy_inside_one_database_that_is_killed(world: World, point: str) -> None:
    """Without Spark, and so without a stage: the transaction alone must hold."""
    rows = fresh_rows(3)
    world.run(rows=rows)
    here = [dataclasses.replace(world.target, name=name) for name in ("source", "target")]
    copy = {
        "connections": tuple(here),
        "source_table": world.backend.spelled(Events.__table__.name),
        "table": Others,
        "pipeline": "copy_events",
        "options": {"force_path": "same_db"},
    }
    pid = world.kill(point, **copy)
    committed = point == "committed"
    assert world.backend.exists(world.target, Others.__table__.name) == committed
    outcome = world.run(**copy)
    assert outcome.result is not None
    assert outcome.result["path"] == "same_db"
    found = plain(world.backend.rows(world.target, Others.__table__))
    assert found == sorted([*rows, *(rows if committed else ())], key=repr)
    assert world.litter() == []
    settled = world.record(pid)
    assert settled.status == ("succeeded" if committed else "failed")
    assert settled.rows_inserted == (3 if committed else 0)
