"""The rows as they are staged: normalized, assigned to their columns, with what a mode needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.backends.base import SourceColumn
from ematix_flow.engine.failures import translate
from ematix_flow.errors import DataError, DeclarationError, SourceLocation
from ematix_flow.model import (
    DELETED_COLUMN,
    EVENT_AT_COLUMN,
    ROW_HASH_COLUMN,
    Column,
    LoadOptions,
    PipelineSpec,
)
from ematix_flow.run.reading import derived, no_such_column
from ematix_flow.sql.hashing import row_hash
from ematix_flow.sql.identifiers import column as column_reference
from ematix_flow.sql.normalizers import compile_chain
from ematix_flow.sql.spark import assign, from_spark, quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMPUTED = (ROW_HASH_COLUMN, EVENT_AT_COLUMN, DELETED_COLUMN)


@dataclass(frozen=True)
class PlannedColumn:
    """A declared column and how its value comes about on the Spark path.

    ``normalized_type`` is None where only Spark knows it.
    """

    column: Column
    source_type: t.ColumnType | None
    normalized: str
    normalized_type: t.ColumnType | None

    def assigned(self, rows: DataFrame) -> str:
        """Spark SQL for the column's final value, over the normalized rows."""
        known = self.normalized_type
        if known is None:
            known = from_spark(rows.schema[self.column.name].dataType) or t.Text()
            check_assignable(self.column, known)
        return assign(self.column, quote(self.column.name), known)


def plan_columns(
    spec: PipelineSpec, columns: Sequence[Column], described: Sequence[SourceColumn]
) -> tuple[PlannedColumn, ...]:
    """How every declared column that the source gives comes about."""
    types = _types_by_name(spec, described)
    return tuple(_plan_column(spec, column, types) for column in columns)


def _types_by_name(
    spec: PipelineSpec, described: Sequence[SourceColumn]
) -> dict[str, t.ColumnType]:
    names = [c.name for c in described]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise DataError(
            f"the source of pipeline {spec.name!r} has two columns named {twice[0]!r}",
            fix="give one of them another name with AS",
            where=spec.location,
        )
    return {c.name: c.type for c in described}


def _plan_column(
    spec: PipelineSpec, column: Column, types: Mapping[str, t.ColumnType]
) -> PlannedColumn:
    if column.name not in types and not derived(column):
        raise no_such_column(spec, column.name, types)
    source_type = types.get(column.name, t.Text())
    reference = column_reference(column.name)
    try:
        compiled = compile_chain(column.normalizers, reference, source_type, dialect="spark")
    except DeclarationError as error:
        error.where = error.where or spec.location
        raise
    result = compiled.type
    if result is not None:
        check_assignable(column, result, spec.location)
    local = any(n.name == "to_timezone" for n in column.normalizers)
    if local and isinstance(column.type, t.TimestampTZ):
        raise DataError(
            f"column {column.name!r}: to_timezone() gives local time without a zone, which a "
            "TimestampTZ column would take for UTC",
            fix="declare the column Timestamp, or remove to_timezone()",
            where=spec.location,
        )
    if column.normalizers:
        text = _naming(column, compiled.expression).sql(dialect="spark")
    else:
        text = quote(column.name)
    return PlannedColumn(column, types.get(column.name), text, result)


def _naming(column: Column, expression: exp.Expression) -> exp.Expression:
    """Let what the normalizers refuse say which column it is about."""
    named = expression.copy()
    for call in named.find_all(exp.Anonymous):
        if call.name.upper() == "RAISE_ERROR" and call.expressions:
            place = exp.Literal.string(f"column {column.name!r}: ")
            said = exp.Anonymous(this="CONCAT", expressions=[place, call.expressions[0].copy()])
            call.set("expressions", [said])
    return named


def check_assignable(
    column: Column, source: t.ColumnType, where: SourceLocation | None = None
) -> None:
    """Refuse a column whose source can never be put into it."""
    if not t.assignable(source, column.type):
        raise DataError(
            f"column {column.name!r} is declared {column.type}, but its source is {source}",
            fix="cast it in the source SQL, or change the declaration",
            where=where,
        )


def normalized(rows: DataFrame, columns: Sequence[PlannedColumn]) -> DataFrame:
    """The declared columns with their normalizers applied, beside what else the source gives."""
    declared = {c.column.name for c in columns}
    items = [f"{c.normalized} AS {quote(c.column.name)}" for c in columns]
    items += [quote(name) for name in rows.columns if name not in declared]
    return rows.selectExpr(*items)


def assigned_early(
    rows: DataFrame, columns: Sequence[PlannedColumn], name: str
) -> tuple[DataFrame, tuple[PlannedColumn, ...]]:
    """The rows with the final value of one column already in its place."""
    early = next(c for c in columns if c.column.name == name)
    items = [
        f"{early.assigned(rows)} AS {quote(name)}" if held == name else quote(held)
        for held in rows.columns
    ]
    done = dataclasses.replace(early, normalized_type=early.column.type)
    return rows.selectExpr(*items), tuple(done if c is early else c for c in columns)


def _deletes(rows: DataFrame, text: str) -> str:
    """``delete_when`` as a value; Spark says what is wrong with it in the user's own words."""
    told = f"coalesce((\n{text}\n), false)"
    try:
        rows.selectExpr(told).schema  # noqa: B018 - over Connect only this asks Spark
    except Exception as error:
        known = translate(_first_failure(rows, text) or error)
        known.what = f"delete_when={text!r}: {known.what}"
        raise known from error
    return told


def _first_failure(rows: DataFrame, text: str) -> Exception | None:
    try:
        rows.where(f"(\n{text}\n)").schema  # noqa: B018 - as above
    except Exception as error:  # noqa: BLE001 - it is told by the caller
        return error
    return None


def staged(
    rows: DataFrame,
    columns: Sequence[PlannedColumn],
    incoming: Sequence[Column],
    options: LoadOptions,
) -> DataFrame:
    """Normalized rows as they are staged: every value assigned to its declared column."""
    wanted = {c.name for c in incoming}
    items = [f"{c.assigned(rows)} AS {quote(c.column.name)}" for c in columns]
    if DELETED_COLUMN in wanted:
        told = _deletes(rows, options.delete_when) if options.delete_when else "false"
        items.append(f"{told} AS {quote(DELETED_COLUMN)}")
    assigned = rows.selectExpr(*items)
    values = {name: quote(name) for name in assigned.columns}
    if ROW_HASH_COLUMN in wanted:
        values[ROW_HASH_COLUMN] = row_hash({c.column.name: c.column.type for c in columns})
    if EVENT_AT_COLUMN in wanted:
        event = quote(options.event_timestamp_column or "")
        values[EVENT_AT_COLUMN] = f"CAST({event} AS {spark_ddl(t.TimestampTZ())})"
    return assigned.selectExpr(*(f"{values[c.name]} AS {quote(c.name)}" for c in incoming))
