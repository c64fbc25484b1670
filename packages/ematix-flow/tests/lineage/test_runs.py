"""What runs keep of their lineage, on every path, and what declarations tell without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import (
    BigInt,
    DeltaLocalConnection,
    DuckDBConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
    Target,
    Text,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.config import connect
from ematix_flow.lineage.edges import Lineage
from ematix_flow.lineage.graph import LineageGraph
from ematix_flow.lineage.names import Names
from ematix_flow.normalize import derive, lower, sql
from ematix_flow.registry import Registry
from ematix_flow.run.lineage import METRIC, project_lineage
from ematix_flow.run.log import open_run_log
from ematix_flow.transforms import deduplicate_by, filter_where

from .test_sql_queries import _HOWS


@ematix.table(schema="shop")
class Orders:
    id: Annotated[BigInt, pk()]
    country: Text
    amount: BigInt


@ematix.table(schema="shop")
class Totals:
    country: Annotated[Text, pk()]
    total: BigInt


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A warehouse under two names, a lake, another database; all in one folder."""
    monkeypatch.chdir(tmp_path)
    register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))
    register_connection(DuckDBConnection(name="reports", path="./warehouse.duckdb"))
    register_connection(ObjectStoreLocalConnection(name="lake", path="lake"))
    register_connection(SQLiteConnection(name="app", path="app.sqlite"))
    with connect("warehouse") as live:
        live.execute("CREATE SCHEMA raw")
        live.execute(
            "CREATE TABLE raw.orders (id BIGINT, country TEXT, amount BIGINT, moment BIGINT)"
        )
        live.execute("INSERT INTO raw.orders VALUES (1, 'DE', 10, 1), (2, 'FR', 20, 2)")
    return tmp_path


def kept(pipeline: str) -> dict[str, Lineage]:
    """What the run log holds of the last run."""
    log = open_run_log()
    found = {}
    for record in log.list(pipeline=pipeline, limit=10):
        lineage = Lineage.from_dict(record.metrics[METRIC], pipeline=pipeline)
        assert lineage is not None
        found[record.target] = lineage
    log.close()
    return found


def told(lineage: Lineage) -> dict[str, set[str]]:
    """Edges as ``how:table.column`` by column, and those of all columns under ``*``."""
    short = {how: letter for letter, how in _HOWS.items()}

    def words(origins: Any) -> set[str]:
        return {
            f"{short[o.how]}:{o.table}.{o.column}" if o.how in short else f"{o.table}.{o.column}"
            for o in origins
        }

    rows = {"*": words(lineage.rows)} if lineage.rows else {}
    return {name: words(origins) for name, origins in lineage.columns.items()} | rows


def declared(registry: Registry) -> dict[str, Lineage]:
    """What can be known before anything has run."""
    specs = [pipeline.spec for pipeline in registry.pipelines.values()]
    return {held.pipeline: held for held in project_lineage(specs, names=Names())}


RAW = "warehouse.raw.orders"


def test_inside_a_database(registry: Registry) -> None:
    @ematix.pipeline(target=Totals, target_connection="warehouse", mode="truncate")
    def sum_up(conn: Any) -> str:
        return (
            "SELECT country, sum(amount)::BIGINT AS total FROM raw.orders WHERE moment > 0 "
            "GROUP BY country"
        )

    expected = {
        "country": {f"{RAW}.country"},
        "total": {f"{RAW}.amount"},
        "*": {f"f:{RAW}.moment", f"g:{RAW}.country"},
    }
    before = declared(registry)["sum_up"]
    assert (told(before), before.origin) == (expected, "declaration")
    assert sum_up.sync().path == "same_db"
    (after,) = kept("sum_up").values()
    assert told(after) == expected
    assert (after.target, after.sources) == ("warehouse.shop.totals", (RAW,))


def test_source_table_normalizers_and_steps(registry: Registry) -> None:
    @ematix.table(schema="shop")
    class Cleaned:
        id: Annotated[BigInt, pk()]
        land: Annotated[Text, lower()]
        amount: Annotated[BigInt, sql("col + moment")]
        label: Annotated[Text, derive("concat(country, '-', amount)")]

    @ematix.pipeline(
        target=Cleaned,
        target_connection="warehouse",
        source_table="raw.orders",
        column_map={"land": "country"},
        transforms_pre=[filter_where("moment > 0"), deduplicate_by("id", order_by="amount desc")],
        mode="merge",
    )
    def clean(conn: Any) -> None: ...

    assert told(declared(registry)["clean"]) == {
        "id": {f"{RAW}.id"},
        "land": {f"{RAW}.country"},
        "amount": {f"{RAW}.amount", f"{RAW}.moment"},
        "label": {f"{RAW}.country", f"{RAW}.amount"},
        "*": {f"f:{RAW}.moment", f"g:{RAW}.id", f"s:{RAW}.amount", f"s:{RAW}.moment"},
    }


def test_what_the_load_itself_decides_by(registry: Registry) -> None:
    @ematix.pipeline(
        target=Orders,
        target_connection="warehouse",
        source_table="raw.orders",
        mode="merge",
        delete_when="amount < 0",
        incremental=True,
        watermark_column="id",
    )
    def follow(conn: Any) -> None: ...

    assert told(declared(registry)["follow"])["*"] == {f"f:{RAW}.amount", f"f:{RAW}.id"}


def test_several_targets_and_transform_sql(engine: object, registry: Registry) -> None:
    @ematix.pipeline(
        targets=[
            Target(connection="warehouse", table=Totals, mode="truncate"),
            Target(connection="app", table=Totals, mode="truncate", column_map={"total": "most"}),
        ],
        source_connection="reports",
        source_table="raw.orders",
        transform_sql="SELECT country, sum(amount) AS total, max(moment) AS most FROM source "
        "WHERE id > 0 GROUP BY country",
    )
    def spread(conn: Any) -> None: ...

    spread.sync()
    found = kept("spread")
    raw = "reports.raw.orders"
    rows = {f"f:{raw}.id", f"g:{raw}.country"}
    first, second = (found[label] for label in spread.spec.target_labels)
    assert told(first) == {"country": {f"{raw}.country"}, "total": {f"{raw}.amount"}, "*": rows}
    assert told(second) == {"country": {f"{raw}.country"}, "total": {f"{raw}.moment"}, "*": rows}
    assert second.target == "app.shop__totals"


def test_a_data_frame_is_known_after_its_run(
    engine: object, registry: Registry, places: Path
) -> None:
    spark: Any = engine.spark  # type: ignore[attr-defined]
    spark.range(3).selectExpr("id", "'DE' AS country", "id AS amount").write.parquet(
        str(places / "lake" / "shop" / "orders")
    )

    @ematix.pipeline(target=Totals, target_connection="warehouse", source_connection="lake")
    def from_frame(conn: Any, spark: Any) -> Any:
        rows = spark.read.parquet(str(places / "lake" / "shop" / "orders")).where("id > 0")
        return rows.groupBy("country").agg({"amount": "sum"}).toDF("country", "total")

    before = declared(registry)["from_frame"]
    assert told(before) == {"country": set(), "total": set()}
    assert "no run of it has been recorded" in before.notes[0]
    from_frame.sync()
    log = open_run_log()
    specs = [from_frame.spec]
    (after,) = project_lineage(specs, names=Names(), run_log=log)
    log.close()
    source = "lake.shop.orders"
    assert told(after) == {
        "country": {f"{source}.country"},
        "total": {f"{source}.amount"},
        "*": {f"f:{source}.id", f"g:{source}.country"},
    }
    assert (after.origin, after.notes) == ("plan", ())
    assert after.run_id is not None


def test_a_function_over_rows_is_known_after_its_run(engine: object, registry: Registry) -> None:
    def only_large(rows: Any) -> Any:
        return rows.where("amount > 5").withColumn("country", rows.country.substr(1, 1))

    @ematix.pipeline(
        target=Orders, target_connection="app", source_connection="warehouse",
        transforms_pre=[only_large], mode="truncate",
    )  # fmt: skip
    def through(conn: Any) -> str:
        return "SELECT id, country, amount FROM raw.orders WHERE moment > 0"

    before = declared(registry)["through"]
    assert "known after a run" in before.notes[0]
    through.sync()
    (after,) = kept("through").values()
    assert told(after) == {
        "id": {f"{RAW}.id"},
        "country": {f"{RAW}.country"},
        "amount": {f"{RAW}.amount"},
        "*": {f"f:{RAW}.amount", f"f:{RAW}.moment"},
    }
    assert after.origin == "plan"


@pytest.mark.parametrize("store", ["lake", "deltas"])
def test_files_in_a_plan_are_their_table(engine: object, registry: Registry, store: str) -> None:
    register_connection(DeltaLocalConnection(name="deltas", path="deltas"))

    @ematix.pipeline(
        target=Orders, target_connection=store, source_connection="warehouse", mode="truncate"
    )
    def fill(conn: Any) -> str:
        return "SELECT id, country, amount FROM raw.orders"

    def unchanged(rows: Any) -> Any:
        return rows.select("*")

    @ematix.pipeline(
        target=Totals, target_connection="warehouse", source_connection=store, mode="truncate",
        transforms_pre=[unchanged],
    )  # fmt: skip
    def sum_up(conn: Any) -> str:
        return "SELECT country, sum(amount) AS total FROM shop.orders WHERE id > 0 GROUP BY country"

    fill.sync()
    sum_up.sync()
    (after,) = kept("sum_up").values()
    source = f"{store}.shop.orders"
    assert told(after) == {
        "country": {f"{source}.country"},
        "total": {f"{source}.amount"},
        "*": {f"f:{source}.id", f"g:{source}.country"},
    }
    assert (after.origin, after.sources) == ("plan", (source,))


def test_pipelines_meet_under_any_name_of_a_connection(registry: Registry) -> None:
    @ematix.pipeline(target=Orders, target_connection="warehouse", source_table="raw.orders")
    def load(conn: Any) -> None: ...

    @ematix.pipeline(target=Totals, target_connection="lake", source_connection="reports")
    def report(conn: Any) -> str:
        return "SELECT country, sum(amount) AS total FROM shop.orders GROUP BY ALL"

    names = Names()
    specs = [pipeline.spec for pipeline in registry.pipelines.values()]
    graph = LineageGraph(project_lineage(specs, names=names), names)
    assert graph.find("reports.shop.orders") == ("warehouse.shop.orders", None)
    reached = {
        (link.edge.target_table, link.edge.target_column, link.edge.kind)
        for link in graph.downstream(RAW, ["amount"])
    }
    assert reached == {
        ("warehouse.shop.orders", "amount", "direct"),
        ("lake.shop.totals", "total", "direct"),
    }


def test_a_function_that_uses_its_connection_waits_for_a_run(registry: Registry) -> None:
    @ematix.pipeline(target=Orders, target_connection="warehouse", mode="truncate")
    def asks(conn: Any) -> str:
        (row,) = conn.query("SELECT max(id) AS most FROM raw.orders")
        return f"SELECT id, country, amount FROM raw.orders WHERE id <= {row['most']}"

    assert "no run of it has been recorded" in declared(registry)["asks"].notes[0]
    asks.sync()
    log = open_run_log()
    (after,) = project_lineage([asks.spec], names=Names(), run_log=log)
    log.close()
    assert told(after)["*"] == {f"f:{RAW}.id"}


def test_lineage_that_cannot_be_told_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from ematix_flow.lineage.pipelines import PipelineTracer

    def broken(self: PipelineTracer, sql: str | None) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(PipelineTracer, "source", broken)

    @ematix.pipeline(target=Orders, target_connection="warehouse", source_table="raw.orders")
    def load(conn: Any) -> None: ...

    assert load.sync().counts.inserted == 2
    log = open_run_log()
    assert METRIC not in log.list(pipeline="load")[0].metrics
    log.close()


def test_ctrl_c_while_lineage_is_worked_out_comes_after_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ematix_flow.errors import Cancelled
    from ematix_flow.lineage.pipelines import PipelineTracer

    def interrupted(self: PipelineTracer, sql: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PipelineTracer, "source", interrupted)

    @ematix.pipeline(target=Orders, target_connection="warehouse", source_table="raw.orders")
    def load(conn: Any) -> None: ...

    with pytest.raises(Cancelled, match=r"shop.orders had been committed and stays"):
        load.sync()
    log = open_run_log()
    (record,) = log.list(pipeline="load")
    log.close()
    assert (record.status, record.rows_inserted) == ("succeeded", 2)
