"""Loads with DuckDB and its own scanners; one line in, one time out."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import duckdb


def attach(raw: duckdb.DuckDBPyConnection, name: str, url: str, kind: str = "postgres") -> None:
    module = importlib.util.find_spec(f"duckdb_extension_{kind}_scanner")
    assert module is not None
    assert module.origin is not None
    (extension,) = Path(module.origin).parent.rglob("*.duckdb_extension")
    raw.execute(f"LOAD '{extension}'")
    parts = urlsplit(url)
    words = {"postgres": ("password", "dbname"), "mysql": ("passwd", "database")}[kind]
    address = (
        f"host={parts.hostname} port={parts.port} user={parts.username} "
        f"{words[0]}={unquote(parts.password or '')} {words[1]}={parts.path[1:]}"
    )
    raw.execute(f"ATTACH '{address}' AS {name} (TYPE {kind})")


def main() -> None:
    files = os.environ["BENCH_FILES"]
    raw = duckdb.connect(f"{files}/duckdb.duckdb")
    attach(raw, "source", os.environ["BENCH_SOURCE"])
    attach(raw, "target", os.environ["BENCH_TARGET"])
    if "BENCH_MYSQL" in os.environ:
        attach(raw, "shop", os.environ["BENCH_MYSQL"], "mysql")
    statements = {
        "postgres to parquet": f"COPY source.bench.orders TO '{files}/duckdb.parquet'",
        "parquet to postgres": "CREATE TABLE target.public.from_parquet AS "
        f"FROM read_parquet('{files}/duckdb.parquet')",
        "postgres to duckdb": "CREATE TABLE orders AS FROM source.bench.orders",
        "mysql to postgres": "CREATE TABLE target.public.from_mysql AS FROM shop.orders",
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
