"""The work a class archive is recorded from: what a typical pipeline makes Spark load."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.engine.classic import launch
from ematix_flow.engine.jvm import JvmPlan
from ematix_flow.engine.settings import derive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def train(plan: JvmPlan, flags: tuple[str, ...]) -> None:
    """Run the typical work in a JVM that records its classes as it ends."""
    engine = launch(derive(), plan=dataclasses.replace(plan, flags=flags))
    try:
        typical_work(engine.spark, engine.workspace.folder("training"))
    finally:
        # Recording happens inside the JVM's own exit, which takes its time.
        engine.stop(seconds=600.0)


def try_out(plan: JvmPlan, flags: tuple[str, ...]) -> list[str]:
    """Run a little work with the archive; returns the JVM's list of loaded classes."""
    engine = launch(derive(), plan=dataclasses.replace(plan, flags=flags), log_classes=True)
    try:
        engine.spark.range(10).selectExpr("sum(id)").collect()
        return engine.loaded_classes()
    finally:
        engine.stop()


def typical_work(spark: SparkSession, folder: Path) -> None:
    """CSV, JSON and Parquet, casts, aggregation, a join, windows, SQL over a view."""
    from pyspark.sql import functions as F

    rows = "".join(f"{n},name {n % 7},{n}.25,2024-01-01 00:00:{n % 60:02d}\n" for n in range(500))
    (folder / "in.csv").write_text("id,name,amount,at\n" + rows, encoding="utf-8")
    source = str(folder / "in.csv")
    schema = "id INT, name STRING, amount DECIMAL(10,2), at TIMESTAMP"
    typed = spark.read.csv(source, header=True, schema=schema)
    text = spark.read.csv(source, header=True)
    cast = text.select(
        F.col("id").cast("bigint").alias("id"),
        F.trim(F.lower("name")).alias("name"),
        F.col("amount").cast("decimal(12,2)").alias("amount"),
        F.col("at").cast("timestamp").alias("at"),
    ).where("id IS NOT NULL")
    cast.write.parquet(str(folder / "out"))
    typed.repartition(2).write.mode("append").parquet(str(folder / "out_typed"))
    stored = spark.read.parquet(str(folder / "out"))
    stored.createOrReplaceTempView("stored")
    stored.limit(5).toArrow()
    totals = spark.sql(
        "SELECT name, count(*) AS n, sum(amount) AS total, max(at) AS latest "
        "FROM stored WHERE id > 10 GROUP BY name ORDER BY name"
    )
    totals.join(stored, "name").selectExpr("count(*)", "max(total)").collect()
    spark.sql(
        "SELECT id, row_number() OVER (PARTITION BY name ORDER BY at) AS r FROM stored"
    ).count()
    totals.coalesce(1).write.json(str(folder / "totals"))
    totals.write.csv(str(folder / "totals_csv"), header=True)
    spark.createDataFrame([(1, "a")], "id INT, name STRING").collect()
