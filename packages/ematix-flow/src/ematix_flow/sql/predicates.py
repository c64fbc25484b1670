"""Conditions that users write in Spark SQL, for the databases that understand them alike."""

from __future__ import annotations

from sqlglot import exp, parse
from sqlglot.errors import ParseError, SqlglotError

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
# Names inside these are not columns of the rows.
_OWN_NAMES = (exp.Lambda, exp.Select, exp.Subquery, exp.Dot)


def condition(text: str, option: str) -> exp.Expr:
    """A condition as it was written, or the reason why it is none."""
    try:
        found = parse(text, dialect="spark")
    except SqlglotError as error:
        raise DeclarationError(
            f"{option}={text!r} is not a SQL condition{_place(error)}", fix="correct the SQL"
        ) from error
    if len(found) != 1 or not isinstance(found[0], exp.Condition):
        raise DeclarationError(
            f"{option}={text!r} is not a SQL condition",
            fix="write one that is true or false for each row",
        )
    return found[0]


def ordering(text: str, option: str) -> list[tuple[exp.Expr, bool]]:
    """The expressions of an ``ORDER BY``, each with whether it descends."""
    try:
        (query,) = parse(f"SELECT 1 ORDER BY {text}", dialect="spark")
    except (SqlglotError, ValueError) as error:
        reason = _place(error, before=len("SELECT 1 ORDER BY "))
        raise _no_order(text, option, reason) from error
    held = {name for name, value in query.args.items() if value} if query else set()
    if query is None or held != {"expressions", "order"}:
        raise _no_order(text, option)
    return [(item.this, bool(item.args.get("desc"))) for item in query.args["order"].expressions]


def _no_order(text: str, option: str, reason: str = "") -> DeclarationError:
    return DeclarationError(
        f"{option}={text!r} is no order{reason}", fix='write columns such as "received_at desc"'
    )


def _place(error: Exception, before: int = 0) -> str:
    """Where the parser gave up; its own words name its own classes."""
    told = error.errors if isinstance(error, ParseError) else []
    word = str(told[0].get("highlight") or "") if told else ""
    within = not told or (told[0].get("col") or 0) > before
    return f": it cannot be read at {word!r}" if word and within else ""


def columns_in(expression: exp.Expr) -> list[str]:
    """The columns that an expression names; none where some of its names may be others."""
    if next(expression.find_all(*_OWN_NAMES), None) is not None:
        return []
    return [column.name for column in expression.find_all(exp.Column)]


def portable(text: str, dialect: str) -> str:
    """The condition in a database's dialect, or ``CannotMatch`` where it may mean another thing."""
    parsed = condition(text, "condition")
    strange = next((n for n in parsed.walk() if not isinstance(n, _PORTABLE)), None)
    if strange is not None or dialect not in _ALIKE:
        raise CannotMatch(f"the condition {text!r} is evaluated by Spark")
    for column in parsed.find_all(exp.Column):
        column.this.set("quoted", True)
    return parsed.sql(dialect=dialect)
