"""A table's life, told twice: by the product and by the oracle, compared after every load."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID as Uuid

import pytest

from ematix_flow import EmatixError, ManagedTable
from ematix_flow import types as t
from ematix_flow.change import Counts
from ematix_flow.model import Column, Table
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.result import RunResult
from harness.base import Harness
from oracle.events import EventHistory, tally
from oracle.state import RUN, Outcome, Refused, Row, Run, Tally

OWN: dict[str, t.ColumnType] = {
    "_run_id": t.UUID(),
    "_loaded_at": t.TimestampTZ(),
    "deleted_at": t.TimestampTZ(),
    "gone at": t.TimestampTZ(),
    "valid_from": t.TimestampTZ(),
    "valid_to": t.TimestampTZ(),
    "is_current": t.Boolean(),
    "row_hash": t.String(64),
}
Declare = Callable[..., Pipeline]


class Rule(Protocol):
    """An oracle that goes from one state to the next."""

    def load(self, current: Sequence[Row], incoming: Sequence[Row], run: Run) -> Outcome:
        """The state after a load."""


@dataclasses.dataclass
class Story:
    """One table of one backend, and what the oracle says it holds."""

    backend: Harness
    loader: Declare
    table: type[ManagedTable]
    schema: str
    mode: str = "merge"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rows: list[Row] = dataclasses.field(default_factory=list)

    def pipeline(self, incoming: Sequence[Row], **options: Any) -> Pipeline:
        given = [tuple(r.values()) for r in incoming]
        chosen = {"mode": self.mode, **self.options, **options}
        return self.loader(self.table, given, self.schema, **chosen)

    def load(self, rule: Rule, incoming: Sequence[Row], **options: Any) -> RunResult:
        """Load, and hold the table and the counts to the oracle."""
        result = self.pipeline(incoming, **options).sync()
        found = self.found()
        outcome = rule.load(self.rows, incoming, Run(moment_of(found, result), result.run_id))
        self.rows = outcome.rows
        assert counted(result.counts) == outcome.tally
        assert result.counts.read == len(incoming)
        assert_same(found, self.rows)
        return result

    def foretold(self, rule: Rule, incoming: Sequence[Row], **options: Any) -> None:
        """A dry run counts what a run would do, and does nothing."""
        result = self.pipeline(incoming, **options).dry_run()
        expected = rule.load(self.rows, incoming, Run(datetime.now(timezone.utc)))
        assert counted(result.counts) == expected.tally
        self.untouched()

    def refused(
        self, rule: Rule, incoming: Sequence[Row], error: type[EmatixError], **options: Any
    ) -> tuple[Refused, str]:
        """Both refuse, and nothing has changed; what they say."""
        with pytest.raises(Refused) as verdict:
            rule.load(self.rows, incoming, Run(datetime.now(timezone.utc)))
        with pytest.raises(error) as caught:
            self.pipeline(incoming, **options).sync()
        self.untouched()
        return verdict.value, str(caught.value)

    def untouched(self) -> None:
        """The table is as the oracle last left it, and nothing lies about."""
        connection = self.backend.connection("target")
        if self.rows or self.backend.exists(connection, self.table.__table__.name):
            assert_same(self.found(), self.rows)
        assert self.backend.litter(connection) == []

    def found(self) -> list[Row]:
        return stored_rows(self.backend, self.table.__table__)


@dataclasses.dataclass
class EventStory(Story):
    """The same for events, where the oracle looks at all of them there ever were."""

    mode: str = "scd2"
    seen: list[Row] = dataclasses.field(default_factory=list)

    def arrive(self, rule: EventHistory, events: Sequence[Row], **options: Any) -> RunResult:
        """Load some events, and hold the history and the counts to the oracle."""
        result = self.pipeline(events, **options).sync()
        found = self.found()
        before, self.seen = self.rows, [*self.seen, *events]
        self.rows = rule.versions(self.seen, moment_of(found, result))
        expected = tally(before, self.rows, rule.key)
        assert dataclasses.replace(counted(result.counts), unchanged=0) == expected
        assert result.counts.read == len(events)
        assert_same(found, self.rows, ignoring=("_loaded_at", "_run_id"))
        return result


def moment_of(found: Sequence[Row], result: RunResult) -> datetime:
    """The moment of a run, as the rows that it wrote say; any after it if it wrote none."""
    own = {r["_loaded_at"] for r in found if r["_run_id"] == result.run_id}
    assert len(own) <= 1
    return own.pop() if own else result.finished_at


def stored_rows(backend: Harness, table: Table) -> list[Row]:
    """All rows of a table, the columns that this system adds included, as plain values."""
    declared = set(table.column_names)
    added = tuple(Column(kind, name=name) for name, kind in OWN.items() if name not in declared)
    whole = dataclasses.replace(table, columns=(*table.columns, *added))
    found = backend.rows(backend.connection("target"), whole)
    return [{name: plain(value) for name, value in row.items()} for row in found]


def plain(value: Any) -> Any:
    """A value such that equal means equal: no NaN, no -0.0, no trailing zeros, UTC."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, Decimal):
        return value.normalize() + 0
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc)
    if isinstance(value, Uuid):
        return str(value)
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list | tuple) else value


def counted(counts: Counts) -> Tally:
    """The product's counts in the oracle's words."""
    names = [f.name for f in dataclasses.fields(Tally)]
    return Tally(**{name: getattr(counts, name) for name in names})


def assert_same(
    found: Sequence[Row], expected: Sequence[Row], *, ignoring: Sequence[str] = ("_loaded_at",)
) -> None:
    """Compare as multisets over the columns that the oracle knows."""
    wanted = [{_name(k): plain(v) for k, v in row.items()} for row in expected]
    names = sorted(set(wanted[0]) - set(ignoring)) if wanted else []
    if not wanted:
        assert list(found) == []
        return
    stored = Counter(tuple(row.get(n) for n in names) for row in found)
    meant = Counter(tuple(row[n] for n in names) for row in wanted)
    missing, surplus = meant - stored, stored - meant
    assert (list(missing), list(surplus)) == ([], []), (
        f"columns {names}\nmissing: {_some(missing)}\nsurplus: {_some(surplus)}"
    )


def _name(column: str) -> str:
    return "_run_id" if column == RUN else column


def _some(rows: Counter[tuple[Any, ...]]) -> str:
    return "; ".join(map(repr, sorted(rows, key=repr)[:6])) or "none"
