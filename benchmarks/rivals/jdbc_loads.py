"""Loads with Spark's JDBC source and sink as they come; one line in, one time out."""

from __future__ import annotations

import os
import sys
import time
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from ematix_flow.engine.jars import ensure_jars


def options(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    return {
        "url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
        "user": parts.username or "",
        "password": parts.password or "",
        "driver": "org.postgresql.Driver",
    }


def main() -> None:
    jars = ",".join(str(path) for path in ensure_jars(("postgres",)))
    builder = SparkSession.builder.master("local[*]").config("spark.jars", jars)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    source, target = options(os.environ["BENCH_SOURCE"]), options(os.environ["BENCH_TARGET"])
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        rows = spark.read.format("jdbc").options(**source, dbtable="bench.orders").load()
        written = rows.write.format("jdbc").options(**target, dbtable="public.orders")
        written.mode("append").save()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
