"""Loads with DuckDB and its own scanners; one line in, one time out."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import duckdb


def attach(raw: duckdb.DuckDBPyConnection, name: str, url: str) -> None:
    module = importlib.util.find_spec("duckdb_extension_postgres_scanner")
    assert module is not None
    assert module.origin is not None
    (extension,) = Path(module.origin).parent.rglob("*.duckdb_extension")
    raw.execute(f"LOAD '{extension}'")
    parts = urlsplit(url)
    address = (
        f"host={parts.hostname} port={parts.port} user={parts.username} "
        f"password={unquote(parts.password or '')} dbname={parts.path[1:]}"
    )
    raw.execute(f"ATTACH '{address}' AS {name} (TYPE postgres)")


def main() -> None:
    files = os.environ["BENCH_FILES"]
    raw = duckdb.connect(f"{files}/duckdb.duckdb")
    attach(raw, "source", os.environ["BENCH_SOURCE"])
    attach(raw, "target", os.environ["BENCH_TARGET"])
    statements = {
        "postgres to parquet": f"COPY source.bench.orders TO '{files}/duckdb.parquet'",
        "parquet to postgres": "CREATE TABLE target.public.from_parquet AS "
        f"FROM read_parquet('{files}/duckdb.parquet')",
        "postgres to duckdb": "CREATE TABLE orders AS FROM source.bench.orders",
    }
    print("ready", flush=True)
    for line in sys.stdin:
        statement = statements[line.strip()]
        if statement.startswith("CREATE TABLE "):
            raw.execute(f"DROP TABLE IF EXISTS {statement.split()[2]}")
        began = time.perf_counter()
        raw.execute(statement)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
