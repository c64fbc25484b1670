"""Runs a chain in each engine over a column of values, as a load would."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import duckdb
import psycopg
import pyarrow as pa

from ematix_flow import types as t
from ematix_flow.normalize import Normalizer, apply_chain
from ematix_flow.normalize.constants import single
from ematix_flow.sql.identifiers import column
from ematix_flow.sql.normalizers import CannotMatch, compile_chain

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
            connection.execute("CREATE OR REPLACE TABLE t AS FROM rows")
            if case.source.kind == "text":
                # A collation other than the plain one: no expression may depend on it.
                connection.execute(f'ALTER TABLE t ALTER "{NAME}" TYPE VARCHAR COLLATE NOCASE')
            query = f'SELECT {expression} AS result FROM t ORDER BY "row"'
            table = connection.sql(query).to_arrow_table()
            result = table["result"]
            if pa.types.is_timestamp(result.type) and result.type.tz:
                result = result.cast(pa.timestamp("us", tz="UTC"))
            results.append(result.to_pylist())
            connection.unregister("rows")
    return results


# A collation other than the plain one: no expression may depend on it.
_SQLITE = {
    "text": "TEXT COLLATE NOCASE",
    "small_int": "INTEGER",
    "integer": "INTEGER",
    "big_int": "INTEGER",
    "boolean": "INTEGER",
    "float": "REAL",
    "double": "REAL",
}


def storable(case: Case, dialect: str) -> Case:
    """The case without values that the database cannot hold as they are."""
    if dialect == "postgres":
        return replace(case, values=tuple(v for v in case.values if "\0" not in str(v)))
    if dialect == "sqlite":
        if case.source.kind not in _SQLITE:
            raise CannotMatch("SQLite keeps them in another form")
        return replace(case, values=tuple(v for v in case.values if str(v) != "nan"))
    return case


def in_sqlite(cases: Sequence[tuple[Case, str, t.ColumnType | None]]) -> list[list[Any]]:
    results = []
    connection = sqlite3.connect(":memory:")
    try:
        for case, expression, _ in cases:
            affinity = _SQLITE[case.source.kind]
            connection.execute(f'CREATE TABLE t ("row" INTEGER, "{NAME}" {affinity})')
            connection.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(case.values)))
            found = connection.execute(f'SELECT {expression} FROM t ORDER BY "row"').fetchall()
            results.append([value for (value,) in found])
            connection.execute("DROP TABLE t")
    finally:
        connection.close()
    return results


_POSTGRES = {
    "text": "text COLLATE any_case",
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
        with psycopg.connect(url, options="-c TimeZone=UTC") as connection:
            connection.prepare_threshold = None
            # Text that ignores case: no expression may depend on it.
            connection.execute(
                "CREATE COLLATION any_case"
                " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
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
                # Settings other than the usual ones: no expression may depend on them.
                connection.execute("SET TimeZone = 'America/New_York'")
                connection.execute("SET DateStyle = 'SQL, DMY'")
                made = f'CREATE TEMP TABLE made AS SELECT "row", {expression} AS result FROM t'
                connection.execute(made.encode())
                connection.execute("SET TimeZone = 'UTC'")
                connection.execute("SET DateStyle = 'ISO'")
                found = connection.execute('SELECT result FROM made ORDER BY "row"')
                results.append([value for (value,) in found.fetchall()])
                connection.execute("DROP TABLE t, made")
            connection.rollback()
        return results

    return run


def comparable(value: Any, kind: t.ColumnType | None) -> Any:
    """A result in a form in which equal values are equal, whatever driver brought it."""
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(timezone.utc)
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        # psycopg reads a 32-bit number from its shortest text.
        return (single(value) if kind == t.Float() else value) + 0.0
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value)
    return value


def disagreements(cases: Sequence[Case], dialect: str, run: Run) -> tuple[list[str], int]:
    """Every value on which an engine and the oracle differ, and how many cases it took on."""
    taken = []
    for case in cases:
        try:
            taken.append(compiled(storable(case, dialect), dialect))
        except CannotMatch:
            if dialect == "spark":
                raise
    if not taken:
        return [], 0
    found = []
    for (case, expression, kind), results in zip(taken, run(taken), strict=True):
        assert len(results) == len(case.values)
        for value, result in zip(case.values, results, strict=True):
            expected = comparable(apply_chain(case.chain, value, case.source), kind)
            if comparable(result, kind) != expected:
                found.append(
                    f"{list(case.chain)} on {case.source} {value!r}: {result!r}, not {expected!r}"
                    f" ({kind}): {expression[:100]!a}"
                )
    return found, len(taken)
