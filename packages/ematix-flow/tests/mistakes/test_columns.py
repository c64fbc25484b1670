"""Mistakes in what is said about columns: conditions, orders, and names the source does not have.

All of them are found before a row is read, so ``flow validate`` says the same.
"""

from __future__ import annotations

import dataclasses

import pytest

from mistakes.conftest import Make
from mistakes.workshop import Failure, Mistake, Shop

HERE = "pipelines.py:"


def load(options: str, source: str = "source", table: str = "orders") -> str:
    """A merge from a table as it is."""
    return (
        f'@ematix.pipeline(target=Orders, target_connection="warehouse", mode="merge", '
        f'source_connection="{source}", source_table="{table}", {options})\n'
        "def load(): ...\n"
    )


def deletes(condition: str) -> str:
    """The same, with rows that say of themselves that they are gone."""
    return load(f'delete_when="{condition}"')


def ordered(order: str) -> str:
    """The same, with a choice between rows of one key."""
    return load(f'duplicate_keys="last", order_by="{order}"')


def in_ledger(shop: Shop) -> None:
    """A table in SQLite, which takes a quoted name that it does not know for a text."""
    shop.sqlite("CREATE TABLE raw (id BIGINT, notes TEXT, amount TEXT)")


def in_warehouse(shop: Shop) -> None:
    """A table beside the target."""
    shop.duckdb("CREATE TABLE raw AS SELECT 3 AS id, 'x' AS notes, 3.5::DECIMAL(8,2) AS amount")


def in_a_file(shop: Shop) -> None:
    """A file to read from."""
    shop.file("drop/raw.csv", "id,notes,amount\n3,three,3.50\n")


MISTAKES = [
    Mistake(
        "half a condition",
        ("delete_when='amount ='", "is not a SQL condition", "read at '='", "correct the SQL"),
        deletes("amount ="),
    ),
    Mistake(
        "two statements instead of a condition",
        ("delete_when=", "is not a SQL condition", "true or false"),
        deletes("id = 3; DROP TABLE orders"),
    ),
    Mistake(
        "number instead of a condition",
        ("delete_when='id'", "neither true nor false", "column 'id' is Integer", "op = 'D'"),
        deletes("id"),
    ),
    Mistake(
        "text instead of a condition",
        ("delete_when='upper(note)'", "neither true nor false", "write a condition"),
        deletes("upper(note)"),
    ),
    Failure(
        "condition on a column that is not there",
        (HERE, "delete_when= names 'nota'", "shop.orders", "source orders", "'note'"),
        deletes("nota IS NULL"),
    ),
    Failure(
        "condition on a column that the SQL does not give",
        ("delete_when= names 'op', which is not a column", "source or the target", "known are"),
        '@ematix.pipeline(target=Orders, target_connection="warehouse", mode="merge", '
        "delete_when=\"op = 'D'\")\ndef load(conn):\n    return ONE_ORDER\n",
    ),
    Mistake(
        "half an order",
        ("order_by='amount, ('", "is no order", "read at '('", "write columns"),
        ordered("amount, ("),
    ),
    Mistake(
        "order of something else",
        ("order_by='amount LIMIT 1'", "is no order", "write columns"),
        ordered("amount LIMIT 1"),
    ),
    Mistake(
        "order by a constant",
        ("order_by='1'", "no column", "write columns"),
        ordered("1"),
    ),
    Mistake(
        "order that moves NULL",
        ("order_by='amount NULLS FIRST'", "NULL", "smallest", "remove NULLS"),
        ordered("amount NULLS FIRST"),
    ),
    Failure(
        "order by a column that is not loaded",
        ("order_by= names 'amuont'", "not a column that is loaded", "'amount'"),
        ordered("amuont desc"),
    ),
    Failure(
        "misspelt column in column_map",
        (HERE, "column_map= names 'amont' for 'amount'", "source orders", "'amount'"),
        load('column_map={"amount": "amont"}'),
    ),
    Failure(
        "column that a SQLite table lacks",
        (HERE, "source raw of pipeline 'load'", "no column 'note'", "column_map", "'notes'"),
        load("", "ledger", "raw"),
        prepare=in_ledger,
    ),
    Failure(
        "column that a table of the same database lacks",
        (HERE, "source raw of pipeline 'load'", "no column 'note'", "column_map", "'notes'"),
        load("", "warehouse", "raw"),
        prepare=in_warehouse,
    ),
    Failure(
        "column that a file lacks",
        (HERE, "source raw.csv of pipeline 'load'", "no column 'note'", "column_map", "'notes'"),
        load("", "drop", "raw.csv"),
        prepare=in_a_file,
    ),
    Failure(
        "table that nothing is like",
        ("connection 'source'", "zzz does not exist; check the names"),
        load("", table="zzz"),
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_columns(mistake: Mistake, make: Make, engine: object) -> None:
    make(mistake)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_foreseen(mistake: Mistake, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("validation has started Spark")

    monkeypatch.setattr("ematix_flow.engine.session.open_engine", refuse)
    make(dataclasses.replace(mistake, command=("validate", "load"), code=1))


def test_what_only_spark_knows_of_a_condition(make: Make, engine: object) -> None:
    make(
        Failure(
            "function that does not exist",
            ("delete_when='gone(note)'", "no function 'gone'", "check the name"),
            deletes("gone(note)"),
        )
    )
