"""`mode="merge"`: one row per key, changed where the source changed, marked where it is gone.

A supplier sends a full price list every day. Run it from anywhere:
``python examples/merge/merge.py``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ematix_flow import Annotated, Numeric, String, Text, connect, ematix, pk

DATA = Path(__file__).resolve().parent / "demo-data"


@ematix.connection
class supplier:
    """Where the price lists arrive."""

    kind = "object_store_local"
    path = str(DATA)
    format = "csv"


@ematix.connection
class warehouse:
    """Where prices are kept."""

    kind = "duckdb"
    path = str(DATA / "warehouse.duckdb")


@ematix.table(schema="shop", name="prices")
class Price:
    """The price of a product today."""

    sku: Annotated[String[20], pk()]
    title: Text
    price: Numeric[10, 2]


# The key is pk(). A product that leaves the list gets a date in deleted_at; if more than
# two thirds of the list were missing, the load would be refused.
@ematix.pipeline(
    target=Price,
    source_connection="supplier",
    source_table="prices.csv",
    target_connection="warehouse",
    mode="merge",
    handle_deletes="soft",
    max_delete_fraction=0.67,
)
def load_prices(): ...


def main() -> None:
    """Two days of price lists."""
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    prices = DATA / "prices.csv"

    prices.write_text("sku,title,price\nP1,Moka pot,34.95\nP2,Milk jug,18.50\nP3,Cup,4.00\n")
    first = load_prices.sync()
    print(f"day one: {first.counts.inserted} new")

    prices.write_text("sku,title,price\nP1,Moka pot,34.95\nP2,Milk jug,16.90\nP4,Grinder,89.00\n")
    second = load_prices.sync().counts
    print(f"day two: {second.inserted} new, {second.updated} changed, {second.deleted} gone")
    assert (second.inserted, second.updated, second.deleted, second.unchanged) == (1, 1, 1, 1)

    with connect("warehouse") as live:
        for row in live.query("SELECT sku, price, deleted_at FROM shop.prices ORDER BY sku"):
            print(row["sku"], row["price"], "gone" if row["deleted_at"] else "")


if __name__ == "__main__":
    main()
