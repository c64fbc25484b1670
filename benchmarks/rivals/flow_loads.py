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

_QUERY = "SELECT id, customer, status, amount, ratio, note, updated_at FROM bench.orders"


def table(name: str, *, versions: bool) -> type:
    changed = Annotated[TimestampTZ, pk()] if versions else TimestampTZ

    @ematix.table(schema="bench", name=name)
    class Loaded:
        id: Annotated[BigInt, pk()]
        customer: Integer
        status: Text
        amount: Numeric[12, 2]
        ratio: Double
        note: Text
        updated_at: changed

    return Loaded


def declared(mode: str, **options: object) -> object:
    @ematix.pipeline(
        # What is only added to holds the versions of a row beside each other.
        target=table(f"ours_{mode}", versions=mode == "append"),
        source_connection="bench_source",
        target_connection="bench_target",
        mode=mode,
        name=f"load_{mode}",
        **options,
    )
    def load(src: object, tgt: object) -> str:
        return _QUERY

    return load


def main() -> None:
    incremental = (
        {"incremental_column": "updated_at"}
        if os.environ.get("BENCH_PEER")
        else {"incremental": True, "watermark_column": "updated_at"}
    )
    pipelines = {
        "append": declared("append", **incremental),
        "merge": declared("merge"),
        "scd2": declared("scd2"),
    }
    if not os.environ.get("BENCH_PEER"):
        pipelines["spark"] = declared("append", force_path="spark")
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        pipelines[line.strip()]()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
