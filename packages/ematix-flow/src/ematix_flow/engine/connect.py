"""What all sessions on a Spark Connect server have in common, ours and others'."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.engine import delta
from ematix_flow.engine.failures import translate
from ematix_flow.engine.gateway import quiet_loggers
from ematix_flow.engine.jars import ensure_jars
from ematix_flow.engine.late_pandas import pandas_when_needed
from ematix_flow.engine.protocol import Job, Progress, copied_by_tasks
from ematix_flow.engine.settings import EngineSettings, session_conf
from ematix_flow.engine.user_functions import serve_both_kinds
from ematix_flow.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.protocol import RowTask

# How long a server may be out of reach, and what lies between two troubles with it.
_PATIENCE = 60.0
_CALM = 30.0
_MODE_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"


def _only_here(stop: Callable[[], None]) -> Callable[[], None]:
    """Nothing in a forked process: what it would end is its parent's."""
    here = os.getpid()
    return lambda: stop() if os.getpid() == here else None


class ConnectEngine:
    """A session on a Spark Connect server, which itself is never stopped from here."""

    kind = "spark-connect"

    def __init__(self, spark: SparkSession, settings: EngineSettings) -> None:
        self.settings = settings
        self._spark = spark
        self._running: dict[int, _ConnectJob] = {}
        self._jars: set[Path] = set()
        self._delta_commits = delta.DeltaSessions(self._new_delta_session, self._release)
        # Before the client's own exit hook, which would wait for a server that is gone.
        atexit.register(_only_here(self.stop))
        spark.registerProgressHandler(self._on_progress)  # type: ignore[arg-type]
        self._persist(spark)

    def _persist(self, spark: Any) -> None:
        """Ask a server that does not answer again for a minute, if it can be there at all.

        By itself a client would do so for ten, with every question and at its own end.
        """
        from pyspark.sql.connect.client.retries import DefaultPolicy

        engine = self

        class WhileThere(DefaultPolicy):
            began = seen = float("-inf")

            def can_retry(self, e: BaseException) -> bool:
                now = time.monotonic()
                # One trouble: whoever asks next, to clear up, does not begin to wait anew.
                self.began = now if now - self.seen > _CALM else self.began
                self.seen = now
                waited = now - self.began
                return engine.alive and waited < _PATIENCE and super().can_retry(e)

        spark.client.set_retry_policies([WhileThere(max_retries=None, max_backoff=15_000)])

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self._spark

    @property
    def is_busy(self) -> bool:
        """Whether a thread of this process is at work here."""
        return bool(self._running)

    @property
    def alive(self) -> bool:
        """Whether the session has not been stopped."""
        return not self._spark.is_stopped  # type: ignore[attr-defined]

    def require_jars(self, names: Sequence[str]) -> None:
        """Send the connector jars of these names to the server, for this session."""
        lacking = [jar for jar in ensure_jars(names) if jar not in self._jars]
        if not lacking:
            return
        try:
            self._spark.addArtifacts(*map(str, lacking))
        except Exception as error:
            raise translate(error) from error
        self._jars.update(lacking)

    def delta_session(self) -> SparkSession:
        """The session, if its server came up with Delta."""
        try:
            started = delta.is_started(self._spark)
        except Exception as error:
            raise translate(error) from error
        if not started:
            raise EngineError(
                "the Spark Connect server was started without Delta Lake",
                fix=f"start it with Delta's jars and {delta.EXTENSIONS}={delta.EXTENSION}",
            )
        return self._spark

    def delta_commit(self) -> contextlib.AbstractContextManager[SparkSession]:
        """A session for one commit, whose settings nobody else sees."""
        return self._delta_commits.borrowed()

    def _new_delta_session(self) -> SparkSession:
        clone: SparkSession = self.delta_session().cloneSession()  # type: ignore[attr-defined]
        self._persist(clone)
        return clone

    def _release(self, clone: Any) -> None:
        """Give back a session that is not the process's own."""
        clone.client.set_retry_policies([])
        with contextlib.suppress(Exception):
            clone.interruptAll()
            clone.client.release_session()
            clone.client.close()

    def copy_rows(self, rows: DataFrame, task: RowTask, *, most: int) -> tuple[int, int]:
        """Every Spark task hands its partition over."""
        return copied_by_tasks(rows, task, most=most)

    def analysed_plan(self, rows: DataFrame) -> None:
        """None: a server keeps its plans to itself."""

    @contextlib.contextmanager
    def job(self, description: str) -> Iterator[Job]:
        """Tag all queries that this thread starts inside the block."""
        tag = f"ematix-{uuid.uuid4().hex}"
        job = _ConnectJob(self._spark, tag, description)
        thread = threading.get_ident()
        outer = self._running.get(thread)
        self._running[thread] = job
        self._spark.addTag(tag)
        try:
            yield job
        except KeyboardInterrupt:
            # A server that is gone has nothing to stop.
            with contextlib.suppress(Exception):
                job.cancel()
            raise
        finally:
            self._spark.removeTag(tag)
            if outer is None:
                del self._running[thread]
            else:
                self._running[thread] = outer

    def cancel_all(self) -> None:
        """Stop all running queries of this session."""
        self._spark.interruptAll()

    def stop(self) -> None:
        """Close the session; the server goes on."""
        atexit.unregister(self.stop)
        self._delta_commits.close()
        leave(self._spark)

    def _on_progress(
        self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: Any, done: bool
    ) -> None:
        # Handlers run in the thread that waits for the query, so the thread tells the job.
        job = self._running.get(threading.get_ident())
        if job is not None:
            job.note(list(stages or ()), str(operation_id), done)


class _ConnectJob:
    def __init__(self, spark: SparkSession, tag: str, description: str) -> None:
        self._spark = spark
        self._tag = tag
        self.description = description
        self._operations: dict[str, Progress] = {}

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    def note(self, stages: list[Any], operation: str, done: bool) -> None:
        tasks = sum(stage.num_tasks for stage in stages)
        self._operations[operation] = Progress(
            stages_done=len(stages) if done else sum(bool(stage.done) for stage in stages),
            stages_total=len(stages),
            tasks_done=tasks if done else sum(stage.num_completed_tasks for stage in stages),
            tasks_total=tasks,
            active=not done,
        )

    def progress(self) -> Progress:
        seen = list(self._operations.values())
        return Progress(
            stages_done=sum(one.stages_done for one in seen),
            stages_total=sum(one.stages_total for one in seen),
            tasks_done=sum(one.tasks_done for one in seen),
            tasks_total=sum(one.tasks_total for one in seen),
            active=any(one.active for one in seen),
        )


def load_client() -> None:
    """Load what a session needs, for whoever has to wait for the server anyway."""
    with pandas_when_needed():
        import pyspark.sql.connect.session  # noqa: F401


def open_session(
    settings: EngineSettings,
    *,
    seconds: float | None = None,
    loopback: bool = False,
    socket: Path | None = None,
) -> SparkSession:
    """A session with our settings, made the process's own; ``seconds`` limits the wait for it.

    It is reached by the ``socket`` if there is one.
    """
    with pandas_when_needed():
        from pyspark import SparkContext
        from pyspark.sql.connect.session import SparkSession as RemoteSession

    quiet_loggers()
    serve_both_kinds()
    if SparkContext._active_spark_context is not None:
        raise EngineError(
            "this process already has an in-process Spark session, and PySpark allows one kind",
            fix="use Spark Connect from a process of its own",
        )
    # PySpark's functions look here to decide which kind of column to build.
    os.environ[_MODE_VARIABLE] = "1"
    remote = str(settings.remote)
    spark: Any = RemoteSession(connection=_found_at(remote, loopback=loopback, socket=socket))
    try:
        _configure(spark, session_conf(settings), seconds=seconds)
    except Exception as error:
        # Not stopped in form: a server that did not answer would be asked once more.
        spark.client.close()
        os.environ.pop(_MODE_VARIABLE, None)
        raise translate(error) from error
    RemoteSession._set_default_and_active_session(spark)
    return spark  # type: ignore[no-any-return]


def _found_at(remote: str, *, loopback: bool, socket: Path | None) -> Any:
    """The one address of a server of our own; who listens on another of ``localhost`` is not it."""
    if not loopback and socket is None:
        return remote
    from pyspark.sql.connect.client import DefaultChannelBuilder

    class Own(DefaultChannelBuilder):
        @property
        def endpoint(self) -> str:
            return f"127.0.0.1:{self._port}" if socket is None else f"unix:{socket}"

    # A proxy of the environment does not lead back to this machine, and a path names no host.
    options = [("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost")]
    return Own(remote, channelOptions=options)


def _configure(spark: Any, conf: Mapping[str, str], *, seconds: float | None) -> None:
    """Set all at once, and without another try: a server that is not there is reported now."""
    from pyspark.sql.connect import proto

    client = spark.client
    pairs = [proto.KeyValue(key=key, value=value) for key, value in conf.items()]
    request = client._config_request_with_metadata()
    request.operation.set.pairs.extend(pairs)
    try:
        answer = client._stub.Config(request, metadata=client._builder.metadata(), timeout=seconds)
        client._verify_response_integrity(answer)
    except Exception as error:  # noqa: BLE001 - the client raises what it stands for
        client._handle_error(error)


def leave(spark: Any) -> None:
    """Close the session without insisting: its server may be gone already."""
    spark.client.set_retry_policies([])
    with contextlib.suppress(Exception):
        spark.stop()
    os.environ.pop(_MODE_VARIABLE, None)
