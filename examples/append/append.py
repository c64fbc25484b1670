"""`mode="append"`: every run inserts the rows it reads, and the table knows which run brought each.

A till writes sales to SQLite; the pipeline adds one day of them to DuckDB. Run it from anywhere:
``python examples/append/append.py``.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from ematix_flow import Annotated, BigInt, Date, Numeric, Text, connect, ematix
from ematix_flow.normalize import lower, trim

DATA = Path(__file__).resolve().parent / "demo-data"


# Connections are known by their class name. Declaring one opens nothing.
@ematix.connection
class till:
    """What the shop sells, as it sells it."""

    kind = "sqlite"
    path = str(DATA / "till.db")


@ematix.connection
class warehouse:
    """Where it is kept."""

    kind = "duckdb"
    path = str(DATA / "warehouse.duckdb")


# The table is created by the first run, with two columns more: _run_id and _loaded_at.
@ematix.table(schema="shop", name="sales")
class Sale:
    """One sale."""

    sale_id: BigInt
    sold_on: Date
    product: Annotated[Text, trim(), lower()]
    amount: Numeric[10, 2]


# Append is the default mode. `run` holds what the caller passed: flow run --param day=…
@ematix.pipeline(target=Sale, source_connection="till", target_connection="warehouse")
def load_sales(run):
    day = run.parameters["day"]
    return f"SELECT sale_id, sold_on, product, amount FROM sales WHERE sold_on = '{day}'"  # noqa: S608


def open_the_shop() -> None:
    """Two days of sales, in the till's own untidy spelling."""
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    sales = [
        (1, "2026-01-30", " Moka pot", "34.95"),
        (2, "2026-01-30", "MILK JUG", "18.50"),
        (3, "2026-01-31", "Moka Pot ", "34.95"),
    ]
    with closing(sqlite3.connect(DATA / "till.db")) as database, database:
        database.execute(
            "CREATE TABLE sales (sale_id BIGINT, sold_on TEXT, product TEXT, amount TEXT)"
        )
        database.executemany("INSERT INTO sales VALUES (?, ?, ?, ?)", sales)


def main() -> None:
    open_the_shop()

    first = load_sales.sync(parameters={"day": "2026-01-30"})
    assert first.rows_inserted == 2

    # The next run leaves the rows of the first alone.
    second = load_sales.sync(parameters={"day": "2026-01-31"})
    assert second.rows_inserted == 1

    with connect("warehouse") as live:
        rows = live.query("SELECT product, amount, _run_id FROM shop.sales ORDER BY sale_id")
    assert [row["product"] for row in rows] == ["moka pot", "milk jug", "moka pot"]
    assert [str(row["_run_id"]) for row in rows] == [first.run_id, first.run_id, second.run_id]

    # Append does not look for duplicates: loading a day again would add it again. Ask first.
    again = load_sales.validate()
    assert not again.ok  # the day is missing, and that is found without running anything

    for row in rows:
        print(f"{row['product']:<10}{row['amount']:>8}  from run {row['_run_id']}")


if __name__ == "__main__":
    main()
