"""Loads on peers that its environment names; one line in, one time out.

With an argument it forms the cluster, runs one empty task, and says how long that took.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from ematix_flow import BigInt, PostgresConnection, Text, ematix, register_connection
from ematix_flow.connections import DuckDBConnection, ObjectStoreLocalConnection
from ematix_flow.engine.cluster import Crew
from ematix_flow.engine.placing import placed
from ematix_flow.engine.session import run_session, shared_engine
from ematix_flow.peers import resolved

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tpch_project"))
from loads import MIX, TRANSFORM

register_connection(PostgresConnection(name="origin", url=os.environ["BENCH_SOURCE"]))
register_connection(PostgresConnection(name="warehouse", url=os.environ["BENCH_TARGET"]))
register_connection(
    ObjectStoreLocalConnection(name="lake", path=os.environ["BENCH_LAKE"], shared=True)
)
register_connection(
    DuckDBConnection(name="answers", path=os.environ["BENCH_HOME"] + "/answers.duckdb")
)


def table(called: str) -> type:
    @ematix.table(schema="bench", name=called)
    class Loaded:
        id: BigInt
        note: Text

    return Loaded


def declared(called: str, source: str, mode: str, **options: Any) -> Any:
    @ematix.pipeline(
        target=table(called),
        source_connection="origin",
        target_connection="warehouse",
        source_table=source,
        mode=mode,
        name=f"load_{called}",
        force_path="spark",
        **options,
    )
    def load(conn: Any) -> None:
        return None

    return load


def spread(count: int) -> Any:
    """A step that has no effect but to make that many partitions."""

    def repartitioned(rows: Any) -> Any:
        return rows.repartition(count)

    return repartitioned


def mix() -> list[Any]:
    import pipelines  # noqa: F401 - it declares them

    from ematix_flow.registry import active_registry

    return [active_registry().pipeline(name) for name in MIX]


def empty_tasks(count: int) -> None:
    shared_engine().spark.range(0, count, 1, count).write.format("noop").mode("append").save()


def requests(count: int) -> None:
    """Ask a peer something, over mutual TLS, as often as that."""
    crew = Crew(resolved(os.environ["EMATIX_FLOW_PEERS"].split(",")), timeout=30)
    for _ in range(count):
        crew.clients[0].offer()


def main() -> None:
    transformed = declared("transformed", "bench.notes", "truncate", transform_sql=TRANSFORM)
    if len(sys.argv) > 1:
        with run_session(), placed(transformed.spec):
            empty_tasks(1)
            print(time.time() - float(os.environ["BENCH_BEGAN"]), flush=True)
        return
    queries = mix()
    runs: dict[str, Any] = {
        "transform": [transformed.sync],
        "tpch": [query.sync for query in queries],
        "copied": [declared("copied", "bench.many", "append").sync],
        "few rows in 2": [declared("few2", "bench.few", "append", transforms_pre=[spread(2)]).sync],
        "few rows in 50": [
            declared("few50", "bench.few", "append", transforms_pre=[spread(50)]).sync
        ],
    }
    runs["100 requests"] = [lambda: requests(100)]
    for count in (100, 1100):
        runs[f"{count} tasks"] = [lambda n=count: empty_tasks(n)]
    with run_session(), placed(transformed.spec):
        print("ready", flush=True)
        for line in sys.stdin:
            began = time.perf_counter()
            for run in runs[line.strip()]:
                run()
            print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
