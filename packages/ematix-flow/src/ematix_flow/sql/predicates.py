"""Conditions that users write in Spark SQL, for the databases that understand them alike."""

from __future__ import annotations

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from ematix_flow.errors import DeclarationError
from ematix_flow.sql.normalizers import CannotMatch

# Comparisons of columns with constants mean the same everywhere; functions need not.
_PORTABLE = (
    exp.And,
    exp.Or,
    exp.Not,
    exp.Paren,
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
    exp.In,
    exp.Is,
    exp.Null,
    exp.Boolean,
    exp.Literal,
    exp.Neg,
    exp.Column,
    exp.Identifier,
)
_ALIKE = ("postgres", "duckdb")


def condition(text: str, option: str) -> exp.Expr:
    """A condition as it was written, or the reason why it is none."""
    try:
        return parse_one(text, dialect="spark")
    except SqlglotError as error:
        first = str(error).splitlines()[0]
        raise DeclarationError(
            f"{option}={text!r} is not a SQL condition: {first}", fix="correct the SQL"
        ) from error


def portable(text: str, dialect: str) -> str:
    """The condition in a database's dialect, or ``CannotMatch`` where it may mean another thing."""
    parsed = condition(text, "condition")
    strange = next((n for n in parsed.walk() if not isinstance(n, _PORTABLE)), None)
    if strange is not None or dialect not in _ALIKE:
        raise CannotMatch(f"the condition {text!r} is evaluated by Spark")
    for column in parsed.find_all(exp.Column):
        column.this.set("quoted", True)
    return parsed.sql(dialect=dialect)
