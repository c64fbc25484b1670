"""Loads with DuckDB and its own scanners; one line in, one time out."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import duckdb

_PRODUCTS = {"postgres": "dbname", "mysql": "database"}


def attach(raw: duckdb.DuckDBPyConnection, name: str, product: str, url: str) -> None:
    module = importlib.util.find_spec(f"duckdb_extension_{product}_scanner")
    assert module is not None
    assert module.origin is not None
    (extension,) = Path(module.origin).parent.rglob("*.duckdb_extension")
    raw.execute(f"LOAD '{extension}'")
    parts = urlsplit(url)
    address = (
        f"host={parts.hostname} port={parts.port} user={parts.username} "
        f"password={unquote(parts.password or '')} {_PRODUCTS[product]}={parts.path[1:]}"
    )
    raw.execute(f"ATTACH '{address}' AS {name} (TYPE {product})")


def main() -> None:
    files = os.environ["BENCH_FILES"]
    raw = duckdb.connect(f"{files}/duckdb.duckdb")
    attach(raw, "source", "postgres", os.environ["BENCH_SOURCE"])
    attach(raw, "target", "postgres", os.environ["BENCH_TARGET"])
    if mysql := os.environ.get("BENCH_MYSQL"):
        attach(raw, "shop", "mysql", mysql)
    statements = {
        "postgres to parquet": f"COPY source.bench.orders TO '{files}/duckdb.parquet'",
        "parquet to postgres": "CREATE TABLE target.public.from_parquet AS "
        f"FROM read_parquet('{files}/duckdb.parquet')",
        "mysql to postgres": "CREATE TABLE target.public.from_mysql AS FROM shop.bench.orders",
        "postgres to duckdb": "CREATE TABLE orders AS FROM source.bench.orders",
        "plain": "CREATE TABLE target.public.orders AS FROM source.bench.orders",
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
