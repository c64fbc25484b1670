"""``flow watermark``: shown, moved and forgotten, and the next run reads from there."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from .conftest import Flow

DECLARED = """
from typing import Annotated

from ematix_flow import (
    BigInt, DuckDBConnection, Numeric, Text, TimestampTZ, ematix, pk, register_connection
)

register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))


@ematix.table(schema="shop")
class Orders:
    number: Annotated[BigInt, pk()]
    at: TimestampTZ
    word: Text


@ematix.table(schema="shop")
class Prices:
    price: Numeric[10, 2]


@ematix.pipeline(
    target=Orders, target_connection="warehouse", mode="merge",
    incremental=True, watermark_column="at",
)
def load_orders(conn):
    return "SELECT * FROM raw.orders"


@ematix.pipeline(
    target=Prices, target_connection="warehouse", incremental=True, watermark_column="price"
)
def load_prices(conn):
    return "SELECT CAST(1.5 AS DECIMAL(10, 2)) AS price"


@ematix.pipeline(target=Orders, target_connection="warehouse", mode="truncate")
def all_orders(conn):
    return "SELECT * FROM raw.orders"
"""
LATEST = "2026-01-03 00:00:00.000000+00:00"


@pytest.fixture
def shop(folder: Path) -> Path:
    (folder / "pipelines.py").write_text(DECLARED)
    (folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')
    with duckdb.connect(str(folder / "warehouse.duckdb")) as raw:
        raw.execute("CREATE SCHEMA raw")
        raw.execute(
            "CREATE TABLE raw.orders AS SELECT n AS number, "
            "TIMESTAMPTZ '2026-01-01 00:00:00+00' + (n - 1) * INTERVAL 1 day AS at, 'x' AS word "
            "FROM (VALUES (1::BIGINT), (2), (3)) AS t(n)"
        )
    return folder


@pytest.mark.usefixtures("shop")
def test_before_the_first_run_there_is_none(flow: Flow) -> None:
    said = flow("watermark", "show", "load_orders", "--format", "json")
    assert said.code == 0, said.err
    assert said.json == {
        "pipeline": "load_orders",
        "watermarks": [
            {
                "target": "shop.orders",
                "connection": "warehouse",
                "column": "at",
                "type": "TimestampTZ",
                "value": None,
            }
        ],
    }
    refused = flow("watermark", "set", "load_orders", "--value", "2026-01-01")
    assert refused.code == 2
    assert "shop.orders does not exist yet" in refused.err
    assert "flow run load_orders" in refused.err


@pytest.mark.usefixtures("shop")
def test_a_watermark_moves_back_and_is_forgotten(flow: Flow) -> None:
    assert flow("run", "load_orders").code == 0
    shown = flow("watermark", "show", "load_orders")
    assert shown.out.splitlines()[1].endswith(LATEST)
    assert flow("run", "load_orders", "--format", "json").json["ran"][0]["rows_read"] == 1

    moved = flow("watermark", "set", "load_orders", "--value", "2026-01-02T01:00:00+01:00")
    assert moved.code == 0, moved.err
    before, after = LATEST, "2026-01-02 00:00:00.000000+00:00"
    assert moved.out == f"load_orders → shop.orders: at {before} → {after}\n"
    assert flow("run", "load_orders", "--format", "json").json["ran"][0]["rows_read"] == 2

    gone = flow("watermark", "reset", "load_orders", "--target", "orders", "--format", "json")
    assert gone.json["watermarks"][0]["was"] == LATEST
    assert gone.json["watermarks"][0]["value"] is None
    again = flow("run", "load_orders", "--format", "json").json["ran"][0]
    assert (again["rows_read"], again["rows_unchanged"]) == (3, 3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["load_orders", "--value", "yesterday"], "'yesterday' is not a TimestampTZ"),
        (["load_prices", "--value", "NaN"], "'NaN' is not a number"),
        (["load_prices", "--value", "12,5"], "'12,5' is not a Numeric"),
        (["all_orders", "--value", "1"], "it is not incremental"),
        (["load_orders", "--value", "2026-01-01", "--target", "order"], "mean 'shop.orders'?"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_what_cannot_be_a_watermark_moves_nothing(
    flow: Flow, arguments: list[str], complaint: str
) -> None:
    assert flow("run", "load_orders", "load_prices").code == 0
    said = flow("watermark", "set", *arguments)
    assert said.code == 2
    assert complaint in said.err
    assert said.err.count("\n") == 1
    shown = flow("watermark", "show", "load_orders", "--format", "json")
    assert shown.json["watermarks"][0]["value"] == LATEST
