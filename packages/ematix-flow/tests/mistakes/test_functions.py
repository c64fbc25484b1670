"""Mistakes in what a pipeline's function does and returns, and in the rows it stands for."""

from __future__ import annotations

import pytest

from mistakes.conftest import Make
from mistakes.workshop import Failure, Mistake

HERE = "pipelines.py:"


def load(body: str, options: str = "", arguments: str = "conn") -> str:
    """A pipeline inside the warehouse, which takes the path without Spark."""
    return (
        f'@ematix.pipeline(target=Orders, target_connection="warehouse", {options})\n'
        f"def load({arguments}):\n    {body}\n"
    )


def rows(select: str, options: str = "") -> str:
    """A pipeline of these rows."""
    return load(f'return "{select}"', options)


def by_spark(select: str, options: str = "") -> str:
    """The same rows, taken through Spark."""
    return rows(select, f'force_path="spark", {options}')


ORDERS = '"id LONG, note STRING, amount DECIMAL(8,2)"'

MISTAKES = [
    Failure(
        "function that raises",
        (HERE, "function of pipeline 'load' raised KeyError: 'day'", "correct the function"),
        load("return {}['day']"),
    ),
    Failure(
        "function that leaves",
        (HERE, "function of pipeline 'load'", "SystemExit", "correct the function"),
        load("raise SystemExit(0)"),
    ),
    Failure(
        "function that returns a list",
        (HERE, "pipeline 'load' returned a list", "return SQL, a Spark DataFrame"),
        load("return [1, 2]"),
    ),
    Failure(
        "function that returns nothing",
        (HERE, "pipeline 'load' returned nothing", "return SQL"),
        load("pass"),
    ),
    Failure(
        "function that returns an empty text",
        (HERE, "pipeline 'load' returned an empty text", "return a SELECT"),
        load('return "  "'),
    ),
    Failure(
        "function that returns something beside source_table",
        (HERE, "pipeline 'load' has source_table=", "returned something too", "keep one"),
        load("return ONE_ORDER", 'source_table="shop.orders"'),
    ),
    Failure(
        "function that returns an INSERT",
        ("pipeline 'load'", "the source SQL starts with INSERT", "return a SELECT"),
        load("return \"INSERT INTO shop.orders VALUES (9, 'nine', 9)\""),
    ),
    Failure(
        "function that returns two statements",
        ("pipeline 'load'", "more than one statement", "return one SELECT"),
        load('return ONE_ORDER + "; DROP TABLE shop.orders"'),
    ),
    Failure(
        "function whose query of the source fails",
        (
            "pipeline 'load'",
            "connection 'warehouse'",
            "no_such_table does not exist",
            "did you mean",
        ),
        load('return conn.query("SELECT 1 FROM no_such_table")'),
    ),
    Failure(
        "SQL syntax error",
        ("pipeline 'load'", "connection 'warehouse'", "syntax error at or near", "correct the SQL"),
        rows("SELECT 1 AS id FORM shop.orders"),
    ),
    Failure(
        "missing source table",
        (
            "pipeline 'load'",
            "connection 'warehouse'",
            "odrers does not exist",
            "did you mean",
            "orders",
        ),
        load("pass", 'source_table="shop.odrers"'),
    ),
    Failure(
        "missing column in the SQL",
        ("pipeline 'load'", "connection 'warehouse'", "nota", "candidate bindings", "note"),
        rows("SELECT id, nota AS note, amount FROM shop.orders"),
    ),
    Failure(
        "column that the source does not give",
        (HERE, "pipeline 'load' has no column 'amount'", "alias one AS amount", "'amonut'"),
        rows("SELECT 3 AS id, 'x' AS note, 1.5 AS amonut"),
    ),
    Failure(
        "two columns of one name",
        (HERE, "pipeline 'load' has two columns named 'note'", "AS"),
        rows("SELECT 3 AS id, 'x' AS note, 'y' AS note, 1.5 AS amount"),
    ),
    Failure(
        "column of the wrong type",
        (HERE, "column 'amount' is declared Numeric[8, 2]", "source is Date", "cast it"),
        rows("SELECT 3 AS id, 'x' AS note, DATE '2026-01-31' AS amount"),
    ),
    Failure(
        "text that is no number",
        ("pipeline 'load'", "'amount'", "'12,5'", "Numeric[8, 2]", "correct"),
        rows("SELECT 3 AS id, 'x' AS note, '12,5' AS amount"),
    ),
    Failure(
        "text that is no number, by Spark",
        ("pipeline 'load'", "'amount'", "'12,5'", "Numeric[8, 2]", "correct"),
        by_spark("SELECT 3 AS id, 'x' AS note, '12,5' AS amount"),
    ),
    Failure(
        "number that does not fit",
        ("pipeline 'load'", "shop.orders", "'amount'", "1234567.00", "DECIMAL(8,2)"),
        rows("SELECT 3 AS id, 'x' AS note, 1234567.00 AS amount"),
    ),
    Failure(
        "number that does not fit, by Spark",
        ("pipeline 'load'", "'amount'", "1234567.00", "Numeric[8, 2]"),
        by_spark("SELECT 3 AS id, 'x' AS note, 1234567.00 AS amount"),
    ),
    Failure(
        "text that is too long",
        ("pipeline 'load'", "'note'", "8 characters"),
        rows("SELECT 3 AS id, 'far too long' AS note, 1.5 AS amount"),
    ),
    Failure(
        "text that is too long, by Spark",
        ("pipeline 'load'", "'note'", "8 characters"),
        by_spark("SELECT 3 AS id, 'far too long' AS note, 1.5 AS amount"),
    ),
    Failure(
        "NULL in NOT NULL",
        ("pipeline 'load'", "'note'", "NULL", "source"),
        rows("SELECT 3 AS id, CAST(NULL AS VARCHAR) AS note, 1.5 AS amount"),
    ),
    Failure(
        "NULL in NOT NULL, by Spark",
        ("pipeline 'load'", "'note'", "NULL", "source"),
        by_spark("SELECT 3 AS id, CAST(NULL AS VARCHAR) AS note, 1.5 AS amount"),
    ),
    Failure(
        "duplicate key within the rows",
        ("pipeline 'load'", "table shop.orders", 'duplicate key "3"', "correct the rows"),
        rows("SELECT 3 AS id, 'x' AS note, 1.5 AS amount FROM range(2)"),
    ),
    Failure(
        "duplicate of a key that is already there",
        ("pipeline 'load'", "table shop.orders", 'Duplicate key "id: 1"', "correct the rows"),
        rows("SELECT 1 AS id, 'x' AS note, 1.5 AS amount"),
    ),
    Failure(
        "empty source with truncate",
        ("pipeline 'load'", "0 rows", "shop.orders", "allow_empty=True"),
        rows("SELECT * FROM shop.orders WHERE false", 'mode="truncate"'),
    ),
    Failure(
        "path that is impossible",
        (HERE, "pipeline 'load' cannot take force_path='same_db'", "same database", "remove"),
        load(
            'return "SELECT id, note, amount FROM orders"',
            'source_connection="source", force_path="same_db"',
        ),
    ),
    Failure(
        "prefix for a database",
        ("pipeline 'load'", "prefix= does not go with a duckdb target", "object stores"),
        load("return ONE_ORDER", 'prefix="x"'),
        code=2,
    ),
    Failure(
        "normalizer that fails on purpose",
        ("pipeline 'load'", "'amount'", "'x1'", "correct the rows"),
        '@ematix.table(schema="shop")\nclass Counted:\n'
        '    amount: Annotated[BigInt, parse_int(on_failure="error")]\n\n'
        + rows("SELECT 'x1' AS amount").replace("Orders", "Counted"),
    ),
    Failure(
        "normalizer with SQL that is wrong",
        ("pipeline 'load'", "no function 'no_such_function'", "check the name"),
        '@ematix.table(schema="shop")\nclass Counted:\n'
        '    note: Annotated[Text, sql("no_such_function(note)")]\n\n'
        + rows("SELECT 'x1' AS note").replace("Orders", "Counted"),
    ),
    Failure(
        "DataFrame with a column that nothing can hold",
        ("pipeline 'load'", "'gap'", "interval", "cast or drop it"),
        load(
            "return spark.sql(\"SELECT 3 AS id, 'x' AS note, INTERVAL 1 DAY AS gap\")",
            arguments="spark",
        ),
    ),
    Failure(
        "DataFrame over a missing table",
        ("pipeline 'load'", "no table or view 'nowhere'", "check the name"),
        load('return spark.table("nowhere")', arguments="spark"),
    ),
    Failure(
        "DataFrame with a missing column",
        ("pipeline 'load'", "no column 'idd'", "id"),
        load('return spark.range(3).select("idd")', arguments="spark"),
    ),
    Failure(
        "Python function that fails inside Spark",
        (HERE, "pipeline 'load'", "ZeroDivisionError: division by zero", "correct the function"),
        load(
            "def half(batches):\n        for batch in batches:\n            1 / 0\n"
            "            yield batch\n"
            f"    return spark.range(3).mapInArrow(half, {ORDERS})",
            arguments="spark",
        ),
    ),
    Failure(
        "Python worker that dies",
        ("pipeline 'load'", "Python worker", "check"),
        load(
            "def die(batches):\n        import os\n        os._exit(3)\n"
            "        yield from batches\n"
            f"    return spark.range(3).mapInArrow(die, {ORDERS})",
            arguments="spark",
        ),
    ),
    Failure(
        "division by zero inside Spark",
        ("pipeline 'load'", "division by zero", "nullif"),
        load(
            "return spark.sql(\"SELECT id, 'x' AS note, CAST(1 / id AS DECIMAL(8,2)) AS amount "
            'FROM range(3)")',
            arguments="spark",
        ),
    ),
]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_function(mistake: Mistake, make: Make) -> None:
    make(mistake)
