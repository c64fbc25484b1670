"""One run of a pipeline: plan → read → stage → commit, recorded from its start to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ematix_flow import config
from ematix_flow.backends.loading import load_backend
from ematix_flow.engine.failures import translate
from ematix_flow.engine.placing import placed
from ematix_flow.engine.progress import live_progress
from ematix_flow.engine.session import (
    configured,
    on_engine,
    prepare_engine,
    run_session,
    shared_engine,
)
from ematix_flow.engine.stages import stages_of, telling_tasks
from ematix_flow.errors import (
    Cancelled,
    DataError,
    EmatixError,
    Fenced,
    Permanent,
    Transient,
    Undecided,
    Unsupported,
)
from ematix_flow.model import PipelineSpec
from ematix_flow.observe.observer import SILENT, Observer, Watched, process_observer
from ematix_flow.run.engines import chosen_engine
from ematix_flow.run.function import RunInfo
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.journal import (
    Journal,
    already_loaded,
    opened_records,
    repeatable,
    settle_lost_runs,
)
from ematix_flow.run.log import RunLog, open_run_log
from ematix_flow.run.logs import capture_run_log
from ematix_flow.run.observing import observed_run, run_end
from ematix_flow.run.openlineage import configured_receiver, openlineage_events
from ematix_flow.run.paths import direct_path
from ematix_flow.run.plan import Plan, planned
from ematix_flow.run.purpose import ORDINARY, Purpose
from ematix_flow.run.records import (
    HEARTBEAT_INTERVAL,
    utc_now,
)
from ematix_flow.run.result import RunResult, StepResult, joined, summed
from ematix_flow.run.sharing import SharedSource
from ematix_flow.run.transforms import post_steps, run_steps
from ematix_flow.sql.normalizers import CannotMatch

if TYPE_CHECKING:
    from ematix_flow.backends.base import Landing, Staged
    from ematix_flow.change import Counts
    from ematix_flow.engine.session import Engine, Job

logger = logging.getLogger(__name__)
# How long a target that does not answer is left alone before it is asked again.
_PAUSES = (0.1, 1.0)

Announce = Callable[[str], None]
OnPlan = Callable[[Plan], None]


@run_session()
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
    purpose: Purpose = ORDINARY,
    all_targets: bool | None = None,
    slot: datetime | None = None,
    attempt: int = 1,
    run_id: str | None = None,
    observer: Observer | None = None,
) -> RunResult:
    """Run a pipeline now. Raises an ``EmatixError`` if it fails.

    A target whose load fails is as it was. Of several targets, those that the last run loaded
    before it failed are left alone if their rows are still the same; with ``all_targets`` they are
    loaded whatever their rows, without it they are left alone whatever their rows. Without an
    ``observer``, the environment and the project say who hears of the run.
    """
    watch = _Watch(progress, announce, on_plan, purpose)
    run = RunInfo(id=run_id or new_run_id(), slot=slot, parameters=dict(parameters or {}))
    if dry_run:
        with placed(spec):
            return _execute(spec, run, watch, Journal(spec), dry_run=True)
    observer = process_observer() if observer is None else observer
    told = configured_receiver()
    with contextlib.ExitStack() as stack:
        stack.enter_context(placed(spec))
        if run_log is None:
            run_log = open_run_log()
            stack.callback(run_log.close)
        settle_lost_runs(run_log, spec)
        records = opened_records(spec, run, trigger, attempt=attempt)
        several = len(spec.targets) > 1 and purpose == ORDINARY
        loaded = already_loaded(run_log, spec, records) if several and not all_targets else {}
        journal = Journal(spec, run_log, records, loaded, digested=several)
        observed = observed_run(observer, spec, records, run_log)
        watch = dataclasses.replace(watch, observed=observed)
        journal.open()
        if all_targets is False:
            for label in loaded:
                journal.skip(label)
        stack.enter_context(capture_run_log(run.id))
        stack.enter_context(heartbeats(run_log, run.id))
        stack.enter_context(openlineage_events(told, spec, run, journal))
        logger.info("run of %s into %s started", spec.name, ", ".join(spec.target_labels))
        try:
            result = _execute(spec, run, watch, journal, dry_run=False)
            if spec.transforms_post:
                with observed.step("post"):
                    result = _with_post(spec, result, run, run_log, trigger)
        except BaseException as error:
            journal.close(error)
            observed.ended(run_end(journal, error))
            logger.error("run of %s failed: %s", spec.name, error)
            raise
        observed.ended(run_end(journal))
        logger.info(
            "run of %s succeeded: %d rows inserted by the %s path in %.2f s",
            spec.name,
            result.counts.inserted,
            result.path,
            result.seconds,
        )
        return result


def _with_post(
    spec: PipelineSpec, result: RunResult, run: RunInfo, run_log: RunLog, trigger: str
) -> RunResult:
    """After the commits, what the pipeline asks for on its first target."""
    sink = load_backend(config.resolve_connection(spec.targets[0].connection).connection)
    post: tuple[StepResult, ...] = run_steps(
        spec, post_steps(spec, sink), run, run_log, trigger=trigger
    )
    return dataclasses.replace(result, post=post, finished_at=utc_now())


@dataclass(frozen=True)
class _Watch:
    """Who looks on while a run goes its way, and what it is for."""

    progress: bool
    announce: Announce
    on_plan: OnPlan
    purpose: Purpose
    observed: Watched = SILENT


def _execute(
    spec: PipelineSpec, run: RunInfo, watch: _Watch, journal: Journal, *, dry_run: bool
) -> RunResult:
    started = utc_now()
    engine = chosen_engine(spec)
    if _needs_spark(spec):
        with on_engine(engine):
            prepare_engine(configured(_jars(spec)))
    tolerant = len(spec.targets) > 1 and spec.continue_on_target_failure
    failures: dict[str, EmatixError] | None = {} if tolerant else None
    try:
        with contextlib.ExitStack() as open_plans:
            with watch.observed.step("plan"):
                plans = open_plans.enter_context(
                    planned(
                        spec,
                        run,
                        asking=dry_run,
                        announce=watch.announce,
                        started_at=started,
                        purpose=watch.purpose,
                        failures=failures,
                        engine=engine,
                    )
                )
            for label, error in (failures or {}).items():
                journal.fail(label, error)
            _land_all(spec, plans, watch, journal, dry_run=dry_run)
    except EmatixError as error:
        raise _known(spec, error, journal) from error.__cause__
    except (Exception, KeyboardInterrupt) as error:
        raise _known(spec, error, journal) from error
    if journal.errors:
        raise journal.failure()
    held = [journal.results[label] for label in spec.target_labels]
    return RunResult(
        run_id=run.id,
        pipeline=spec.name,
        target=joined(r.target for r in held),
        mode=joined(r.mode for r in held),
        path=joined(r.path for r in held),
        path_reason=joined(r.path_reason for r in held),
        status="counted" if dry_run else "succeeded",
        started_at=started,
        finished_at=utc_now(),
        counts=summed(r.counts for r in held),
        bytes=sum(r.bytes for r in held),
        dry_run=dry_run,
        targets={r.target: r for r in held},
    )


def _land_all(
    spec: PipelineSpec,
    plans: tuple[Plan, ...],
    watch: _Watch,
    journal: Journal,
    *,
    dry_run: bool,
) -> None:
    """Load one target after the other; each commits on its own."""
    for plan in plans:
        watch.on_plan(plan)
    waiting = [plan for plan in plans if plan.label not in journal.results]
    source = SharedSource(waiting, digested=journal.digested)
    for plan in waiting:
        if plan.label in journal.loaded:
            journal.compare(plan, _fingerprint(plan, source, needed=not repeatable(plan)))
    for plan in waiting:
        if plan.label in journal.results:
            continue
        try:
            if journal.digested:
                journal.expect(plan.label, _fingerprint(plan, source))
            counts, size = _land(plan, source, watch, keep=not dry_run)
        except Exception as error:
            if len(spec.targets) == 1 or isinstance(error, Cancelled):
                raise
            journal.fail(plan.label, _known(spec, error, journal))
            if not spec.continue_on_target_failure:
                return
        else:
            staged = source.staged.get(plan.label)
            journal.succeed(plan, counts, size, dry_run=dry_run, staged=staged)


def _fingerprint(plan: Plan, source: SharedSource, *, needed: bool = False) -> str | None:
    """A digest of the rows of a target that gets all rows of the source each time."""
    if plan.since is not None:
        return None
    try:
        return source.fingerprint(plan)
    except Cancelled:
        raise
    except Exception as error:
        if needed:
            raise
        # The load meets the same trouble and reports it.
        logger.debug("the rows of %s have no fingerprint: %s", plan.label, error)
        return None


def _known(spec: PipelineSpec, error: BaseException, journal: Journal) -> EmatixError:
    """An error as it is told to the user."""
    if isinstance(error, KeyboardInterrupt | Cancelled):
        done = [n for n, r in journal.results.items() if r.status == "succeeded"]
        if isinstance(error, Cancelled) and not done:
            return error
        written = (
            f"{', '.join(done)} had been committed and stays" if done else "nothing was written"
        )
        return Cancelled(f"pipeline {spec.name!r} was cancelled; {written}")
    if isinstance(error, EmatixError):
        return error
    known = translate(error, connection=spec.source)
    if known.where is None and not known.what.startswith("pipeline"):
        known.what = f"pipeline {spec.name!r}: {known.what}"
    return known


def _needs_spark(spec: PipelineSpec) -> bool:
    """Whether it is plain from the declaration that the engine will be needed."""
    if spec.options.force_path == "spark":
        return True
    source = load_backend(config.resolve_connection(spec.source).connection)
    try:
        for target in spec.targets:
            sink = load_backend(config.resolve_connection(target.connection).connection)
            direct_path(spec, source, sink)
    except CannotMatch:
        return True
    return False


def _jars(spec: PipelineSpec) -> tuple[str, ...]:
    """The connector jars of all that the pipeline names."""
    names = (spec.source, *(target.connection for target in spec.targets))
    backends = [load_backend(config.resolve_connection(name).connection) for name in names]
    return tuple(jar for backend in backends for jar in backend.jars)


def _land(plan: Plan, source: SharedSource, watch: _Watch, *, keep: bool) -> tuple[Counts, int]:
    staged: Staged | None = None
    counts: Counts | None = None
    try:
        with plan.sink.land(plan.load) as landing:
            staged = _stage(plan, source, landing, watch, keep=keep)
            with watch.observed.step("commit", target=plan.label):
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


def _stage(
    plan: Plan, source: SharedSource, landing: Landing, watch: _Watch, *, keep: bool
) -> Staged:
    with watch.observed.step("stage", target=plan.label) as step:
        if plan.select is not None and plan.path == "copy":
            return landing.stage_copy(plan.source, plan.select, keep=keep)
        if plan.select is not None:
            return landing.stage_query(plan.select)
        engine = shared_engine()
        engine.require_jars((*plan.source.jars, *plan.sink.jars))
        what = f"{plan.spec.name} → {plan.load.name}"
        with telling_tasks(engine, step.traceparent), engine.job(what) as job:
            with _shown(engine, job, what, progress=watch.progress):
                staged = landing.stage(engine, source.incoming(plan, engine))
            step.stages(lambda: stages_of(job))
            return staged


def _may_have_committed(error: BaseException) -> bool:
    """A refusal is certain; a lost connection or Ctrl-C may have come right after the commit."""
    if isinstance(error, Transient) and error.uncommitted:
        return False
    return not isinstance(error, DataError | Fenced | Unsupported)


def _asked(plan: Plan, error: BaseException, pauses: tuple[float, ...] = _PAUSES) -> Counts | None:
    """What the target says of this run: its word decides."""
    load = plan.load
    try:
        counts = plan.sink.committed(load.run.run_id, load.name, load.prefix)
        if counts is None and isinstance(error, Transient) and error.unanswered:
            counts = _settled(plan)
        return counts
    except EmatixError as silence:
        if isinstance(error, Permanent):
            return None
        if not pauses or not isinstance(silence, Transient):
            raise Undecided(
                f"the commit of pipeline {plan.spec.name!r} to {load.name} was cut short, and the "
                f"target does not answer whether it took place ({silence})",
                fix="when it answers again, the next run finds out first; see `flow runs list`",
            ) from error
    # What has cut the commit short may have cut this as well.
    time.sleep(pauses[0])
    return _asked(plan, error, pauses[1:])


def _settled(plan: Plan) -> Counts | None:
    """Wait for a commit that the target may be busy with; if it is not, see that it never is."""
    run, load = plan.load.run, plan.load
    with contextlib.suppress(EmatixError):
        return plan.sink.settle(run.run_id, run.pipeline, load.name, load.prefix)
    # The target was busy with it: it has decided by now.
    return plan.sink.settle(run.run_id, run.pipeline, load.name, load.prefix)


def _shown(
    engine: Engine, job: Job, what: str, *, progress: bool
) -> contextlib.AbstractContextManager[None]:
    return live_progress(engine, job, what) if progress else contextlib.nullcontext()


@contextlib.contextmanager
def heartbeats(run_log: RunLog, run_id: str) -> Iterator[None]:
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
