"""One run of a pipeline: plan → read → stage → commit, recorded from its start to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow import config
from ematix_flow.backends.loading import load_backend
from ematix_flow.engine.failures import translate
from ematix_flow.engine.progress import live_progress
from ematix_flow.engine.session import (
    configured,
    current_engine,
    prepare_engine,
    shared_engine,
)
from ematix_flow.errors import (
    Cancelled,
    DataError,
    EmatixError,
    Fenced,
    Permanent,
    RunError,
    Undecided,
    Unsupported,
)
from ematix_flow.model import PipelineSpec
from ematix_flow.run.function import RunInfo
from ematix_flow.run.log import RunLog, open_run_log
from ematix_flow.run.logs import capture_run_log
from ematix_flow.run.plan import Plan, incoming_frame, planned
from ematix_flow.run.records import (
    HEARTBEAT_INTERVAL,
    RunRecord,
    effective_status,
    status_of,
    utc_now,
)
from ematix_flow.run.result import RunResult

if TYPE_CHECKING:
    from ematix_flow.backends.base import Landing, Staged
    from ematix_flow.change import Counts
    from ematix_flow.engine.session import Engine, Job

logger = logging.getLogger(__name__)

Announce = Callable[[str], None]
OnPlan = Callable[[Plan], None]


def run_pipeline(
    spec: PipelineSpec,
    *,
    trigger: str,
    parameters: Mapping[str, str] | None = None,
    dry_run: bool = False,
    run_log: RunLog | None = None,
    progress: bool = False,
    announce: Announce = lambda point: None,
    on_plan: OnPlan = lambda plan: None,
) -> RunResult:
    """Run a pipeline now. Raises an ``EmatixError`` if it fails; then nothing was written."""
    run = RunInfo(id=new_run_id(), parameters=dict(parameters or {}))
    if dry_run:
        return _execute(spec, run, _Watch(progress, announce, on_plan), dry_run=True)
    with contextlib.ExitStack() as stack:
        if run_log is None:
            run_log = open_run_log()
            stack.callback(run_log.close)
        settle_lost_runs(run_log, spec)
        record = RunRecord.opened(
            run_id=run.id,
            pipeline=spec.name,
            target=str(spec.targets[0].table.name),
            trigger=trigger,
            parameters=run.parameters,
            mode=spec.targets[0].mode,
            declared_in=spec.location.file,
        )
        run_log.begin(record)
        stack.enter_context(capture_run_log(run.id))
        stack.enter_context(_heartbeats(run_log, run.id))
        logger.info("run of %s into %s started", spec.name, record.target)
        try:
            result = _execute(spec, run, _Watch(progress, announce, on_plan), dry_run=False)
        except BaseException as error:
            status = "lost" if isinstance(error, Undecided) else status_of(error)
            run_log.finish(record.closed(status, error=error))
            logger.error("run of %s failed: %s", spec.name, error)
            raise
        run_log.finish(
            record.closed(
                "succeeded",
                counts=result.counts,
                path=result.path,
                bytes=result.bytes,
                engine=_engine_of(result),
            )
        )
        logger.info(
            "run of %s succeeded: %d rows inserted by the %s path in %.2f s",
            spec.name,
            result.counts.inserted,
            result.path,
            result.seconds,
        )
        return result


def _engine_of(result: RunResult) -> str:
    engine = current_engine()
    return "database" if result.path == "same_db" or engine is None else engine.kind


def new_run_id() -> str:
    """A UUID whose text sorts by time (version 7)."""
    moment = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (moment << 80) | random
    value = value & ~(0xF << 76) | (0x7 << 76)
    value = value & ~(0x3 << 62) | (0x2 << 62)
    return str(uuid.UUID(int=value))


def settle_lost_runs(run_log: RunLog, spec: PipelineSpec) -> None:
    """Ask the target about runs of this pipeline that died: its word decides."""
    now = utc_now()
    target = spec.targets[0]
    lost = [
        r
        for r in run_log.running(spec.name)
        if effective_status(r, now) == "lost"
        and (r.target, r.declared_in) == (str(target.table.name), spec.location.file)
    ]
    if not lost:
        return
    try:
        sink = load_backend(config.resolve_connection(target.connection).connection)
        for record in lost:
            counts = sink.committed(record.run_id, target.table.name, target.prefix)
            if counts is not None:
                done = dataclasses.replace(record, error_class=None, error_text=None)
                run_log.finish(done.closed("succeeded", counts=counts))
            else:
                gone = RunError("this run died before its commit; nothing was written")
                run_log.finish(record.closed("failed", error=gone))
    except EmatixError as error:
        # The new run meets the same trouble and reports it; the lost ones stay lost until then.
        logger.warning("lost runs of %s could not be settled: %s", spec.name, error)


@dataclass(frozen=True)
class _Watch:
    """Who looks on while a run goes its way."""

    progress: bool
    announce: Announce
    on_plan: OnPlan


def _execute(spec: PipelineSpec, run: RunInfo, watch: _Watch, *, dry_run: bool) -> RunResult:
    started = utc_now()
    if _needs_spark(spec) and not spec.not_yet:
        prepare_engine(configured())
    try:
        with planned(
            spec,
            run,
            asking=dry_run,
            announce=watch.announce,
            started_at=started,
        ) as plan:
            watch.on_plan(plan)
            counts, size = _land(plan, keep=not dry_run, progress=watch.progress)
    except EmatixError:
        raise
    except KeyboardInterrupt as error:
        raise Cancelled(f"pipeline {spec.name!r} was cancelled; nothing was written") from error
    except Exception as error:
        known = translate(error, connection=spec.source)
        if known.where is None and not known.what.startswith("pipeline"):
            known.what = f"pipeline {spec.name!r}: {known.what}"
        raise known from error
    return RunResult(
        run_id=run.id,
        pipeline=spec.name,
        target=str(plan.target.table.name),
        mode=plan.target.mode,
        path=plan.path,
        path_reason=plan.path_reason,
        status="counted" if dry_run else "succeeded",
        started_at=started,
        finished_at=utc_now(),
        counts=counts,
        bytes=size,
        dry_run=dry_run,
    )


def _needs_spark(spec: PipelineSpec) -> bool:
    """Whether it is plain from the declaration that the engine will be needed."""
    return spec.source != spec.targets[0].connection or spec.options.force_path == "spark"


def _land(plan: Plan, *, keep: bool, progress: bool) -> tuple[Counts, int]:
    staged: Staged | None = None
    counts: Counts | None = None
    try:
        with plan.sink.land(plan.load) as landing:
            staged = _stage(plan, landing, progress=progress)
            counts = landing.commit(staged, keep=keep)
    except (Exception, KeyboardInterrupt) as error:
        if staged is None or not keep:
            raise
        if counts is None and _may_have_committed(error):
            counts = _asked(plan, error)
        if counts is None:
            raise
        logger.warning("the run had committed when this happened: %s", error)
    return counts, staged.bytes


def _stage(plan: Plan, landing: Landing, *, progress: bool) -> Staged:
    if plan.same_db_select is not None:
        return landing.stage_query(plan.same_db_select)
    engine = shared_engine()
    engine.require_jars((*plan.source.jars, *plan.sink.jars))
    what = f"{plan.spec.name} → {plan.load.name}"
    with engine.job(what) as job, _shown(engine, job, what, progress=progress):
        return landing.stage(engine, incoming_frame(plan, engine))


def _may_have_committed(error: BaseException) -> bool:
    """A refusal is certain; a lost connection or Ctrl-C may have come right after the commit."""
    return not isinstance(error, DataError | Fenced | Unsupported)


def _asked(plan: Plan, error: BaseException) -> Counts | None:
    """What the target says of this run: its word decides."""
    load = plan.load
    try:
        return plan.sink.committed(load.run.run_id, load.name, load.prefix)
    except EmatixError as silence:
        if isinstance(error, Permanent):
            return None
        raise Undecided(
            f"the commit of pipeline {plan.spec.name!r} to {load.name} was cut short, and the "
            f"target does not answer whether it took place ({silence})",
            fix="when it answers again, the next run finds out first; see `flow runs list`",
        ) from error


def _shown(
    engine: Engine, job: Job, what: str, *, progress: bool
) -> contextlib.AbstractContextManager[None]:
    return live_progress(engine, job, what) if progress else contextlib.nullcontext()


@contextlib.contextmanager
def _heartbeats(run_log: RunLog, run_id: str) -> Iterator[None]:
    """Say that the run is alive until it is not."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_INTERVAL.total_seconds()):
            run_log.heartbeat(run_id)

    thread = threading.Thread(target=beat, name="ematix-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
