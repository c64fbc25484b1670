"""Parts of a read: which queries can be cut, and that every row is in exactly one part."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp, parse_one

from ematix_flow.backends.splits import conditions, fetch_rows, one_table, parts_wanted

CUTTABLE = {
    "SELECT * FROM orders": "orders",
    'SELECT "a b", o.id AS x FROM "App"."Orders" AS o WHERE o.id > 1 AND status <> \';\'': (
        '"App"."Orders"'
    ),
    "select extract(year from day), a is distinct from b as d from app.orders": "app.orders",
    "SELECT a -- the FROM of a comment\nFROM orders -- and one at its end": "orders",
    "SELECT * FROM (\nSELECT id, day FROM orders o WHERE id IN (1, 2)\n) AS "
    "\"source_query\" WHERE day >= DATE '2024-01-01' OR day IS NULL": "orders",
    'SELECT age, "now", "current_date" FROM orders': "orders",
    "SELECT id, (SELECT max(x) FROM other WHERE other.id = o.id) > 1 FROM orders o": None,
    # Somebody could truncate the other table between two parts.
    "SELECT id FROM orders o WHERE id IN (SELECT id FROM other)": None,
    "SELECT id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM other WHERE other.id = o.id)": None,
    "SELECT * FROM (SELECT id FROM orders WHERE id > (SELECT max(id) FROM other)) AS s": None,
}
WHOLE = [
    "SELECT DISTINCT a FROM orders",
    "SELECT DISTINCT ON (a) a, b FROM orders",
    "SELECT count(*) FROM orders",
    "SELECT a, sum(b) FROM orders GROUP BY a",
    "SELECT a FROM orders ORDER BY a LIMIT 10",
    "SELECT a FROM orders OFFSET 5",
    "SELECT a FROM orders FETCH FIRST 3 ROWS ONLY",
    "SELECT row_number() OVER () FROM orders",
    "SELECT a FROM orders JOIN lines USING (a)",
    "SELECT a FROM orders, lines",
    "SELECT a FROM orders UNION ALL SELECT a FROM lines",
    "WITH x AS (SELECT 1) SELECT * FROM x",
    "SELECT a FROM orders FOR UPDATE",
    "SELECT a FROM ONLY orders",
    "SELECT a FROM orders TABLESAMPLE SYSTEM (10)",
    "SELECT a FROM orders AS o (a, b)",
    "SELECT a FROM (SELECT a FROM orders) AS x",
    "SELECT * FROM (SELECT DISTINCT a FROM orders) AS x",
    "SELECT * FROM (SELECT a FROM orders LIMIT 3) AS x WHERE a > 1",
    "SELECT * FROM generate_series(1, 10)",
    "SELECT id FROM orders WHERE seen > now() - interval '1 day'",
    "SELECT id, CURRENT_TIMESTAMP AS read_at FROM orders",
    "SELECT id FROM orders WHERE day = 'today'::date",
    "VALUES (1)",
    "SELECT 1",
    "SELEC a FROM",
]


@pytest.mark.parametrize(("sql", "table"), CUTTABLE.items())
def test_a_plain_select_is_seen_through(sql: str, table: str | None) -> None:
    found = one_table(sql, "postgres")
    assert (found.table if found else None) == table


@pytest.mark.parametrize("sql", WHOLE)
def test_what_combines_rows_is_left_whole(sql: str) -> None:
    assert one_table(sql, "postgres") is None


@pytest.mark.parametrize("sql", [sql for sql, table in CUTTABLE.items() if table])
def test_a_column_and_a_sample_are_put_where_they_belong(sql: str) -> None:
    found = one_table(sql, "postgres")
    assert found is not None
    made = found.with_columns({"part 1": '"id"', "part_2": "ctid"})
    assert made is not None
    assert made.count('"part 1"') == 1
    # The user's own text stays, to the letter.
    head, tail = made.split('\n, "id" AS "part 1", ctid AS "part_2" ')
    assert head + tail == sql
    # The SELECT that names the table gives two more columns.
    assert _items(made) - _items(sql) == 2
    cut = one_table(made, "postgres")
    assert cut is not None
    sampled = cut.sampled("TABLESAMPLE SYSTEM (12.5)")
    assert sampled is not None
    assert sampled.replace("\n TABLESAMPLE SYSTEM (12.5) ", "") == made
    tables = parse_one(sampled, dialect="postgres").find_all(exp.Table)
    assert [t.name for t in tables if t.args.get("sample")] == [
        found.table.rpartition(".")[2].strip('"')
    ]


def _items(sql: str) -> int:
    return sum(len(s.expressions) for s in parse_one(sql, dialect="postgres").find_all(exp.Select))


def memberships(ask: Callable[[str], list[tuple[Any, ...]]], kind: str, bounds: list[str]) -> None:
    """Every row of ``held(value)`` is in exactly one part."""
    made = conditions("value", bounds, nullable=True)
    assert len(made) == len(bounds) + 2
    items = ", ".join(f"CASE WHEN {condition} THEN 1 ELSE 0 END" for condition in made)
    for row in ask(f"SELECT {items} FROM held"):
        assert sum(row) == 1, (kind, bounds, row)


DUCKDB = {
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE": st.floats(),
    "DECIMAL(12, 2)": st.decimals(
        Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2, allow_nan=False
    ),
    "DATE": st.dates(),
    "TIMESTAMP": st.datetimes(),
    "VARCHAR": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    "UUID": st.uuids(),
}


@pytest.mark.parametrize("kind", DUCKDB)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_row_is_in_exactly_one_part(kind: str, data: st.DataObject) -> None:
    drawn = st.one_of(st.none(), DUCKDB[kind])
    values = data.draw(st.lists(drawn, min_size=1, max_size=25))
    # Bounds may be values of the rows, between them, beyond them, or equal to one another.
    further = data.draw(st.lists(DUCKDB[kind], max_size=4))
    with duckdb.connect() as raw:
        raw.execute(f"CREATE TABLE held (value {kind})")
        raw.executemany("INSERT INTO held VALUES (?)", [(v,) for v in values])
        raw.execute(f"CREATE TABLE bounds (value {kind})")
        taken = [v for v in (*values[::3], *further) if v is not None]
        if taken:
            raw.executemany("INSERT INTO bounds VALUES (?)", [(v,) for v in taken])
        sorted_texts = raw.execute(
            "SELECT CAST(value AS VARCHAR) FROM bounds ORDER BY value"
        ).fetchall()
        bounds = [f"CAST({_quoted(text)} AS {kind})" for (text,) in sorted_texts]
        memberships(lambda sql: raw.execute(sql).fetchall(), kind, bounds)


def _quoted(text: str) -> str:
    return exp.Literal.string(text).sql()


def _backwards(left: str, right: str) -> int:
    return (left[::-1] > right[::-1]) - (left[::-1] < right[::-1])


def _by_length(left: str, right: str) -> int:
    return len(left) - len(right)


@pytest.mark.parametrize("collation", ["BINARY", "NOCASE", "RTRIM", "backwards", "by_length"])
@given(
    values=st.lists(st.one_of(st.none(), st.text("aAbB é ", max_size=4)), min_size=1, max_size=20),
    further=st.lists(st.text("aAbB é ", max_size=4), max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_whatever_order_the_texts_have(
    collation: str, values: list[str | None], further: list[str]
) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as raw:
        raw.create_collation("backwards", _backwards)
        raw.create_collation("by_length", _by_length)
        raw.execute(f"CREATE TABLE held (value TEXT COLLATE {collation})")
        raw.executemany("INSERT INTO held VALUES (?)", [(v,) for v in values])
        raw.execute(f"CREATE TABLE bounds (value TEXT COLLATE {collation})")
        taken = [v for v in (*values[::3], *further) if v is not None]
        raw.executemany("INSERT INTO bounds VALUES (?)", [(v,) for v in taken])
        told = raw.execute("SELECT value FROM bounds ORDER BY value").fetchall()
        bounds = [_quoted(text) for (text,) in told]
        memberships(lambda sql: raw.execute(sql).fetchall(), collation, bounds)


def test_what_cannot_be_null_has_no_part_for_it() -> None:
    assert conditions("x", ["1", "2"], nullable=False) == (
        "(x < 1)",
        "(x >= 1 AND x < 2)",
        "(x >= 2)",
    )


@given(
    rows=st.floats(0, 1e12),
    width=st.floats(0, 1e6),
    slots=st.integers(1, 512),
    connections=st.integers(0, 512),
)
def test_parts_never_need_more_connections_than_there_are(
    rows: float, width: float, slots: int, connections: int
) -> None:
    found = parts_wanted(rows=rows, width=width, slots=slots, connections=connections)
    assert 1 <= found <= max(1, min(slots, connections))


def test_what_is_small_is_one_part_and_what_is_large_uses_every_slot() -> None:
    assert parts_wanted(rows=60_000, width=40, slots=8, connections=50) == 1
    assert parts_wanted(rows=1_000_000, width=40, slots=4, connections=50) == 4
    # Few rows may be many bytes.
    assert parts_wanted(rows=4_000, width=10_000, slots=8, connections=50) == 4


def test_wide_rows_are_fetched_in_smaller_lots() -> None:
    assert fetch_rows(100) == 10_000
    assert fetch_rows(16 << 10) == 1024
    assert fetch_rows(1 << 30) == 100
    assert fetch_rows(0) == 10_000
