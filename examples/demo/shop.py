"""A small shop's nightly export: three CSV files, as untidy as real ones, always the same."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from pathlib import Path

FOLDER = Path(__file__).parent / "demo-data" / "shop"

FIRST = ("Ada", "Bruno", "Chloé", "Dilan", "Edda", "Farid", "Greta", "Hugo", "Ines", "Jörg")
LAST = ("Almeida", "Brandt", "Costa", "Demir", "Eriksen", "Fontaine", "Grünwald", "Haddad")
COUNTRIES = ("DE", "FR", "PT", "DK", "AT")
PRODUCTS = {
    "Espresso beans": "14.90",
    "Filter paper": "3.49",
    "Hand grinder": "59.00",
    "Milk jug": "18.50",
    "Moka pot": "34.95",
    "Travel mug": "22.00",
}
CUSTOMERS, ORDERS = 60, 400
FIRST_DAY = date(2026, 1, 1)


def export(folder: Path = FOLDER) -> Path:
    """Write the files unless they are there."""
    if not (folder / "line_items.csv").exists():
        folder.mkdir(parents=True, exist_ok=True)
        chance = random.Random(20260131)  # noqa: S311 - sample data, the same on every machine
        customers = list(_customers(chance))
        orders, items = _orders(chance)
        _write(folder / "customers.csv", _CUSTOMER_COLUMNS, customers)
        _write(folder / "orders.csv", _ORDER_COLUMNS, orders)
        _write(folder / "line_items.csv", _ITEM_COLUMNS, items)
    return folder


_CUSTOMER_COLUMNS = (
    "customer_id", "name", "email", "phone", "country", "signed_up", "newsletter",
)  # fmt: skip
_ORDER_COLUMNS = ("order_id", "customer_id", "ordered_at", "status", "discount_percent")
_ITEM_COLUMNS = ("order_id", "line_number", "product", "quantity", "unit_price")


def _customers(chance: random.Random) -> Iterable[tuple[str, ...]]:
    for number in range(1, CUSTOMERS + 1):
        first, last = chance.choice(FIRST), chance.choice(LAST)
        email = f"{first}.{last}{number}@example.com"
        signed_up = FIRST_DAY - timedelta(days=chance.randrange(700))
        row = (
            str(number),
            chance.choice(("{}", " {}", "{}  ", "\t{} ")).format(f"{first} {last}"),
            chance.choice((email, email.upper(), f" {email.lower()} ", "", "   ")),
            chance.choice((f"+49 (30) {number:04}-77", f"030/{number:04} 77", "")),
            chance.choice((*COUNTRIES, *(c.lower() for c in COUNTRIES), " de ", "")),
            chance.choice((signed_up.isoformat(), signed_up.isoformat(), "2025-02-30", "n/a", "")),
            chance.choice(("yes", "Y", "TRUE", "1", "no", "N", "false", "")),
        )
        yield row
        if number % 12 == 0:
            # Exported twice, the second time spaced differently: one customer, two rows.
            yield tuple(f" {field} " if field.strip() else field for field in row)


def _orders(
    chance: random.Random,
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    orders, items = [], []
    for number in range(1, ORDERS + 1):
        moment = datetime.combine(FIRST_DAY, datetime.min.time()) + timedelta(
            minutes=chance.randrange(90 * 24 * 60)
        )
        status = chance.choice(("paid", "Paid", " PAID ", "shipped", "Shipped", "cancelled"))
        orders.append(
            (
                str(number),
                str(chance.randint(1, CUSTOMERS)),
                moment.isoformat(sep=chance.choice((" ", "T"))),
                status,
                chance.choice(("", "", "", "5", "10.0", " 12.5 ")),
            )
        )
        for line, product in enumerate(chance.sample(sorted(PRODUCTS), chance.randint(1, 4)), 1):
            shown = chance.choice((product, product.upper(), f" {product}", f"{product}  "))
            quantity = chance.choice(("1", "1", "2", " 3", "12 "))
            items.append((str(number), str(line), shown, quantity, PRODUCTS[product]))
    return orders, items


def _write(path: Path, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


if __name__ == "__main__":
    print(export())
