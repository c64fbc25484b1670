"""Loads a source table with a published or local ematix-flow; one line in, one time out.

The same declarations run on both. Each input line is ``mode``; the answer is the seconds taken.
"""

import os
import sys
import time
from typing import Annotated

from ematix_flow import PostgresConnection, ematix, pk, register_connection
from ematix_flow.types import BigInt, Double, Integer, Numeric, Text, TimestampTZ

register_connection(PostgresConnection(name="bench_source", url=os.environ["BENCH_SOURCE"]))
register_connection(PostgresConnection(name="bench_target", url=os.environ["BENCH_TARGET"]))
PEER = bool(os.environ.get("BENCH_PEER"))

_QUERY = "SELECT id, customer, status, amount, ratio, note, updated_at FROM "


def table(name: str, *keys: str, time: type = TimestampTZ) -> type:
    identity = Annotated[BigInt, pk()] if "id" in keys else BigInt
    changed = Annotated[time, pk()] if "updated_at" in keys else time

    @ematix.table(schema="bench", name=name)
    class Loaded:
        id: identity
        customer: Integer
        status: Text
        amount: Numeric[12, 2]
        ratio: Double
        note: Text
        updated_at: changed

    return Loaded


def declared(
    name: str,
    mode: str,
    *keys: str,
    source: str = "bench_source",
    target: str = "bench_target",
    origin: str = "bench.orders",
    time: type = TimestampTZ,
    **options: object,
) -> object:
    @ematix.pipeline(
        target=table(f"ours_{name}", *keys, time=time),
        source_connection=source,
        target_connection=target,
        mode=mode,
        name=f"load_{name}",
        **options,
    )
    def load(src: object, tgt: object) -> str:
        return _QUERY + origin

    return load


def pipelines() -> dict[str, object]:
    incremental = (
        {"incremental_column": "updated_at"}
        if PEER
        else {"incremental": True, "watermark_column": "updated_at"}
    )
    found = {
        # What is only added to holds the versions of a row beside each other.
        "append": declared("append", "append", "id", "updated_at", **incremental),
        "merge": declared("merge", "merge", "id"),
        "scd2": declared("scd2", "scd2", "id"),
        # The peer refuses a table without a key.
        "plain": declared("plain", "append", *(["id"] if PEER else [])),
    }
    if not PEER:
        found |= ours_alone()
    return found


def ours_alone() -> dict[str, object]:
    """Routes that only we are asked for."""
    from ematix_flow import DuckDBConnection, MySQLConnection, ObjectStoreLocalConnection
    from ematix_flow.types import Timestamp

    files = os.environ["BENCH_FILES"]
    register_connection(ObjectStoreLocalConnection(name="bench_files", path=f"{files}/ours"))
    register_connection(DuckDBConnection(name="bench_duckdb", path=f"{files}/ours.duckdb"))
    found = {
        "spark": declared("spark", "append", force_path="spark"),
        "postgres to parquet": declared("to_parquet", "truncate", target="bench_files"),
        "parquet to postgres": declared(
            "from_parquet", "append", source="bench_files", origin="bench.ours_to_parquet"
        ),
        "postgres to duckdb": declared("to_duckdb", "truncate", target="bench_duckdb"),
    }
    if "BENCH_MYSQL" in os.environ:
        register_connection(MySQLConnection(name="bench_mysql", url=os.environ["BENCH_MYSQL"]))
        found["mysql to postgres"] = declared(
            "from_mysql", "append", source="bench_mysql", origin="orders", time=Timestamp
        )
    return found


def main() -> None:
    found = pipelines()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        found[line.strip()]()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
