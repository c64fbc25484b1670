"""Over Spark Connect there is no plan to look into: the query's text tells, the rest is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.engine.connect_server import connect_server
from ematix_flow.engine.settings import derive

PROJECT = """
import json
from typing import Annotated

from ematix_flow import BigInt, DuckDBConnection, ematix, pk, register_connection
from ematix_flow.config import connect
from ematix_flow.run.log import open_run_log

register_connection(DuckDBConnection(name="shop", path="shop.duckdb"))
register_connection(DuckDBConnection(name="copies", path="copies.duckdb"))
with connect("shop") as live:
    live.execute("CREATE TABLE orders AS SELECT 1::BIGINT AS id, 2::BIGINT AS amount")


@ematix.table(schema="main")
class Orders:
    id: Annotated[BigInt, pk()]
    amount: BigInt


def positive(rows):
    return rows.where("amount > 0")


@ematix.pipeline(
    target=Orders, target_connection="copies", source_connection="shop", mode="truncate",
    transforms_pre=[positive],
)
def by_query():
    return "SELECT id, amount FROM orders WHERE id > 0"


@ematix.pipeline(target=Orders, target_connection="copies", source_connection="shop", mode="merge")
def by_frame(spark):
    return spark.range(1).selectExpr("id", "id AS amount")


by_query.sync()
by_frame.sync()
log = open_run_log()
print(json.dumps({r.pipeline: [r.engine, r.metrics["lineage"]] for r in log.list()}))
log.close()
"""


@pytest.mark.slow
def test_what_connect_does_not_tell_is_said(tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(PROJECT)
    with connect_server(derive()) as server:
        ran = subprocess.run(
            [sys.executable, "project.py"],
            cwd=tmp_path,
            env={**os.environ, "EMATIX_FLOW_MASTER": server.remote},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert {engine for engine, _ in told.values()} == {"spark-connect"}
    query, frame = told["by_query"][1], told["by_frame"][1]
    assert query["columns"] == {"id": [[0, "id", 0]], "amount": [[0, "amount", 0]]}
    assert query["rows"] == [[0, "id", 1]]
    assert query["notes"] == ["what positive in transforms_pre= does is not told by Spark Connect"]
    assert frame["columns"] == {"id": [], "amount": []}
    assert frame["notes"] == ["what its DataFrame is made of is not told by Spark Connect"]
