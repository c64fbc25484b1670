"""What of two tables is compared with what: the key, the columns, their common forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.model import LOADED_AT_COLUMN, RUN_ID_COLUMN
from ematix_flow.run.diff_result import ComparedType
from ematix_flow.run.reference import NamedTable
from ematix_flow.sql.comparing import common_type, comparable, family
from ematix_flow.sql.digests import DIALECTS, database_text
from ematix_flow.sql.spark import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.backends.base import SourceQuery
    from ematix_flow.engine.session import Engine
    from ematix_flow.types import ColumnType

_WHOLE_NUMBERS = ("small_int", "integer", "big_int")


@dataclass(frozen=True)
class Side:
    """One of the two tables. ``forms`` are k0, k1… and c0, c1…: Spark SQL over its columns.

    ``texts`` are the same in its database's own SQL, as text; None where it cannot do that.
    """

    table: NamedTable
    columns: tuple[str, ...]
    forms: Mapping[str, str]
    texts: Mapping[str, str] | None

    def rows(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """The rows of a query of its columns, in the form in which they are compared."""
        engine.require_jars(self.table.backend.jars)
        rows = self.table.backend.read(engine, query)
        return rows.selectExpr(*(f"{sql} AS {name}" for name, sql in self.forms.items()))


@dataclass(frozen=True)
class DiffPlan:
    """What is compared with what."""

    a: Side
    b: Side
    key: tuple[str, ...]
    columns: tuple[str, ...]
    keys: Mapping[str, ColumnType]
    values: Mapping[str, ColumnType]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    types: tuple[ComparedType, ...]
    whole_key: bool


def plan_diff(
    sides: tuple[NamedTable, NamedTable],
    key: Sequence[str],
    columns: Sequence[str],
    *,
    with_bookkeeping: bool,
) -> DiffPlan:
    """How two tables will be compared; refuses a key or column that one of them lacks."""
    a, b = ({c.name: c.type for c in s.backend.describe(s.query())} for s in sides)
    chosen = tuple(dict.fromkeys(key)) or _common_primary_key(sides)
    for name in chosen:
        _require(name, sides, (a, b), "key column")
    for name in columns:
        _require(name, sides, (a, b), "column")
    added = () if with_bookkeeping else (RUN_ID_COLUMN, LOADED_AT_COLUMN)
    left_out = {*chosen, *(name for name in added if name not in columns)}
    wanted = tuple(dict.fromkeys(columns)) or tuple(a)
    compared = tuple(name for name in wanted if name in b and name not in left_out)
    only_a = () if columns else tuple(n for n in a if n not in b and n not in left_out)
    only_b = () if columns else tuple(n for n in b if n not in a and n not in left_out)

    keys = {f"k{i}": name for i, name in enumerate(chosen)}
    values = {f"c{i}": name for i, name in enumerate(compared)}
    common = {name: common_type(a[name], b[name]) for name in (*chosen, *compared)}

    def side(table: NamedTable, mine: Mapping[str, Any], other: Mapping[str, Any]) -> Side:
        named = {**keys, **values}
        forms = {n: comparable(quote(c), mine[c], other[c]) for n, c in named.items()}
        return Side(table, (*chosen, *compared), forms, _texts(table, named, mine, common))

    return DiffPlan(
        side(sides[0], a, b),
        side(sides[1], b, a),
        chosen,
        compared,
        {n: common[c] for n, c in keys.items()},
        {n: common[c] for n, c in values.items()},
        only_a,
        only_b,
        tuple(
            ComparedType(n, str(a[n]), str(b[n]), str(common[n]))
            for n in (*chosen, *compared)
            if family(a[n]) != family(b[n])
        ),
        len(chosen) == 1 and {a[chosen[0]].kind, b[chosen[0]].kind} <= set(_WHOLE_NUMBERS),
    )


def _texts(
    table: NamedTable,
    named: Mapping[str, str],
    given: Mapping[str, ColumnType],
    common: Mapping[str, ColumnType],
) -> dict[str, str] | None:
    dialect = table.backend.dialect
    # Names of ours that a user's column has would be ambiguous.
    if dialect not in DIALECTS or set(named) & set(named.values()):
        return None
    texts = {}
    for name, column in named.items():
        text = database_text(table.quoted(column), given[column], common[column], dialect)
        if text is None:
            return None
        texts[name] = text
    return texts


def _common_primary_key(sides: tuple[NamedTable, NamedTable]) -> tuple[str, ...]:
    keys = [side.key() for side in sides]
    if not all(keys):
        without = " and ".join(s.label for s, k in zip(sides, keys, strict=True) if not k)
        raise ConfigError(
            f"no primary key is known of {without}", fix="name the key with --key id,…"
        )
    if set(keys[0]) != set(keys[1]):
        shown = " and ".join(
            f"{s.label} has ({', '.join(k)})" for s, k in zip(sides, keys, strict=True)
        )
        raise ConfigError(f"the primary keys differ: {shown}", fix="name the key with --key id,…")
    return keys[0]


def _require(
    name: str,
    sides: tuple[NamedTable, NamedTable],
    held: tuple[Mapping[str, Any], Mapping[str, Any]],
    what: str,
) -> None:
    for side, columns in zip(sides, held, strict=True):
        if name not in columns:
            raise UnknownName(f"{side.label} has no {what} {name!r}", fix=nearest(name, columns))
