"""`mode="truncate"`: every run replaces all rows, in one commit that no reader sees half of.

A price list in CSV is mirrored to SQLite. Run it from anywhere:
``python examples/truncate/truncate.py``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ematix_flow import Annotated, EmatixError, Numeric, Text, connect, ematix, pk
from ematix_flow.normalize import parse_numeric, trim

DATA = Path(__file__).resolve().parent / "demo-data"


@ematix.connection
class supplier:
    """A folder in which the supplier leaves its price list."""

    kind = "object_store_local"
    path = str(DATA)
    format = "csv"


@ematix.connection
class pricing:
    """The database that the shop reads prices from."""

    kind = "sqlite"
    path = str(DATA / "pricing.db")


@ematix.table(name="prices")
class Price:
    """What a product costs today."""

    product: Annotated[Text, pk(), trim()]
    price: Annotated[Numeric[10, 2], parse_numeric(precision=10, scale=2)]


# No function body is needed when source_table= names the source.
@ematix.pipeline(
    target=Price,
    source_connection="supplier",
    source_table="prices.csv",
    target_connection="pricing",
    mode="truncate",
)
def mirror_prices(): ...


def supplier_sends(*lines: str) -> None:
    (DATA / "prices.csv").write_text("\n".join(("product,price", *lines, "")), encoding="utf-8")


def prices() -> dict[str, str]:
    with connect("pricing") as live:
        rows = live.query("SELECT product, price FROM prices ORDER BY product")
    return {row["product"]: str(row["price"]) for row in rows}


def main() -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()

    supplier_sends("moka pot ,34.95", "milk jug,18.50")
    result = mirror_prices.sync()
    assert result.counts.inserted == 2
    assert prices() == {"milk jug": "18.50", "moka pot": "34.95"}

    # The next list takes the place of the first. What it does not name is gone.
    supplier_sends("moka pot,36.00")
    result = mirror_prices.sync()
    assert (result.counts.deleted, result.counts.inserted) == (2, 1)
    assert prices() == {"moka pot": "36.00"}

    # An empty list is more often a mistake than a wish, so it is refused …
    supplier_sends()
    try:
        mirror_prices.sync()
    except EmatixError as error:
        print(f"refused: {error}")
    assert prices() == {"moka pot": "36.00"}

    # … unless it is allowed by name.
    mirror_prices.sync(allow_empty=True)
    assert prices() == {}


if __name__ == "__main__":
    main()
