"""What the snippets take for granted: imports and names that an earlier snippet defines."""

from __future__ import annotations

IMPORTS = """
from typing import Annotated
from ematix_flow import ematix, pk
from ematix_flow.types import BigInt, String, Text, TimestampTZ
from ematix_flow.normalize import lower, trim, empty_to_null, parse_timestamp
"""

WAREHOUSE = """
@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${WAREHOUSE_DSN}"
"""

KAFKA = """
@ematix.connection
class kafka_prod:
    kind = "kafka"
    bootstrap_servers = "${KAFKA_BOOTSTRAP}"
    group_id = "ematix-flow"
"""

EVENTS = """
@ematix.table(schema="analytics")
class Events:
    event_id: Annotated[BigInt, pk()]
    name: Text | None
    received_at: TimestampTZ
"""

CUSTOMER_DIM = """
@ematix.table(schema="analytics")
class CustomerDim:
    customer_id: Annotated[BigInt, pk()]
    email: Annotated[String[256] | None, lower(), trim(), empty_to_null()]
    name: Text | None
    updated_at: Annotated[TimestampTZ, parse_timestamp()]
"""

QUICKSTART = """
@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${EMATIX_FLOW_DSN}"

@ematix.pipeline(
    target=CustomerDim,
    target_connection="warehouse",
    schedule="0 * * * *",
    mode="scd2",
    compare_columns=["email", "name"],
)
def sync_customers(conn):
    return "SELECT customer_id, email, name, updated_at FROM raw.customers"
"""
