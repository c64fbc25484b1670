"""Mistakes about tables that differ from their declaration, and what may be done about it."""

from __future__ import annotations

import pytest

from mistakes.conftest import Make
from mistakes.workshop import Failure, Mistake, Shop

HERE = "pipelines.py:"


def load(options: str, table: str = "Orders", query: str = "ONE_ORDER") -> str:
    """A pipeline inside the warehouse."""
    return (
        f'@ematix.pipeline(target={table}, target_connection="warehouse", {options})\n'
        f"def load(conn):\n    return {query}\n"
    )


def more(column: str) -> str:
    """The declared table with one column more."""
    return (
        '@ematix.table(schema="shop", name="orders")\nclass More:\n'
        "    id: Annotated[BigInt, pk()]\n    note: String[8]\n"
        f"    amount: Annotated[Numeric[8, 2], nullable()]\n    {column}\n\n"
    )


def wider_amounts(shop: Shop) -> None:
    """The stored column has more digits than the declared one, and one row needs them."""
    shop.duckdb(
        "ALTER TABLE shop.orders ALTER amount TYPE DECIMAL(10,2)",
        "UPDATE shop.orders SET amount = 12345678.25 WHERE id = 1",
    )


MISTAKES = [
    Mistake(
        "kind of change that does not exist",
        (HERE, "pipeline 'load'", "on_drift= names 'ad', which is no kind of change", "'add'"),
        load('on_drift={"ad": "evolve"}'),
    ),
    Mistake(
        "policy that does not exist",
        (HERE, "on_drift['add']='alter' is not known", "'evolve'"),
        load('on_drift={"add": "alter"}'),
    ),
    Mistake(
        "allowance without evolution",
        (HERE, "pipeline 'load'", "allow=", "on_drift= permits none", 'on_drift="evolve"'),
        load('allow=["drop:note"]'),
    ),
    Mistake(
        "allowance that says nothing",
        (HERE, "pipeline 'load'", "allow= names 'dropp:note'", "kind:column", "'drop'"),
        load('on_drift="evolve", allow=["dropp:note"]'),
    ),
    Mistake(
        "rename without a new name",
        (HERE, "pipeline 'load'", "allow= names 'rename:note'", "rename:old->new"),
        load('on_drift="evolve", allow=["rename:note"]'),
    ),
    Failure(
        "column that the table lacks",
        (
            'table "shop"."orders" differs',
            "column 'town' is declared but does not exist",
            'on_drift="evolve"',
            'on_drift="warn"',
        ),
        more("town: Text | None") + load("", "More", "ONE_ORDER + \", 'x' AS town\""),
    ),
    Failure(
        "mark of deletes that the table lacks",
        (
            'table "shop"."orders" differs',
            "column 'deleted_at', in which handle_deletes=\"soft\" marks",
            "does not exist",
            'alter the table with on_drift="evolve"',
        ),
        load('mode="merge", handle_deletes="soft"'),
    ),
    Failure(
        "mark of deletes that is not tolerated to be missing",
        ("column 'deleted_at', in which handle_deletes=\"soft\" marks", 'on_drift="evolve"'),
        load('mode="merge", handle_deletes="soft", on_drift="warn"'),
    ),
    Failure(
        "column that would be narrowed",
        (
            'table "shop"."orders" differs',
            "column 'amount' is DECIMAL(10,2), declared DECIMAL(8,2)",
            'allow=("narrow:amount",)',
        ),
        load('on_drift="evolve"'),
        prepare=wider_amounts,
    ),
    Failure(
        "value that a narrowed column could not hold",
        (
            'table "shop"."orders"',
            "column 'amount' cannot become Numeric[8, 2] because of its value in 1 row",
            "correct those values first",
        ),
        load('on_drift="evolve", allow=["narrow:amount"]'),
        prepare=wider_amounts,
    ),
    Failure(
        "new column that old rows have no value for",
        (
            'table "shop"."orders"',
            "column 'town' is declared NOT NULL but would be NULL in 2 rows",
            "change the declaration",
        ),
        more("town: Text") + load('on_drift="evolve"', "More", "ONE_ORDER + \", 'x' AS town\""),
    ),
    Failure(
        "key that would have to change",
        ('table "shop"."orders"', "its primary key is id, declared id, note", "change"),
        more("town: Text | None").replace("note: String[8]", "note: Annotated[String[8], pk()]")
        + load('on_drift="evolve"', "More", "ONE_ORDER + \", 'x' AS town\""),
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_drift(mistake: Mistake, make: Make) -> None:
    make(mistake)
