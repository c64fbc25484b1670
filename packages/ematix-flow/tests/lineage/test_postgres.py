"""Lineage of what PostgreSQL gives: by binary COPY, and by Spark's own JDBC reader."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlsplit

import pytest

from ematix_flow import BigInt, PostgresConnection, Text, ematix, pk, register_connection
from ematix_flow.config import connect
from ematix_flow.lineage.names import Names
from ematix_flow.run.lineage import METRIC, project_lineage
from ematix_flow.run.log import open_run_log

from .test_runs import told

pytestmark = pytest.mark.services("postgres")


@ematix.table(schema="reports")
class Customers:
    id: Annotated[BigInt, pk()]
    name: Text


@pytest.fixture
def url(postgres: Any) -> str:
    """The address of a database with customers in it; the target is another one."""
    source = str(postgres.create_database())
    register_connection(PostgresConnection(name="shop", url=source))
    register_connection(PostgresConnection(name="warehouse", url=postgres.create_database()))
    with connect("shop") as live:
        live.execute("CREATE TABLE customers (id BIGINT, name TEXT, active BOOLEAN)")
        live.execute("INSERT INTO customers VALUES (1, 'Ann', true)")
    return source


def kept(pipeline: Any) -> tuple[Any, Any, str]:
    log = open_run_log()
    (record,) = log.list(pipeline=pipeline.name)
    (lineage,) = project_lineage([pipeline.spec], names=Names(), run_log=log)
    log.close()
    return record, lineage, json.dumps(record.metrics[METRIC])


def test_a_copy(url: str) -> None:
    @ematix.pipeline(
        target=Customers, target_connection="warehouse", source_connection="shop", mode="truncate"
    )
    def copy(conn: Any) -> str:
        return 'SELECT "id", upper(name) AS name FROM customers WHERE active'

    assert copy.sync().path == "copy"
    record, lineage, held = kept(copy)
    source = "shop.public.customers"
    assert told(lineage) == {
        "id": {f"{source}.id"},
        "name": {f"{source}.name"},
        "*": {f"f:{source}.active"},
    }
    assert lineage.target == "warehouse.reports.customers"
    assert json.loads(held)["tables"] == [source]
    assert record.path == "copy"


def test_a_table_that_spark_reads_by_itself(url: str, engine: object) -> None:
    parts = urlsplit(url)
    jdbc = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"
    options = {"user": parts.username or "", "password": parts.password or "", "url": jdbc}

    @ematix.pipeline(
        target=Customers, target_connection="warehouse", source_connection="shop", mode="truncate"
    )
    def frame(spark: Any) -> Any:
        read = spark.read.format("jdbc").options(dbtable="customers", **options).load()
        return read.where("active").select("id", "name")

    frame.sync()
    _, lineage, held = kept(frame)
    source = "shop.public.customers"
    assert told(lineage) == {
        "id": {f"{source}.id"},
        "name": {f"{source}.name"},
        "*": {f"f:{source}.active"},
    }
    assert lineage.origin == "plan"
    assert "jdbc" not in held
    assert not parts.password or parts.password not in held
