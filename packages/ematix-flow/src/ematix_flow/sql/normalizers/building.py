"""Small pieces of SQL as sqlglot expressions. Every piece copies what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlglot import exp

Condition = exp.Expression


def call(name: str, *arguments: exp.Expression) -> exp.Expression:
    """A function by its name in the dialect at hand, which sqlglot leaves alone."""
    return exp.Anonymous(this=name, expressions=[a.copy() for a in arguments])


def cast(value: exp.Expression, sql_type: str, dialect: str) -> exp.Expression:
    """CAST, with the type as the dialect writes it."""
    return exp.Cast(this=value.copy(), to=exp.DataType.build(sql_type, dialect=dialect))


def try_cast(value: exp.Expression, sql_type: str, dialect: str) -> exp.Expression:
    """TRY_CAST, with the type as the dialect writes it."""
    to = exp.DataType.build(sql_type, dialect=dialect)
    # Without ``safe`` sqlglot writes a plain CAST for Spark.
    return exp.TryCast(this=value.copy(), to=to, safe=True)


def case(
    branches: Iterable[tuple[exp.Expression, exp.Expression]],
    otherwise: exp.Expression | None = None,
) -> exp.Expression:
    """CASE WHEN … THEN … END."""
    ifs = [exp.If(this=when.copy(), true=then.copy()) for when, then in branches]
    return exp.Case(ifs=ifs, default=None if otherwise is None else otherwise.copy())


def when(condition: exp.Expression, value: exp.Expression) -> exp.Expression:
    """The value where the condition holds, else NULL."""
    return case([(condition, value)])


def coalesce(values: list[exp.Expression]) -> exp.Expression:
    """The first value that is not NULL."""
    return values[0] if len(values) == 1 else call("COALESCE", *values)


def compared(
    kind: Callable[..., exp.Expression], left: exp.Expression, right: exp.Expression
) -> Condition:
    """A comparison."""
    return kind(this=left.copy(), expression=right.copy())


def both(left: Condition, right: Condition) -> Condition:
    """AND."""
    return exp.And(this=left.copy(), expression=right.copy())


def negated(condition: Condition) -> Condition:
    """NOT."""
    return exp.Not(this=condition.copy())


def present(value: exp.Expression) -> Condition:
    """IS NOT NULL."""
    return negated(exp.Is(this=value.copy(), expression=exp.Null()))


def between(value: exp.Expression, low: exp.Expression, high: exp.Expression) -> Condition:
    """BETWEEN, both ends included."""
    return exp.Between(this=value.copy(), low=low.copy(), high=high.copy())


def one_of(value: exp.Expression, options: Iterable[exp.Expression]) -> Condition:
    """IN a list."""
    return exp.In(this=value.copy(), expressions=[option.copy() for option in options])


def number(value: int) -> exp.Expression:
    """A whole number."""
    return exp.Literal.number(value)


def enclosed(value: exp.Expression) -> exp.Expression:
    """The value in parentheses unless it needs none."""
    simple = isinstance(value, exp.Column | exp.Func | exp.Literal | exp.Paren | exp.Cast)
    return value.copy() if simple else exp.Paren(this=value.copy())


def collated(value: exp.Expression, collation: exp.Expression) -> exp.Expression:
    """COLLATE."""
    return exp.Collate(this=enclosed(value), expression=collation)


def at_utc(value: exp.Expression) -> exp.Expression:
    """AT TIME ZONE 'UTC'."""
    return exp.AtTimeZone(this=enclosed(value), zone=exp.Literal.string("UTC"))


def bound(name: str, value: exp.Expression, result: exp.Expression) -> exp.Expression:
    """``result``, in which the column ``name`` stands for ``value``, computed once."""
    alias = exp.to_identifier(name, quoted=True)
    inner = exp.Select(expressions=[exp.Alias(this=value.copy(), alias=alias)])
    table = exp.Subquery(
        this=inner, alias=exp.TableAlias(this=exp.to_identifier("bound", quoted=True))
    )
    return exp.Subquery(this=exp.Select(expressions=[result.copy()]).from_(table))
