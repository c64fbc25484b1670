"""One read of a table in several parts: the query of one table, and which rows a part has.

Nothing here asks a database. A part is a condition on one value of each row, and every row, be
that value NULL or not, meets exactly one of the conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from sqlglot import exp, parse_one, tokenize
from sqlglot.errors import SqlglotError

from ematix_flow.backends.base import SourceQuery

# What a part must hold to be worth a connection and a task of its own.
_LEAST_ROWS = 50_000
_LEAST_BYTES = 8 << 20
_LEAST_FETCH = 100
# Parts begin one after the other, so these would not mean the same in all of them.
_CLOCKS = frozenset({"current_date", "current_time", "current_timestamp"})
_CLOCKS |= {"localtime", "localtimestamp", "utc_date", "utc_time", "utc_timestamp"}
_CLOCK_CALLS = frozenset({"age", "clock_timestamp", "now", "statement_timestamp", "timeofday"})
_CLOCK_CALLS |= {"transaction_timestamp", "curdate", "curtime", "sysdate", "unix_timestamp"}
_CLOCK_WORDS = frozenset({"now", "today", "tomorrow", "yesterday"})
_PLAIN_SELECT = frozenset({"expressions", "from_", "where"})
_PLAIN_TABLE = frozenset({"this", "db", "catalog", "alias"})


@runtime_checkable
class ReadsInParts(Protocol):
    """A source that can tell how it would read a query."""

    def how_read(self, query: SourceQuery) -> str:
        """In words, for ``preview``: in how many parts, or why in one."""


@dataclass(frozen=True)
class OneTable:
    """A query that gives at most one row for each row of one table, with nothing to combine.

    ``table`` is that table as the query names it.
    """

    sql: str
    table: str
    dialect: str

    def with_columns(self, columns: Mapping[str, str]) -> str | None:
        """The query with further columns of its table: what they are, by name."""
        select, _ = _innermost(_parsed(self.sql, self.dialect))
        added = [
            f"{value} AS {exp.to_identifier(name, quoted=True).sql(dialect=self.dialect)}"
            for name, value in columns.items()
        ]
        for item in added:
            select.append("expressions", parse_one(item, dialect=self.dialect))
        return self._inserted(", " + ", ".join(added) + " ", ("FROM",), select.root())

    def sampled(self, sample: str) -> str | None:
        """The query over a sample of its table."""
        select, table = _innermost(_parsed(self.sql, self.dialect))
        wanted = parse_one(f"SELECT * FROM sampled {sample}", dialect=self.dialect)
        found = wanted.find(exp.TableSample)
        if found is None:
            return None
        table.set("sample", found.copy())
        return self._inserted(f" {sample} ", ("WHERE", ")"), select.root())

    def _inserted(self, text: str, before: Sequence[str], meant: exp.Expr) -> str | None:
        """The user's own text with an insertion, at the place where it means just that."""
        ends = [t.start for t in tokenize(self.sql, read=self.dialect) if t.text.upper() in before]
        for place in (*ends, len(self.sql)):
            # After a comment at the end of a line nothing would be read.
            made = f"{self.sql[:place]}\n{text}{self.sql[place:]}"
            try:
                if parse_one(made, dialect=self.dialect) == meant:
                    return made
            except SqlglotError:
                continue
        return None


def one_table(sql: str, dialect: str) -> OneTable | None:
    """The query, if it is a plain ``SELECT … FROM one_table [WHERE …]``, perhaps inside another."""
    try:
        select, table = _innermost(_parsed(sql, dialect))
    except (SqlglotError, LookupError):
        return None
    # What else is read could be truncated between two parts.
    if len(list(select.root().find_all(exp.Table))) > 1:
        return None
    for part in select.expressions:
        if part.find(exp.Window, exp.AggFunc):
            return None
    if _asks_for_the_time(sql, dialect):
        return None
    named = table.copy()
    named.set("alias", None)
    return OneTable(sql, named.sql(dialect=dialect, comments=False), dialect)


def _asks_for_the_time(sql: str, dialect: str) -> bool:
    tokens = tokenize(sql, read=dialect)
    followers = [token.text for token in tokens[1:]] + [""]
    for token, follower in zip(tokens, followers, strict=True):
        kind, text = token.token_type.name, token.text.lower()
        if kind == "STRING":
            found = text.strip() in _CLOCK_WORDS
        else:
            called = text in _CLOCK_CALLS and follower == "("
            found = kind != "IDENTIFIER" and (text in _CLOCKS or called)
        if found:
            return True
    return False


def _parsed(sql: str, dialect: str) -> exp.Expr:
    return parse_one(sql, dialect=dialect)


def _innermost(query: exp.Expr) -> tuple[exp.Select, exp.Table]:
    """The SELECT that names the table; raises ``LookupError`` where there is more to it."""
    if not isinstance(query, exp.Select) or _given(query) - _PLAIN_SELECT:
        raise LookupError
    origin = query.args.get("from_")
    source = origin.this if origin is not None else None
    if isinstance(source, exp.Table):
        alias = source.args.get("alias")
        plain = isinstance(source.this, exp.Identifier) and not _given(source) - _PLAIN_TABLE
        if not plain or (alias is not None and alias.args.get("columns")):
            raise LookupError
        return query, source
    whole = [type(item) is exp.Star and not _given(item) for item in query.expressions]
    if not isinstance(source, exp.Subquery) or whole != [True]:
        raise LookupError
    alias = source.args.get("alias")
    if _given(source) - {"this", "alias"} or (alias is not None and alias.args.get("columns")):
        raise LookupError
    return _innermost(source.this)


def _given(node: exp.Expr) -> frozenset[str]:
    return frozenset(name for name, value in node.args.items() if value)


def parts_wanted(*, rows: float, width: float, slots: int, connections: int) -> int:
    """In how many parts a read is worth while; 1 where it is not."""
    worth = max(rows / _LEAST_ROWS, rows * width / _LEAST_BYTES)
    return max(1, min(int(worth), slots, connections))


def fetch_rows(width: float, *, room: int = 16 << 20, most: int = 10_000) -> int:
    """How many rows of a width are fetched at once, in bounded memory."""
    return max(_LEAST_FETCH, min(most, int(room / max(width, 1.0))))


def conditions(value: str, bounds: Sequence[str], *, nullable: bool) -> tuple[str, ...]:
    """The parts of all rows, by ascending bounds of a value; both are SQL.

    A bound belongs to the part above it. Where the order has equal neighbours, a part is empty.
    """
    return tuple(_conditions(value, bounds, nullable=nullable))


def _conditions(value: str, bounds: Sequence[str], *, nullable: bool) -> Iterator[str]:
    if not bounds:
        yield f"({value} IS NOT NULL)"
    else:
        yield f"({value} < {bounds[0]})"
        for lower, upper in pairwise(bounds):
            yield f"({value} >= {lower} AND {value} < {upper})"
        yield f"({value} >= {bounds[-1]})"
    if nullable:
        yield f"({value} IS NULL)"
