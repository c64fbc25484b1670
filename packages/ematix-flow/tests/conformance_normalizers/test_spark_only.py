"""What only Spark does: SQL of the user's own, and errors that name the value."""

from __future__ import annotations

from typing import Any

import pytest

from conformance_normalizers.engines import NAME, VALUE, Case, compiled, in_spark
from ematix_flow import normalize as n
from ematix_flow import types as t
from ematix_flow.errors import BadValue, DeclarationError, Unsupported
from ematix_flow.normalize import Normalizer, apply_chain
from ematix_flow.sql.normalizers import CannotMatch, compile_chain

READERS: tuple[tuple[Normalizer, str, str], ...] = (
    (n.parse_int("error"), "42", "4x2"),
    (n.parse_numeric(5, 2, "error"), "1.5", "12345.6"),
    (n.parse_bool(on_failure="error"), "yes", "maybe"),
    (n.parse_timestamp("YYYY-MM-DD", on_failure="error"), "2024-02-29", "2023-02-29"),
    (n.parse_date(on_failure="error"), "20240229", "it's no date"),
)


@pytest.mark.parametrize(("reader", "good", "bad"), READERS, ids=str)
def test_an_unreadable_value_stops_spark_and_is_named(
    spark: Any, reader: Normalizer, good: str, bad: str
) -> None:
    expected = apply_chain([reader], good, t.Text())
    case = Case((reader,), t.Text(), (good, None))
    [[result, missing]] = in_spark(spark)([compiled(case, "spark")])
    assert (result, missing) == (expected, None)

    with pytest.raises(BadValue, match="cannot read"):
        apply_chain([reader], bad, t.Text())
    broken = Case((reader,), t.Text(), (good, bad))
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION") as raised:
        in_spark(spark)([compiled(broken, "spark")])
    assert f"{reader.name}() cannot read the value '{bad}'" in str(raised.value)


@pytest.mark.parametrize("dialect", ["postgres", "duckdb", "sqlite"])
@pytest.mark.parametrize(
    "one", [reader for reader, _, _ in READERS] + [n.sql("upper(col)"), n.derive("a + b")], ids=str
)
def test_other_engines_leave_it_to_spark(dialect: str, one: Normalizer) -> None:
    with pytest.raises(CannotMatch) as refused:
        compile_chain([one], VALUE, t.Text(), dialect=dialect)
    assert refused.value.reason == str(refused.value)
    assert "\n" not in refused.value.reason


def in_one_row(spark: Any, chain: list[Normalizer], **row: object) -> tuple[object, Any]:
    made = compile_chain(chain, VALUE, t.Text(), dialect="spark")
    frame = spark.createDataFrame([row]).selectExpr(
        f"{made.expression.sql(dialect='spark')} AS result"
    )
    return frame.collect()[0]["result"], made.type


def test_sql_puts_the_value_in_place_of_the_word_col(spark: Any) -> None:
    row = {NAME: " ab ", "column": "c", "col": "not this one"}
    chain = [n.trim(), n.sql("concat(col, '-col-', `column`, `col`, upper(COL))")]
    assert in_one_row(spark, chain, **row) == ("ab-col-cnot this oneAB", None)


def test_sql_goes_on_as_text_unless_told_otherwise(spark: Any) -> None:
    assert in_one_row(spark, [n.sql("length(col)"), n.replace("3", "three")], **{NAME: "abc"}) == (
        "three",
        t.Text(),
    )
    number = [n.sql("length(col)", returns=t.BigInt()), n.clamp(0, 2)]
    assert in_one_row(spark, number, **{NAME: "abc"}) == (2, t.BigInt())


def test_derive_computes_from_other_columns(spark: Any) -> None:
    row = {"first": "Ada", "last": "Lovelace"}
    assert in_one_row(spark, [n.derive("first || ' ' || last"), n.upper()], **row) == (
        "ADA LOVELACE",
        t.Text(),
    )


@pytest.mark.parametrize(
    "written", ["a +", "a, b", "a FROM t", "a; DROP TABLE t", "a) + (b", "1 UNION SELECT 2", "*"]
)
def test_sql_that_is_not_one_expression_is_refused(written: str) -> None:
    with pytest.raises(DeclarationError, match=r"^sql\(\): "):
        compile_chain([n.sql(written)], VALUE, t.Text(), dialect="spark")


def test_sql_has_no_meaning_in_python() -> None:
    with pytest.raises(Unsupported, match="only Spark can apply it"):
        n.sql("upper(col)").apply("a")
