"""A table of files after a load's alterations: new columns in place, everything else anew.

A column that is added costs nothing, old files read as NULL there. Any other change writes the
table's files again, so that every program that reads them sees one kind of file.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow import types as t
from ematix_flow.backends.file_sources import load_manifest
from ematix_flow.backends.manifest import DataFile, Manifest, StoredColumn
from ematix_flow.change import CURRENT
from ematix_flow.errors import DataError, SchemaDrift
from ematix_flow.model import Column
from ematix_flow.sql.spark import assign, literal, quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.base import Alteration, Load

    Write = Callable[["DataFrame", str, Sequence[tuple[str, t.ColumnType]]], list[DataFile]]

_MOST_DIGITS = t.Numeric(t.Numeric.max_precision, 0)


def altered_columns(
    columns: Sequence[StoredColumn], alterations: Sequence[Alteration]
) -> tuple[StoredColumn, ...]:
    """The columns of a table after its alterations, in their order."""
    held = {c.name: c for c in columns}
    for a in alterations:
        if a.relation != CURRENT:
            continue
        if a.act == "drop":
            held.pop(a.column, None)
        elif a.act == "rename":
            held = {
                (a.column if n == a.before else n): dataclasses.replace(
                    c, name=a.column if n == a.before else n
                )
                for n, c in held.items()
            }
        elif a.type is not None:
            nullable = held[a.column].nullable if a.column in held else a.nullable
            held[a.column] = StoredColumn(a.column, a.type, nullable)
    return tuple(held.values())


def rewrites(load: Load) -> bool:
    """Whether old files cannot stay as they are."""
    return any(a.act in ("rename", "drop", "retype") for a in load.alterations)


def refuse_missing_values(load: Load, before: Manifest, place: str) -> None:
    """A new column that must have a value has none in rows that exist."""
    for a in load.alterations:
        if a.act == "require" and before.rows:
            shown = "1 row" if before.rows == 1 else f"{before.rows} rows"
            raise SchemaDrift(
                place,
                [f"column {a.column!r} is declared NOT NULL but would be NULL in {shown}"],
                fix="correct those values first, or change the declaration",
            )


def rewritten(
    spark: SparkSession, folder: Path, before: Manifest, load: Load, write: Write
) -> Manifest:
    """The table's rows, and those kept beside it, in files that have the new columns."""
    after = altered_columns(before.columns, load.alterations)
    rows = load_manifest(spark, folder, before)
    converted = _converted(rows, after, load.alterations)
    with _stored_values(str(folder)):
        files = write(converted, "evolved", [(c.name, c.type) for c in after])
    side = before.side
    if load.side is not None and side:
        new = tuple(StoredColumn(c.name, c.type, c.nullable) for c in load.side.columns)
        old = _columns_before(new, load.alterations)
        beside = load_manifest(spark, folder, Manifest(old, side))
        converted = _converted(beside, new, load.alterations)
        side = tuple(write(converted, "side-evolved", [(c.name, c.type) for c in new]))
    return dataclasses.replace(before, columns=after, files=tuple(files), side=side)


@contextlib.contextmanager
def _stored_values(place: str) -> Iterator[None]:
    """A value that does not fit is one of the table's, not of the source."""
    from ematix_flow.engine.failures import translate

    try:
        yield
    except Exception as error:
        known = translate(error, connection=place)
        if not isinstance(known, DataError):
            raise
        raise SchemaDrift(
            place,
            [f"of the stored rows, {known.what}"],
            fix="correct those values first, or change the declaration",
        ) from error


def _columns_before(
    columns: Sequence[StoredColumn], alterations: Sequence[Alteration]
) -> tuple[StoredColumn, ...]:
    names = {a.column: a.before for a in alterations if a.act == "rename"}
    types = {a.column: a.was for a in alterations if a.act == "retype"}
    added = {a.column for a in alterations if a.act == "add"}
    return tuple(
        StoredColumn(names.get(c.name, c.name), types.get(c.name) or c.type, c.nullable)
        for c in columns
        if c.name not in added
    )


def _converted(
    rows: DataFrame, after: Sequence[StoredColumn], alterations: Sequence[Alteration]
) -> DataFrame:
    names = {a.column: a.before for a in alterations if a.act == "rename"}
    types = {a.column: a.was for a in alterations if a.act == "retype"}
    items = []
    for column in after:
        before = names.get(column.name, column.name)
        was = types.get(column.name)
        if before not in rows.columns:
            value = f"CAST(NULL AS {spark_ddl(column.type)})"
        elif was is None:
            value = quote(before)
        else:
            value = _exactly(column.name, quote(before), was, column.type)
        items.append(f"{value} AS {quote(column.name)}")
    return rows.selectExpr(*items)


def _exactly(name: str, value: str, was: t.ColumnType, new: t.ColumnType) -> str:
    """A stored value as one of the new type; one that would not be the same stops the load."""
    if isinstance(was, t.Double) and isinstance(new, t.Float):
        said = literal(f"column {name!r}: a value is not an exact {new}")
        single = f"CAST({value} AS FLOAT)"
        same = f"{value} <=> CAST({single} AS DOUBLE)"
        return f"CASE WHEN {same} THEN {single} ELSE raise_error({said}) END"
    if isinstance(was, t.Numeric) and isinstance(new, t.SmallInt | t.Integer | t.BigInt):
        value = assign(Column(_MOST_DIGITS, name=name), value, was)
        was = _MOST_DIGITS
    return assign(Column(new, name=name), value, was)
