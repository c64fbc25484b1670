"""One slice of a backfill: which rows of the source belong to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow import types as t
from ematix_flow.backends.base import Backend, WatermarkMove
from ematix_flow.model import TargetSpec
from ematix_flow.modes.window import Window
from ematix_flow.run.incoming import PlannedColumn
from ematix_flow.run.reading import Reading, required
from ematix_flow.run.watermarks import alike
from ematix_flow.sql.spark import literal, quote, spark_ddl
from ematix_flow.watermark import canonical_value, greater_value, read_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Slice:
    """The rows of a range; ``window`` is the same range as the mode compares it."""

    given: Window
    kind: t.ColumnType
    window: Window
    move: WatermarkMove | None

    def narrowed(self, reading: Reading, columns: Sequence[PlannedColumn]) -> Reading:
        """Let the source leave out other rows, where it compares as we do."""
        column = self.given.column
        planned = next(c for c in columns if c.column.name == column)
        given = next((c for c in reading.described if c.name == column), None)
        same = given is not None and not planned.column.normalizers and alike(given, self.kind)
        if reading.query is None or given is None or not same:
            return reading
        start, end = self.given.start, self.given.end
        query = required(reading.query)
        return reading.over(reading.source.at_least(query, column, given.type, start, end))

    def filtered(self, rows: DataFrame) -> DataFrame:
        """Exactly the rows of the range, by their final values."""
        column = quote(self.given.column)
        bounds = [f"{column} >= {self._constant(self.given.start)}"]
        if self.given.end is not None:
            bounds.append(f"{column} < {self._constant(self.given.end)}")
        return rows.where(" AND ".join(bounds))

    def _constant(self, value: str) -> str:
        return f"CAST({literal(value)} AS {spark_ddl(self.kind)})"

    def selected(self, select: str | None, sink: Backend) -> str | None:
        """The same of a query that stays in the database."""
        from ematix_flow.backends.sql import SqlBackend

        if select is None or not isinstance(sink, SqlBackend):
            return None
        inside = sink.within(self.given.column, self.kind, self.given.start, self.given.end)
        return f"SELECT * FROM ({select}) AS ranged WHERE {inside}"


def slice_of(
    window: Window, pipeline: str, target: TargetSpec, sink: Backend, *, exists: bool
) -> Slice:
    """A range of a target's column, and what loading it does to the watermark."""
    kind = next(c.type for c in target.table.columns if c.name == window.column)
    held = window
    if target.mode == "scd2":
        # A history is replayed to its end, and by instants, whatever the source calls them.
        window = dataclasses.replace(window, end=None)
        held = dataclasses.replace(window, start=as_instant(window.start, kind))
    return Slice(window, kind, held, _move(window, kind, pipeline, target, sink, exists=exists))


def as_instant(value: str, kind: t.ColumnType) -> str:
    """A date or a timestamp, as canonical text, as the instant that event times are."""
    from datetime import datetime, timezone

    read = read_value(value, kind)
    if not isinstance(read, datetime):
        read = datetime.combine(read, datetime.min.time())
    zoned = read if read.tzinfo else read.replace(tzinfo=timezone.utc)
    return canonical_value(zoned, t.TimestampTZ()) or ""


def _move(
    window: Window,
    kind: t.ColumnType,
    pipeline: str,
    target: TargetSpec,
    sink: Backend,
    *,
    exists: bool,
) -> WatermarkMove | None:
    """Forward only, and only where nothing between the watermark and the range is passed over."""
    options = target.options
    if not options.incremental or options.watermark_column != window.column or not exists:
        return None
    held = sink.watermarks(pipeline, target.table.name, target.prefix).get(window.column)
    if held is None or greater_value(held, window.start, kind) != held:
        return None
    return WatermarkMove(window.column, kind, held)
