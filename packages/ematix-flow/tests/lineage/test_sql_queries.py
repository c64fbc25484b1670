"""The edges of queries, beside those that a person finds by reading them."""

from __future__ import annotations

import pytest
from sqlglot import exp

from ematix_flow.lineage.edges import Origin
from ematix_flow.lineage.from_sql import CannotTrace, trace_expression, trace_sql
from ematix_flow.lineage.relations import Relation, base_table

COLUMNS = {
    "orders": ("id", "customer_id", "amount", "status", "placed_at", "lines"),
    "customers": ("id", "name", "country"),
}
_HOWS = {"f": "filter", "j": "join", "g": "group", "s": "sort", "w": "window"}


def tables(table: exp.Table) -> Relation | None:
    """Two tables that are known, and any other whose columns are not."""
    if not isinstance(table.this, exp.Identifier):
        return None
    return base_table(table.name, COLUMNS.get(table.name, ()))


def origins(text: str) -> frozenset[Origin]:
    """``orders.amount`` gives its values, ``f:orders.status`` takes part by a filter."""
    found = set()
    for word in text.split():
        how, _, name = word.rpartition(":")
        table, _, column = name.partition(".")
        found.add(Origin(table, column, _HOWS.get(how, "projection")))
    return frozenset(found)


QUERIES = [
    pytest.param(
        "postgres",
        "SELECT id, amount * 2 AS twice FROM orders",
        {"id": "orders.id", "twice": "orders.amount"},
        "",
        id="columns",
    ),
    pytest.param(
        "postgres",
        "SELECT o.amount AS paid, c.name FROM orders o JOIN customers c ON c.id = o.customer_id "
        "WHERE status = 'paid'",
        {"paid": "orders.amount", "name": "customers.name"},
        "j:customers.id j:orders.customer_id f:orders.status",
        id="join, aliases, filter",
    ),
    pytest.param(
        "postgres",
        "SELECT * FROM customers",
        {"id": "customers.id", "name": "customers.name", "country": "customers.country"},
        "",
        id="star",
    ),
    pytest.param(
        "postgres",
        "SELECT c.*, o.amount FROM customers c CROSS JOIN orders o",
        {
            "id": "customers.id",
            "name": "customers.name",
            "country": "customers.country",
            "amount": "orders.amount",
        },
        "",
        id="star of one table",
    ),
    pytest.param(
        "duckdb",
        "SELECT * EXCLUDE (name) REPLACE (upper(name) AS country) FROM customers",
        {"id": "customers.id", "country": "customers.name"},
        "",
        id="star with changes",
    ),
    pytest.param(
        "postgres",
        "WITH paid AS (SELECT customer_id, amount FROM orders WHERE status = 'paid'), "
        "summed(who, total) AS (SELECT customer_id, sum(amount) FROM paid GROUP BY customer_id) "
        "SELECT name, total FROM customers JOIN summed ON who = id",
        {"name": "customers.name", "total": "orders.amount"},
        "f:orders.status g:orders.customer_id j:orders.customer_id j:customers.id",
        id="CTEs",
    ),
    pytest.param(
        "postgres",
        "WITH RECURSIVE chain(id, up) AS (SELECT id, customer_id FROM orders UNION ALL "
        "SELECT o.id, chain.up FROM orders o JOIN chain ON o.customer_id = chain.id) "
        "SELECT up FROM chain",
        {"up": "orders.customer_id"},
        "j:orders.customer_id j:orders.id",
        id="recursive CTE",
    ),
    pytest.param(
        "postgres",
        "SELECT id AS key, name AS text FROM customers UNION ALL SELECT id, status FROM orders",
        {"key": "customers.id orders.id", "text": "customers.name orders.status"},
        "",
        id="union all",
    ),
    pytest.param(
        "postgres",
        "SELECT id FROM customers UNION SELECT customer_id FROM orders",
        {"id": "customers.id orders.customer_id"},
        "g:customers.id g:orders.customer_id",
        id="union",
    ),
    pytest.param(
        "duckdb",
        "SELECT id, name FROM customers UNION ALL BY NAME SELECT status AS name, id FROM orders",
        {"id": "customers.id orders.id", "name": "customers.name orders.status"},
        "",
        id="union by name",
    ),
    pytest.param(
        "postgres",
        "SELECT id FROM customers EXCEPT SELECT customer_id FROM orders",
        {"id": "customers.id"},
        "g:customers.id g:orders.customer_id",
        id="except",
    ),
    pytest.param(
        "postgres",
        "SELECT country, count(*) AS n, sum(amount) AS total FROM customers "
        "JOIN orders ON customers.id = customer_id GROUP BY country HAVING max(placed_at) > '2020'",
        {"country": "customers.country", "n": "", "total": "orders.amount"},
        "j:customers.id j:orders.customer_id g:customers.country f:orders.placed_at",
        id="group by, having",
    ),
    pytest.param(
        "postgres",
        "SELECT lower(country) AS land, avg(id) FROM customers GROUP BY 1 ORDER BY 2",
        {"land": "customers.country", "avg": "customers.id"},
        "g:customers.country s:customers.id",
        id="by number",
    ),
    pytest.param(
        "duckdb",
        "SELECT status, amount + 1 AS more, sum(id) AS n FROM orders GROUP BY ALL",
        {"status": "orders.status", "more": "orders.amount", "n": "orders.id"},
        "g:orders.status g:orders.amount",
        id="group by all",
    ),
    pytest.param(
        "postgres",
        "SELECT country, status, count(*) AS n FROM customers, orders "
        "GROUP BY GROUPING SETS ((country), (country, status))",
        {"country": "customers.country", "status": "orders.status", "n": ""},
        "g:customers.country g:orders.status",
        id="grouping sets",
    ),
    pytest.param(
        "postgres",
        "SELECT id, row_number() OVER (PARTITION BY customer_id ORDER BY placed_at) AS nth, "
        "lag(amount) OVER w AS before FROM orders WINDOW w AS (PARTITION BY status)",
        {
            "id": "orders.id",
            "nth": "w:orders.customer_id w:orders.placed_at",
            "before": "orders.amount w:orders.status",
        },
        "",
        id="windows",
    ),
    pytest.param(
        "duckdb",
        "SELECT amount FROM orders "
        "QUALIFY row_number() OVER (PARTITION BY customer_id ORDER BY id) = 1",
        {"amount": "orders.amount"},
        "f:orders.customer_id f:orders.id",
        id="qualify",
    ),
    pytest.param(
        "postgres",
        "SELECT CASE WHEN status = 'paid' THEN amount ELSE 0 END AS paid FROM orders",
        {"paid": "orders.status orders.amount"},
        "",
        id="case",
    ),
    pytest.param(
        "postgres",
        "SELECT sum(amount) FILTER (WHERE status = 'paid') AS paid, "
        "string_agg(status, ',' ORDER BY placed_at) AS told FROM orders",
        {"paid": "orders.amount f:orders.status", "told": "orders.status s:orders.placed_at"},
        "",
        id="aggregates with a filter and an order",
    ),
    pytest.param(
        "postgres",
        "SELECT id, name FROM orders LEFT JOIN customers USING (id)",
        {"id": "orders.id", "name": "customers.name"},
        "j:orders.id j:customers.id",
        id="using",
    ),
    pytest.param(
        "postgres",
        "SELECT id FROM orders FULL JOIN customers USING (id)",
        {"id": "orders.id customers.id"},
        "j:orders.id j:customers.id",
        id="using of a full join",
    ),
    pytest.param(
        "postgres",
        "SELECT * FROM customers NATURAL JOIN (SELECT id, amount FROM orders) o",
        {
            "id": "customers.id",
            "name": "customers.name",
            "country": "customers.country",
            "amount": "orders.amount",
        },
        "j:orders.id j:customers.id",
        id="natural join",
    ),
    pytest.param(
        "postgres",
        "SELECT name, (SELECT max(amount) FROM orders WHERE customer_id = c.id) AS most "
        "FROM customers c",
        {"name": "customers.name", "most": "orders.amount f:orders.customer_id f:customers.id"},
        "",
        id="correlated scalar subquery",
    ),
    pytest.param(
        "postgres",
        "SELECT name FROM customers c WHERE EXISTS "
        "(SELECT 1 FROM orders WHERE customer_id = c.id AND status = 'paid')",
        {"name": "customers.name"},
        "f:orders.customer_id f:customers.id f:orders.status",
        id="exists",
    ),
    pytest.param(
        "postgres",
        "SELECT name FROM customers WHERE id IN (SELECT customer_id FROM orders)",
        {"name": "customers.name"},
        "f:customers.id f:orders.customer_id",
        id="in",
    ),
    pytest.param(
        "postgres",
        "SELECT c.name, l.amount FROM customers c CROSS JOIN LATERAL "
        "(SELECT amount FROM orders o WHERE o.customer_id = c.id ORDER BY placed_at LIMIT 1) l",
        {"name": "customers.name", "amount": "orders.amount"},
        "f:orders.customer_id f:customers.id s:orders.placed_at",
        id="lateral",
    ),
    pytest.param(
        "postgres",
        "SELECT id, part, nth FROM orders, unnest(lines) WITH ORDINALITY AS u(part, nth)",
        {"id": "orders.id", "part": "orders.lines", "nth": "orders.lines"},
        "j:orders.lines",
        id="unnest",
    ),
    pytest.param(
        "spark",
        "SELECT id, part FROM orders LATERAL VIEW explode(lines) exploded AS part",
        {"id": "orders.id", "part": "orders.lines"},
        "j:orders.lines",
        id="lateral view",
    ),
    pytest.param(
        "spark",
        "SELECT transform(lines, line -> line + amount) AS raised FROM orders",
        {"raised": "orders.lines orders.amount"},
        "",
        id="lambda",
    ),
    pytest.param(
        "spark",
        "SELECT amount * 2 AS twice, twice + id AS more FROM orders",
        {"twice": "orders.amount", "more": "orders.amount orders.id"},
        "",
        id="an alias named in the same SELECT",
    ),
    pytest.param(
        "postgres",
        "SELECT amount AS status FROM orders WHERE status = 'paid' ORDER BY status",
        {"status": "orders.amount"},
        "f:orders.status s:orders.amount",
        id="an alias that hides a column",
    ),
    pytest.param(
        "postgres",
        "SELECT DISTINCT ON (customer_id) amount FROM orders ORDER BY customer_id, placed_at",
        {"amount": "orders.amount"},
        "g:orders.customer_id s:orders.customer_id s:orders.placed_at",
        id="distinct on",
    ),
    pytest.param(
        "postgres",
        "SELECT DISTINCT country FROM customers",
        {"country": "customers.country"},
        "g:customers.country",
        id="distinct",
    ),
    pytest.param(
        "postgres",
        'SELECT "Order"."userName" FROM "Order" WHERE "Order".order > 1',
        {"userName": "Order.userName"},
        "f:Order.order",
        id="quoted names of an unknown table",
    ),
    pytest.param(
        "mysql",
        "SELECT `o`.`id` FROM `orders` AS `o` STRAIGHT_JOIN customers ON TRUE LIMIT 3",
        {"id": "orders.id"},
        "",
        id="backquotes",
    ),
    pytest.param(
        "spark",
        "SELECT payload.user.id AS who FROM raw",
        {"who": "raw.payload"},
        "",
        id="fields of a struct",
    ),
    pytest.param(
        "duckdb",
        "SELECT a, b FROM one, two",
        {"a": "one.a two.a", "b": "one.b two.b"},
        "",
        id="a column that may be of either table",
    ),
    pytest.param(
        "postgres",
        "SELECT t.n FROM (VALUES (1, 'x')) AS t(n, w) WHERE t.w IN (SELECT name FROM customers)",
        {"n": ""},
        "f:customers.name",
        id="values",
    ),
    pytest.param(
        "postgres",
        "SELECT row_to_json(c) AS told FROM customers c",
        {"told": "customers.id customers.name customers.country"},
        "",
        id="a whole row",
    ),
    pytest.param(
        "duckdb",
        "(SELECT id FROM customers) ORDER BY id",
        {"id": "customers.id"},
        "s:customers.id",
        id="parentheses",
    ),
    pytest.param(
        "postgres",
        "SELECT a.id FROM (customers a JOIN orders b ON a.id = b.customer_id)",
        {"id": "customers.id"},
        "j:customers.id j:orders.customer_id",
        id="a join in parentheses",
    ),
]


@pytest.mark.parametrize(("dialect", "sql", "columns", "rows"), QUERIES)
def test_query(dialect: str, sql: str, columns: dict[str, str], rows: str) -> None:
    found = trace_sql(sql, dialect=dialect, tables=tables)
    named = {
        n if not n.startswith("_") else list(columns)[i]: o
        for i, (n, o) in enumerate(found.columns.items())
    }
    assert named == {name: origins(text) for name, text in columns.items()}
    assert found.rows == origins(rows)


def test_the_star_of_an_unknown_table_keeps_every_name() -> None:
    found = trace_sql("SELECT *, a + b AS c FROM raw", dialect="duckdb", tables=tables)
    assert found.get("c") == origins("raw.a raw.b")
    assert found.get("anything") == origins("raw.anything")


def test_all_tables_are_told_even_without_columns() -> None:
    found = trace_sql("SELECT count(*) AS n FROM orders, raw", dialect="duckdb", tables=tables)
    assert found.tables == {"orders", "raw"}


def test_a_pivot_comes_from_everything() -> None:
    sql = "PIVOT (SELECT status, amount, id FROM orders) ON status USING sum(amount)"
    found = trace_sql(sql, dialect="duckdb", tables=tables)
    assert found.get("paid") >= origins("orders.status orders.amount orders.id")


def test_an_expression() -> None:
    held = base_table("orders", COLUMNS["orders"])
    assert trace_expression("amount > 3 AND status IS NULL", held) == origins(
        "orders.amount orders.status"
    )


@pytest.mark.parametrize("sql", ["SELEC 1 FROM WHERE", "DELETE FROM orders", "SHOW TABLES"])
def test_what_is_no_query(sql: str) -> None:
    with pytest.raises(CannotTrace):
        trace_sql(sql, dialect="postgres", tables=tables)
