"""Which normalizers stay inside which database; the same table stands in the reference."""

from __future__ import annotations

import pytest

from conformance_normalizers.engines import VALUE
from conformance_normalizers.strategies import ONE_OF_EACH
from ematix_flow import normalize as n
from ematix_flow import types as t
from ematix_flow.normalize import Normalizer
from ematix_flow.sql.normalizers import CannotMatch, compile_chain

TEXTS = [
    n.trim(),
    n.replace("a", "b"),
    n.empty_to_null(),
    n.whitespace_to_null(),
    n.lower(),
    n.email_normalize(),
    n.upper(),
    n.truncate(3),
    n.phone_normalize(),
    n.regex_replace(r"\s+", " "),
    n.default("x"),
    n.not_null_or("x"),
    n.nullif("x"),
    n.parse_bool(),
    n.parse_int(),
    n.parse_numeric(9, 2),
    n.parse_timestamp(),
    n.parse_date(),
]
SQLITE = {
    "trim",
    "replace",
    "empty_to_null",
    "whitespace_to_null",
    "default",
    "not_null_or",
    "nullif",
    "parse_bool",
}
ALL = {one.name for one in TEXTS}


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        ("spark", ALL),
        ("postgres", ALL),
        ("duckdb", ALL - {"upper", "parse_numeric"}),
        ("sqlite", SQLITE),
        ("mysql", set()),
    ],
)
def test_what_reads_text(dialect: str, expected: set[str]) -> None:
    assert {one.name for one in TEXTS if compiles(one, t.Text(), dialect)} == expected


@pytest.mark.parametrize(
    ("one", "kind", "dialects"),
    [
        (n.round(1), t.Numeric(9, 2), {"spark", "postgres", "duckdb"}),
        (n.round(1), t.Double(), {"spark"}),
        (n.round(1), t.BigInt(), {"spark", "postgres", "duckdb", "sqlite"}),
        (n.to_timezone("UTC"), t.TimestampTZ(), {"spark", "postgres", "duckdb"}),
        (n.to_timezone("Europe/Paris"), t.TimestampTZ(), {"spark"}),
        (n.date_trunc("day"), t.Date(), {"spark", "postgres", "duckdb"}),
        (n.clamp(0, 0.5), t.Double(), {"spark", "postgres", "duckdb", "sqlite"}),
        (n.clamp(0, 0.1 + 0.2), t.Double(), {"spark", "postgres", "duckdb"}),
        (n.default(0), t.Numeric(9, 2), {"spark", "postgres", "duckdb"}),
        (n.regex_replace("a|ab", ""), t.Text(), {"spark", "duckdb"}),
        (n.regex_replace("ab|cd", ""), t.Text(), {"spark", "postgres", "duckdb"}),
        (n.regex_replace("(a+)b", r"\1"), t.Text(), {"spark", "duckdb"}),
        (n.regex_replace("(a{2})b", r"\1"), t.Text(), {"spark", "postgres", "duckdb"}),
        (n.regex_replace("a{300}", ""), t.Text(), {"spark"}),
        (n.replace("\0", ""), t.Text(), {"spark", "duckdb"}),
        (n.parse_timestamp('YYYY-MM-DD"Z"HH24OF'), t.Text(), {"spark", "postgres"}),
        (n.parse_timestamp(), t.TimestampTZ(), {"spark", "postgres", "duckdb", "sqlite"}),
    ],
    ids=str,
)
def test_what_depends_on_more(one: Normalizer, kind: t.ColumnType, dialects: set[str]) -> None:
    places = ("spark", "postgres", "duckdb", "sqlite")
    assert {place for place in places if compiles(one, kind, place)} == dialects


def compiles(one: Normalizer, kind: t.ColumnType, dialect: str) -> bool:
    try:
        compile_chain([one], VALUE, kind, dialect=dialect)
    except CannotMatch as refused:
        return not refused.reason
    return True


@pytest.mark.parametrize("dialect", ["spark", "postgres", "duckdb", "sqlite"])
def test_an_expression_renders_the_same_twice(dialect: str) -> None:
    for one, kind in ONE_OF_EACH:
        if compiles(one, kind, dialect):
            first, second = (compile_chain([one], VALUE, kind, dialect=dialect) for _ in range(2))
            assert first == second
            assert first.expression.sql(dialect=dialect) == second.expression.sql(dialect=dialect)


def test_no_chain_leaves_the_column_alone() -> None:
    made = compile_chain([], VALUE, t.JSON(), dialect="postgres")
    assert (made.expression, made.type) == (VALUE, t.JSON())
