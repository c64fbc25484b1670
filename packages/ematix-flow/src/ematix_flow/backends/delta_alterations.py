"""A Delta table under a load's alterations: how its rows read, and what they become.

A column that rows are only appended to is added by Delta itself. Any other change writes the table
anew in the load's own commit, so that no reader ever meets half of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow import types as t
from ematix_flow.backends.base import Alteration
from ematix_flow.backends.delta_log import DeltaColumn, type_metadata
from ematix_flow.engine.failures import translate
from ematix_flow.errors import DataError, SchemaDrift
from ematix_flow.model import Column
from ematix_flow.sql.spark import assign, quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TEXTS = ("text", "string")
_CORRECT = "correct those values first, or change the declaration"


@dataclass(frozen=True)
class HeldColumn:
    """A column after all alterations; ``value`` is Spark SQL over the rows as they are stored."""

    name: str
    value: str
    stored: str
    metadata: Mapping[str, Any]


def altered_columns(
    columns: Sequence[DeltaColumn], alterations: Sequence[Alteration]
) -> list[HeldColumn]:
    """The columns of a table after its alterations, in their order."""
    renamed = {a.before: a.column for a in alterations if a.act == "rename"}
    dropped = {a.column for a in alterations if a.act == "drop"}
    retyped = {a.column: a for a in alterations if a.act == "retype"}
    held = []
    for column in columns:
        name = renamed.get(column.name, column.name)
        change = retyped.get(name)
        kind, value, stored = column.type, quote(column.name), column.stored
        if change is not None and change.type is not None and change.was is not None:
            kind, stored = change.type, spark_ddl(change.type)
            value = _converted(name, value, change.was, change.type)
        known = kind is not None and spark_ddl(kind) == stored
        metadata = {**column.notes, **(type_metadata(kind) if kind and known else {})}
        if column.name not in dropped:
            held.append(HeldColumn(name, value, stored, metadata))
    for a in alterations:
        if a.act == "add" and a.type is not None:
            stored = spark_ddl(a.type)
            missing = f"CAST(NULL AS {stored})"
            held.append(HeldColumn(a.column, missing, stored, type_metadata(a.type)))
    return held


def _converted(name: str, value: str, was: t.ColumnType, new: t.ColumnType) -> str:
    if was.kind in _TEXTS or isinstance(new, t.String):
        return assign(Column(new, name=name), value, was)
    return f"CAST({value} AS {spark_ddl(new)})"


def altered(rows: DataFrame, columns: Sequence[HeldColumn]) -> DataFrame:
    """Stored rows as they read after the alterations."""
    return rows.selectExpr(*(f"{c.value} AS {quote(c.name)}" for c in columns))


def refuse_unfit(rows: DataFrame, alterations: Sequence[Alteration], place: str) -> None:
    """Refuse alterations to which the stored rows do not agree."""
    for a in alterations:
        condition, said = _objection(a, is_new=a.before not in rows.columns)
        count = rows.where(condition).count() if condition else 0
        if count:
            shown = "1 row" if count == 1 else f"{count} rows"
            raise SchemaDrift(
                place,
                [f"column {a.column!r} {said} {shown}"],
                fix=_CORRECT,
            )
        if a.act == "retype" and a.risky:
            _convert(rows, a, place)


def _convert(rows: DataFrame, a: Alteration, place: str) -> None:
    """Let Spark read every stored text as what it is to become, and say which it cannot."""
    if a.was is None or a.type is None or a.was.kind not in _TEXTS:
        return
    try:
        rows.selectExpr(f"count({_converted(a.column, quote(a.before), a.was, a.type)})").first()
    except Exception as error:
        known = translate(error)
        if not isinstance(known, DataError):
            raise
        raise SchemaDrift(place, [f"of the stored rows, {known.what}"], fix=_CORRECT) from error


def _objection(a: Alteration, *, is_new: bool) -> tuple[str | None, str]:
    value = quote(a.before)
    if a.act == "require":
        said = "is declared NOT NULL but would be NULL in"
        return ("true" if is_new else f"{value} IS NULL"), said
    # Of text that cannot be read as another type, the value itself is shown.
    convertible = a.was is not None and a.was.kind not in _TEXTS
    if a.act == "retype" and a.risky and convertible and a.was and a.type:
        there = f"try_cast({value} AS {spark_ddl(a.type)})"
        back = f"try_cast({there} AS {spark_ddl(a.was)})"
        longer = (
            f" OR char_length({there}) > {a.type.length}" if isinstance(a.type, t.String) else ""
        )
        said = f"cannot become {a.type} because of its value in"
        return f"NOT ({back} <=> {value}){longer}", said
    return None, ""


def is_only_wider(alterations: Sequence[Alteration]) -> bool:
    """Whether columns are added and nothing else happens."""
    return all(a.act == "add" for a in alterations)


def alteration_sql(table: str, alteration: Alteration) -> str:
    """One alteration as a user of Delta would write it."""
    column = quote(alteration.column)
    kind = spark_ddl(alteration.type) if alteration.type else ""
    acts = {
        "rename": f"RENAME COLUMN {quote(alteration.before)} TO {column}",
        "drop": f"DROP COLUMN {column}",
        "retype": f"ALTER COLUMN {column} TYPE {kind}",
        "relax": f"ALTER COLUMN {column} DROP NOT NULL",
        "add": f"ADD COLUMN {column} {kind}",
        "require": f"ALTER COLUMN {column} SET NOT NULL",
    }
    return f"ALTER TABLE {table} {acts[alteration.act]}"
