"""``transforms_pre``: what is done to the normalized rows before they are assigned and staged.

By Spark, or, where a database does exactly the same, as SQL inside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.connections import nearest
from ematix_flow.declaring_transforms import shown
from ematix_flow.engine.failures import translate
from ematix_flow.errors import DataError, DeclarationError, EmatixError, SourceLocation
from ematix_flow.redaction import redact_text
from ematix_flow.run.function import function_frame
from ematix_flow.run.reading import persisted
from ematix_flow.sql.identifiers import quoted
from ematix_flow.sql.normalizers import CannotMatch
from ematix_flow.sql.predicates import columns_in, condition, ordering, portable
from ematix_flow.sql.spark import quote
from ematix_flow.transforms import (
    DeduplicateBy,
    FilterWhere,
    Limit,
    RowTransform,
    SamplePercent,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.run.incoming import PlannedColumn

_PARTS = 1_000_000
_PLACE = "_ematix_place"
_SAME_ORDER = ("postgres", "duckdb")
_ORDERED = (
    *("small_int", "integer", "big_int", "numeric", "boolean", "text", "string"),
    *("date", "timestamp", "timestamp_tz"),
)
_TEXTS = ("text", "string")
_ORDERINGS = (exp.GT, exp.GTE, exp.LT, exp.LTE)
_COMPARISONS = (*_ORDERINGS, exp.EQ, exp.NEQ, exp.In)


def described(entry: Any) -> str:
    """A step of ``transforms_pre`` in words."""
    return str(entry) if isinstance(entry, RowTransform) else f"function {shown(entry)}"


def check_row_transforms(transforms: Sequence[Any], known: Iterable[str]) -> None:
    """Refuse steps that name columns which the rows do not have; no Spark is needed for it."""
    held = {name.lower(): name for name in known}
    for entry in transforms:
        named: list[str] = []
        if isinstance(entry, FilterWhere):
            named = columns_in(condition(entry.condition, "filter_where"))
        elif isinstance(entry, DeduplicateBy):
            named = [*entry.keys]
            for expression, _ in _order(entry):
                named += columns_in(expression)
        elif callable(entry) and not isinstance(entry, RowTransform):
            return  # what it gives is known once it has been called
        for name in named:
            if name.lower() not in held:
                raise DataError(
                    f"{entry} in transforms_pre= names {name!r}, which is not a column of the "
                    "source or the target",
                    fix=nearest(name, held.values()),
                )


def _order(entry: DeduplicateBy) -> list[tuple[exp.Expr, bool]]:
    """The expressions of ``order_by``, each with whether it descends."""
    if entry.order_by is None:
        return []
    return ordering(entry.order_by, "deduplicate_by(): order_by")


def apply_row_transforms(
    rows: DataFrame, columns: Sequence[PlannedColumn], transforms: Sequence[Any]
) -> tuple[DataFrame, tuple[PlannedColumn, ...]]:
    """The rows that are left, and their columns as functions have left them."""
    planned = tuple(columns)
    for entry in transforms:
        if isinstance(entry, RowTransform):
            rows = _step(rows, entry)
        else:
            rows, planned = _called(rows, planned, entry)
    return rows, planned


def _step(rows: DataFrame, entry: RowTransform) -> DataFrame:
    names = [quote(name) for name in sorted(rows.columns)]
    try:
        if isinstance(entry, Limit):
            return rows.limit(entry.rows)
        if isinstance(entry, SamplePercent):
            kept = round(entry.percent * _PARTS / 100)
            return rows.where(f"pmod(xxhash64({', '.join(names)}), {_PARTS}) < {kept}")
        if isinstance(entry, DeduplicateBy):
            keys = ", ".join(quote(key) for key in entry.keys)
            order = ", ".join([entry.order_by, *names] if entry.order_by else names)
            place = f"row_number() OVER (PARTITION BY {keys} ORDER BY {order})"
            ranked = rows.selectExpr("*", f"{place} AS {_PLACE}")
            left = ranked.where(f"{_PLACE} = 1").drop(_PLACE)
        elif isinstance(entry, FilterWhere):
            left = rows.where(entry.condition)
        else:
            raise DeclarationError(f"transforms_pre= cannot hold {entry}")
        left.schema  # noqa: B018 - over Connect only this finds what is wrong with the SQL
    except EmatixError:
        raise
    except Exception as error:
        known = translate(error)
        known.what = f"{entry} in transforms_pre=: {known.what}"
        raise known from error
    return left


def _called(
    rows: DataFrame, columns: tuple[PlannedColumn, ...], function: Callable[..., Any]
) -> tuple[DataFrame, tuple[PlannedColumn, ...]]:
    """Let a function change the rows, or refuse them.

    They are kept first, so that what it has looked at is what is loaded.
    """
    kept = persisted(rows)
    try:
        returned = function(kept)
    except EmatixError:
        raise
    except Exception as error:
        raise _refusal(function, error) from error
    if returned is None or returned is True:
        return kept, columns
    if returned is False:
        raise DataError(
            f"the function {shown(function)} in transforms_pre= refused the rows",
            fix="correct the source, or the function",
            where=_place(function),
        )
    if not (hasattr(returned, "selectExpr") and hasattr(returned, "schema")):
        raise DataError(
            f"the function {shown(function)} in transforms_pre= returned a "
            f"{type(returned).__name__}",
            fix="return a Spark DataFrame, or nothing to keep the rows as they are",
            where=_place(function),
        )
    return returned, _retyped(kept, returned, columns, function)


def _retyped(
    before: DataFrame,
    after: DataFrame,
    columns: tuple[PlannedColumn, ...],
    function: Callable[..., Any],
) -> tuple[PlannedColumn, ...]:
    held = set(after.columns)
    for planned in columns:
        if planned.column.name not in held:
            raise DataError(
                f"the function {shown(function)} in transforms_pre= left out column "
                f"{planned.column.name!r}",
                fix="return all declared columns",
                where=_place(function),
            )
    old, new = before.schema, after.schema
    return tuple(
        c
        if old[c.column.name].dataType == new[c.column.name].dataType
        else dataclasses.replace(c, normalized_type=None)
        for c in columns
    )


def _refusal(function: Callable[..., Any], error: Exception) -> EmatixError:
    where = _place(function, error)
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        known = translate(error)
        known.what = f"the function {shown(function)} in transforms_pre=: {known.what}"
        known.where = where
        return known
    said = str(error) or "no reason is given"
    named = said if isinstance(error, AssertionError) else f"{type(error).__name__}: {said}"
    return DataError(
        redact_text(f"the function {shown(function)} in transforms_pre= refused the rows: {named}"),
        fix="correct the source, or the function",
        where=where,
    )


def _place(function: Callable[..., Any], error: Exception | None = None) -> SourceLocation | None:
    code = getattr(function, "__code__", None)
    found = None if error is None else function_frame(error, function)
    if found is not None or code is None:
        return found
    return SourceLocation(code.co_filename, code.co_firstlineno)


def inside_database(
    select: str,
    transforms: Sequence[Any],
    types: Mapping[str, t.ColumnType | None],
    dialect: str,
) -> str:
    """A query with the steps around it, or ``CannotMatch`` where Spark does something else."""
    for number, entry in enumerate(transforms):
        rows = f"({select}) AS {quoted(f'step_{number}', dialect)}"
        if isinstance(entry, FilterWhere):
            select = f"SELECT * FROM {rows} WHERE {in_dialect(entry.condition, types, dialect)}"
        elif isinstance(entry, Limit):
            select = f"SELECT * FROM {rows} LIMIT {entry.rows}"
        elif isinstance(entry, DeduplicateBy):
            listed = ", ".join(quoted(name, dialect) for name in types)
            keys = ", ".join(quoted(key, dialect) for key in entry.keys)
            order = _database_order(entry, types, dialect)
            place = f"ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {order})"
            ranked = f"SELECT {listed}, {place} AS {_PLACE} FROM {rows}"
            select = f"SELECT {listed} FROM ({ranked}) AS ranked WHERE {_PLACE} = 1"
        else:
            raise CannotMatch(f"{described(entry)} in transforms_pre= is run by Spark")
    return select


def in_dialect(text: str, types: Mapping[str, t.ColumnType | None], dialect: str) -> str:
    """A Spark SQL condition as a database evaluates it alike, or ``CannotMatch``."""
    translated = portable(text, dialect)
    parsed = condition(text, "condition")
    reason = CannotMatch(f"the condition {text!r} is evaluated by Spark")
    kinds = {name: kind.kind for name, kind in types.items() if kind is not None}
    if any(kinds.get(name) not in _ORDERED for name in columns_in(parsed)):
        raise reason
    for column in parsed.find_all(exp.Column):
        # Spark reads "true" in a text as a truth; a database does not, or not alike.
        if kinds[column.name] != "boolean" and _is_truth(column):
            raise reason
    for node in parsed.find_all(*_COMPARISONS):
        texts = any(kinds[name] in _TEXTS for name in columns_in(node))
        # The order of texts is the database's own, and Spark makes numbers of texts.
        number = any(not literal.is_string for literal in node.find_all(exp.Literal))
        if texts and (number or isinstance(node, _ORDERINGS)):
            raise reason
    return translated


def _is_truth(column: exp.Column) -> bool:
    """Whether a column stands by itself, as something true or false."""
    above = column.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    return above is None or isinstance(above, exp.And | exp.Or | exp.Not)


def _database_order(
    entry: DeduplicateBy, types: Mapping[str, t.ColumnType | None], dialect: str
) -> str:
    """The order in which Spark finds the first row, in a dialect that can say it."""
    reason = CannotMatch(f"the order of {entry} in transforms_pre= is Spark's own")
    if dialect not in _SAME_ORDER or any(key not in types for key in entry.keys):
        raise reason
    held = {name.lower(): name for name in types}
    items = []
    for expression, descending in _order(entry):
        if not isinstance(expression, exp.Column) or "NULLS" in (entry.order_by or "").upper():
            raise reason
        items.append((held[expression.name.lower()], descending))
    items += [(name, False) for name in sorted(types)]
    texts = []
    for name, descending in items:
        kind = types[name]
        if kind is None or kind.kind not in _ORDERED:
            raise reason
        value = quoted(name, dialect)
        if kind.kind in _TEXTS and dialect == "postgres":
            value = f'{value} COLLATE "C"'
        texts.append(f"{value} {'DESC NULLS LAST' if descending else 'ASC NULLS FIRST'}")
    return ", ".join(texts)
