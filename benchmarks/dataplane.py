"""How fast rows move: between PostgreSQL databases beside the wire's own limit, and elsewhere.

The limit is `psql` with a binary `COPY` piped into another. Every system keeps its process, so
that sessions are warm. Between other stores the alternative is DuckDB with its own scanners, from
MySQL Sling besides.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from contest import PEER, Loader, databases, fill, fill_mysql, forget, loaders, made_in, served
from measure import Bar, median_ratio, report

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
MANY = int(os.environ.get("BENCH_MANY", "10000000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
LIMIT = "psql COPY BINARY, piped"
JDBC = "default Spark JDBC"
ADDING = "append into an existing table"
# Against whom, how much of its time, for which loads; the first creates what the second adds to.
GOALS = {
    "append into a table the run creates": {LIMIT: 2.5, PEER: 0.2, "dlt": 0.35, JDBC: 0.6},
    ADDING: {LIMIT: 4.0, PEER: 0.2, "dlt": 0.35, JDBC: 0.6},
    "merge": {PEER: 0.25, "dlt": 0.4},
    "scd2": {PEER: 0.25, "dlt": 0.4},
}
# Of many rows only what does not take an hour.
MANY_GOALS = {
    load: {name: goal for name, goal in goals.items() if name in (LIMIT, JDBC)}
    for load, goals in GOALS.items()
    if load.startswith("append")
}
ROUTES = {
    "postgres to parquet": {"DuckDB": 4.0},
    "parquet to postgres": {"DuckDB": 4.0},
    "postgres to duckdb": {"DuckDB": 4.0},
    "mysql to postgres": {"DuckDB": 1.0, "Sling": 0.6},
}
# A load that takes longer is ended, and counts as if it had taken this long.
PATIENCE = 60.0


def piped(source: str, target: str) -> float:
    """The limit: nobody looks at the rows, and the table has no keys."""
    with psycopg.connect(target, autocommit=True) as raw:
        raw.execute(
            "CREATE TABLE IF NOT EXISTS public.piped (id bigint, customer int, status text, "
            "amount numeric(12, 2), ratio float8, note text, updated_at timestamptz)"
        )
    began = time.perf_counter()
    out = f'psql -qX "{source}" -c "COPY bench.orders TO STDOUT (FORMAT BINARY)"'
    into = f'psql -qX "{target}" -c "COPY public.piped FROM STDIN (FORMAT BINARY)"'
    subprocess.run(["bash", "-o", "pipefail", "-c", f"{out} | {into}"], check=True)
    return time.perf_counter() - began


def empty(url: str) -> None:
    """A target without any table."""
    forget(url)
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("DROP SCHEMA public CASCADE")
        raw.execute("CREATE SCHEMA public")


def measure_copies(
    source: str,
    targets: dict[str, str],
    systems: dict[str, Loader],
    rows: int,
    goals: dict[str, dict[str, float]],
) -> dict[tuple[str, str], list[float]]:
    """The seconds of every load by every system, interleaved."""
    taken: dict[tuple[str, str], list[float]] = {}
    fill(source, rows)
    for turn in range(ROUNDS + 1):
        for url in targets.values():
            empty(url)
        for load, rivals in goals.items():
            mode = "plain" if load.startswith("append") else load
            for name in ("ours", *rivals):
                if name == PEER and load == ADDING:
                    # It asked for a key, so the same rows fit only where the first ones are gone.
                    with psycopg.connect(targets[PEER], autocommit=True) as raw:
                        raw.execute("TRUNCATE bench.ours_plain")
                seconds = (
                    piped(source, targets["ours"])
                    if name == LIMIT
                    else systems[name].load(mode, limit=PATIENCE * rows / ROWS)
                )
                print(f"round {turn}: {rows} rows, {load}: {name} {seconds:.2f} s", flush=True)
                # The first round warms sessions, caches and compilers.
                if turn:
                    taken.setdefault((load, name), []).append(seconds)
    return taken


def measure_routes(
    targets: dict[str, str], systems: dict[str, Loader]
) -> dict[tuple[str, str], list[float]]:
    """Between PostgreSQL and other stores, beside DuckDB and Sling."""
    taken: dict[tuple[str, str], list[float]] = {}
    for turn in range(ROUNDS + 1):
        for url in targets.values():
            empty(url)
        for route, rivals in ROUTES.items():
            for name in ("ours", *rivals):
                seconds = systems[name].load(route, limit=PATIENCE)
                print(f"round {turn}: {route}: {name} {seconds:.2f} s", flush=True)
                if turn:
                    taken.setdefault((route, name), []).append(seconds)
    return taken


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="ematix-bench-"))
    bars: list[Bar] = []
    measured: dict[str, list[float]] = {}
    try:
        with (
            databases("ours", PEER, "dlt", JDBC, "DuckDB", "Sling") as (source, targets),
            served("mysql") as mysql,
            made_in(mysql) as shop,
        ):
            fill_mysql(shop, ROWS)
            systems = loaders(source, targets, home, BENCH_MYSQL=shop)
            for rows, goals in ((ROWS, GOALS), (MANY, MANY_GOALS)):
                taken = measure_copies(source, targets, systems, rows, goals)
                bars += [
                    Bar(
                        f"{rows} rows, {load}, against {name}",
                        median_ratio(taken[load, "ours"], taken[load, name]),
                        goal,
                    )
                    for load, rivals in goals.items()
                    for name, goal in rivals.items()
                ]
                measured |= {f"{rows} rows, {load}: {n}": t for (load, n), t in taken.items()}
            fill(source, ROWS)
            routes = measure_routes(targets, systems)
            bars += [
                Bar(
                    f"{route}, against {name}",
                    median_ratio(routes[route, "ours"], routes[route, name]),
                    goal,
                )
                for route, rivals in ROUTES.items()
                for name, goal in rivals.items()
            ]
            measured |= {f"{route}: {name}": t for (route, name), t in routes.items()}
            for system in systems.values():
                system.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return report("dataplane", bars=bars, taken=measured, packages=("ematix-flow", "pyspark"))


if __name__ == "__main__":
    sys.exit(main())
