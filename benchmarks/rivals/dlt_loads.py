"""Loads a source table with dlt's fastest backend and file format; one line in, one time out."""

from __future__ import annotations

import os
import sys
import time

import dlt
from dlt.sources.helpers.transform import add_row_hash_to_table
from dlt.sources.sql_database import sql_table


def load(name: str, backend: str) -> None:
    mode = "append" if name == "plain" else name
    pipeline = dlt.pipeline(
        f"bench_{name}",
        destination=dlt.destinations.postgres(os.environ["BENCH_TARGET"]),
        dataset_name="bench_dlt",
        pipelines_dir=os.environ["BENCH_HOME"],
    )
    source = sql_table(
        credentials=os.environ["BENCH_SOURCE"],
        schema="bench",
        table="orders",
        backend=backend,
        chunk_size=100_000,
        incremental=dlt.sources.incremental("updated_at") if name == "append" else None,
    )
    key = None if name == "plain" else "id"
    source.apply_hints(table_name=f"orders_{name}", primary_key=key)
    disposition: object = mode
    if mode == "scd2":
        # Arrow batches carry no row identifiers of dlt's own: its documentation hashes them so.
        source.add_map(add_row_hash_to_table("row_hash"))
        disposition = {
            "disposition": "merge",
            "strategy": "scd2",
            "row_version_column_name": "row_hash",
        }
    elif mode == "merge":
        disposition = {"disposition": "merge", "strategy": "upsert"}
    # Parquet goes to the database through ADBC, which is four times as fast as CSV.
    pipeline.run(
        source, write_disposition=disposition, loader_file_format="parquet"
    ).raise_on_failed_jobs()


def main() -> None:
    backend = sys.argv[1]
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        load(line.strip(), backend)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
