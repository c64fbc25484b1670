"""``merge`` and ``scd1``: one row per key, changed where the source has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow import types as t
from ematix_flow.change import Assertion, Change, Effect, Revise
from ematix_flow.errors import DeclarationError, DuplicateKeys, EmatixError, TooManyDeletes
from ematix_flow.model import DELETED_COLUMN, Column, LoadOptions, Table, merge_key
from ematix_flow.modes.arriving import (
    arriving,
    deleted_flag,
    live,
    one_for_each,
    requirements,
)
from ematix_flow.modes.base import Reach, Shape, first_rows
from ematix_flow.modes.sql import (
    count_of,
    differs,
    keyed,
    missing,
    moment,
    name,
    names,
    parsed,
    same,
    stamped,
    unmatched,
)
from ematix_flow.modes.truncate import not_empty

if TYPE_CHECKING:
    from sqlglot import exp


class Merge:
    """Inserts new keys, updates changed rows, leaves the others as they are."""

    def shape(self, table: Table, options: LoadOptions) -> Shape:
        """The declared table, with a column for soft deletes where they are asked for."""
        held = _with_soft_delete(table, options) if options.handle_deletes == "soft" else table
        soft = options.soft_delete_column if options.handle_deletes == "soft" else None
        incoming = tuple(c for c in table.columns if c.name != soft)
        if deleted_flag(options):
            incoming = (*incoming, Column(t.Boolean(), nullable=False, name=DELETED_COLUMN))
        return Shape(held, incoming, merge_key(table, options.keys))

    def plan(
        self, shape: Shape, columns: Sequence[str], options: LoadOptions, reach: Reach | None
    ) -> Change:
        """One change set of inserts, updates and deletes."""
        return merge_change(shape, columns, options)


def merge_change(
    shape: Shape, columns: Sequence[str], options: LoadOptions, *, replaced: str | None = None
) -> Change:
    """One change set; with ``replaced``, stored rows that have not come again go, if it holds.

    It is a condition on a stored row ``c``, and stands in the place of ``handle_deletes``.
    """
    soft = options.soft_delete_column if options.handle_deletes == "soft" else None
    parts = [_upserts(shape, columns, options, soft)]
    if deleted_flag(options):
        parts.append(_told_deletes(shape, columns, soft))
    if options.handle_deletes or replaced:
        parts.append(_absent(shape, columns, soft, replaced or "TRUE"))
    text = f"WITH arriving AS ({arriving(shape, options)}) " + " UNION ALL ".join(parts)
    removed = Effect("update" if soft else "delete", "deleted")
    effects = {
        "insert": Effect("insert", "inserted"),
        "update": Effect("update", "updated"),
        "delete": removed,
        "absent": removed,
    }
    counted = f"SELECT COUNT(*) AS n FROM ({arriving(shape, options)}) AS i"
    present = f"{_undeleted(soft)} AND {keyed(shape.key)}"
    guards = delete_guards(shape.table, options, present=present)
    return Change(
        steps=(Revise(parsed(text), shape.key, effects),),
        assertions=(
            *requirements(shape, options, one_each=True, unique=shape.key),
            *(() if replaced else guards),
            *(() if shape.unique else (_stored_once(shape.table, shape.key),)),
        ),
        considered=parsed(f"{counted} WHERE {live(options)}"),
        opening=None if replaced else _opening(columns, options, soft),
    )


def _opening(columns: Sequence[str], options: LoadOptions, soft: str | None) -> exp.Query | None:
    if not one_for_each(options):
        return None
    return first_rows(columns, soft)


def _with_soft_delete(table: Table, options: LoadOptions) -> Table:
    marker = options.soft_delete_column
    declared = next((c for c in table.columns if c.name == marker), None)
    if declared is None:
        added = Column(t.TimestampTZ(), nullable=True, name=marker)
        return dataclasses.replace(table, columns=(*table.columns, added))
    if not isinstance(declared.type, t.TimestampTZ) or not declared.nullable:
        raise DeclarationError(
            f"the soft delete column {marker!r} of {table.name} is declared {declared.type}",
            fix="declare it TimestampTZ | None, or leave it out: it is added by itself",
        )
    return table


def _undeleted(soft: str | None, of: str = "") -> str:
    return f"{name(soft, of)} IS NULL" if soft else "TRUE"


def _upserts(shape: Shape, columns: Sequence[str], options: LoadOptions, soft: str | None) -> str:
    given = [c.name for c in shape.incoming if c.name != DELETED_COLUMN]
    updated = options.update_columns or tuple(c for c in given if c not in shape.key)
    compared = options.compare_columns or updated
    new = f"{name(shape.key[0], 'c')} IS NULL"

    def held(column: str) -> str:
        if column == soft:
            return missing(column)
        fresh = stamped(column, name(column, "i"))
        if column in (*shape.key, *updated) or column not in given:
            return fresh
        return f"CASE WHEN {new} THEN {fresh} ELSE {name(column, 'c')} END"

    values = ", ".join(f"{held(c)} AS {name(c)}" for c in columns)
    returned = f" OR {name(soft, 'c')} IS NOT NULL" if soft else ""
    return (
        f"SELECT CASE WHEN {new} THEN 'insert' ELSE 'update' END AS _op, {values} "
        f"FROM arriving AS i LEFT JOIN current AS c ON {same('c', 'i', shape.key)} "
        f"WHERE {live(options)} AND ({new} OR {differs('i', 'c', compared)}{returned})"
    )


def _gone(columns: Sequence[str], soft: str | None) -> str:
    """A stored row as it is when its key has gone."""

    def held(column: str) -> str:
        own = name(column, "c")
        return moment() if column == soft else (stamped(column, own) if soft else own)

    return ", ".join(f"{held(c)} AS {name(c)}" for c in columns)


def _told_deletes(shape: Shape, columns: Sequence[str], soft: str | None) -> str:
    return (
        f"SELECT 'delete' AS _op, {_gone(columns, soft)} FROM arriving AS i "
        f"JOIN current AS c ON {same('c', 'i', shape.key)} "
        f"WHERE {name(DELETED_COLUMN, 'i')} AND {_undeleted(soft, 'c')}"
    )


def _absent(shape: Shape, columns: Sequence[str], soft: str | None, held: str) -> str:
    return (
        f"SELECT 'absent' AS _op, {_gone(columns, soft)} FROM current AS c "
        f"{unmatched('incoming', 'i', shape.key)} AND {keyed(shape.key, 'c')} "
        f"AND {_undeleted(soft, 'c')} AND {held}"
    )


def _stored_once(table: Table, key: Sequence[str]) -> Assertion:
    """Refuse to touch a key that several stored rows have: all of them would become one."""

    def refuse(rows: Sequence[Sequence[Any]]) -> EmatixError:
        *values, copies = rows[0]
        shown = ", ".join(f"{k}={v}" for k, v in zip(key, values, strict=True))
        return DuplicateKeys(
            f"the key {shown} stands in {copies} rows of table {table.name}; nothing was written",
            fix="remove all but one of them, or choose a key that is unique there",
        )

    found = (
        f"SELECT {names(key, 'c')}, COUNT(*) AS copies FROM current AS c "
        f"JOIN (SELECT DISTINCT {names(key)} FROM changes) AS x ON {same('c', 'x', key)} "
        f"GROUP BY {names(key, 'c')} HAVING COUNT(*) > 1 ORDER BY {names(key, 'c')} LIMIT 1"
    )
    return Assertion(parsed(found), refuse, when="changes")


def delete_guards(table: Table, options: LoadOptions, *, present: str) -> tuple[Assertion, ...]:
    """Refuse an empty snapshot, and one that lacks more of the target than is allowed.

    ``present`` tells which stored rows could go.
    """
    if not options.handle_deletes:
        return ()
    guards = [] if options.allow_empty else [not_empty(table)]
    if options.max_delete_fraction < 1:
        guards.append(_not_too_many(table, options, present))
    return tuple(guards)


def _not_too_many(table: Table, options: LoadOptions, present: str) -> Assertion:
    def refuse(rows: Sequence[Sequence[Any]]) -> EmatixError:
        gone, held = rows[0]
        return TooManyDeletes(
            f"{gone} of the {held} rows of {table.name} are missing from the source, more than "
            f"max_delete_fraction={options.max_delete_fraction} allows to delete",
            fix="check that the source is complete, or raise max_delete_fraction=",
        )

    gone = "SELECT COUNT(*) AS gone FROM changes WHERE _op = 'absent'"
    held = f"SELECT COUNT(*) AS held FROM current WHERE {present}"
    given = count_of()
    # No rows at all are either refused already or allowed by name.
    found = (
        f"SELECT gone, held FROM ({gone}) AS a CROSS JOIN ({held}) AS b CROSS JOIN ({given}) AS g "
        f"WHERE gone > held * {options.max_delete_fraction!r} AND n > 0"
    )
    return Assertion(parsed(found), refuse, when="changes")
