"""The documented pipelines with keys, history, watermarks, transforms and several targets: run."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from .preambles import CUSTOMER_DIM, EVENTS, IMPORTS, QUICKSTART, WAREHOUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Database, Said, Snippet

OTHER_CONNECTIONS = """
from ematix_flow import PostgresConnection, register_connection

register_connection(PostgresConnection(name="raw_db", url="${WAREHOUSE_DSN}"))
register_connection(PostgresConnection(name="lake", url="${WAREHOUSE_DSN}"))
"""

PREAMBLE = IMPORTS + WAREHOUSE + EVENTS + CUSTOMER_DIM + OTHER_CONNECTIONS

BY_NAME = """
@ematix.pipeline(
    target=CustomerDim,
    schedule="0 * * * *",
    mode="scd2",
    target_connection="warehouse",
)
def sync_customers(conn):
    return "SELECT customer_id, email, name, updated_at FROM raw.customers"
"""

SOURCE_AND_TARGET = """
@ematix.pipeline(
    target=CustomerDim,
    source_connection="raw_db",
    target_connection="warehouse",
    schedule="0 * * * *",
    mode="scd2",
    compare_columns=["email", "name"],
)
def sync_customers(conn):
    return "SELECT customer_id, email, name, updated_at FROM customers"
"""

STATIC = """
@ematix.pipeline(
    target=CustomerDim,
    schedule="0 * * * *",
    mode="scd2",
    source_table="raw.customers",
    compare_columns=["email", "name"],
)
def sync_customers():
    pass
"""

STATIC_WITH_A_MAP = """
@ematix.table(schema="analytics")
class CustomerDim:
    customer_id: Annotated[BigInt, pk()]
    target_col: Text | None

@ematix.pipeline(
    target=CustomerDim,
    target_connection="warehouse",
    source_table="raw.customers",
    column_map={"target_col": "source_col"},
    mode="merge",
    schedule="0 * * * *",
)
def sync_customers():
    pass
"""

ROLLUPS = """
@ematix.table(schema="analytics")
class DailyRollups:
    name: Annotated[Text, pk()]

@ematix.pipeline(target=Events, target_connection="warehouse")
def ingest_events(conn):
    return "SELECT event_id, name, received_at FROM raw.events WHERE name IS NOT NULL"

@ematix.pipeline(
    target=DailyRollups,
    target_connection="warehouse",
    schedule="0 2 * * *",
    mode="merge",
    depends_on=["ingest_events"],
    retry={"max_attempts": 5, "backoff_seconds": 30, "backoff_factor": 2.0},
)
def daily_rollups(conn):
    return "SELECT name FROM analytics.events GROUP BY name"
"""

FAN_OUT = """
@ematix.table(schema="analytics")
class CustomerArchive:
    customer_id: Annotated[BigInt, pk()]
    email: Text | None
    name: Text | None
    updated_at: Text

from ematix_flow import Target

@ematix.pipeline(
    targets=[
        Target(table=CustomerDim,    connection="warehouse"),
        Target(table=CustomerArchive, connection="lake"),
    ],
    source_connection="raw_db",
    schedule="0 * * * *",
    mode="merge",
)
def sync_customers(conn):
    return "SELECT customer_id, email, name, updated_at FROM customers"
"""

MERGE = """
@ematix.table(schema="analytics")
class CustomerDim:
    customer_id: Annotated[BigInt, pk()]
    email: Text | None
    name: Text | None

@ematix.pipeline(
    target=CustomerDim,
    mode="merge",
    compare_columns=["email", "name"],
    schedule="0 * * * *",
)
def sync(conn):
    return "SELECT customer_id, email, name FROM raw.customers"
"""

EVENT_TIME = """
@ematix.pipeline(
    target=CustomerDim,
    mode="scd2",
    compare_columns=["email", "name"],
    event_timestamp_column="updated_at",
    ttl_seconds=86_400 * 30,
    schedule="0 * * * *",
)
def sync(conn):
    return "SELECT customer_id, email, name, updated_at FROM raw.customers"
"""

INCREMENTAL = """
@ematix.pipeline(
    target=Events,
    mode="append",
    incremental=True,
    watermark_column="received_at",
    schedule="*/5 * * * *",
)
def ingest(conn):
    return "SELECT event_id, name, received_at FROM raw.events"
"""

UPDATE_MART = """
@ematix.transform(name="update_mart")
def update_mart(conn):
    return "CREATE TABLE analytics.mart AS SELECT count(*) AS events FROM analytics.events"
"""

TRANSFORMS = """
from ematix_flow.transforms import deduplicate_by, filter_where

@ematix.pipeline(
    target=Events,
    mode="merge",
    transforms_pre=[
        deduplicate_by(keys=("event_id",), order_by="received_at desc"),
        filter_where("name IS NOT NULL"),
    ],
    transforms_post=[
        "ANALYZE analytics.events",
        ematix.transform_ref("update_mart"),
    ],
    continue_on_failure_post=True,
    schedule="*/5 * * * *",
)
def ingest(conn):
    return "SELECT event_id, name, received_at FROM raw.events"
"""


@pytest.fixture(autouse=True)
def variables(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAREHOUSE_DSN", "EMATIX_FLOW_DSN"):
        monkeypatch.setenv(name, database.url)


def change(database: Database, *statements: str) -> None:
    with psycopg.connect(database.url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.parametrize(
    "snippet",
    [QUICKSTART, BY_NAME, SOURCE_AND_TARGET, STATIC],
    ids=["quickstart", "by name", "source and target", "static"],
)
def test_history_is_kept(snippet: str, my_pipelines: Snippet, database: Database) -> None:
    held = my_pipelines(PREAMBLE, snippet).sync_customers
    assert held.sync().counts.inserted == 2
    again = held.sync().counts
    assert (again.inserted, again.closed, again.unchanged) == (0, 0, 2)
    for table in ("raw.customers", "public.customers"):
        change(database, f"UPDATE {table} SET name = 'Anna' WHERE customer_id = 1")
    changed = held.sync().counts
    assert (changed.inserted, changed.closed, changed.unchanged) == (1, 1, 1)
    found = database.query(
        "SELECT name, is_current, valid_to IS NULL FROM analytics.customer_dim "
        "WHERE customer_id = 1 ORDER BY valid_from"
    )
    assert found == [("Ann", False, False), ("Anna", True, True)]
    ends = database.query(
        "SELECT a.valid_to = b.valid_from FROM analytics.customer_dim a "
        "JOIN analytics.customer_dim b ON a.name = 'Ann' AND b.name = 'Anna'"
    )
    assert ends == [(True,)]


def test_history_by_event_time(my_pipelines: Snippet, database: Database) -> None:
    held = my_pipelines(PREAMBLE, EVENT_TIME).sync
    assert held.sync().counts.inserted == 2
    change(database, "INSERT INTO raw.customers VALUES (1, 'a@b.c', 'Ann', '2026-01-10 00:00:00')")
    held.sync()
    rows = database.query(
        "SELECT valid_from, valid_to, is_current FROM analytics.customer_dim "
        "WHERE customer_id = 1 ORDER BY valid_from"
    )
    first, second = rows
    assert first[1] == second[0]
    # Both began long ago, so the time to live has ended the last one.
    assert second[1] - second[0] == timedelta(days=30)
    assert [row[2] for row in rows] == [False, False]
    before = database.query("SELECT * FROM analytics.customer_dim ORDER BY 1, valid_from")
    held.sync()
    assert database.query("SELECT * FROM analytics.customer_dim ORDER BY 1, valid_from") == before


def test_merge(my_pipelines: Snippet, database: Database) -> None:
    held = my_pipelines(PREAMBLE, MERGE).sync
    assert held.sync().counts.inserted == 2
    change(
        database,
        "UPDATE raw.customers SET email = 'new@example.org' WHERE customer_id = 2",
        "INSERT INTO raw.customers VALUES (3, NULL, 'Cid', 'now')",
    )
    counts = held.sync().counts
    assert (counts.inserted, counts.updated, counts.unchanged) == (1, 1, 1)
    columns = "customer_id, email, name"
    assert database.query(
        f"SELECT {columns} FROM analytics.customer_dim ORDER BY 1"
    ) == database.query(f"SELECT {columns} FROM raw.customers ORDER BY 1")


def test_a_source_with_other_names(my_pipelines: Snippet, database: Database) -> None:
    change(
        database,
        "ALTER TABLE raw.customers ADD COLUMN source_col text",
        "UPDATE raw.customers SET source_col = 'c' || customer_id",
    )
    held = my_pipelines(PREAMBLE, STATIC_WITH_A_MAP).sync_customers
    assert held.sync().counts.inserted == 2
    found = database.query("SELECT customer_id, target_col FROM analytics.customer_dim ORDER BY 1")
    assert found == [(1, "c1"), (2, "c2")]


def test_one_after_the_other(
    my_pipelines: Snippet, database: Database, flow: Callable[[str], Said]
) -> None:
    my_pipelines(PREAMBLE, ROLLUPS)
    said = flow("flow run --module my_pipelines")
    assert (said.code, said.err) == (0, "")
    expected = database.query("SELECT DISTINCT name FROM raw.events WHERE name IS NOT NULL")
    found = database.query("SELECT name FROM analytics.daily_rollups")
    assert sorted(found) == sorted(expected)


def test_two_targets(my_pipelines: Snippet, database: Database) -> None:
    result = my_pipelines(PREAMBLE, FAN_OUT).sync_customers.sync()
    assert {name: held.counts.inserted for name, held in result.targets.items()} == {
        "analytics.customer_dim": 2,
        "analytics.customer_archive": 2,
    }
    archived = "SELECT customer_id, email, name, updated_at FROM analytics.customer_archive"
    assert sorted(database.query(archived), key=repr) == sorted(
        database.query("SELECT customer_id, email, name, updated_at FROM customers"), key=repr
    )
    # The dimension cleans its addresses, the archive keeps them as they are.
    assert database.query("SELECT email FROM analytics.customer_dim ORDER BY customer_id") == [
        ("ann@example.org",),
        (None,),
    ]


def test_only_new_rows(my_pipelines: Snippet, database: Database) -> None:
    held = my_pipelines(PREAMBLE, INCREMENTAL).ingest
    assert held.sync().counts.inserted == 3
    assert held.sync().counts.inserted == 0
    change(
        database,
        "INSERT INTO raw.events VALUES (4, 'late', '2020-01-01 00:00:00+00'), "
        "(5, 'new', '2026-02-01 00:00:00+00')",
    )
    assert held.sync().counts.inserted == 1
    assert [row[0] for row in database.query("SELECT event_id FROM analytics.events")] == [
        *(1, 2, 3, 5)
    ]
    watermark = database.query("SELECT count(*) FROM ematix_flow.watermarks")
    assert watermark == [(1,)]


def test_around_a_load(
    my_pipelines: Snippet, database: Database, flow: Callable[[str], Said]
) -> None:
    change(database, "INSERT INTO raw.events VALUES (1, 'older', '2025-01-01 00:00:00+00')")
    held = my_pipelines(PREAMBLE, UPDATE_MART, TRANSFORMS).ingest
    result = held.sync()
    assert result.path == "same_db"
    named: dict[int, tuple[Any, ...]] = {}
    for row in database.query("SELECT event_id, name, received_at FROM raw.events"):
        if row[0] not in named or row[2] > named[row[0]][2]:
            named[row[0]] = row
    expected = sorted(row for row in named.values() if row[1] is not None)
    found = database.query("SELECT event_id, name, received_at FROM analytics.events ORDER BY 1")
    assert found == expected
    assert [(s.name, s.status) for s in result.post] == [
        ("ANALYZE analytics.events", "succeeded"),
        ("update_mart", "succeeded"),
    ]
    assert database.query("SELECT events FROM analytics.mart") == [(len(expected),)]
    # The mart is there already, so the second time its step fails, and the pipeline goes on.
    again = held.sync()
    assert [s.status for s in again.post] == ["succeeded", "failed"]
    assert "update_mart" in flow("flow transform list --module my_pipelines").out
    said = flow("flow transform run update_mart --module my_pipelines")
    assert said.code == 1
    assert "transform 'update_mart'" in said.err
    change(database, "DROP TABLE analytics.mart")
    assert flow("flow transform run update_mart --module my_pipelines").code == 0
