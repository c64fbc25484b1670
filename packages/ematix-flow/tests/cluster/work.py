"""The pipelines of these tests, and rows to load: computed once by Postgres, the oracle."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import psycopg

from ematix_flow import BigInt, Text, ematix, pk
from ematix_flow.pipeline import Pipeline

from .crew import Worker, wait_until

ROWS = 6000
PARTITIONS = 6

# A module of the user's own: it is in no place that a peer imports from.
GATE = '''
"""Tasks say that they are here, and go on when they are told to."""
import hashlib
import os
import time
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext


class Hold:
    def __init__(self, folder, toil=0):
        self.folder = folder
        self.toil = toil

    def __call__(self, batches):
        context = TaskContext.get()
        host = os.popen("ip -4 -o addr show scope global").read().split()[3].partition("/")[0]
        mark = f"{host} {context.partitionId()} {context.attemptNumber()}"
        Path(self.folder, mark).touch()
        while not Path(self.folder, "go").exists():
            time.sleep(0.05)
        for number in range(self.toil):
            hashlib.sha256(str(number).encode())
        for batch in batches:
            names = pa.array([f"{n}!" for n in batch.column("name").to_pylist()])
            at = batch.schema.get_field_index("name")
            yield batch.set_column(at, "name", names)
'''


@ematix.table(schema="app")
class Events:
    event_id: Annotated[BigInt, pk()]
    name: Text


def fill(url: str) -> list[tuple[Any, ...]]:
    """Rows at the source; returns what has to be at the target when they are loaded."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA raw")
        connection.execute(
            "CREATE TABLE raw.events AS SELECT g::bigint AS event_id, md5(g::text) AS name "
            f"FROM generate_series(1, {ROWS}) g"
        )
        return connection.execute(
            "SELECT event_id, name || '!' FROM raw.events ORDER BY event_id"
        ).fetchall()


def loaded(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT to_regclass('app.events')").fetchall() == [(None,)]:
            return []
        return connection.execute("SELECT event_id, name FROM app.events ORDER BY 1").fetchall()


def litter(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT tablename FROM pg_tables WHERE tablename LIKE 'stage%'"
        ).fetchall()


class Gate:
    """The folder by which tasks and tests talk; all machines of a test see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def open(self) -> None:
        (self.folder / "go").touch()

    def at(self, address: str) -> list[str]:
        return [f.name for f in self.folder.iterdir() if f.name.startswith(f"{address} ")]

    @property
    def hosts(self) -> set[str]:
        return {f.name.split()[0] for f in self.folder.iterdir() if " " in f.name}


def user_module(folder: Path) -> Iterator[ModuleType]:
    """The module, imported from a folder that only this process looks into."""
    (folder / "gate_of_user.py").write_text(GATE)
    sys.path.insert(0, str(folder))
    try:
        import gate_of_user  # type: ignore[import-not-found]

        yield gate_of_user
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("gate_of_user", None)


@contextlib.contextmanager
def changing_module(folder: Path) -> Iterator[Callable[[str], Any]]:
    """Rows transforms of a module whose text changes, as in the hands of its author."""
    file = folder / "mood_of_user.py"
    sys.path.insert(0, str(folder))

    def changed(mark: str) -> Any:
        file.write_text(
            "import pyarrow as pa\n\n\n"
            "class Say:\n"
            "    def __call__(self, batches):\n"
            "        for batch in batches:\n"
            f"            said = pa.array(['{mark}'] * batch.num_rows)\n"
            "            at = batch.schema.get_field_index('name')\n"
            "            yield batch.set_column(at, 'name', said)\n"
        )
        sys.modules.pop("mood_of_user", None)
        importlib.invalidate_caches()
        module = importlib.import_module("mood_of_user")

        def say(rows: Any) -> Any:
            return rows.mapInArrow(module.Say(), rows.schema)

        return say

    try:
        yield changed
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("mood_of_user", None)


def said_by(change: Callable[[str], Any], mark: str, url: str, **options: Any) -> set[str]:
    """Load all rows through a module that has just changed; what it has made of them."""

    @ematix.pipeline(
        target=Events,
        target_connection="warehouse",
        source_connection="origin",
        source_table="raw.events",
        name=f"say_{mark}",
        mode="truncate",
        transforms_pre=[change(mark)],
        **options,
    )
    def load(conn: Any) -> None:
        return None

    load.sync()
    return {name for _, name in loaded(url)}


def pipeline(
    module: ModuleType, gate: Gate, peers: list[str], *, toil: int = 0, **options: Any
) -> Pipeline:
    """From Postgres by Spark, over a function of the user's in every task."""

    def held(rows: Any) -> Any:
        hold = module.Hold(str(gate.folder), toil)
        return rows.repartition(PARTITIONS).mapInArrow(hold, rows.schema)

    given = {"source_connection": "origin", "source_table": "raw.events", **options}

    @ematix.pipeline(
        target=Events,
        target_connection="warehouse",
        force_path="spark",
        peers=peers,
        transforms_pre=[held],
        **given,
    )
    def load_events(conn: Any) -> None:
        return None

    return load_events


class Running:
    """A load in a thread; ``result`` waits for its end."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._outcome: Any = None
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._pipeline.sync()
        except BaseException as error:  # noqa: BLE001 - raised where it is asked for
            self._outcome = error

    def result(self, seconds: float = 150.0) -> Any:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the load did not end"
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


def begun(pipeline: Any, gate: Gate, crew: list[Worker]) -> Running:
    """A load of which every machine holds a task, in the middle of its transaction."""
    running = Running(pipeline)
    wait_until(
        lambda: all(gate.at(w.machine.address) for w in crew) or running._outcome is not None,
        what="all machines are at work",
        seconds=90,
    )
    if running._outcome is not None:
        running.result()
    return running
