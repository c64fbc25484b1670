"""Identifiers and whole statements, always quoted, in any dialect."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sqlglot import exp, parse_one, tokenize
from sqlglot.errors import SqlglotError

from ematix_flow.errors import DataError
from ematix_flow.model import TableName


@lru_cache(maxsize=4096)
def quoted(name: str, dialect: str) -> str:
    """One identifier."""
    return exp.to_identifier(name, quoted=True).sql(dialect=dialect)


def column(name: str) -> exp.Column:
    """A quoted column reference."""
    return exp.column(exp.to_identifier(name, quoted=True))


def column_list(names: Sequence[str], dialect: str) -> str:
    """Quoted names, separated by commas."""
    return ", ".join(quoted(n, dialect) for n in names)


def split_name(text: str, dialect: str) -> TableName:
    """A table as a user names it: ``schema.table``, either part quoted or not."""
    try:
        table = exp.to_table(text, dialect=dialect)
    except SqlglotError as error:
        raise DataError(
            f"{text!r} is not the name of a table", fix='write "schema.table"'
        ) from error
    return TableName(table.db or None, table.name)


def parse_query(sql: str, dialect: str) -> exp.Query:
    """A user's query, or the reason why it is none."""
    try:
        parsed = parse_one(sql, dialect=dialect)
    except SqlglotError as error:
        first = str(error).splitlines()[0]
        raise DataError(f"the source SQL cannot be read: {first}", fix="correct the SQL") from error
    if not isinstance(parsed, exp.Query):
        raise DataError(
            f"the source SQL is a {parsed.key.upper()}, not a query", fix="return a SELECT"
        )
    return parsed


# What a query may begin with in one dialect or another.
_QUERIES = (
    *("(", "CALL", "DESCRIBE", "EXPLAIN", "FROM", "PIVOT", "PRAGMA", "SELECT", "SHOW"),
    *("SUMMARIZE", "TABLE", "UNPIVOT", "VALUES", "WITH"),
)


def require_query(sql: str, dialect: str) -> None:
    """Refuse what cannot be read from: another kind of statement, or several of them."""
    try:
        tokens = tokenize(sql, read=dialect)
    except SqlglotError:
        return  # The database may know better, and says so itself if not.
    first = tokens[0].text if tokens else "a comment"
    if first.upper() not in _QUERIES:
        raise DataError(
            f"the source SQL starts with {first[:40]}, so it is no query", fix="return a SELECT"
        )
    ends = [token.token_type.name == "SEMICOLON" for token in tokens]
    if True in ends and not all(ends[ends.index(True) :]):
        raise DataError(
            "the source SQL holds more than one statement",
            fix="return one SELECT, and run what comes before it with conn.execute(…)",
        )


def bare(sql: str, dialect: str) -> str:
    """A query without the semicolon at its end, to stand inside another."""
    try:
        tokens = tokenize(sql, read=dialect)
    except SqlglotError:
        return sql.strip().rstrip(";").rstrip()
    ends = [token.start for token in tokens if token.token_type.name == "SEMICOLON"]
    return sql[: ends[0]] if ends else sql
