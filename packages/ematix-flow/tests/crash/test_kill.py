"""SIGKILL at every point a run announces: the target is before or after, and the log is true."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest

from crash.child import Events, Others
from crash.life import Life, run_all
from crash.tales import TALES
from crash.world import World, after, plain
from ematix_flow.backends.loading import load_backend
from harness.base import all_harnesses

pytestmark = pytest.mark.slow

BEFORE_THE_COMMIT = ("staging", "staged", "committing")
ORDER = [cls.name for cls in all_harnesses()]

_numbers = itertools.count(1)


def fresh_rows(count: int) -> list[tuple[int, str | None]]:
    """Rows that no other run of this session loads."""
    return [(next(_numbers), text) for text in ("a", None, "", "d", "e")[:count]]


def lives_in(world: World) -> list[Life]:
    """A life for each mode that the target declares."""
    verbs = load_backend(world.target).capabilities.verbs
    return [Life(world, tale) for tale in TALES if tale.verb in verbs]


def begin(lives: Sequence[Life]) -> list[str]:
    """Load each table for the first time; the points at which its runs can be killed."""
    points = run_all(lives)
    assert {*BEFORE_THE_COMMIT, "committed"} <= {*points}
    assert points[-1] == "committed"
    return points


def kill(deaths: Sequence[tuple[Life, str]]) -> None:
    """A run of each life dies at a point; then all go on."""
    for life, point in deaths:
        life.die(point)
    run_all([life for life, _ in deaths])
    for life, _ in deaths:
        life.settled()


@pytest.mark.timeout(600)
def test_a_killed_run_leaves_before_or_after(world: World) -> None:
    """Every point and every mode once for every kind of target; ``make soak`` takes all pairs.

    Where Spark computes the change, kinds share the modes: each takes as many as it has points.
    """
    turn = ORDER.index(world.backend.name)
    lives = lives_in(world)
    if world.backend.by_spark:
        # From the third on, so that the one that commits two tables is tried on each kind.
        lives = [lives[(turn + 2 + n) % len(lives)] for n in range(len(BEFORE_THE_COMMIT) + 1)]
    points = begin(lives)
    pairs = [
        (lives[(turn + n) % len(lives)], points[n % len(points)])
        for n in range(max(len(points), len(lives)))
    ]
    for first in range(0, len(pairs), len(lives)):
        kill(pairs[first : first + len(lives)])


@pytest.mark.soak
@pytest.mark.every_harness
@pytest.mark.timeout(3600)
def test_a_run_killed_at_any_point_in_any_mode(world: World) -> None:
    lives = lives_in(world)
    for point in begin(lives):
        kill([(life, point) for life in lives])


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point == "committing" else pytest.mark.soak)
        for point in BEFORE_THE_COMMIT
    ],
)
def test_a_first_run_that_is_killed_leaves_no_table(world: World, point: str) -> None:
    """The mode with the most to create: of its two tables there is neither."""
    lives = {life.tale.name: life for life in lives_in(world)}
    life = lives.get("events", lives["append"])
    life.die(point)
    assert world.standing_rows(life.table) is None
    life.run()
    life.settled()


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
def test_a_copy_inside_one_database_that_is_killed(world: World) -> None:
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
    died = world.kill("applied", **copy)
    assert not world.backend.exists(world.target, Others.__table__.name)
    committed = world.kill("committed", **copy)
    assert plain(world.backend.rows(world.target, Others.__table__)) == sorted(rows, key=repr)
    outcome = world.run(**copy)
    assert outcome.result is not None
    assert outcome.result["path"] == "same_db"
    found = plain(world.backend.rows(world.target, Others.__table__))
    assert found == sorted([*rows, *rows], key=repr)
    assert world.litter() == []
    settled = [world.record(pid) for pid in (died, committed)]
    assert [r.status for r in settled] == ["failed", "succeeded"]
    assert [r.rows_inserted for r in settled] == [0, 3]
