"""The one seam between a run and those who hear of it.

A run calls ``Observer.started`` and then what that returns. Nothing here raises into a run or
keeps it waiting.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ematix_flow import config
from ematix_flow.redaction import redact_text

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from ematix_flow.observe.alerts import Alerter, AlertMemory, Alerts
    from ematix_flow.observe.events import AlertEvent
    from ematix_flow.observe.metrics import MetricsSink
    from ematix_flow.observe.traces import Traces

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
# Of that, what metrics and traces each may take; alerts go on meanwhile.
_SHARE = 0.4


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """A run that begins."""

    run_id: str
    pipeline: str
    trigger: str
    started_at: datetime
    targets: tuple[str, ...] = ()
    host: str = ""
    attempt: int = 1
    max_attempts: int = 1
    after_failure: bool = False
    """Whether the run before it failed, so that its success is a recovery."""


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended: ``succeeded``, ``failed``, ``cancelled`` or ``lost``."""

    status: str
    finished_at: datetime
    rows: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    error: BaseException | None = None
    gave_up: bool = False


class StageRun(Protocol):
    """A Spark stage that is over."""

    @property
    def stage_id(self) -> int:
        """Its number."""

    @property
    def name(self) -> str:
        """What Spark calls it."""

    @property
    def began(self) -> datetime:
        """When it was submitted."""

    @property
    def ended(self) -> datetime:
        """When its last task was done."""

    @property
    def tasks(self) -> int:
        """How many tasks it had."""

    @property
    def failed_tasks(self) -> int:
        """How many of them failed."""


class Step(Protocol):
    """One step of a run, while it lasts."""

    @property
    def traceparent(self) -> str | None:
        """The step as others may be told of it (W3C Trace Context), where it is traced."""

    def stages(self, found: Callable[[], Sequence[StageRun]]) -> None:
        """Add the Spark stages that it took; they are asked for only where it is traced."""


class Watched(Protocol):
    """One run, while it lasts."""

    def step(self, name: str, *, target: str = "") -> AbstractContextManager[Step]:
        """A step of it: ``plan``, ``stage``, ``commit`` or ``post``."""

    def ended(self, end: RunEnd) -> None:
        """It is over."""


class Observer(Protocol):
    """Hears of runs; every method may be called from several threads."""

    @property
    def listens(self) -> bool:
        """Whether anybody hears; if not, nothing need be found out for it."""

    def started(self, run: RunStart) -> Watched:
        """A run begins."""

    def alert(self, event: AlertEvent) -> None:
        """Something happened that is no run's end."""

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Wait so many seconds for what is under way."""


class _SilentStep:
    traceparent: str | None = None

    def stages(self, found: Callable[[], Sequence[StageRun]]) -> None:
        """Nobody asks."""


_SILENT_STEP = _SilentStep()


class SilentObserver:
    """Nobody hears."""

    listens = False

    def started(self, run: RunStart) -> Watched:
        """Nobody hears."""
        return self

    def step(self, name: str, *, target: str = "") -> AbstractContextManager[Step]:
        """Nobody hears."""
        return contextlib.nullcontext(_SILENT_STEP)

    def ended(self, end: RunEnd) -> None:
        """Nobody hears."""

    def alert(self, event: AlertEvent) -> None:
        """Nobody hears."""

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Nothing is under way."""


SILENT = SilentObserver()


@contextlib.contextmanager
def _shielded(what: str) -> Iterator[None]:
    """A run goes on, whatever goes wrong with telling of it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - no observer's fault is the run's
        told = redact_text(f"{type(error).__name__}: {error}")
        logger.warning("%s went wrong, the run goes on: %s", what, told)


class RunObserver:
    """Tells alerters, metrics and traces, of which each may be missing."""

    listens = True

    def __init__(
        self,
        *,
        alerts: Alerts | None = None,
        metrics: MetricsSink | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.alerts = alerts
        self.metrics = metrics
        self.traces = traces

    def started(self, run: RunStart) -> Watched:
        """A run begins."""
        if self.metrics is not None:
            with _shielded("counting a run"):
                self.metrics.set_attempt(run.pipeline, run.attempt)
        return _ObservedRun(self, run)

    def alert(self, event: AlertEvent) -> None:
        """Tell the alerters."""
        if self.alerts is not None:
            with _shielded("sending an alert"):
                self.alerts.send(event)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Wait for what is under way, all together so many seconds."""
        deadline = time.monotonic() + timeout
        if self.alerts is not None:
            with _shielded("ending alerts"):
                self.alerts.finish()
        for part in (self.metrics, self.traces):
            if part is not None:
                with _shielded("ending metrics or traces"):
                    part.close(timeout * _SHARE)
        if self.alerts is not None:
            with _shielded("ending alerts"):
                self.alerts.close(max(0.1, deadline - time.monotonic()))


class _ObservedRun:
    def __init__(self, observer: RunObserver, run: RunStart) -> None:
        self._observer = observer
        self._run = run
        self._span: Span | None = None
        if observer.traces is not None:
            from ematix_flow.observe.traces import RUN_SPAN

            with _shielded("tracing a run"):
                self._span = observer.traces.begin(
                    RUN_SPAN,
                    {
                        "flow.pipeline.name": run.pipeline,
                        "flow.pipeline.attempt": run.attempt,
                        "flow.run.id": run.run_id,
                        "flow.run.trigger": run.trigger,
                        "flow.run.targets": ", ".join(run.targets),
                    },
                )

    @contextlib.contextmanager
    def step(self, name: str, *, target: str = "") -> Iterator[Step]:
        traces, parent = self._observer.traces, self._span
        span: Span | None = None
        if traces is not None and parent is not None:
            with _shielded("tracing a step"):
                attributes = {"flow.pipeline.name": self._run.pipeline, "flow.target": target}
                given = {key: value for key, value in attributes.items() if value}
                span = traces.begin(f"flow.step.{name}", given, parent)
        if traces is None or span is None:
            yield _SILENT_STEP
            return
        from ematix_flow.observe.traces import end_span

        try:
            yield _TracedStep(traces, span)
        except BaseException as error:
            with _shielded("tracing a step"):
                end_span(span, error)
            raise
        with _shielded("tracing a step"):
            end_span(span)

    def ended(self, end: RunEnd) -> None:
        if self._observer.metrics is not None:
            with _shielded("counting a run"):
                _count(self._observer.metrics, self._run, end)
        if self._observer.alerts is not None:
            with _shielded("sending an alert"):
                event = _event(self._run, end)
                if event is not None:
                    self._observer.alerts.send(event)
        if self._span is not None:
            from ematix_flow.observe.traces import end_span

            with _shielded("tracing a run"):
                self._span.set_attribute("flow.run.status", end.status)
                for verb, number in end.rows.items():
                    self._span.set_attribute(f"flow.rows.{verb}", number)
                end_span(self._span, end.error)


class _TracedStep:
    def __init__(self, traces: Traces, span: Span) -> None:
        from ematix_flow.observe.traces import traceparent_of

        self._traces = traces
        self._span = span
        self.traceparent: str | None = traceparent_of(span)

    def stages(self, found: Callable[[], Sequence[StageRun]]) -> None:
        with _shielded("tracing Spark's stages"):
            for stage in found():
                self._traces.add(
                    "flow.spark.stage",
                    self._span,
                    began=stage.began,
                    ended=stage.ended,
                    attributes={
                        "spark.stage.id": stage.stage_id,
                        "spark.stage.name": stage.name,
                        "spark.stage.tasks": stage.tasks,
                        "spark.stage.failed_tasks": stage.failed_tasks,
                    },
                )


def _count(metrics: MetricsSink, run: RunStart, end: RunEnd) -> None:
    metrics.inc_runs(run.pipeline, end.status)
    metrics.observe_duration(run.pipeline, (end.finished_at - run.started_at).total_seconds())
    for verb, number in end.rows.items():
        metrics.add_rows(run.pipeline, verb, number)
    metrics.add_bytes(run.pipeline, end.bytes)
    metrics.set_end(run.pipeline, end.finished_at.timestamp(), end.status)
    metrics.flush()


def _event(run: RunStart, end: RunEnd) -> AlertEvent | None:
    from ematix_flow.observe.events import AlertEvent

    if end.status == "succeeded":
        if not run.after_failure:
            return None
        kind = "recovered"
    elif end.status == "cancelled":
        return None  # whoever cancelled it knows
    else:
        kind = "gave_up" if end.gave_up else "failed"
    return AlertEvent(
        kind,
        run.pipeline,
        end.finished_at,
        error_message=None if end.error is None else str(end.error),
        error_type=None if end.error is None else type(end.error).__name__,
        attempt_count=run.attempt,
        max_attempts=run.max_attempts,
        run_id=run.run_id,
        trigger=run.trigger,
        host=run.host or None,
    )


def open_observer(
    settings: config.ObserveSettings | None = None, *, memory: AlertMemory | None = None
) -> Observer:
    """Whoever the settings name, by default those of the environment and the project.

    ``memory`` is where it is kept what alerters were told; by default in this process.
    """
    chosen = config.observe_settings() if settings is None else settings
    registered = _registered_alerters()
    if not (chosen.alerters or chosen.metrics or chosen.traces or registered):
        return SILENT
    alerts: Alerts | None = None
    if chosen.alerters or registered:
        from ematix_flow.observe.alerts import Alerts, open_alerter

        alerters = [*map(open_alerter, chosen.alerters), *registered]
        alerts = Alerts(alerters, memory=memory, repeat_seconds=chosen.alert_repeat_seconds)
    metrics: MetricsSink | None = None
    traces: Traces | None = None
    if chosen.traces:
        from ematix_flow.observe.traces import Traces

        traces = Traces(chosen.traces)
    if chosen.metrics:
        from ematix_flow.observe.metrics import open_metrics

        metrics = open_metrics(chosen.metrics)
    return RunObserver(alerts=alerts, metrics=metrics, traces=traces)


def _registered_alerters() -> tuple[Alerter, ...]:
    """Asked without loading what nobody has loaded: to register one, that was needed."""
    loaded = sys.modules.get("ematix_flow.observe.alerts")
    if loaded is None:
        return ()
    found: tuple[Alerter, ...] = loaded.active_alerters()
    return found


def process_observer() -> Observer:
    """The one that runs of this process share if they name no other; ended with the process."""
    return _kept(config.observe_settings(), _registered_alerters())


@functools.lru_cache(maxsize=8)
def _kept(settings: config.ObserveSettings, registered: tuple[Alerter, ...]) -> Observer:
    opened = open_observer(settings)
    if opened.listens:
        atexit.register(opened.close)
    return opened
