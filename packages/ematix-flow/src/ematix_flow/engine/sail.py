"""The accelerated engine: Sail, a session on a process of its own that needs no Java."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ematix_flow.engine.connect import ConnectEngine, load_client, open_session
from ematix_flow.engine.settings import EngineSettings
from ematix_flow.engine.workspace import Workspace
from ematix_flow.errors import EngineError, MissingExtra

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.protocol import RowTask

KIND = "sail"
_SECONDS = 60.0
_BATCH = 65_536


def require_sail() -> None:
    """Refuse to go on without the package."""
    if importlib.util.find_spec("pysail") is None:
        raise MissingExtra("engine 'sail'", "sail")


class SailEngine(ConnectEngine):
    """A session on a Sail that this process has started and ends."""

    kind = KIND
    per_run = True

    def __init__(self, spark: SparkSession, settings: EngineSettings, host: SailHost) -> None:
        super().__init__(spark, settings)
        self._host = host

    @property
    def alive(self) -> bool:
        """Whether session and process are still there."""
        return super().alive and self._host.alive

    def require_jars(self, names: Sequence[str]) -> None:
        """Sail takes none: what needs them is read by this process, or runs on Spark."""

    def copy_rows(self, rows: DataFrame, task: RowTask, *, most: int) -> tuple[int, int]:
        """Let the task take all rows here: Sail, alone in its network, reaches no database."""
        with self.kept_rows(rows) as folder:
            done = [batch.to_pydict() for batch in task(_batches(folder, rows))]
        return sum(sum(part["rows"]) for part in done), sum(sum(part["bytes"]) for part in done)

    @contextlib.contextmanager
    def kept_rows(self, rows: DataFrame) -> Iterator[Path]:
        """The rows as Parquet files, for the length of the block."""
        folder = self._host.workspace.path / f"rows-{uuid4().hex}"
        try:
            rows.write.parquet(folder.as_uri())
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        """Close the session and end the process."""
        super().stop()
        self._host.stop()


class SailHost:
    """The process, and the folder in which its socket is."""

    def __init__(self, settings: EngineSettings) -> None:
        self.workspace = Workspace(settings.work_dir)
        self.socket = self.workspace.path / "sail"
        with (self.workspace.path / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ematix_flow.engine.sail_server", str(self.socket)],
                env={**os.environ, "RUST_LOG": "error"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Come back when it serves."""
        said = self._line(time.monotonic() + _SECONDS)
        if said != "ready":
            log = (self.workspace.path / "log").read_text(errors="replace").strip()
            raise EngineError(
                f"Sail did not start: {said or log.rpartition(chr(10))[2] or 'it ended'}",
                fix="use Apache Spark: --engine local, or EMATIX_FLOW_ENGINE=local",
            )

    def _line(self, deadline: float) -> str:
        out: Any = self._process.stdout
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(out.fileno(), 1) if ready else b""
            if not piece:
                break
            text += piece
        return text.decode(errors="replace").strip()

    def stop(self) -> None:
        """End it and remove its folder."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.workspace.remove()


def launch_sail(settings: EngineSettings) -> SailEngine:
    """Start Sail and open a session on it."""
    require_sail()
    host = SailHost(settings)
    try:
        load_client()
        host.wait()
        reached = dataclasses.replace(settings, remote="sc://localhost")
        return SailEngine(open_session(reached, socket=host.socket), settings, host)
    except BaseException:
        host.stop()
        raise


def _batches(folder: Path, rows: DataFrame) -> Iterator[pyarrow.RecordBatch]:
    """The rows of Parquet files, in the types in which a task of Spark gets them."""
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(rows.schema, timezone="UTC")
    for file in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(file) as held:
            for batch in held.iter_batches(_BATCH):
                yield batch.cast(schema)
