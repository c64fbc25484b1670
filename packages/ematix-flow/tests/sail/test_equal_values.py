"""Where Sail is trusted, its values are Spark's; where it is not, there is a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from sqlglot import exp, parse_one

from ematix_flow import normalize
from ematix_flow import types as t
from ematix_flow.model import Column
from ematix_flow.run.engines import PROVEN_NORMALIZERS, casts_alike
from ematix_flow.sql.identifiers import column as reference
from ematix_flow.sql.normalizers import compile_chain
from ematix_flow.sql.spark import assign, spark_ddl
from sail.asked import answers, sails_answers

_TEXTS = (
    *("", " ", "a", "Ab c", "ÀÉß", "\u0131İ", "👍 é", "  x\t", "null", "NaN", "Infinity", "-inf"),
    *("0", "-0", "+7", "007", " 42 ", "42.0", "1e3", "1E-7", "1.005", "-1.50", ".5", "5."),
    *("32767", "32768", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("0.1", "123456789.123456789", "99999999999999999999", "1e40", "3.4e38", "1e309"),
    *("true", "T", "yes", "0.0", "f", "2024-02-29", "2023-02-29", "0001-01-01", "9999-12-31"),
    *("2024-1-2", "2024-01-02 03:04:05", "2024-01-02T03:04:05.123456Z", "2024-01-02 03:04:05.5"),
    *("2024-01-02 03:04:05+02:00", "23:59:59.999999", "24:00:00", "12:30", "1969-12-31 23:59:59"),
    *('{"a": [1, 2.50]}', "{bad", "[1,]", "01", '"x"', '{"a":1,"a":2}', "[NaN]", "[1] x"),
    *("6F9619FF-8B86-D011-B42D-00C04FC964FF", "6f9619ff8b86d011b42d00c04fc964ff", "not-a-uuid"),
)
_VALUES: Mapping[t.ColumnType, tuple[str, ...]] = {
    t.Text(): tuple("'" + text.replace("'", "''") + "'" for text in _TEXTS),
    t.SmallInt(): ("0", "-1", "32767", "-32768"),
    t.Integer(): ("0", "-1", "2147483647", "-2147483648"),
    t.BigInt(): ("0", "-1", "9007199254740993", "9223372036854775807", "-9223372036854775808"),
    t.Numeric(12, 2): ("0", "0.01", "-1.50", "9999999999.99"),
    t.Numeric(38, 10): ("0", "0.0000000001", "-1234567890123456789012345678.1234567891"),
    t.Float(): ("0", "'-0.0'", "0.1", "16777216", "'NaN'", "'-Infinity'", "1e-30"),
    t.Double(): ("0", "'-0.0'", "0.1", "1e300", "'NaN'", "'Infinity'", "4.9e-324"),
    t.Boolean(): ("true", "false"),
    t.Date(): ("DATE'0001-01-01'", "DATE'1582-10-15'", "DATE'1969-12-31'", "DATE'9999-12-31'"),
    t.Timestamp(): (
        *("'0001-01-01 00:00:00'", "'1969-12-31 23:59:59.999999'", "'2024-02-29 12:00:00.5'"),
        "'9999-12-31 23:59:59.999999'",
    ),
    t.TimestampTZ(): (
        *("'1900-01-01 00:00:00Z'", "'1969-12-31 23:59:59.999999Z'", "'2024-02-29 12:00:00.5Z'"),
        "'9999-12-30 23:59:59.999999Z'",
    ),
    t.Time(): ("'00:00:00.000000'", "'23:59:59.999999'"),
    t.UUID(): ("'6f9619ff-8b86-d011-b42d-00c04fc964ff'",),
    t.JSON(): ("'{\"a\": [1, 2.50, null]}'", "'\"é\"'"),
    t.Bytes(): ("X''", "X'00FF41'"),
}
_TARGETS = (*_VALUES, t.String(4), t.Numeric(5, 0), t.Numeric(20, 4))
_NORMALIZERS = {
    "trim": normalize.trim(),
    "empty_to_null": normalize.empty_to_null(),
    "whitespace_to_null": normalize.whitespace_to_null(),
    "replace": normalize.replace("a", "é"),
    "truncate": normalize.truncate(2),
}


def _asked(
    source: t.ColumnType, expression: str, values: Sequence[str], *, instants: bool = False
) -> str:
    """A query for one expression over many values; where it would refuse one, it gives NULL."""
    tree = parse_one(expression, dialect="spark")
    quiet = tree.transform(lambda node: exp.null() if _refuses(node) else node)
    kind = spark_ddl(source)
    rows = ", ".join(f"({n}, CAST({value} AS {kind}))" for n, value in enumerate(values))
    # Not every instant that Spark knows is one for Python.
    shown = f"CAST({quiet.sql(dialect='spark')} AS STRING)" if instants else quiet.sql("spark")
    return f"SELECT n, {shown} FROM VALUES {rows} AS v(n, x) ORDER BY n"


def _refuses(node: exp.Expression) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.upper() == "RAISE_ERROR"


def _differences(spark: Any, queries: Sequence[str]) -> str:
    ours, theirs = answers(spark, queries), sails_answers(queries)
    return "\n".join(
        f"{query}\n  Spark {one}\n  Sail  {other}"
        for query, one, other in zip(queries, ours, theirs, strict=True)
        if one != other
    )


@pytest.mark.slow
def test_a_trusted_assignment_is_sparks(spark: Any) -> None:
    queries = [
        _asked(
            source,
            assign(Column(target, name="x"), "x", source),
            (*values, "NULL"),
            instants=target == t.TimestampTZ(),
        )
        for source, values in _VALUES.items()
        for target in _TARGETS
        if t.assignable(source, target) and casts_alike(source, target)
    ]
    assert _differences(spark, queries) == ""


@pytest.mark.slow
def test_a_trusted_normalizer_is_sparks(spark: Any) -> None:
    assert set(_NORMALIZERS) == PROVEN_NORMALIZERS
    queries = []
    for normalizer in _NORMALIZERS.values():
        chain = compile_chain((normalizer,), reference("x"), t.Text(), dialect="spark")
        queries.append(_asked(t.Text(), chain.expression.sql(dialect="spark"), _VALUES[t.Text()]))
    assert _differences(spark, queries) == ""


# Every line is a reason in ematix_flow.run.engines. When Sail learns one, its test fails here, and
# the reason can go.
DIFFERENT = {
    "overflow of whole numbers": "SELECT 2147483647 + 1",
    "small numbers as text": "SELECT CAST(1e-7D AS STRING)",
    "infinity as text": "SELECT CAST(double('Infinity') AS STRING)",
    "doubles as decimals": "SELECT CAST(1.005D AS DECIMAL(5, 2))",
    "exponents": "SELECT try_cast('1e3' AS DECIMAL(12, 2))",
    "what is JSON": "SELECT try_parse_json('12:30') IS NULL",
    "decimals in JSON": "SELECT to_json(array(CAST(1.50 AS DECIMAL(5, 2))))",
    "look-around in patterns": "SELECT regexp_replace('a cat', '(?<= )cat', 'dog')",
}


@pytest.fixture(scope="module")
def both(spark: Any) -> dict[str, tuple[str, str]]:
    queries = list(DIFFERENT.values())
    pairs = zip(answers(spark, queries), sails_answers(queries), strict=True)
    return dict(zip(DIFFERENT, pairs, strict=True))


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_sail_does_in_its_own_way(both: dict[str, tuple[str, str]], what: str) -> None:
    ours, theirs = both[what]
    assert ours != theirs, f"{what}: Sail says {theirs}, as Spark does; it may be trusted now"
