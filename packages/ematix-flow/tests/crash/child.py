"""A run in a process of its own, which reports its progress, stops on demand and can kill itself.

Children are forked from a server that has imported everything, and attach to a shared Spark
Connect server: one costs about a second instead of a whole Spark.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from ematix_flow import BigInt, Text, ematix
from ematix_flow.connections import Connection, DuckDBConnection
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import register_connection

PATIENCE = 120.0
SCHEMA = "event_id BIGINT, name STRING"
_PRELOADED = (
    "ematix_flow.run.batch",
    "ematix_flow.run.sqlite_log",
    "ematix_flow.backends.delta",
    "ematix_flow.backends.duckdb",
    "ematix_flow.backends.files",
    "ematix_flow.backends.mysql",
    "ematix_flow.backends.postgres",
    "ematix_flow.backends.sqlite",
    "ematix_flow.engine.connect",
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.functions",
    "duckdb",
    "psycopg",
    "pymysql",
    "pyarrow.orc",
    "pyarrow.parquet",
)

Rows = Sequence[tuple[Any, ...]]


@ematix.table(schema="app")
class Events:
    event_id: BigInt
    name: Text | None


@ematix.table(schema="app")
class Others:
    event_id: BigInt
    name: Text | None


@dataclass(frozen=True)
class Gate:
    """Two named pipes that hold a Python worker in the middle of Spark's work."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("ready", "release"):
            if not (self.folder / name).exists():
                os.mkfifo(self.folder / name)

    def task(self) -> Any:
        """A task that passes its rows on, says its process id and then waits at the gate."""
        ready, release = str(self.folder / "ready"), str(self.folder / "release")

        def wait(batches: Any) -> Any:
            import os

            yield from batches
            with open(ready, "w") as out:
                out.write(f"{os.getpid()}\n")
            with open(release) as never:
                never.read()

        return wait

    def held(self) -> int:
        """Wait until a worker stands at the gate; its process id."""
        with open(self.folder / "ready", opener=_unblocked) as pipe:
            poll = select.poll()
            poll.register(pipe, select.POLLIN)
            assert poll.poll(PATIENCE * 1000), "no worker has come to the gate"
            return int(pipe.readline())

    def release(self) -> None:
        """Let the worker go, if it is still there."""
        with contextlib.suppress(OSError), open(self.folder / "release", "w", opener=_unblocked):
            pass


class Trap:
    """Kills the Python worker that has passed its rows on."""

    def task(self) -> Any:
        """A task that ends with its process."""

        def die(batches: Any) -> Any:
            import os
            import signal

            yield from batches
            os.kill(os.getpid(), signal.SIGKILL)

        return die


def _unblocked(path: str, flags: int) -> int:
    return os.open(path, flags & ~(os.O_CREAT | os.O_TRUNC) | os.O_NONBLOCK)


@dataclass(frozen=True)
class Order:
    """What a child is to do. Points are named by their first word; it pauses at each once."""

    connections: tuple[Connection, ...]
    home: Path
    scratch: Path
    remote: str | None = field(repr=False)
    rows: Rows = ()
    schema: str = SCHEMA
    mode: str = "append"
    pipeline: str = "load_events"
    table: type = Events
    source_table: str | None = None
    die_at: str | None = None
    pause_at: tuple[str, ...] = ()
    gate: Gate | Trap | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a child's run ended: with a result or with an error."""

    result: Mapping[str, Any] | None
    error: str | None
    text: str
    points: tuple[str, ...]


def declare(order: Order) -> Pipeline:
    """The pipeline of an order; rows come from Python or from the connection ``source``."""
    for connection in order.connections:
        register_connection(connection)
    # The rows come from Python; a connection that can be read only has to be named.
    register_connection(DuckDBConnection(name="rows", path=str(order.home / "rows.duckdb")))
    held, copied, gate = list(order.rows), order.source_table, order.gate
    schema = order.schema

    def load(spark: Any) -> Any:
        rows = spark.createDataFrame(held, schema)
        return rows if gate is None else rows.coalesce(1).mapInArrow(gate.task(), schema)

    def copy() -> None:
        pass

    return ematix.pipeline(
        target=order.table,
        source_connection="source" if copied else "rows",
        target_connection="target",
        source_table=copied,
        mode=order.mode,
        name=order.pipeline,
        **order.options,
    )(copy if copied else load)


def run(orders: Sequence[Order], pipe: Pipe) -> None:
    """The child's whole life."""
    for order in orders:
        _obey(order, pipe)


def _obey(order: Order, pipe: Pipe) -> None:
    import tempfile

    from ematix_flow.errors import EmatixError
    from ematix_flow.run.batch import run_pipeline

    os.environ["EMATIX_FLOW_HOME"] = str(order.home)
    os.environ["TMPDIR"] = tempfile.tempdir = str(order.scratch)
    if order.remote is not None:
        os.environ["EMATIX_FLOW_MASTER"] = order.remote
    points: list[str] = []

    def announce(point: str) -> None:
        points.append(point)
        kind = point.partition(" ")[0]
        if kind == order.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind in order.pause_at and not any(p.startswith(kind) for p in points[:-1]):
            pipe.send(point)
            pipe.recv()

    try:
        result = run_pipeline(declare(order).spec, trigger="python", announce=announce)
    except EmatixError as error:
        pipe.send(Outcome(None, type(error).__name__, str(error), tuple(points)))
    else:
        pipe.send(Outcome(result.to_dict(), None, "", tuple(points)))


class Child:
    """A started child, seen from the test."""

    def __init__(self, *orders: Order) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run, args=(orders, theirs), daemon=True)
        self._orders = len(orders)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0

    def reach(self, point: str) -> None:
        """Wait until it pauses at a point."""
        told = self._told()
        assert isinstance(told, str), told
        assert told.partition(" ")[0] == point

    def go_on(self) -> None:
        """Let it leave the point at which it pauses."""
        self._pipe.send("go on")

    def outcome(self) -> Outcome:
        """Wait for its end and say how it ended."""
        (told,) = self.outcomes()
        return told

    def outcomes(self) -> list[Outcome]:
        """Wait for its end and say how each order ended."""
        told = [self._told() for _ in range(self._orders)]
        assert all(isinstance(t, Outcome) for t in told), told
        assert self.exit_code() == 0
        return told

    def exit_code(self) -> int:
        """Wait for its end; negative is the signal that killed it."""
        self._process.join(PATIENCE)
        code = self._process.exitcode
        assert code is not None, "the child is still running"
        self._process.close()
        self._pipe.close()
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def _told(self) -> Any:
        assert self._pipe.poll(PATIENCE), "the child says nothing"
        return self._pipe.recv()
