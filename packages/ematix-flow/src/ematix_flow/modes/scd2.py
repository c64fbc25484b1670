"""``scd2``: every version of a key is kept, with the time in which it was valid.

Without an event time the incoming rows are the state at the run's moment; with one they are
events, and a key's history is a function of the set of its events, whatever their order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ematix_flow import types as t
from ematix_flow.change import Assertion, Change, Effect, Revise
from ematix_flow.errors import EmatixError, RunError
from ematix_flow.model import (
    BOOKKEEPING_SCHEMA,
    DELETED_COLUMN,
    EVENT_AT_COLUMN,
    IS_CURRENT_COLUMN,
    ROW_HASH_COLUMN,
    VALID_FROM_COLUMN,
    VALID_TO_COLUMN,
    Column,
    LoadOptions,
    Table,
    TableName,
    merge_key,
)
from ematix_flow.modes.arriving import (
    arriving,
    deleted_flag,
    live,
    one_for_each,
    requirements,
)
from ematix_flow.modes.base import Reach, Shape
from ematix_flow.modes.events import event_change
from ematix_flow.modes.merge import delete_guards
from ematix_flow.modes.sql import (
    differs,
    keyed,
    later,
    missing,
    moment,
    name,
    names,
    parsed,
    same,
    stamped,
    unmatched,
)

_HASH = Column(t.String(64), nullable=False, name=ROW_HASH_COLUMN)
_VERSION_COLUMNS = (
    Column(t.TimestampTZ(), nullable=False, name=VALID_FROM_COLUMN),
    Column(t.TimestampTZ(), nullable=True, name=VALID_TO_COLUMN),
    Column(t.Boolean(), nullable=False, name=IS_CURRENT_COLUMN),
    _HASH,
)
_EVENT_COLUMNS = (
    Column(t.TimestampTZ(), nullable=False, name=EVENT_AT_COLUMN),
    Column(t.Boolean(), nullable=False, name=DELETED_COLUMN),
)


class Scd2:
    """Closes the version that has changed and opens the next."""

    def shape(self, table: Table, options: LoadOptions) -> Shape:
        """The declared columns and those of a version; a key may now stand in many rows."""
        key = merge_key(table, options.keys)
        held = versioned(table, key)
        if options.event_timestamp_column is not None:
            at = dataclasses.replace(_EVENT_COLUMNS[0], nullable=True)
            incoming = (*table.columns, _HASH, at, _EVENT_COLUMNS[1])
            return Shape(held, incoming, key, side_table(table, key))
        flag = _EVENT_COLUMNS[1:] if deleted_flag(options) else ()
        return Shape(held, (*table.columns, _HASH, *flag), key)

    def plan(
        self, shape: Shape, columns: Sequence[str], options: LoadOptions, reach: Reach | None
    ) -> Change:
        """One change set, computed for the keys that arrive."""
        if shape.side is not None:
            return event_change(shape, shape.side, columns, options, sound=sound(shape.key))
        return _state_change(shape, columns, options)


def versioned(table: Table, key: Sequence[str]) -> Table:
    """A declared table as it holds versions."""
    columns = tuple(
        dataclasses.replace(c, primary_key=c.name in key, nullable=c.nullable and c.name not in key)
        for c in table.columns
    )
    first = dataclasses.replace(_VERSION_COLUMNS[0], primary_key=True)
    return dataclasses.replace(
        table,
        columns=(*columns, first, *_VERSION_COLUMNS[1:]),
        natural_keys=(),
        unique_constraints=(),
    )


def side_table(table: Table, key: Sequence[str]) -> Table:
    """Where the events are kept that the versions alone do not tell."""
    plain = tuple(
        dataclasses.replace(
            c, nullable=c.name not in key, primary_key=c.name in key, normalizers=()
        )
        for c in table.columns
    )
    at, deleted = _EVENT_COLUMNS
    at = dataclasses.replace(at, primary_key=True)
    schema = f"{table.name.schema}__" if table.name.schema else ""
    return Table(
        TableName(BOOKKEEPING_SCHEMA, f"scd2_side__{schema}{table.name.name}"),
        (*plain, _HASH, at, deleted),
    )


def _state_change(shape: Shape, columns: Sequence[str], options: LoadOptions) -> Change:
    key, ttl = shape.key, options.ttl_seconds
    compared = options.compare_columns or tuple(
        c.name for c in shape.incoming if c.name not in (*key, ROW_HASH_COLUMN, DELETED_COLUMN)
    )
    changed = differs("i", "c", compared)
    parts = [_opened(shape, columns, options, changed), _closed(shape, columns, options, changed)]
    if options.handle_deletes:
        parts.append(_absent(shape, columns, ttl))
    if ttl is not None:
        parts.append(_expired(shape, columns, options, changed))
    relations = [
        f"arriving AS ({arriving(shape, options)})",
        f"held AS ({_held(shape, columns, ttl)})",
    ]
    text = f"WITH {', '.join(relations)} " + " UNION ALL ".join(parts)
    effects = {
        "insert": Effect("insert", "inserted"),
        "close": Effect("update", "closed"),
        "absent": Effect("update", "closed"),
        "expire": Effect("update", "closed"),
    }
    return Change(
        steps=(Revise(parsed(text), (*key, VALID_FROM_COLUMN), effects),),
        assertions=(
            *requirements(shape, options, one_each=True, unique=(*key, VALID_FROM_COLUMN)),
            *delete_guards(
                shape.table, options, present=f"{name(IS_CURRENT_COLUMN)} AND {keyed(key)}"
            ),
            *sound(key),
        ),
        considered=parsed(
            f"SELECT COUNT(*) AS n FROM ({arriving(shape, options)}) AS i WHERE {live(options)}"
        ),
        opening=parsed(f"SELECT {_new_version(columns, 'i')} FROM incoming AS i")
        if one_for_each(options)
        else None,
    )


def _held(shape: Shape, columns: Sequence[str], ttl: float | None) -> str:
    """The version of each key that the source is compared with.

    One that only its age has closed still is what the source last said.
    """
    current = name(IS_CURRENT_COLUMN, "c")
    listed = names(columns, "c")
    if ttl is None:
        return f"SELECT {listed} FROM current AS c WHERE {current}"
    aged = f"{name(VALID_TO_COLUMN, 'c')} = {later(name(VALID_FROM_COLUMN, 'c'), ttl)}"
    newer = f"{name(VALID_FROM_COLUMN, 'n')} > {name(VALID_FROM_COLUMN, 'c')}"
    return (
        f"SELECT {listed} FROM current AS c WHERE {current} OR ({aged} AND NOT EXISTS "
        f"(SELECT 1 FROM current AS n WHERE {same('n', 'c', shape.key)} AND {newer}))"
    )


def _new_version(columns: Sequence[str], of: str) -> str:
    """An incoming row as the current version of its key."""
    own = {
        VALID_FROM_COLUMN: moment(),
        VALID_TO_COLUMN: missing(VALID_TO_COLUMN),
        IS_CURRENT_COLUMN: "TRUE",
    }
    return ", ".join(f"{own.get(c) or stamped(c, name(c, of))} AS {name(c)}" for c in columns)


def _opened(shape: Shape, columns: Sequence[str], options: LoadOptions, changed: str) -> str:
    new = f"{name(shape.key[0], 'c')} IS NULL"
    return (
        f"SELECT 'insert' AS _op, {_new_version(columns, 'i')} FROM arriving AS i "
        f"LEFT JOIN held AS c ON {same('c', 'i', shape.key)} "
        f"WHERE {live(options)} AND ({new} OR {changed})"
    )


def _ended(columns: Sequence[str], at: str) -> str:
    own = {VALID_TO_COLUMN: at, IS_CURRENT_COLUMN: "FALSE"}
    return ", ".join(f"{own.get(c) or stamped(c, name(c, 'c'))} AS {name(c)}" for c in columns)


def _end(ttl: float | None) -> str:
    """When a version ends that is closed now: by its age, if that came first."""
    if ttl is None:
        return moment()
    aged = later(name(VALID_FROM_COLUMN, "c"), ttl)
    return f"CASE WHEN {aged} < {moment()} THEN {aged} ELSE {moment()} END"


def _closed(shape: Shape, columns: Sequence[str], options: LoadOptions, changed: str) -> str:
    told = f"{name(DELETED_COLUMN, 'i')} OR " if deleted_flag(options) else ""
    return (
        f"SELECT 'close' AS _op, {_ended(columns, _end(options.ttl_seconds))} FROM arriving AS i "
        f"JOIN held AS c ON {same('c', 'i', shape.key)} "
        f"WHERE {name(IS_CURRENT_COLUMN, 'c')} AND ({told}{changed})"
    )


def _absent(shape: Shape, columns: Sequence[str], ttl: float | None) -> str:
    return (
        f"SELECT 'absent' AS _op, {_ended(columns, _end(ttl))} FROM current AS c "
        f"{unmatched('incoming', 'i', shape.key)} AND {keyed(shape.key, 'c')} "
        f"AND {name(IS_CURRENT_COLUMN, 'c')}"
    )


def _expired(shape: Shape, columns: Sequence[str], options: LoadOptions, changed: str) -> str:
    """Versions past their age that nothing else closes in this run."""
    aged = later(name(VALID_FROM_COLUMN, "c"), options.ttl_seconds or 0)
    told = f"{name(DELETED_COLUMN, 'i')} OR " if deleted_flag(options) else ""
    if options.handle_deletes:
        joined = f"JOIN arriving AS i ON {same('c', 'i', shape.key)} WHERE NOT ({told}{changed})"
    else:
        joined = unmatched("arriving", "i", shape.key, f"({told}{changed})")
    return (
        f"SELECT 'expire' AS _op, {_ended(columns, aged)} FROM current AS c {joined} "
        f"AND {name(IS_CURRENT_COLUMN, 'c')} AND {aged} <= {moment()}"
    )


def sound(key: Sequence[str]) -> tuple[Assertion, ...]:
    """No touched key has two current versions or two that overlap."""

    def refuse(rows: Sequence[Sequence[Any]]) -> EmatixError:
        shown = ", ".join(f"{k}={v}" for k, v in zip(key, rows[0], strict=False))
        return RunError(
            f"the versions of {shown} would overlap; nothing was written",
            fix="check that the clock of this machine is right, and that nobody else writes "
            "to this table",
        )

    start, end = name(VALID_FROM_COLUMN, "c"), name(VALID_TO_COLUMN, "c")
    following = f"LEAD({start}) OVER (PARTITION BY {names(key, 'c')} ORDER BY {start})"
    wrong = (
        "_em_ended <= _em_began",
        "_em_following < _em_ended",
        "(_em_open AND (_em_following IS NOT NULL OR _em_ended IS NOT NULL))",
        "(_em_ended IS NULL AND NOT _em_open)",
    )
    found = (
        f"SELECT {names(key)} FROM (SELECT {names(key, 'c')}, {start} AS _em_began, "
        f"{end} AS _em_ended, {name(IS_CURRENT_COLUMN, 'c')} AS _em_open, "
        f"{following} AS _em_following "
        f"FROM current AS c JOIN (SELECT DISTINCT {names(key)} FROM changes) AS x "
        f"ON {same('c', 'x', key)}) AS v WHERE {' OR '.join(wrong)} LIMIT 1"
    )
    return (Assertion(parsed(found), refuse, when="result"),)
