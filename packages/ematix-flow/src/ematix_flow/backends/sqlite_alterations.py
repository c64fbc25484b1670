"""Changing SQLite tables that exist: in place where SQLite can, else by a table made anew.

Most types are text under SQLite, so that a value of one type becomes one of another by a function
of this program.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timezone
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.backends.base import Alteration
from ematix_flow.backends.sql_alterations import plain_alteration
from ematix_flow.backends.sql_rebuild import ColumnChange, rebuilt
from ematix_flow.change import CURRENT, SIDE
from ematix_flow.errors import Unsupported
from ematix_flow.sql.identifiers import column_list, quoted

if TYPE_CHECKING:
    from ematix_flow.backends.base import Load
    from ematix_flow.backends.sql import SqlBackend
    from ematix_flow.backends.sql_session import Session

_EXACT: dict[str, t.ColumnType] = {
    "SMALLINT": t.SmallInt(),
    "INTEGER": t.Integer(),
    "BIGINT": t.BigInt(),
    "FLOAT": t.Float(),
    "DOUBLE": t.Double(),
}
_REBUILT = ("retype", "relax", "require")
_BITS = {"small_int": 15, "integer": 31, "big_int": 63}
_ENOUGH = Context(prec=80)
_UNFIT = (ValueError, ArithmeticError, TypeError, LookupError)
_INSTANT = "%Y-%m-%d %H:%M:%S.%f"


def exact_type(declared: str, otherwise: t.ColumnType | None) -> t.ColumnType | None:
    """The type that this system spells so in SQLite."""
    if found := re.fullmatch(r"VARCHAR\((\d+)\)", declared.upper()):
        return t.String(int(found[1]))
    return _EXACT.get(declared.upper(), otherwise)


def alterations_in(backend: SqlBackend, session: Session, load: Load) -> list[str]:
    """The statements for all alterations of a load."""
    made: list[str] = []
    for relation in (CURRENT, SIDE):
        mine = [a for a in load.alterations if a.relation == relation]
        if mine:
            table = backend.relation(relation, load)
            made += _alter_table(backend, session, table, mine)
    return made


def _alter_table(
    backend: SqlBackend, session: Session, table: exp.Table, alterations: Sequence[Alteration]
) -> list[str]:
    spelled = table.sql(dialect="sqlite")
    required = {a.column for a in alterations if a.act == "require" and a.found is None}
    made: list[str] = []
    if required or any(a.act in _REBUILT for a in alterations):
        made += _rebuild(backend, session, table.name, alterations, required)
    for alteration in alterations:
        if alteration.act not in _REBUILT and alteration.column not in required:
            made += plain_alteration(backend, spelled, alteration)
    return made


def _rebuild(
    backend: SqlBackend,
    session: Session,
    table: str,
    alterations: Sequence[Alteration],
    required: set[str],
) -> list[str]:
    """The table made anew under another name, filled, and put in the old one's place."""
    _refuse_referenced(session, table)
    changes: dict[str, ColumnChange] = {}
    values: dict[str, str] = {}
    added = []
    for a in alterations:
        held = changes.get(a.before, ColumnChange())
        if a.act == "retype" and a.type is not None:
            changes[a.before] = ColumnChange(backend.stored_type(a.type), held.nullable)
            column = quoted(a.before, "sqlite")
            values[a.before] = conversion("ematix_converted", column, a.was, a.type)
        elif a.act in ("relax", "require") and a.found is not None:
            changes[a.before] = ColumnChange(held.type, a.act == "relax")
        elif a.act == "add" and a.column in required and a.type is not None:
            column = quoted(a.column, "sqlite")
            added.append(f"{column} {backend.stored_type(a.type)} NOT NULL")
    create = session.one(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
    )
    kept = session.rows(
        "SELECT sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND tbl_name = ? "
        "AND sql IS NOT NULL ORDER BY type, name",
        (table,),
    )
    names = [name for (name,) in session.rows("SELECT name FROM pragma_table_info(?)", (table,))]
    old, new = quoted(table, "sqlite"), quoted(f"ematix_rebuilt__{table}", "sqlite")
    columns = column_list(names, "sqlite")
    listed = ", ".join(values.get(name, quoted(name, "sqlite")) for name in names)
    return [
        rebuilt(create, new, changes, added, dialect="sqlite"),
        f"INSERT INTO {new} ({columns}) SELECT {listed} FROM {old}",
        f"DROP TABLE {old}",
        # Without it SQLite insists that every view is whole, also those over the old table.
        "PRAGMA legacy_alter_table = ON",
        f"ALTER TABLE {new} RENAME TO {old}",
        "PRAGMA legacy_alter_table = OFF",
        *(sql for (sql,) in kept),
    ]


def _refuse_referenced(session: Session, table: str) -> None:
    """A table that others refer to cannot be dropped without touching their rows."""
    others = session.rows(
        "SELECT DISTINCT m.name FROM sqlite_master AS m, pragma_foreign_key_list(m.name) AS f "
        "WHERE m.type = 'table' AND lower(f.\"table\") = lower(?)",
        (table,),
    )
    if others:
        raise Unsupported(
            f"SQLite changes a column by making its table anew, and {others[0][0]!r} refers to "
            f"{table!r} by a foreign key",
            fix="change the column by hand",
        )


def conversion(function: str, column: str, was: t.ColumnType | None, new: t.ColumnType) -> str:
    """A call of one of the functions below, as SQL."""
    old = exp.Literal.string(_spelled(was or t.Text())).sql()
    return f"{function}({column}, {old}, {exp.Literal.string(_spelled(new)).sql()})"


def fits(value: Any, old: str, new: str) -> bool:
    """Whether a stored value can be one of the new type."""
    try:
        _convert(value, old, new)
    except _UNFIT:
        return False
    return True


def converted(value: Any, old: str, new: str) -> Any:
    """A stored value of one type as it is stored under another; as it is where it cannot be."""
    try:
        return _convert(value, old, new)
    except _UNFIT:
        return value


def _spelled(kind: t.ColumnType) -> str:
    if isinstance(kind, t.Numeric):
        return f"numeric {kind.precision} {kind.scale}"
    return f"string {kind.length}" if isinstance(kind, t.String) else kind.kind


def _convert(value: Any, old: str, new: str) -> Any:
    if value is None:
        return None
    was, _, _ = old.partition(" ")
    kind, *numbers = new.split(" ")
    limits = [int(n) for n in numbers]
    if kind in ("text", "string"):
        text = _as_text(value, was)
        if limits and len(text) > limits[0]:
            raise ValueError(text)
        return text
    if kind in _BITS:
        number = int(_whole(value))
        if not -(1 << _BITS[kind]) <= number < 1 << _BITS[kind]:
            raise ValueError(number)
        return number
    if kind == "numeric":
        return _digits(value, *limits)
    if kind in ("float", "double"):
        real = float(value)
        if kind == "float" and real != struct.unpack("f", struct.pack("f", real))[0]:
            raise ValueError(real)
        return real
    return _READERS[kind](value, was)


def _as_text(value: Any, was: str) -> str:
    if was == "boolean":
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def _whole(value: Any) -> Decimal:
    number = Decimal(str(value))
    if number != number.to_integral_value():
        raise ValueError(value)
    return number


def _digits(value: Any, precision: int, scale: int) -> str:
    number = Decimal(str(value))
    with_scale = number.quantize(Decimal(1).scaleb(-scale), context=_ENOUGH)
    if with_scale != number or len(with_scale.as_tuple().digits) > precision:
        raise InvalidOperation(value)
    return str(with_scale)


def _boolean(value: Any, was: str) -> int:
    return int({"true": True, "false": False, "1": True, "0": False}[str(value).lower()])


def _timestamp(value: Any, was: str) -> str:
    if was == "date":
        return f"{date.fromisoformat(value)} 00:00:00.000000"
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is not None:
        raise ValueError(value)
    return moment.strftime(_INSTANT)


def _timestamp_tz(value: Any, was: str) -> str:
    moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    aware = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return aware.astimezone(timezone.utc).strftime(_INSTANT) + "+00:00"


def _json(value: Any, was: str) -> str:
    json.loads(value)
    return str(value)


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "boolean": _boolean,
    "date": lambda value, was: str(date.fromisoformat(value)),
    "time": lambda value, was: time.fromisoformat(value).strftime("%H:%M:%S.%f"),
    "timestamp": _timestamp,
    "timestamp_tz": _timestamp_tz,
    "json": _json,
    "jsonb": _json,
    "uuid": lambda value, was: str(UUID(value)),
}
