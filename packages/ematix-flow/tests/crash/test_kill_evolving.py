"""SIGKILL while a table is being altered: it is the old one, and the next run finishes the work."""

from __future__ import annotations

from typing import Any

import pytest

from crash.world import World
from ematix_flow import BigInt, Integer, String, Text, ematix
from ematix_flow.backends.loading import load_backend

pytestmark = pytest.mark.slow


@ematix.table(schema="app", name="growing")
class Small:
    event_id: Integer
    name: String[3] | None


@ematix.table(schema="app", name="growing")
class Grown:
    event_id: BigInt
    title: Text | None
    note: Text | None


OLD = [(1, "a"), (2, None)]
NEW = [(2**40, "longer", "n")]
EVOLVING: dict[str, Any] = {
    "table": Grown,
    "rows": NEW,
    "schema": "event_id BIGINT, title STRING, note STRING",
    "options": {"on_drift": "evolve", "allow": ["rename:name->title"]},
}
ACTS = {"add", "retype", "rename"}


def standing(world: World, table: Any, *names: str) -> list[tuple[Any, ...]]:
    found = world.standing_rows(table.__table__)
    assert found is not None
    return sorted((tuple(row.get(n) for n in names) for row in found), key=repr)


@pytest.mark.timeout(300)
def test_a_run_killed_while_it_alters_its_table(world: World) -> None:
    if not load_backend(world.target).capabilities.alterations >= ACTS:
        return
    first = world.run(table=Small, rows=OLD, schema="event_id INT, name STRING")
    points = {point.split()[0] for point in first.points}
    for point in ("staged", "committing", "applied"):
        if point in points:
            world.kill(point, **EVOLVING)
            # Some products alter outside of transactions; the rows are the old ones in any case.
            assert len(standing(world, Small, "event_id")) == len(OLD)
    world.run(**EVOLVING)
    expected = [(1, "a", None), (2, None, None), *NEW]
    assert standing(world, Grown, "event_id", "title", "note") == sorted(expected, key=repr)
    assert world.litter() == []
