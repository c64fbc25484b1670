"""No edge is missing: a column that changes with another has an edge from it.

A random query runs in DuckDB twice, the second time with other values in one column of one table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ematix_flow.lineage.edges import ANY
from ematix_flow.lineage.from_sql import trace_sql
from ematix_flow.lineage.relations import Relation, base_table

from .queries import TABLES, Query, queries, rows_of

if TYPE_CHECKING:
    from sqlglot import exp


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as held:
        yield held


def results(database: duckdb.DuckDBPyConnection, query: Query) -> dict[str, list]:
    """Every column of the result as a sorted list: the order of rows is nobody's promise."""
    found = database.execute(query.sql).fetchall()
    return {
        name: sorted((row[i] for row in found), key=lambda v: (v is not None, v))
        for i, name in enumerate(query.columns)
    }


def fill(database: duckdb.DuckDBPyConnection, table: str, rows: list) -> None:
    names = ", ".join(TABLES[table])
    listed = ", ".join(f"({', '.join('NULL' if v is None else str(v) for v in r)})" for r in rows)
    database.execute(
        f"CREATE OR REPLACE TABLE {table} AS "
        f"SELECT {', '.join(f'{n}::INT AS {n}' for n in TABLES[table])} "
        f"FROM (VALUES {listed}) AS held({names})"
    )


def perturbed(rows: list, place: int) -> Iterator[list]:
    """The same rows with other values in one column: moved on, turned round, all alike."""
    values = [row[place] for row in rows]
    moved = [0 if v is None else (v + 1) % 4 for v in values]
    for changed in (moved, values[::-1], [2] * len(rows)):
        yield [
            (*row[:place], new, *row[place + 1 :]) for row, new in zip(rows, changed, strict=True)
        ]


@pytest.mark.parametrize("known", [True, False], ids=["declared tables", "unknown tables"])
@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(query=queries(), held=st.data())
def test_every_change_has_an_edge(
    database: duckdb.DuckDBPyConnection, known: bool, query: Query, held: st.DataObject
) -> None:
    def tables(table: exp.Table) -> Relation:
        return base_table(table.name, TABLES[table.name] if known else ())

    data = {table: held.draw(rows_of(table)) for table in TABLES}
    for table, rows in data.items():
        fill(database, table, rows)
    before = results(database, query)
    found = trace_sql(query.sql, dialect="duckdb", tables=tables)
    sources = {
        name: {(o.table, o.column) for o in found.get(name) | found.rows} for name in query.columns
    }
    for table, columns in TABLES.items():
        for place, column in enumerate(columns):
            for changed in perturbed(data[table], place):
                fill(database, table, changed)
                after = results(database, query)
                for name in query.columns:
                    if before[name] != after[name]:
                        event("a column changed")
                        known_edges = sources[name] & {(table, column), (table, ANY)}
                        assert known_edges, (query.sql, name, table, column)
        fill(database, table, data[table])
