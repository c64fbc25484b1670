"""``transforms_post`` and named transforms: SQL or functions that run on a live target."""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow import config
from ematix_flow.backends.base import Backend
from ematix_flow.backends.loading import load_backend
from ematix_flow.config import DEFAULT_CONNECTION, resolve_connection
from ematix_flow.declaring_transforms import shown, step_arguments
from ematix_flow.engine.failures import translate
from ematix_flow.engine.session import run_session, shared_engine
from ematix_flow.errors import (
    Cancelled,
    DataError,
    EmatixError,
    RunError,
    SourceLocation,
    UnknownName,
    Unsupported,
)
from ematix_flow.model import PipelineSpec
from ematix_flow.pipeline import Transform
from ematix_flow.redaction import redact_text
from ematix_flow.registry import active_registry
from ematix_flow.run.function import RunInfo, awaited, function_frame
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.log import RunLog, open_run_log
from ematix_flow.run.logs import capture_run_log
from ematix_flow.run.records import RunRecord, status_of
from ematix_flow.run.result import StepResult
from ematix_flow.transforms import TransformRef

if TYPE_CHECKING:
    from ematix_flow.backends.base import LiveConnection

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Step:
    """One transform that is ready to run: SQL, or a function that may return SQL."""

    name: str
    sink: Backend
    sql: str | None = None
    function: Callable[..., Any] | None = None
    where: SourceLocation | None = None

    @property
    def text(self) -> str:
        """What is run, for a record of it."""
        return f"{self.sink.name}: {self.sql}" if self.sql else f"{self.sink.name}: {self.name}"


def post_steps(spec: PipelineSpec, sink: Backend) -> tuple[Step, ...]:
    """What runs after the commit, looked up and checked before anything is read.

    A transform that names no connection runs on ``sink``, the pipeline's first target.
    """
    try:
        return tuple(_step(entry, sink) for entry in spec.transforms_post)
    except EmatixError as error:
        error.where = error.where or spec.location
        raise


def _step(entry: Any, sink: Backend) -> Step:
    if isinstance(entry, str):
        if not sink.capabilities.statements:
            raise Unsupported(
                f"connection {sink.name!r} ({sink.kind}) runs no statements, so transforms_post= "
                "cannot hold SQL for it",
                fix="use a function, or a transform with a connection= of its own",
            )
        return Step(_short(entry), sink, sql=entry)
    if isinstance(entry, TransformRef):
        try:
            entry = active_registry().transform(entry.name)
        except UnknownName as error:
            error.what = f"transforms_post=: {error.what}"
            raise
    if isinstance(entry, Transform):
        return transform_step(entry, sink)
    return Step(shown(entry), sink, function=entry)


def step_text(entry: Any) -> str:
    """A step of ``transforms_post`` in words."""
    if isinstance(entry, str):
        return entry.strip()
    if isinstance(entry, TransformRef | Transform):
        return f"transform {entry.name}"
    return f"function {shown(entry)}"


def transform_step(transform: Transform, sink: Backend | None = None) -> Step:
    """A named transform on its own connection, else the given one, else the default."""
    if transform.connection is not None or sink is None:
        name = transform.connection or DEFAULT_CONNECTION
        sink = load_backend(resolve_connection(name).connection)
    return Step(transform.name, sink, function=transform.function, where=transform.location)


def _short(sql: str) -> str:
    line = " ".join(sql.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 1] + "…"


def run_steps(
    spec: PipelineSpec,
    steps: tuple[Step, ...],
    run: RunInfo,
    run_log: RunLog,
    *,
    trigger: str,
    only: Collection[int] | None = None,
) -> tuple[StepResult, ...]:
    """Run what comes after the commit, in order, each recorded as a step of the run."""
    results: list[StepResult] = []
    for number, step in enumerate(steps, start=1):
        if only is not None and number not in only:
            continue
        record = RunRecord.opened(
            run_id=run.id,
            pipeline=spec.name,
            target=spec.target_labels[0],
            trigger=trigger,
            step=f"post:{number}",
            parent_id=run.id,
            kind="transform",
            parameters=run.parameters,
            declared_in=config.origin_of(spec.location.file),
            source=step.text,
        )
        run_log.begin(record)
        started = time.monotonic()
        try:
            result = _performed(step, run)
        except (Exception, KeyboardInterrupt) as error:
            known = _explained(spec, number, step, error)
            goes_on = spec.continue_on_failure_post and not isinstance(known, Cancelled)
            metrics = {"went_on": True} if goes_on else {}
            run_log.finish(record.closed(status_of(error), error=known, metrics=metrics))
            if not goes_on:
                raise known from error
            logger.warning("%s", known)
            seconds = time.monotonic() - started
            results.append(StepResult(step.name, "failed", seconds, error=str(known)))
        else:
            run_log.finish(record.closed("succeeded", metrics=_measured(result)))
            logger.info("transforms_post %d (%s) took %.2f s", number, step.name, result.seconds)
            results.append(result)
    return tuple(results)


def _measured(result: StepResult) -> dict[str, Any]:
    return {**({} if result.rows is None else {"rows": result.rows}), **result.metrics}


def _explained(spec: PipelineSpec, number: int, step: Step, error: BaseException) -> RunError:
    loaded = ", ".join(spec.target_labels)
    kept = f"the load into {loaded} had been committed and stays"
    if isinstance(error, KeyboardInterrupt | Cancelled):
        return Cancelled(
            f"pipeline {spec.name!r} was cancelled in transforms_post= step {number} "
            f"({step.name}); {kept}"
        )
    known = error if isinstance(error, EmatixError) else translate(error)
    return RunError(
        f"pipeline {spec.name!r}: step {number} of transforms_post= ({step.name}) failed; {kept}: "
        f"{known.what}",
        fix=known.fix or "correct the step, then run the pipeline again",
        where=known.where,
    )


@run_session()
def run_transform(
    transform: Transform, *, trigger: str, run_log: RunLog | None = None
) -> StepResult:
    """Run a named transform by itself, recorded like every other run."""
    step = transform_step(transform)
    run = RunInfo(id=new_run_id())
    with contextlib.ExitStack() as stack:
        if run_log is None:
            run_log = open_run_log()
            stack.callback(run_log.close)
        record = RunRecord.opened(
            run_id=run.id,
            pipeline=transform.name,
            target=step.sink.name,
            trigger=trigger,
            step="transform",
            kind="transform",
            declared_in=config.origin_of(transform.location.file),
            source=step.text,
        )
        run_log.begin(record)
        stack.enter_context(capture_run_log(run.id))
        try:
            result = _performed(step, run)
        except (Exception, KeyboardInterrupt) as error:
            known = _named(transform, error)
            run_log.finish(record.closed(status_of(error), error=known))
            raise known from error
        run_log.finish(record.closed("succeeded", metrics=_measured(result)))
        return result


def _named(transform: Transform, error: BaseException) -> EmatixError:
    if isinstance(error, KeyboardInterrupt):
        return Cancelled(f"transform {transform.name!r} was cancelled")
    known = error if isinstance(error, EmatixError) else translate(error)
    if f"{transform.name!r}" not in known.what and known.where is None:
        known.what = f"transform {transform.name!r}: {known.what}"
    return known


def _performed(step: Step, run: RunInfo) -> StepResult:
    started = time.monotonic()
    metrics: Mapping[str, Any] = {}
    sql = step.sql
    rows: int | None = None
    with step.sink.open() as live:
        if step.function is not None:
            returned = _called(step, step.function, live, run)
            if isinstance(returned, Mapping):
                metrics = dict(returned)
            else:
                sql = returned
        if sql is not None:
            touched = live.execute(sql)
            rows = touched if touched >= 0 else None
    return StepResult(step.name, "succeeded", time.monotonic() - started, rows, metrics)


def _called(
    step: Step, function: Callable[..., Any], live: LiveConnection, run: RunInfo
) -> str | Mapping[str, Any] | None:
    """Call the function with what it asks for; what it returns is SQL, numbers, or nothing."""
    givers: dict[str, Callable[[], Any]] = {
        "target": lambda: live,
        "spark": lambda: shared_engine().spark,
        "run": lambda: run,
    }
    arguments = {name: givers[role]() for name, role in step_arguments(function)}
    try:
        if arguments:
            bound = inspect.signature(function).bind_partial()
            bound.arguments.update(arguments)
            returned = function(*bound.args, **bound.kwargs)
        else:
            returned = function()
        if inspect.iscoroutine(returned):
            returned = awaited(returned)
    except EmatixError:
        raise
    except (Exception, SystemExit) as error:
        where = function_frame(error, function) or step.where
        raise RunError(
            redact_text(f"the function {step.name} raised {type(error).__name__}: {error}"),
            fix="correct the function",
            where=where,
        ) from error
    if returned is None or isinstance(returned, str | Mapping):
        return returned
    raise DataError(
        f"the function {step.name} returned a {type(returned).__name__}",
        fix="return SQL, a dictionary of numbers to record, or nothing",
        where=step.where,
    )
