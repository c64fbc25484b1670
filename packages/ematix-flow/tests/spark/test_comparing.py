"""Values of different types are equal when they say the same, and only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ematix_flow import types as t
from ematix_flow.run.diff_buckets import hashed
from ematix_flow.sql.comparing import as_shown, common_type, comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INT, BIG, TEXT, NUMBER = t.Integer(), t.BigInt(), t.Text(), t.AnyNumeric()
MONEY, WIDE, HUGE = t.Numeric(10, 2), t.Numeric(12, 4), t.Numeric(38, 30)
FLOAT, DOUBLE, BOOL, JSON, JSONB = t.Float(), t.Double(), t.Boolean(), t.JSON(), t.JSONB()
LOCAL, INSTANT, DAY, CLOCK = t.Timestamp(), t.TimestampTZ(), t.Date(), t.Time()
UUID, BYTES, WORDS, COUNTS = t.UUID(), t.Bytes(), t.Array(TEXT), t.Array(BIG)

SAME = [
    ("5", INT, "5L", BIG),
    ("5", INT, "5.00BD", MONEY),
    ("1.50BD", MONEY, "1.5000BD", WIDE),
    ("1.50BD", MONEY, "'1.5'", NUMBER),
    ("CAST(100 AS DECIMAL(38, 30))", HUGE, "'100.000'", NUMBER),
    ("9223372036854775807L", BIG, "'9223372036854775807'", NUMBER),
    ("'1E-7'", NUMBER, "'0.0000001'", NUMBER),
    ("'NaN'", NUMBER, "'NaN'", NUMBER),
    ("CAST(0.1 AS FLOAT)", FLOAT, "CAST(CAST(0.1 AS FLOAT) AS DOUBLE)", DOUBLE),
    ("-0.0D", DOUBLE, "0.0D", DOUBLE),
    ("CAST('NaN' AS DOUBLE)", DOUBLE, "CAST('NaN' AS DOUBLE)", DOUBLE),
    ("0.5BD", MONEY, "0.5D", DOUBLE),
    (
        "TIMESTAMP_NTZ'2024-03-31 02:30:00.000001'",
        LOCAL,
        "TIMESTAMP'2024-03-31 04:30:00.000001+02:00'",
        INSTANT,
    ),
    ("DATE'2024-02-29'", DAY, "TIMESTAMP_NTZ'2024-02-29 00:00:00'", LOCAL),
    ("'10:30'", CLOCK, "'10:30:00.000000'", CLOCK),
    (
        "'6F9619FF-8B86-D011-B42D-00C04FC964FF'",
        UUID,
        "'6f9619ff-8b86-d011-b42d-00c04fc964ff'",
        UUID,
    ),
    ("""'{"b": [1, 2], "a": null}'""", JSONB, """'{"a":null,"b":[1,2]}'""", JSON),
    ("""'{"b": 1,  "a": 2}'""", TEXT, """'{"a":2,"b":1}'""", JSON),
    ("'5'", TEXT, "5", INT),
    ("'5.10'", TEXT, "5.1BD", MONEY),
    ("'true'", TEXT, "true", BOOL),
    ("'2024-01-01T00:00:00Z'", TEXT, "TIMESTAMP'2024-01-01 00:00:00+00:00'", INSTANT),
    ("X'00FF'", BYTES, "X'00ff'", BYTES),
    ("array('a', NULL)", WORDS, "array('a', NULL)", WORDS),
    ("array(1, 2)", t.Array(INT), "array(1L, 2L)", COUNTS),
    ("CAST(NULL AS STRING)", TEXT, "CAST(NULL AS INT)", INT),
    ("CAST(NULL AS ARRAY<BIGINT>)", COUNTS, "CAST(NULL AS ARRAY<BIGINT>)", COUNTS),
]
DIFFERENT = [
    ("5", INT, "6L", BIG),
    ("5", INT, "5.01BD", MONEY),
    ("1.00BD", MONEY, "'1.0000000000000000000000000000000000000001'", NUMBER),
    ("'5.005'", TEXT, "5.01BD", MONEY),
    ("'five'", TEXT, "5", INT),
    ("'a'", TEXT, "'A'", TEXT),
    ("'a'", TEXT, "'a '", TEXT),
    ("''", TEXT, "CAST(NULL AS STRING)", TEXT),
    ("0", INT, "CAST(NULL AS BIGINT)", BIG),
    ("CAST('NaN' AS DOUBLE)", DOUBLE, "CAST(NULL AS DOUBLE)", DOUBLE),
    ("9007199254740993L", BIG, "9007199254740992L", BIG),
    (
        "TIMESTAMP_NTZ'2024-01-01 00:00:00'",
        LOCAL,
        "TIMESTAMP'2024-01-01 00:00:00.000001+00:00'",
        INSTANT,
    ),
    ("array('a', NULL)", WORDS, "array(NULL, 'a')", WORDS),
    ("array('a')", WORDS, "array('a', NULL)", WORDS),
    ("array('a,b')", WORDS, "array('a', 'b')", WORDS),
    ("array()", WORDS, "CAST(NULL AS ARRAY<STRING>)", WORDS),
    ("""'{"a": 1}'""", JSON, """'{"a": "1"}'""", JSON),
    ("X'00'", BYTES, "X'0000'", BYTES),
    ("'10:30'", CLOCK, "'10:30:00.000001'", CLOCK),
]


def test_equal_values(spark: SparkSession) -> None:
    for verdict, cases in ((True, SAME), (False, DIFFERENT)):
        tests = []
        for a, a_type, b, b_type in cases:
            left, right = comparable("x", a_type, b_type), comparable("y", b_type, a_type)
            there = f"SELECT ({left}) <=> ({right}) FROM (SELECT {a} AS x, {b} AS y)"
            hashes = f"SELECT xxhash64({left}) = xxhash64({right}) FROM (SELECT {a} AS x, {b} AS y)"
            tests += [f"({there})"] + ([f"({hashes})"] if verdict else [])
        found = spark.sql(f"SELECT array({', '.join(tests)})").collect()[0][0]
        wrong = [sql for sql, same in zip(tests, found, strict=True) if same is not verdict]
        assert not wrong, wrong


def test_both_ways_give_the_same_common_type() -> None:
    for _, a, _, b in SAME + DIFFERENT:
        assert common_type(a, b) == common_type(b, a)


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        ("5L", BIG, 5),
        ("true", BOOL, True),
        ("1.50BD", MONEY, "1.5"),
        ("X'00FF'", BYTES, "00ff"),
        ("TIMESTAMP'2024-01-01 01:00:00.5+01:00'", INSTANT, "2024-01-01 00:00:00.500000+00:00"),
        ("DATE'2024-01-01'", DAY, "2024-01-01"),
        ("CAST(NULL AS DOUBLE)", DOUBLE, None),
    ],
)
def test_what_is_shown(spark: SparkSession, value: str, kind: t.ColumnType, shown: object) -> None:
    assert spark.sql(f"SELECT {as_shown(value, kind)}").collect()[0][0] == shown


def test_a_null_that_moves_to_the_next_column_is_seen(spark: SparkSession) -> None:
    rows = "(VALUES ('a', NULL), (NULL, 'a'), (NULL, NULL)) AS t(c0, c1)"
    found = spark.sql(
        f"SELECT count(DISTINCT xxhash64({hashed({'c0': TEXT, 'c1': TEXT})})) FROM {rows}"
    )
    assert found.collect()[0][0] == 3
