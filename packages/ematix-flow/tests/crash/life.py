"""A table's life through runs that die: what the oracle says it holds, and what is found."""

from __future__ import annotations

import itertools
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

    def run(self) -> None:
        """The next run, in a process of its own, must succeed and leave nothing behind."""
        rows = self.arriving()
        outcome = self.world.run(**self.tale.order(rows))
        assert outcome.result is not None
        self.took(rows, outcome.result["run_id"])
        # Files that a reader finds without asking a manifest are the same rows.
        self.same(self.world.stored(self.table))
        assert self.world.litter() == []

    def killed(self, point: str) -> None:
        """A run dies at a point; the target, the next run and the log are what they must be."""
        rows = self.arriving()
        pid = self.world.kill(point, **self.tale.order(rows))
        counted = None
        if point == "committed":
            counted = self.took(rows, self.world.record(pid).run_id)
        else:
            self.untouched()
        assert self.world.shown(pid) == "lost"
        self.run()
        settled = self.world.record(pid)
        if counted is None:
            assert (settled.status, tally_of(settled), settled.rows_read) == ("failed", Tally(), 0)
            assert "died before its commit" in str(settled.error_text)
        else:
            assert (settled.status, tally_of(settled)) == (
                "succeeded",
                replace(counted, unchanged=0),
            )
            assert settled.error_text is None


def tally_of(record: RunRecord) -> Tally:
    """What the log says that a run did; oracles that look at sets know of nothing unchanged."""
    return Tally(
        inserted=record.rows_inserted,
        updated=record.rows_updated,
        closed=record.rows_closed,
        deleted=record.rows_deleted,
    )
