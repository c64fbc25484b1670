"""Lineage from Spark's analysed plan: DataFrames by hand, and random queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from ematix_flow.engine.plans import Leaf
from ematix_flow.lineage.from_plan import PlanTrace, trace_plan
from ematix_flow.lineage.relations import Relation, base_table

from .queries import TABLES, Query, queries, rows_of
from .test_sql_queries import origins
from .test_sql_soundness import fill, perturbed, results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.session import Engine

Trace = Callable[["DataFrame"], PlanTrace]


@pytest.fixture(scope="module")
def frames(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    """Two tables as Parquet files, which are also views of their names."""
    folder = tmp_path_factory.mktemp("frames")
    made = {}
    for table, columns in TABLES.items():
        path = str(folder / table)
        row = ", ".join(f"cast(id as int) AS {column}" for column in columns)
        spark.range(3).selectExpr(*row.split(", ")).write.parquet(path)
        made[table] = spark.read.parquet(path)
        made[table].createOrReplaceTempView(table)
    return made


@pytest.fixture
def trace(engine: Engine, frames: dict[str, DataFrame]) -> Trace:
    def look_up(leaf: Leaf | None, columns: tuple[str, ...]) -> Relation | None:
        if leaf is None:
            return None
        assert leaf.kind == "files"
        return base_table(Path(leaf.places[0]).name)

    def traced(frame: DataFrame) -> PlanTrace:
        plan = engine.analysed_plan(frame)
        assert plan is not None
        return trace_plan(plan, look_up)

    return traced


def check(found: PlanTrace, rows: str, **columns: str) -> None:
    assert dict(found.relation.columns) == {n: origins(text) for n, text in columns.items()}
    assert found.relation.rows == origins(rows)


def test_columns_filters_and_joins(trace: Trace, frames: dict[str, Any]) -> None:
    t, u = frames["t"], frames["u"]
    joined = t.join(u, "id", "left").where("a > 1").selectExpr("id", "b + c AS bc", "x")
    check(trace(joined), "j:t.id j:u.id f:t.a", id="t.id", bc="t.b t.c", x="u.x")


def test_groups_windows_and_orders(trace: Trace, frames: dict[str, Any]) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    grouped = frames["t"].groupBy("a").agg(f.sum("b").alias("total"), f.count("*").alias("n"))
    place = f.row_number().over(Window.partitionBy("n").orderBy("total"))
    check(
        trace(grouped.withColumn("nth", place).orderBy("a")),
        "g:t.a s:t.a",
        a="t.a",
        total="t.b",
        n="",
        nth="w:t.b",
    )


def test_a_table_joined_with_itself(trace: Trace, frames: dict[str, Any]) -> None:
    t = frames["t"]
    twice = t.alias("l").join(t.alias("r"), "id").selectExpr("l.a AS mine", "r.b AS theirs")
    check(trace(twice), "j:t.id", mine="t.a", theirs="t.b")


def test_unions_and_duplicates(trace: Trace, frames: dict[str, Any]) -> None:
    both = frames["t"].select("id", "a").union(frames["u"].select("x", "y"))
    check(trace(both), "", id="t.id u.x", a="t.a u.y")
    check(trace(both.dropDuplicates(["id"])), "g:t.id g:u.x", id="t.id u.x", a="t.a u.y")


def test_functions_over_whole_rows_come_from_all_columns(
    trace: Trace, frames: dict[str, Any]
) -> None:
    made = frames["u"].mapInPandas(lambda held: held, "p int, q int")
    check(trace(made), "", p="u.id u.x u.y", q="u.id u.x u.y")
    filtered = frames["u"].where("x > 1").groupBy("id").applyInPandas(lambda held: held, "p int")
    check(trace(filtered), "f:u.x", p="u.id u.x u.y")


def test_exploded_and_nested(trace: Trace, frames: dict[str, Any]) -> None:
    one = frames["t"].selectExpr("struct(a, b) AS held", "explode(array(b, c)) AS each")
    check(trace(one.selectExpr("held.a AS a", "each")), "j:t.b j:t.c", a="t.a t.b", each="t.b t.c")


def test_rows_of_this_process_come_from_nowhere(trace: Trace, spark: SparkSession) -> None:
    found = trace(spark.createDataFrame([(1,)], "n int").localCheckpoint())
    check(found, "", n="")
    assert found.notes == ("its rows came from a place that Spark's plan does not name",)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(query=queries(), held=st.data())
def test_every_change_has_an_edge(
    trace: Trace, spark: SparkSession, query: Query, held: st.DataObject
) -> None:
    from pyspark.errors import AnalysisException

    try:
        frame = spark.sql(query.sql)
    except AnalysisException:
        assume(False)  # Spark refuses some subqueries that DuckDB takes
    found = trace(frame).relation
    assert not found.rest
    data = {table: held.draw(rows_of(table)) for table in TABLES}
    with duckdb.connect() as database:
        for table, rows in data.items():
            fill(database, table, rows)
        before = results(database, query)
        for table, columns in TABLES.items():
            for place, column in enumerate(columns):
                for changed in perturbed(data[table], place):
                    fill(database, table, changed)
                    after = results(database, query)
                    for name in query.columns:
                        if before[name] != after[name]:
                            event("a column changed")
                            sources = {(o.table, o.column) for o in found.get(name) | found.rows}
                            assert (table, column) in sources, (query.sql, name, table, column)
            fill(database, table, data[table])
