"""Runs a chain in each engine over a column of values, as a load would."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import duckdb
import psycopg
import pyarrow as pa

from ematix_flow import types as t
from ematix_flow.normalize import Normalizer
from ematix_flow.sql.identifiers import column
from ematix_flow.sql.normalizers import compile_chain

NAME = "the value"
VALUE = column(NAME)


@dataclass(frozen=True)
class Case:
    """A chain over values of one type."""

    chain: tuple[Normalizer, ...]
    source: t.ColumnType
    values: tuple[object, ...]


# One run of an engine over many cases: the results of each, in the order of its values.
Run = Callable[[Sequence[tuple[Case, str, t.ColumnType | None]]], list[list[Any]]]

_ARROW: dict[str, pa.DataType] = {
    "text": pa.string(),
    "string": pa.string(),
    "small_int": pa.int16(),
    "integer": pa.int32(),
    "big_int": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_tz": pa.timestamp("us", tz="UTC"),
}


def arrow_column(case: Case) -> pa.Array:
    kind = case.source
    if isinstance(kind, t.Numeric):
        return pa.array(case.values, pa.decimal128(kind.precision, kind.scale))
    return pa.array(case.values, _ARROW[kind.kind])


def compiled(case: Case, dialect: str) -> tuple[Case, str, t.ColumnType | None]:
    """The case with its expression in a dialect; raises CannotMatch where there is none."""
    result = compile_chain(case.chain, VALUE, case.source, dialect=dialect)
    return case, result.expression.sql(dialect=dialect), result.type


def in_spark(spark: Any) -> Run:
    def run(cases: Sequence[tuple[Case, str, t.ColumnType | None]]) -> list[list[Any]]:
        longest = max(len(case.values) for case, _, _ in cases)
        columns: dict[str, pa.Array] = {"row": pa.array(range(longest), pa.int32())}
        shown = []
        for number, (case, expression, _) in enumerate(cases):
            padding = (None,) * (longest - len(case.values))
            padded = Case(case.chain, case.source, (*case.values, *padding))
            columns[f"c{number}"] = arrow_column(padded)
            shown.append(f"{expression.replace(f'`{NAME}`', f'`c{number}`')} AS r{number}")
        frame = spark.createDataFrame(pa.table(columns))
        for number, (case, _, _) in enumerate(cases):
            if case.source.kind == "timestamp":
                frame = frame.withColumn(f"c{number}", frame[f"c{number}"].cast("timestamp_ntz"))
        table = frame.selectExpr("`row`", *shown).toArrow().sort_by("row")
        return [
            table[f"r{number}"].to_pylist()[: len(case.values)]
            for number, (case, _, _) in enumerate(cases)
        ]

    return run


def in_duckdb(cases: Sequence[tuple[Case, str, t.ColumnType | None]]) -> list[list[Any]]:
    results = []
    with duckdb.connect() as connection:
        # A zone other than UTC: no expression may depend on it.
        connection.execute("SET TimeZone = 'America/New_York'")
        for case, expression, _ in cases:
            rows = pa.table({"row": pa.array(range(len(case.values))), NAME: arrow_column(case)})
            connection.register("rows", rows)
            table = connection.execute(
                f'SELECT {expression} AS result FROM rows ORDER BY "row"'
            ).to_arrow_table()
            results.append(table["result"].to_pylist())
            connection.unregister("rows")
    return results


def in_sqlite(cases: Sequence[tuple[Case, str, t.ColumnType | None]]) -> list[list[Any]]:
    results = []
    connection = sqlite3.connect(":memory:")
    try:
        for case, expression, _ in cases:
            affinity = {"text": "TEXT COLLATE NOCASE", "double": "REAL"}.get(
                case.source.kind, "INTEGER"
            )
            connection.execute(f'CREATE TABLE t ("row" INTEGER, "{NAME}" {affinity})')
            connection.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(case.values)))
            found = connection.execute(f'SELECT {expression} FROM t ORDER BY "row"').fetchall()
            results.append([value for (value,) in found])
            connection.execute("DROP TABLE t")
    finally:
        connection.close()
    return results


_POSTGRES = {
    "text": "text",
    "string": "text",
    "small_int": "smallint",
    "integer": "integer",
    "big_int": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_tz": "timestamptz",
}


def in_postgres(url: str) -> Run:
    def run(cases: Sequence[tuple[Case, str, t.ColumnType | None]]) -> list[list[Any]]:
        results = []
        with psycopg.connect(url) as connection:
            # A zone other than UTC: no expression may depend on it.
            connection.execute("SET TimeZone = 'America/New_York'")
            connection.execute("SET DateStyle = 'SQL, DMY'")
            for case, expression, _ in cases:
                kind = case.source
                sql_type = (
                    f"numeric({kind.precision}, {kind.scale})"
                    if isinstance(kind, t.Numeric)
                    else _POSTGRES[kind.kind]
                )
                connection.execute(f'CREATE TEMP TABLE t ("row" int, "{NAME}" {sql_type})')
                with connection.cursor().copy("COPY t FROM STDIN") as copy:
                    for row in enumerate(case.values):
                        copy.write_row(row)
                found = connection.execute(f'SELECT {expression} FROM t ORDER BY "row"'.encode())
                results.append([value for (value,) in found.fetchall()])
                connection.execute("DROP TABLE t")
            connection.rollback()
        return results

    return run


def comparable(value: Any) -> Any:
    """A result in a form in which equal values are equal, whatever driver brought it."""
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(timezone.utc)
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, bool) or value is None or isinstance(value, str | date):
        return value
    return Decimal(value) if isinstance(value, int | Decimal) else value
