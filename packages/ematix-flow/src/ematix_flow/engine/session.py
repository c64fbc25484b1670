"""The one place that opens Spark: one engine per process, shared by all that ask alike."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass

from ematix_flow.config import LOCAL, SAIL, engine_choice, spark_settings
from ematix_flow.engine.placing import Place, current_place
from ematix_flow.engine.protocol import Engine, Job, Progress
from ematix_flow.engine.settings import EngineSettings, derive, secured_conf
from ematix_flow.errors import EngineError

__all__ = [
    "Engine",
    "EngineBarred",
    "EngineChoice",
    "Job",
    "Progress",
    "configured",
    "current_engine",
    "has_other_session",
    "on_engine",
    "on_sail",
    "open_engine",
    "open_now",
    "prepare_engine",
    "run_session",
    "shared_engine",
    "slots",
    "without_engine",
]

_barred: ContextVar[bool] = ContextVar("ematix_engine_barred", default=False)


@dataclass(frozen=True)
class EngineChoice:
    """The engine of one run: ``auto``, ``local`` or ``sail``, and why it is this one."""

    name: str
    reason: str

    @property
    def is_sail(self) -> bool:
        """Whether it is Sail and not Apache Spark."""
        return self.name == SAIL


_chosen: ContextVar[EngineChoice | None] = ContextVar("ematix_engine_choice", default=None)


class _Process:
    """What this process has open, or is about to open."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._settings: EngineSettings | None = None
        self._engine: Engine | None = None
        self._coming: Future[Engine] | None = None
        self._runs = 0
        self._opened_by_runs = False

    def open(self, settings: EngineSettings) -> Engine:
        with self._lock:
            known = self._settings
            if self._coming is not None and known is not None and not _are_alike(known, settings):
                # It was asked for too early: whether it came up is of no concern any more.
                with contextlib.suppress(Exception):
                    self._receive()
            self._receive()
            if self._engine is not None and self._engine.alive:
                if self._settings == settings:
                    return self._engine
                if self._settings is not None and _are_alike(self._settings, settings):
                    self._engine.require_jars(settings.jars)
                    return self._engine
                if _is_busy(self._engine):
                    raise EngineError(
                        "Spark is running with other settings and is busy",
                        fix="wait for the other run, or use the same engine settings for both",
                    )
            self._close()
            self._engine = _open(settings)
            self._settings = settings
            self._opened_by_runs = self._opened_by_runs or self._runs > 0
            return self._engine

    def prepare(self, settings: EngineSettings) -> None:
        with self._lock:
            if self._engine is not None or self._coming is not None:
                return
            coming: Future[Engine] = Future()
            self._coming, self._settings = coming, settings

        def run() -> None:
            try:
                coming.set_result(_open(settings))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                coming.set_exception(error)

        threading.Thread(target=run, name="ematix-engine-start", daemon=True).start()

    def enter(self) -> None:
        with self._lock:
            if self._runs == 0:
                if self._opened_by_runs and getattr(self._engine, "is_outdated", False):
                    self._close()
                # A session that was there before is somebody's who may want it after, too.
                self._opened_by_runs = self.current() is None
            self._runs += 1

    def leave(self) -> None:
        with self._lock:
            self._runs -= 1
            if self._runs == 0 and self._opened_by_runs:
                self._let_go()
                if self._coming is not None:
                    self._coming.add_done_callback(lambda _: self._came_too_late())

    def _let_go(self) -> None:
        self._receive_quietly()
        if getattr(self._engine, "per_run", False):
            self._close()

    def _came_too_late(self) -> None:
        """The run that asked for it has ended, before it was there; another may have begun."""
        with self._lock:
            if self._runs == 0:
                self._let_go()

    def current(self) -> Engine | None:
        with self._lock:
            return self._engine if self._engine is not None and self._engine.alive else None

    def _receive(self) -> None:
        if self._coming is not None:
            coming, self._coming = self._coming, None
            self._engine = coming.result()

    def _receive_quietly(self) -> None:
        """A run may end before the engine it has asked for is there, or without it."""
        if self._coming is not None and self._coming.done() and self._coming.exception() is None:
            self._receive()

    def _close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.stop()


_process = _Process()


def open_engine(settings: EngineSettings) -> Engine:
    """The engine for these settings: the running one if it is the same, else a new one.

    Jars never make a difference: the running engine is given those it lacks.
    A session that the user made (in a notebook, say) is used as it is and never stopped. An
    idle engine of ours with other settings is stopped and replaced; a busy one is an error.
    """
    return _process.open(settings)


def prepare_engine(settings: EngineSettings) -> None:
    """Begin opening in the background; ``open_engine`` then waits for it.

    Starting Spark mostly waits for the JVM, so whoever has other work to do first, such as
    loading a project, gets the start almost for nothing.
    """
    _process.prepare(settings)


def shared_engine() -> Engine:
    """The engine of this process, opened as configured when first needed."""
    if _barred.get():
        raise EngineBarred("this can only be known with Spark, which must not start here")
    place, current = current_place(), current_engine()
    elsewhere = place is not None and place.is_distributed
    if current is None or elsewhere or getattr(current, "distributed", False):
        return open_engine(configured())
    return current


def configured(needs: Sequence[str] = ()) -> EngineSettings:
    """The settings that environment, project and the pipeline at hand ask for.

    ``needs`` are jars that will be used.
    """
    choice, place = _chosen.get(), current_place()
    if choice is not None and choice.is_sail:
        return dataclasses.replace(derive(), sail=True)
    if place is not None and place.is_distributed:
        return _distributed(place, needs)
    settings = derive()
    name = engine_choice() if choice is None else choice.name
    if name == LOCAL:
        return settings
    from ematix_flow.engine.warm import lacking

    return dataclasses.replace(settings, warm=not lacking(needs))


def _distributed(place: Place, needs: Sequence[str]) -> EngineSettings:
    if place.peers:
        return derive(peers=place.peers, jars=needs)
    if place.is_server:
        return derive(remote=place.server)
    secured = {} if place.secret is None else secured_conf(place.secret)
    conf = {**spark_settings(), **secured}
    return derive(master=str(place.master), conf=conf, jars=needs)


def slots(settings: EngineSettings) -> int:
    """How many tasks run at once: those of all machines that take part, if they are known."""
    engine, place = current_engine(), current_place()
    if place is None or not place.is_distributed:
        return settings.cores
    if engine is not None and hasattr(engine, "slots"):
        return int(engine.slots)
    return place.cores or settings.cores


@contextlib.contextmanager
def on_engine(choice: EngineChoice) -> Iterator[None]:
    """For the length of a block, the engine that this thread asks for is this one."""
    token = _chosen.set(choice)
    try:
        yield
    finally:
        _chosen.reset(token)


def on_sail() -> bool:
    """Whether the run of this thread is one on Sail."""
    choice = _chosen.get()
    return choice is not None and choice.is_sail


def has_other_session() -> bool:
    """Whether the user has a Spark session of their own in this process."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    from ematix_flow.engine.classic import ClassicEngine

    engine = _process.current()
    ours = isinstance(engine, ClassicEngine) and engine.log is not None
    return SparkContext._active_spark_context is not None and not ours


@contextlib.contextmanager
def run_session() -> Iterator[None]:
    """A session on the warm engine or on Sail is closed with the last run that uses it."""
    _process.enter()
    try:
        yield
    finally:
        _process.leave()


@contextlib.contextmanager
def without_engine() -> Iterator[None]:
    """Refuse to start or use Spark for the length of a block, by raising ``EngineBarred``."""
    token = _barred.set(True)
    try:
        yield
    finally:
        _barred.reset(token)


class EngineBarred(EngineError):
    """Something asked for Spark where it must not start."""


def current_engine() -> Engine | None:
    """The open engine of this process, if there is one; Sail is there for its own runs only."""
    engine = open_now()
    return engine if engine is None or (engine.kind == SAIL) == on_sail() else None


def open_now() -> Engine | None:
    """The open engine of this process, whoever it is for."""
    return _process.current()


def _open(settings: EngineSettings) -> Engine:
    if settings.sail:
        from ematix_flow.engine.sail import launch_sail

        return launch_sail(settings)
    if settings.remote is not None:
        from ematix_flow.engine.remote import attach_to_server

        return attach_to_server(settings)
    if settings.peers:
        from ematix_flow.engine.cluster import launch_on_peers

        return launch_on_peers(settings)
    from ematix_flow.engine.classic import adopt, launch

    adopted = adopt(settings)
    if adopted is not None:
        if not settings.is_local and adopted.spark.sparkContext.master != settings.master:
            raise EngineError(
                "this process has a Spark session of its own, and can have no other on a cluster",
                fix="stop that session, or run the pipeline in a process of its own",
            )
        return adopted
    if settings.master.startswith("k8s://"):
        from ematix_flow.engine.kube import launch_on_kubernetes

        return launch_on_kubernetes(settings)
    if not settings.is_local:
        from ematix_flow.engine.spread import launch_on_master

        return launch_on_master(settings)
    if settings.warm:
        from ematix_flow.engine.warm_session import attach_to_warm

        warm = attach_to_warm(settings)
        if warm is not None:
            return warm
    return launch(settings)


def _are_alike(one: EngineSettings, other: EngineSettings) -> bool:
    """Whether one engine serves both: jars can be added."""
    return dataclasses.replace(one, jars=()) == dataclasses.replace(other, jars=())


def _is_busy(engine: Engine) -> bool:
    return bool(getattr(engine, "is_busy", False))
