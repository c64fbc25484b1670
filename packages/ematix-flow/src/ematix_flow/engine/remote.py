"""A Spark Connect server that somebody else runs, named by ``master="sc://…"``.

What it cannot see is sent to it: connector jars, the user's modules, rows of files that are only
this machine's. Whether it sees this machine's disk is tried once, when a session is opened.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Generator, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ematix_flow.engine import shipping
from ematix_flow.engine.connect import ConnectEngine, leave, open_session
from ematix_flow.engine.failures import translate
from ematix_flow.engine.peer_protocol import Versions, own_versions
from ematix_flow.engine.protocol import Job
from ematix_flow.engine.settings import EngineSettings, shuffle_partitions
from ematix_flow.engine.workspace import Workspace
from ematix_flow.errors import EmatixError, EngineError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.protocol import RowTask

_PATIENCE = 60.0
# Rows that nobody has said how to divide are divided by the tasks that run at once.
_SLOTS = "SELECT max(part) + 1 FROM (SELECT spark_partition_id() AS part FROM range(4096))"


class RemoteEngine(ConnectEngine):
    """A session on a server whose machine, Python and disk are its own."""

    def __init__(self, spark: SparkSession, settings: EngineSettings, *, slots: int) -> None:
        super().__init__(spark, settings)
        self._shipped: dict[str, str] = {}
        self.slots = slots
        with self._scratch() as scratch:
            self.distributed = not _sees(spark, scratch.path)

    @contextlib.contextmanager
    def job(self, description: str) -> Iterator[Job]:
        """Tag all queries of the block; the user's modules are sent along."""
        self._ship()
        with super().job(description) as job:
            yield job

    @property
    def is_outdated(self) -> bool:
        """Whether processes of the session have imported what is not like that any more."""
        if not self._shipped:
            return False
        now = shipping.state_of(shipping.own_files())
        return any(now.get(name, state) != state for name, state in self._shipped.items())

    def copy_rows(self, rows: DataFrame, task: RowTask, *, most: int) -> tuple[int, int]:
        """Every Spark task hands its partition over, by this package on the server's machines."""
        self.require_python()
        return super().copy_rows(rows, task, most=most)

    def send_file(self, file: Path) -> str:
        """Send a file to all machines of the server; returns its name there."""
        self.require_python()
        with self._scratch() as scratch:
            # The server keeps what it was sent, by name.
            named = scratch.take(file)
            self._send(named, file=True)
            return named.name

    def bring(self, rows: DataFrame) -> Generator[bytes, None, None]:
        """The only column of rows, partition by partition, in their order."""
        self.require_python()
        for row in rows.toLocalIterator():
            yield row[0]

    def require_python(self) -> None:
        """Refuse to go on if the server's Python is not like the one here."""
        differences = own_versions().differences(self._python_there)
        if differences:
            raise EngineError(
                f"the Python of the Spark Connect server has {' and '.join(differences)}",
                fix="install there what is installed here",
            )

    @cached_property
    def _python_there(self) -> Versions:
        # By value, because nothing of this package need be there.
        def told(_: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            import json
            import platform
            from importlib.metadata import PackageNotFoundError, version

            import pyarrow as pa

            def found(name: str) -> str:
                try:
                    return version(name)
                except PackageNotFoundError:
                    return "(none)"

            versions = {
                "python": ".".join(platform.python_version_tuple()[:2]),
                "pyspark": found("pyspark"),
                "ematix_flow": found("ematix-flow"),
            }
            yield pa.record_batch({"told": [json.dumps(versions)]})

        try:
            answer: Any = self._spark.range(1).mapInArrow(told, "told STRING").first()
        except Exception as error:
            raise translate(error) from error
        return Versions(**json.loads(answer[0]))

    def _ship(self) -> None:
        files = shipping.own_files()
        state = shipping.state_of(files)
        if state == self._shipped:
            return
        with self._scratch() as scratch:
            archive = scratch.path / f"modules-{shipping.digest_of(files)}.zip"
            shipping.pack(files, archive)
            self._send(archive, pyfile=True)
        self._shipped = state

    def _send(self, path: Path, **kind: bool) -> None:
        try:
            self._spark.addArtifacts(str(path), **kind)
        except Exception as error:
            raise translate(error) from error

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Workspace]:
        """A folder for as long as it takes to send something."""
        workspace = Workspace(self.settings.work_dir)
        try:
            yield workspace
        finally:
            workspace.remove()


def attach_to_server(settings: EngineSettings) -> RemoteEngine:
    """Open a session on the server that ``settings.remote`` names."""
    _check_address(str(settings.remote))
    spark: Any = open_session(settings, seconds=_PATIENCE)
    try:
        _check_version(str(spark.version))
        slots = int(spark.sql(_SLOTS).first()[0])
        if "spark.sql.shuffle.partitions" not in dict(settings.conf):
            spark.conf.set("spark.sql.shuffle.partitions", str(shuffle_partitions(slots)))
        return RemoteEngine(spark, settings, slots=slots)
    except BaseException as error:
        leave(spark)
        if isinstance(error, EmatixError) or not isinstance(error, Exception):
            raise
        raise translate(error) from error


def _check_address(remote: str) -> None:
    """A token goes to another machine by TLS only, and a server has none of its own."""
    address = urlsplit(remote.replace("sc://", "http://", 1))
    parameters = dict(p.partition("=")[::2] for p in address.path.strip("/").split(";") if p)
    with_tls = parameters.get("use_ssl", "").lower() == "true"
    if "token" in parameters and address.hostname != "localhost" and not with_tls:
        raise EngineError(
            f"the token for the Spark Connect server at {address.hostname} would travel in clear "
            "text",
            fix="reach it by TLS, with ;use_ssl=true, or by a tunnel from localhost",
        )


def _check_version(there: str) -> None:
    here = own_versions().pyspark
    if there.split(".")[:2] != here.split(".")[:2]:
        raise EngineError(
            f"the Spark Connect server runs Spark {there}, and this process has pyspark {here}",
            fix="use a server of the same version",
        )


def _sees(spark: Any, folder: Path) -> bool:
    """Whether a file of this machine can be read there, by all who work for it."""
    if not str(spark.conf.get("spark.master", "")).startswith("local"):
        return False
    text = secrets.token_hex(16)
    mark = folder / "mark"
    mark.write_text(text, encoding="utf-8")
    try:
        found = spark.read.text(mark.as_uri()).collect()
    except Exception:  # noqa: BLE001 - not there, or not to be read: that is the answer
        return False
    finally:
        mark.unlink()
    return [row[0] for row in found] == [text]
