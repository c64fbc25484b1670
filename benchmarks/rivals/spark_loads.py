"""The same loads in PySpark by hand, on the master that its environment names.

One line in, one time out. With an argument it runs one empty task, and says how long that took.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from jdbc_loads import options
from loads import MIX, TRANSFORM
from pyspark.sql import SparkSession

LAKE = Path(os.environ["BENCH_LAKE"])
QUERIES = Path(__file__).parents[1] / "tpch_project" / "queries"


def session(slots: int) -> SparkSession:
    from ematix_flow.engine.jars import ensure_jars

    builder = SparkSession.builder.master(os.environ["BENCH_MASTER"])
    jars = ",".join(str(path) for path in ensure_jars(("postgres",)))
    builder = builder.config("spark.jars", jars).config("spark.ui.enabled", "false")
    builder = builder.config("spark.executor.memory", "614m").config("spark.executor.cores", "1")
    builder = builder.config("spark.cores.max", str(slots))
    builder = builder.config("spark.sql.shuffle.partitions", str(2 * slots))
    return builder.getOrCreate()


def transform(spark: SparkSession, slots: int) -> None:
    reader = spark.read.format("jdbc").options(**options(os.environ["BENCH_SOURCE"]))
    count = int(os.environ["BENCH_NOTES"])
    split = {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(count)}
    rows = reader.options(**split, numPartitions=slots, dbtable="bench.notes").load()
    rows.createOrReplaceTempView("source")
    target = options(os.environ["BENCH_TARGET"])
    target["url"] += "?reWriteBatchedInserts=true"
    written = spark.sql(TRANSFORM).write.format("jdbc").options(**target, dbtable="public.notes")
    written.option("truncate", "true").option("batchsize", 10_000).mode("overwrite").save()


def tpch(spark: SparkSession) -> None:
    for folder in LAKE.iterdir():
        spark.read.parquet(str(folder)).createOrReplaceTempView(folder.name)
    for name in MIX:
        answer = spark.sql((QUERIES / f"{name}.sql").read_text())
        answer.write.mode("overwrite").parquet(f"{os.environ['BENCH_HOME']}/{name}")


def shuffle(spark: SparkSession) -> None:
    """Every row of the largest table to another place, by its key."""
    rows = spark.read.parquet(str(LAKE / "lineitem"))
    rows.repartition(8, "l_partkey").write.format("noop").mode("append").save()


def scan(spark: SparkSession) -> None:
    """The same without the way."""
    spark.read.parquet(str(LAKE / "lineitem")).write.format("noop").mode("append").save()


def main() -> None:
    slots = int(os.environ["BENCH_SLOTS"])
    spark = session(slots)
    if len(sys.argv) > 1:
        spark.range(0, 1, 1, 1).write.format("noop").mode("append").save()
        print(time.time() - float(os.environ["BENCH_BEGAN"]), flush=True)
        return
    runs: dict[str, Any] = {
        "transform": lambda: transform(spark, slots),
        "tpch": lambda: tpch(spark),
        "shuffle": lambda: shuffle(spark),
        "scan": lambda: scan(spark),
    }
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        runs[line.strip()]()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
