"""A table's life through runs that die: what the oracle says it holds, and what is found."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.story import assert_same
from crash.racer import loading
from crash.tales import State, Tale
from crash.world import World
from ematix_flow.connections import Connection
from ematix_flow.model import Table
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.records import RunRecord
from oracle.state import Row, Run, Tally


@dataclass
class Life:
    """One tale, told to one backend."""

    world: World
    tale: Tale
    state: State = field(default_factory=State)
    turns: Any = field(default_factory=itertools.count)
    through: Connection | None = None
    dead: int = 0
    counted: Tally | None = None

    @property
    def table(self) -> Table:
        """The table that the tale loads."""
        found: Table = self.tale.table.__table__  # type: ignore[attr-defined]
        return found

    def arriving(self) -> list[Row]:
        """What the next run is given."""
        return self.tale.source(next(self.turns))

    def took(self, rows: list[Row], run_id: str) -> Tally:
        """A run has committed these rows: so the table must hold what the oracle makes of them."""
        found = self.world.standing_rows(self.table)
        assert found is not None
        moments = {r["_loaded_at"] for r in found if r["_run_id"] == run_id}
        assert len(moments) == 1
        self.state, counted = self.tale.rule(self.state, rows, Run(moments.pop(), run_id))
        self.same(found)
        return counted

    def untouched(self) -> None:
        """The table is as the last commit left it; without one there is none."""
        found = self.world.standing_rows(self.table)
        if found is not None or self.state != State():
            self.same(found or [])

    def same(self, found: list[Row]) -> None:
        """The rows and the watermark are the oracle's."""
        assert_same(found, self.state.rows, ignoring=self.tale.ignoring)
        mark = None if self.state.mark is None else str(self.state.mark)
        assert self.world.watermark(self.table, f"tell_{self.tale.name}", "at") == mark

    def pipeline(self, rows: list[Row], **details: Any) -> Pipeline:
        """A run of this process."""
        target = self.through or self.world.target
        return loading(target, self.world.home, **self.tale.order(rows), **details)

    def sync(self) -> None:
        """The next run, in this process, must succeed."""
        rows = self.arriving()
        self.took(rows, self.pipeline(rows).sync().run_id)

    def run(self) -> list[str]:
        """The next run, in a process of its own, must succeed and leave nothing behind."""
        return run_all([self])

    def die(self, point: str) -> None:
        """The next run kills its process at a point: the target is as before or as after."""
        rows = self.arriving()
        self.dead = self.world.kill(point, **self.tale.order(rows))
        self.counted = None
        if point == "committed":
            self.counted = self.took(rows, self.world.record(self.dead).run_id)
        else:
            self.untouched()
        assert self.world.shown(self.dead) == "lost"

    def settled(self) -> None:
        """After the next run, the log says what became of the one that died."""
        record = self.world.record(self.dead)
        if self.counted is None:
            assert (record.status, tally_of(record), record.rows_read) == ("failed", Tally(), 0)
            assert "died before its commit" in str(record.error_text)
        else:
            counted = replace(self.counted, unchanged=0)
            assert (record.status, tally_of(record)) == ("succeeded", counted)
            assert record.error_text is None


def run_all(lives: Sequence[Life]) -> list[str]:
    """The next run of each, all in one process; the points announced, by their first words."""
    world = lives[0].world
    given = [life.arriving() for life in lives]
    orders = [world.order(**life.tale.order(rows)) for life, rows in zip(lives, given, strict=True)]
    outcomes = world.run_all(orders)
    for life, rows, outcome in zip(lives, given, outcomes, strict=True):
        assert outcome.result is not None
        life.took(rows, outcome.result["run_id"])
        # Files that a reader finds without asking a manifest are the same rows.
        life.same(world.stored(life.table))
    assert world.litter() == []
    return list(dict.fromkeys(p.split()[0] for outcome in outcomes for p in outcome.points))


def tally_of(record: RunRecord) -> Tally:
    """What the log says that a run did; oracles that look at sets know of nothing unchanged."""
    return Tally(
        inserted=record.rows_inserted,
        updated=record.rows_updated,
        closed=record.rows_closed,
        deleted=record.rows_deleted,
    )
