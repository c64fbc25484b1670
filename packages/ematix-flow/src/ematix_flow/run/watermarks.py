"""Incremental loads: from which value of the watermark column a run reads on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow import types as t
from ematix_flow.backends.base import Backend, SourceColumn, WatermarkMove
from ematix_flow.change import Assertion
from ematix_flow.errors import DataError
from ematix_flow.model import TargetSpec, merge_key
from ematix_flow.modes.arriving import no_null
from ematix_flow.modes.base import Reach
from ematix_flow.run.incoming import PlannedColumn
from ematix_flow.run.reading import Reading, required
from ematix_flow.sql.spark import literal, quote, spark_ddl
from ematix_flow.watermark import lowered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WHOLE = ("small_int", "integer", "big_int")


@dataclass(frozen=True)
class Since:
    """Where an incremental load begins: at ``start``, which is the watermark less the lookback."""

    column: str
    kind: t.ColumnType
    value: str | None
    start: str | None
    loads_null: bool

    @property
    def reach(self) -> Reach:
        """How far the target has been loaded."""
        return Reach(self.column, self.value)

    @property
    def move(self) -> WatermarkMove:
        """What the commit does with the watermark."""
        return WatermarkMove(self.column, self.kind, self.value)

    def guards(self) -> tuple[Assertion, ...]:
        """Rows without a watermark would be lost, or loaded again and again."""
        if self.loads_null:
            return ()
        fix = 'leave those rows out in the source SQL, or load them with null_watermark="load"'
        return (no_null(self.column, f"watermark column {self.column!r}", fix=fix),)

    def narrowed(self, reading: Reading, columns: Sequence[PlannedColumn]) -> Reading:
        """Let the source leave out what has been read, where it compares as we do."""
        if self.start is None or reading.query is None:
            return reading
        planned = next(c for c in columns if c.column.name == self.column)
        given = next((c for c in reading.described if c.name == self.column), None)
        if given is None or planned.column.normalizers or not alike(given, self.kind):
            return reading
        query = required(reading.query)
        return reading.over(reading.source.at_least(query, self.column, given.type, self.start))

    def filtered(self, rows: DataFrame) -> DataFrame:
        """The rows from the start on; those without a watermark stay, to be counted or loaded."""
        if self.start is None:
            return rows
        column = quote(self.column)
        start = f"CAST({literal(self.start)} AS {spark_ddl(self.kind)})"
        return rows.where(f"{column} >= {start} OR {column} IS NULL")


def alike(given: SourceColumn, kind: t.ColumnType) -> bool:
    """Whether a source compares values of its column as the target's column does."""
    if not given.stated:
        return False
    whole = given.type.kind in _WHOLE and kind.kind in _WHOLE
    texts = {given.type.kind, kind.kind} <= {"text", "string"}
    return whole or texts or given.type.kind == kind.kind


def since(pipeline: str, target: TargetSpec, sink: Backend, *, exists: bool) -> Since | None:
    """Where a run of this pipeline begins to read for this target; None if it reads all."""
    options = target.options
    if not options.incremental or options.watermark_column is None:
        return None
    kind = next(c.type for c in target.table.columns if c.name == options.watermark_column)
    held = sink.watermarks(pipeline, target.table.name, target.prefix) if exists else {}
    value = held.get(options.watermark_column)
    if exists and value is None and target.mode == "append":
        _refuse_strangers(pipeline, target, sink)
    start = value
    if value is not None and options.lookback is not None:
        start = lowered(value, options.lookback, kind)
    return Since(
        options.watermark_column, kind, value, start, loads_null=options.null_watermark == "load"
    )


def _refuse_strangers(pipeline: str, target: TargetSpec, sink: Backend) -> None:
    """Without a key, rows at a watermark are told apart by counting, and all count alike."""
    name = target.table.name
    if merge_key(target.table, target.options.keys):
        return
    others = sorted(sink.pipelines(name, target.prefix) - {pipeline})
    if others:
        raise DataError(
            f"pipeline {pipeline!r} would begin to append to {name}, which has no key and which "
            f"{', '.join(map(repr, others))} loads too: rows of one could pass for rows of the "
            "other, and under a new name everything would be loaded again",
            fix="declare a key, load into a table of its own, or say where it begins with "
            f"`flow watermark set {pipeline} --value V`",
        )
