"""The neutral SQL in which modes are written: quoted names, keys, comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ematix_flow.change import COMPARABLE, INCOMING, LATER, MISSING, MOMENT, RUN, VALUE
from ematix_flow.model import LOADED_AT_COLUMN, RUN_ID_COLUMN

if TYPE_CHECKING:
    from sqlglot import exp


def parsed(text: str) -> exp.Query:
    """A query, from text in the neutral dialect."""
    from sqlglot import parse_one

    return cast("exp.Query", parse_one(text))


def condition(text: str) -> exp.Expression:
    """A condition on one row, from text in the neutral dialect."""
    from sqlglot import exp

    return exp.paren(exp.condition(text))


def name(column: str, of: str = "") -> str:
    """A quoted column, of a relation where one is given."""
    quoted = '"' + column.replace('"', '""') + '"'
    return f"{of}.{quoted}" if of else quoted


def names(columns: Sequence[str], of: str = "") -> str:
    """Quoted columns, separated by commas."""
    return ", ".join(name(column, of) for column in columns)


def text(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("'", "''") + "'"


def same(left: str, right: str, key: Sequence[str]) -> str:
    """Whether two rows have the same key."""
    return " AND ".join(f"{name(k, left)} = {name(k, right)}" for k in key)


def keyed(key: Sequence[str], of: str = "") -> str:
    """Whether a row has a key: no part of it is NULL."""
    return " AND ".join(f"{name(k, of)} IS NOT NULL" for k in key)


def unmatched(relation: str, alias: str, key: Sequence[str], extra: str = "") -> str:
    """The join that leaves the rows of ``c`` to which nothing in a relation belongs."""
    condition = same("c", alias, key) + (f" AND {extra}" if extra else "")
    return f"LEFT JOIN {relation} AS {alias} ON {condition} WHERE {name(key[0], alias)} IS NULL"


def comparable(column: str, of: str = "") -> str:
    """A value in the form in which equality and order are exact."""
    return f"{COMPARABLE}({name(column, of)}, {text(column)})"


def comparables(columns: Sequence[str], of: str = "") -> str:
    """Values in comparable form, separated by commas."""
    return ", ".join(comparable(column, of) for column in columns)


def differs(left: str, right: str, columns: Sequence[str]) -> str:
    """Whether two rows differ in any of these columns; NULL equals NULL."""
    if not columns:
        return "FALSE"
    pairs = (f"{comparable(c, left)} IS DISTINCT FROM {comparable(c, right)}" for c in columns)
    return "(" + " OR ".join(pairs) + ")"


def moment() -> str:
    """The instant of the run."""
    return f"{MOMENT}()"


def missing(column: str) -> str:
    """A NULL of the column's type."""
    return f"{MISSING}({text(column)})"


def value(canonical: str, column: str) -> str:
    """A constant of the column's type, from its canonical text."""
    return f"{VALUE}({text(canonical)}, {text(column)})"


def later(instant: str, seconds: float) -> str:
    """An instant so many seconds after another."""
    return f"{LATER}({instant}, {seconds!r})"


def stamped(column: str, otherwise: str) -> str:
    """The value of a column that this system fills in, or else what is given."""
    own = {RUN_ID_COLUMN: f"{RUN}()", LOADED_AT_COLUMN: moment()}
    return own.get(column, otherwise)


def count_of(relation: str = INCOMING, where: str = "") -> str:
    """``SELECT count(*) AS n`` of a relation."""
    condition = f" WHERE {where}" if where else ""
    return f"SELECT COUNT(*) AS n FROM {relation}{condition}"
