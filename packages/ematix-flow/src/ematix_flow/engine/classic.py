"""The in-process engine: a JVM of our own, or the session a user has already made."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.engine import delta, plans
from ematix_flow.engine import gateway as gateways
from ematix_flow.engine.archive import archive_flags, archive_path, discard
from ematix_flow.engine.cache import cache_dir, private_folder
from ematix_flow.engine.failures import translate
from ematix_flow.engine.jars import ensure_jars
from ematix_flow.engine.java import find_java
from ematix_flow.engine.jvm import Jvm, JvmPlan, python_path
from ematix_flow.engine.protocol import Job, Progress, copied_by_tasks
from ematix_flow.engine.settings import EngineSettings, context_conf, derive, session_conf
from ematix_flow.engine.workspace import Workspace
from ematix_flow.errors import EmatixError, EngineError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.plans import AnalysedPlan
    from ematix_flow.engine.protocol import RowTask

_LOGS_KEPT = 20
_CLASS_LOG = "classes.log"


class ClassicEngine:
    """A session in this process. ``host`` is the JVM we started, if it is ours."""

    kind = "spark"

    def __init__(
        self, spark: SparkSession, settings: EngineSettings, *, host: Host | None = None
    ) -> None:
        self.settings = settings
        self._spark = spark
        self._host = host
        self._jars: set[Path] = set(host.jvm.plan.connector_jars) if host else set()
        self._delta_lock = threading.Lock()
        self._delta: SparkSession | None = None
        self._delta_commits = delta.DeltaSessions(self._new_delta_session)

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self._spark

    @property
    def distributed(self) -> bool:
        """Whether executors are on machines that do not see our disk."""
        return self._host is not None and not self.settings.is_local

    @property
    def alive(self) -> bool:
        """Whether JVM and SparkContext are still there."""
        if self._host is not None and not self._host.jvm.alive:
            return False
        return self._context._jsc is not None

    @property
    def is_busy(self) -> bool:
        """Whether Spark jobs of anyone are running right now."""
        return bool(self._context.statusTracker().getActiveJobsIds())

    @property
    def log(self) -> Path | None:
        """Where the JVM and the Python workers write; None for a session not ours."""
        return self._host.jvm.log if self._host else None

    @property
    def workspace(self) -> Workspace:
        """The private folder of the JVM we started."""
        if self._host is None:
            raise EngineError("this Spark session was not started by ematix-flow")
        return self._host.workspace

    @property
    def _context(self) -> SparkContext:
        return self._spark.sparkContext

    def require_jars(self, names: Sequence[str]) -> None:
        """Make the connector jars of these names usable from now on."""
        for jar in ensure_jars(names):
            if jar in self._jars:
                continue
            if self._host is not None and self.settings.is_local:
                self._append_to_class_path(jar)
            else:
                self._spark.sql(f"ADD JAR '{jar.as_uri()}'")
            self._jars.add(jar)

    def _append_to_class_path(self, jar: Path) -> None:
        # ADD JAR only reaches the calling thread's class loader; drivers are loaded by any.
        loader = self._jvm_class("java.lang.ClassLoader").getSystemClassLoader()
        string = self._jvm_class("java.lang.Class").forName("java.lang.String")
        gateway: Any = self._context._gateway
        types = gateway.new_array(self._jvm_class("java.lang.Class"), 1)
        types[0] = string
        name = "appendToClassPathForInstrumentation"
        method = loader.getClass().getDeclaredMethod(name, types)
        method.setAccessible(True)
        values = gateway.new_array(self._jvm_class("java.lang.Object"), 1)
        values[0] = str(jar)
        method.invoke(loader, values)

    def delta_session(self) -> SparkSession:
        """The session itself if it came up with Delta, else one beside it."""
        with self._delta_lock:
            if self._delta is None:
                if not delta.is_started(self._spark):
                    self._add_delta()
                    self._delta = self._new_session(delta.late_conf())
                else:
                    self._delta = self._spark
            return self._delta

    def delta_commit(self) -> contextlib.AbstractContextManager[SparkSession]:
        """A session for one commit, whose settings nobody else sees."""
        return self._delta_commits.borrowed()

    def _new_delta_session(self) -> SparkSession:
        late = self.delta_session() is not self._spark
        return self._new_session(delta.late_conf() if late else {})

    def _new_session(self, conf: Mapping[str, str]) -> SparkSession:
        spark = self._spark.newSession()
        for key, value in {**session_conf(self.settings), **conf}.items():
            spark.conf.set(key, value)
        return spark

    def _add_delta(self) -> None:
        """Give Delta's rules to all sessions made from now on: the running one has its own."""
        if self._host is None:
            raise EngineError(
                "this Spark session was started without Delta Lake, and that cannot be added later",
                fix=f"start it with Delta's jars and {delta.EXTENSIONS}={delta.EXTENSION}",
            )
        self.require_jars((delta.JARS,))
        extensions: Any = self._spark._jsparkSession.extensions()
        self._jvm_class(delta.EXTENSION)().apply(extensions)

    def _jvm_class(self, name: str) -> Any:
        return getattr(self._context._jvm, name)

    def copy_rows(self, rows: DataFrame, task: RowTask, *, most: int) -> tuple[int, int]:
        """Every Spark task hands its partition over."""
        return copied_by_tasks(rows, task, most=most)

    def analysed_plan(self, rows: DataFrame) -> AnalysedPlan | None:
        """The plan of these rows before it is optimised."""
        return plans.analysed_plan(rows)

    @contextlib.contextmanager
    def job(self, description: str) -> Iterator[Job]:
        """Tag all Spark jobs that this thread starts inside the block."""
        context = self._context
        tag = f"ematix-{uuid.uuid4().hex}"
        before = context.getLocalProperty("spark.job.description")
        context.environment["PYTHONPATH"] = self._import_path()
        context.addJobTag(tag)
        context.setJobDescription(description)
        context.setInterruptOnCancel(True)
        try:
            yield ClassicJob(context, tag, description)
        except KeyboardInterrupt:
            gateways.renew_connection(context)
            context.cancelJobsWithTag(tag)
            raise
        finally:
            # The JVM may be what failed; its error is the one to report.
            with contextlib.suppress(Exception):
                context.removeJobTag(tag)
                context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def local_property(self, name: str, value: str) -> Iterator[None]:
        """Give the tasks that this thread starts inside the block a property."""
        context = self._context
        context.setLocalProperty(name, value)
        try:
            yield
        finally:
            # The JVM may be what failed; its error is the one to report.
            with contextlib.suppress(Exception):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _import_path(self) -> str:
        """Where Python workers find modules."""
        return python_path()

    def cancel_all(self) -> None:
        """Stop all running Spark jobs, whoever started them."""
        self._context.cancelAllJobs()

    def stop(self, *, seconds: float = 10.0) -> None:
        """End the session and its JVM, if they are ours."""
        if self._host is None:
            return
        with contextlib.suppress(Exception):
            if self._host.jvm.alive:
                self._spark.stop()
        gateways.forget(self._host.gateway)
        self._host.close(seconds=seconds)

    def leave_thread(self) -> None:
        """Close the calling thread's connection to the JVM; a later call opens a new one."""
        gateways.renew_connection(self._context)

    def loaded_classes(self) -> list[str]:
        """What the JVM loaded and from where, if it was launched to say so."""
        path = self.workspace.path / _CLASS_LOG
        return path.read_text(encoding="utf-8", errors="replace").splitlines()


class ClassicJob:
    """All Spark jobs of one tag."""

    def __init__(self, context: SparkContext, tag: str, description: str) -> None:
        self._context = context
        self._tag = tag
        self.description = description

    def cancel(self) -> None:
        """Stop them."""
        self._context.cancelJobsWithTag(self._tag)

    def stage_data(self, most: int) -> Iterator[Any]:
        """What Spark's own status store keeps of their stages, as Java objects."""
        scala: Any = self._context._jsc.sc()
        tracker, store = self._context.statusTracker(), scala.statusStore()
        jobs = [tracker.getJobInfo(i) for i in scala.statusTracker().getJobIdsForTag(self._tag)]
        ids = sorted({i for job in jobs if job is not None for i in job.stageIds})
        for stage_id in ids[:most]:
            if tracker.getStageInfo(stage_id) is not None:
                yield store.lastStageAttempt(stage_id)

    def progress(self) -> Progress:
        """How far they have come."""
        tracker = self._context.statusTracker()
        # PySpark's tracker knows groups only; the one behind it knows tags.
        jobs = self._context._jsc.sc().statusTracker().getJobIdsForTag(self._tag)
        stages_done = stages_total = tasks_done = tasks_total = 0
        active = False
        for job_id in jobs:
            job = tracker.getJobInfo(job_id)
            if job is None:
                continue
            active = active or job.status == "RUNNING"
            succeeded = job.status == "SUCCEEDED"
            for stage_id in job.stageIds:
                stages_total += 1
                stage = tracker.getStageInfo(stage_id)
                if stage is None or (succeeded and stage.numCompletedTasks < stage.numTasks):
                    # Not submitted yet, or skipped because its output was there already.
                    stages_done += succeeded
                    continue
                tasks_total += stage.numTasks
                tasks_done += stage.numCompletedTasks
                stages_done += stage.numCompletedTasks >= stage.numTasks
        return Progress(stages_done, stages_total, tasks_done, tasks_total, active)


class Host:
    """The JVM and folder behind an engine of our own, ended with this process."""

    def __init__(self, jvm: Jvm, workspace: Workspace, *, orderly: bool) -> None:
        self.jvm = jvm
        self.workspace = workspace
        self.gateway: Any = None
        self._orderly = orderly
        self._owner = os.getpid()
        atexit.register(self._at_exit)

    def close(self, *, seconds: float) -> None:
        """Let the JVM end by itself and remove its folder."""
        atexit.unregister(self._at_exit)
        self.jvm.close(seconds=seconds)
        self.workspace.remove()

    def kill(self) -> None:
        """End the JVM at once and remove its folder."""
        atexit.unregister(self._at_exit)
        if self.gateway is not None:
            gateways.expect_loss()
        self.jvm.kill()
        self.workspace.remove()

    def _at_exit(self) -> None:
        # A forked child inherits the registration, not the JVM.
        if os.getpid() != self._owner:
            return
        # Alone on this machine nobody waits for a farewell; a cluster does.
        if self._orderly:
            self.jvm.close()
        self.kill()


def plan_for(settings: EngineSettings) -> JvmPlan:
    """How the JVM for these settings is started, class archive included."""
    conf = dict(settings.conf)
    environment = {"PYSPARK_PYTHON": sys.executable}
    if settings.is_local:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    plan = JvmPlan(
        java=find_java(),
        heap_bytes=_memory(conf.get("spark.driver.memory"), settings.driver_memory_bytes),
        cores=settings.cores,
        connector_jars=tuple(ensure_jars(settings.jars)),
        environment=tuple(environment.items()),
    )
    return dataclasses.replace(plan, flags=archive_flags(plan))


def default_plan() -> JvmPlan:
    """The JVM of an engine nobody configured, without its archive."""
    return dataclasses.replace(plan_for(derive()), flags=())


def launch(
    settings: EngineSettings,
    *,
    plan: JvmPlan | None = None,
    log_classes: bool = False,
    kind: type[ClassicEngine] = ClassicEngine,
    first: Callable[[Any], None] = lambda jvm: None,
) -> ClassicEngine:
    """Start a JVM, do with it what comes first, and open a session on it."""
    planned = plan_for(settings) if plan is None else plan
    host = start_host(settings, planned, log_classes=log_classes)
    try:
        gateways.load_pyspark()
        try:
            address = host.jvm.gateway()
        except EngineError:
            if not planned.flags or plan is not None:
                raise
            # An archive that passed every check and still stops the JVM: go without it.
            host.kill()
            discard(archive_path(planned))
            planned = dataclasses.replace(planned, flags=())
            host = start_host(settings, planned)
            address = host.jvm.gateway()
        host.gateway = gateways.connect(*address)
        first(host.gateway.jvm)
        conf = context_conf(settings, warehouse=host.workspace.path / "warehouse")
        spark = gateways.open_session(host.gateway, conf, python=_worker_python(settings))
        return kind(spark, settings, host=host)
    except BaseException as error:
        if host.gateway is not None:
            gateways.forget(host.gateway)
        host.kill()
        if isinstance(error, EmatixError) or not isinstance(error, Exception):
            raise
        raise translate(error) from error


def adopt(settings: EngineSettings) -> ClassicEngine | None:
    """An engine on the session that this process already has, or None.

    It is a session of its own on the user's SparkContext: our rules for zones, casts and
    names hold in it, and theirs are left alone.
    """
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    spark = SparkSession.builder.getOrCreate().newSession()
    for key, value in session_conf(settings).items():
        spark.conf.set(key, value)
    return ClassicEngine(spark, settings)


def start_host(
    settings: EngineSettings, plan: JvmPlan, *, log_classes: bool = False, log: Path | None = None
) -> Host:
    """Start a JVM in a workspace of its own; nothing listens on Spark's side yet."""
    workspace = Workspace(settings.work_dir)
    try:
        if log_classes:
            flag = f"-Xlog:class+load:file={workspace.path / _CLASS_LOG}"
            plan = dataclasses.replace(plan, flags=(*plan.flags, flag))
        jvm = Jvm(plan, workspace, log=_log_file(workspace) if log is None else log)
    except BaseException:
        workspace.remove()
        raise
    return Host(jvm, workspace, orderly=not settings.is_local)


def _log_file(workspace: Workspace) -> Path:
    try:
        folder = private_folder(cache_dir() / "logs")
    except EmatixError:
        return workspace.path / "engine.log"
    for old in sorted(folder.glob("engine-*.log*"))[:-_LOGS_KEPT]:
        with contextlib.suppress(OSError):
            old.unlink()
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%f")
    return folder / f"engine-{stamp}-{os.getpid()}.log"


def _worker_python(settings: EngineSettings) -> str:
    named = os.environ.get("PYSPARK_PYTHON")
    return named if named and not settings.is_local else sys.executable


def _memory(text: str | None, default: int) -> int:
    if text is None:
        return default
    units = {"k": 10, "m": 20, "g": 30, "t": 40}
    number = text.strip().lower().removesuffix("b")
    shift = units.get(number[-1:], 20)
    try:
        return int(number.rstrip("kmgt")) << shift
    except ValueError as error:
        raise EngineError(
            f"spark.driver.memory is {text!r}, which is not a size", fix="write it like 4g"
        ) from error
