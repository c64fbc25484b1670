"""What looks like a mistake and is none: refusing too much is a mistake of ours."""

from __future__ import annotations

import pytest

from ematix_flow.sql.identifiers import require_query
from mistakes.workshop import Shop

QUERIES = [
    "-- the orders\nSELECT 3 AS id, 'x;y' AS note, 1.5 AS amount;  \n",
    "/* INSERT */ (SELECT 3 AS id, 'x' AS note, 1.5 AS amount)",
    "WITH o AS (SELECT 3 AS id, 'x' AS note) SELECT *, 1.5 AS amount FROM o;;",
    "FROM (VALUES (3, 'x', 1.5)) AS o(id, note, amount)",
    "select 3 as id, 'a''s --b' as note, 1.5 as amount -- ; DROP TABLE x",
    "SELECT 3 AS id, 'x' AS note, 1.5 AS amount, 2.5 AS amount_1",
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_in_its_own_form(
    query: str, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.declare(
        '@ematix.pipeline(target=Orders, target_connection="warehouse")\n'
        f"def load(conn):\n    return {query!r}\n"
    )
    said = shop.flow(capsys, "run", "load")
    assert (said.code, said.err) == (0, "")
    assert len(shop.targets()["duckdb"]["shop", "orders"][1]) == 3


@pytest.mark.parametrize("dialect", ["postgres", "sqlite", "duckdb", "spark"])
@pytest.mark.parametrize("query", ["TABLE shop.orders", "VALUES (1)", "SELECT ';' AS a;"])
def test_every_dialect_lets_queries_through(dialect: str, query: str) -> None:
    require_query(query, dialect)


def test_a_misspelt_source_creates_no_file(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Asking for the live source of a file that is not there leaves none behind."""
    shop.declare(
        'register_connection(SQLiteConnection(name="typo", path="leger.db"))\n'
        '@ematix.pipeline(target=Orders, target_connection="warehouse", source_connection="typo")\n'
        'def load(conn):\n    return "SELECT * FROM orders"\n'
    )
    assert shop.flow(capsys, "validate", "load").code == 1
    assert not (shop.folder / "leger.db").exists()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("path", [None, "spark"])
@pytest.mark.parametrize("mapped", [None, {"id": "ID", "note": "Note"}])
def test_a_table_whose_names_have_other_letters(
    mapped: dict[str, str] | None,
    path: str | None,
    shop: Shop,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DuckDB takes both for one name, and gives its own back."""
    shop.duckdb("CREATE TABLE raw AS SELECT 3 AS ID, 'x' AS Note, 1.5::DECIMAL(8,2) AS amount")
    shop.declare(
        '@ematix.pipeline(target=Orders, target_connection="warehouse", source_table="raw", '
        f"column_map={mapped!r}, force_path={path!r})\ndef load(): ...\n"
    )
    said = shop.flow(capsys, "run", "load")
    assert (said.code, said.err) == (0, "")
    assert len(shop.targets()["duckdb"]["shop", "orders"][1]) == 3
