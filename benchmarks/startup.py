"""What starting costs: the light commands, and a cold run of a small pipeline.

Compared with `python -c pass`, and with the same job in plain PySpark started the usual way.
"""

from __future__ import annotations

import csv
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from measure import Bar, cpu_seconds, interleaved, median_ratio, report, wall_seconds

ROWS = 1_000
ROUNDS = 7

PIPELINE = """
from typing import Annotated
from ematix_flow import BigInt, Date, Numeric, String, Text, ematix, pk


@ematix.connection
class lake:
    kind = "object_store_local"
    path = "data"
    format = "csv"


@ematix.connection
class warehouse:
    kind = "duckdb"
    path = "warehouse.duckdb"


@ematix.table(schema="sales")
class Orders:
    order_id: Annotated[BigInt, pk()]
    customer: String[64]
    ordered_on: Date
    amount: Numeric[12, 2]
    note: Text | None


@ematix.pipeline(
    target=Orders,
    source_connection="lake",
    target_connection="warehouse",
    source_table="orders.csv",
    mode="truncate",
)
def load_orders():
    pass
"""

PLAIN = """
import duckdb
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

spark = SparkSession.builder.master("local[*]").appName("orders").getOrCreate()
orders = spark.read.option("header", True).csv("data/orders.csv").select(
    col("order_id").cast("bigint"),
    col("customer"),
    col("ordered_on").cast("date"),
    col("amount").cast("decimal(12,2)"),
    col("note"),
)
orders.write.mode("overwrite").parquet("staged")
with duckdb.connect("plain.duckdb") as target:
    target.execute("CREATE SCHEMA IF NOT EXISTS sales")
    target.execute(
        "CREATE OR REPLACE TABLE sales.orders AS SELECT * FROM read_parquet('staged/*.parquet')"
    )
spark.stop()
"""


def project(folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    with (folder / "data" / "orders.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["order_id", "customer", "ordered_on", "amount", "note"])
        for number in range(ROWS):
            writer.writerow(
                [
                    number,
                    f"customer {number % 97}",
                    f"2026-01-{number % 28 + 1:02}",
                    number * 1.25,
                    "",
                ]
            )
    (folder / "pipelines.py").write_text(PIPELINE)
    (folder / "plain.py").write_text(PLAIN)
    (folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')


def main() -> int:
    flow = str(Path(sys.executable).with_name("flow"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        project(folder)
        env = {**os.environ, "EMATIX_FLOW_HOME": f"{name}/home"}
        env.pop("EMATIX_FLOW_CACHE_DIR", None)

        def cpu(*command: str) -> float:
            return cpu_seconds(command, cwd=folder, env=env)

        light = interleaved(
            {
                "python -c pass (CPU)": lambda: cpu(sys.executable, "-c", "pass"),
                "flow --help (CPU)": lambda: cpu(flow, "--help"),
                "flow list (CPU)": lambda: cpu(flow, "list"),
            },
            rounds=ROUNDS * 3,
        )

        def first_run() -> float:
            cache = Path(name) / f"cache-{time.monotonic_ns()}"
            taken = wall_seconds(
                [flow, "run", "load_orders"],
                cwd=folder,
                env={**env, "EMATIX_FLOW_CACHE_DIR": str(cache)},
            )
            wait_for_builder(cache)
            shutil.rmtree(cache, ignore_errors=True)
            return taken

        heavy = interleaved(
            {
                "plain PySpark": lambda: wall_seconds(
                    [sys.executable, "plain.py"], cwd=folder, env=env
                ),
                "flow run": lambda: wall_seconds([flow, "run", "load_orders"], cwd=folder, env=env),
                "flow run, no class archive yet": first_run,
            },
            rounds=ROUNDS,
        )
    nothing = light["python -c pass (CPU)"]
    plain = heavy["plain PySpark"]
    bars = [
        Bar(
            "CPU of `flow --help` / `python -c pass`",
            median_ratio(light["flow --help (CPU)"], nothing),
            25,
        ),
        Bar(
            "CPU of `flow list` / `python -c pass`",
            median_ratio(light["flow list (CPU)"], nothing),
            25,
        ),
        Bar(
            "cold `flow run`, 1,000-row CSV → DuckDB / plain PySpark",
            median_ratio(heavy["flow run"], plain),
            0.65,
        ),
        Bar(
            "the very first run / plain PySpark",
            median_ratio(heavy["flow run, no class archive yet"], plain),
            0.95,
        ),
    ]
    return report(
        "startup",
        bars=bars,
        taken={**light, **heavy},
        packages=("ematix-flow", "pyspark", "duckdb"),
    )


def wait_for_builder(cache: Path) -> None:
    """Let the detached builder of the class archive end, so that it disturbs no other run."""
    needle = str(cache).encode()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and _processes_with(needle):
        time.sleep(0.2)


def _processes_with(needle: bytes) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (process / "environ").read_bytes() + (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
