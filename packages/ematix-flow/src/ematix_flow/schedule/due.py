"""One pass over all pipelines: what is due is claimed, run, and noted; what waits is told why."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from ematix_flow import config
from ematix_flow.errors import Cancelled, EmatixError, Fenced
from ematix_flow.graph import run_order
from ematix_flow.model import PipelineSpec
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.log import RunLog
from ematix_flow.run.records import effective_status, utc_now
from ematix_flow.run.result import RunResult
from ematix_flow.run.turns import GAVE_UP, Key, Last, Standing, Turn
from ematix_flow.schedule.agenda import (
    Agenda,
    Decision,
    Fire,
    Moment,
    Wait,
    after_cancelling,
    after_failure,
    after_loss,
    after_silence,
    after_success,
)
from ematix_flow.schedule.claims import LEASE, Claims, without_the_dead

logger = logging.getLogger(__name__)

# How old a slot may be that fires although nobody has looked before.
FRESH = timedelta(seconds=60)


@dataclass(frozen=True)
class FiredEvent:
    """A slot that was run with success."""

    name: str
    result: RunResult | None
    slot: datetime | None = None
    attempt_count: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        told = self.result.to_dict() if self.result is not None else {"pipeline": self.name}
        return told | {"_pipeline": self.name, **_slot(self.slot, self.attempt_count)}


@dataclass(frozen=True)
class FailedEvent:
    """A slot whose run failed."""

    name: str
    error_message: str
    error_type: str
    attempt_count: int = 1
    gave_up: bool = False
    slot: datetime | None = None
    retry_at: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "pipeline": self.name,
            "error": self.error_message,
            "error_type": self.error_type,
            "gave_up": self.gave_up,
            "retry_at": self.retry_at.isoformat() if self.retry_at else None,
            **_slot(self.slot, self.attempt_count),
        }


@dataclass(frozen=True)
class SkippedEvent:
    """A pipeline that is due and was not run; ``loud`` if somebody has to see to it."""

    name: str
    reason: str
    slot: datetime | None = None
    loud: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        slot = self.slot.isoformat() if self.slot else None
        return {"pipeline": self.name, "reason": self.reason, "slot": slot, "gave_up": self.loud}


def _slot(slot: datetime | None, attempt: int) -> dict[str, Any]:
    return {"slot": slot.isoformat() if slot else None, "attempt_count": attempt}


@dataclass
class RunDueResult:
    """What one pass has done."""

    fired: list[FiredEvent] = field(default_factory=list)
    failed: list[FailedEvent] = field(default_factory=list)
    skipped: list[SkippedEvent] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and nothing has given up."""
        return not self.failed and not any(event.loud for event in self.skipped)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "ran": [event.to_dict() for event in self.fired],
            "failed": [event.to_dict() for event in self.failed],
            "skipped": [event.to_dict() for event in self.skipped],
        }


Event = FiredEvent | FailedEvent | SkippedEvent


@dataclass(frozen=True)
class Assignment:
    """One slot to be run: by whom does not matter here."""

    spec: PipelineSpec
    slot: datetime
    attempt: int
    run_id: str
    log: RunLog
    trigger: str
    progress: bool = False


class Worker(Protocol):
    """Who runs slots, and knows what became of runs."""

    def run(self, work: Assignment) -> RunResult | None:
        """Run a slot; an ``EmatixError`` if that fails."""

    def resume(self, work: Assignment) -> RunResult | None:
        """Do what an earlier run has left after its commits; None if it must be run anew."""

    def settle(self, log: RunLog, spec: PipelineSpec, run_id: str) -> bool:
        """Whether a run that nobody hears of any more has committed; if not, it never will."""


class Here:
    """Runs slots in this process. Deciding needs neither the engine nor a backend."""

    def run(self, work: Assignment) -> RunResult | None:
        """Run a slot."""
        from ematix_flow.run.batch import run_pipeline

        return run_pipeline(
            work.spec,
            trigger=work.trigger,
            run_log=work.log,
            progress=work.progress,
            slot=work.slot,
            attempt=work.attempt,
            run_id=work.run_id,
        )

    def resume(self, work: Assignment) -> RunResult | None:
        """Do what an earlier run has left."""
        from ematix_flow.run.resuming import resume_run

        return resume_run(work.spec, work.run_id, run_log=work.log, trigger=work.trigger)

    def settle(self, log: RunLog, spec: PipelineSpec, run_id: str) -> bool:
        """Ask the targets."""
        from ematix_flow.run.journal import settle_run

        return settle_run(log, spec, run_id)


@dataclass(frozen=True)
class How:
    """What a pass is done with."""

    fresh: timedelta = FRESH
    lease: timedelta = LEASE
    max_parallel: int = 1
    limits: Mapping[str, int] = field(default_factory=dict)
    trigger: str = "run-due"
    progress: bool = False
    worker: Worker = field(default_factory=Here)
    tell: Callable[[Event], None] = lambda event: None


def planned(
    specs: Sequence[PipelineSpec],
    log: RunLog,
    *,
    now: datetime | None = None,
    fresh: timedelta = FRESH,
) -> dict[str, Fire | Wait]:
    """What a pass would do at a moment, in its order; nothing is run or written."""
    agenda, _ = _agenda(specs, log, now, fresh)
    return agenda.due(agenda.specs)


def run_due(
    specs: Sequence[PipelineSpec],
    log: RunLog,
    *,
    now: datetime | None = None,
    how: How | None = None,
) -> RunDueResult:
    """Run all that is due, each after those it depends on; every slot once, whoever calls."""
    return _Pass(specs, log, now, how or How()).go()


def _agenda(
    specs: Sequence[PipelineSpec], log: RunLog, now: datetime | None, fresh: timedelta
) -> tuple[Agenda, dict[str, Key]]:
    named = config.project_settings().name
    ordered = {spec.name: spec for spec in run_order(specs)}
    keys = {name: Key(named or s.location.file, name) for name, s in ordered.items()}
    found = log.standings({key.origin for key in keys.values()})
    standings = {name: without_the_dead(found[key]) for name, key in keys.items() if key in found}
    clock = log.clock()
    return Agenda(ordered, Moment(now or clock, clock, fresh), standings), keys


class _Pass:
    """One pass over all pipelines."""

    def __init__(
        self, specs: Sequence[PipelineSpec], log: RunLog, now: datetime | None, how: How
    ) -> None:
        self.log = log
        self.how = how
        self.agenda, self.keys = _agenda(specs, log, now, how.fresh)
        self.claims = Claims(log, lease=how.lease)
        self.result = RunDueResult()
        self.running: dict[str, Future[None]] = {}
        self.set_aside: dict[str, Wait] = {}
        self.stopped = False

    @property
    def now(self) -> datetime:
        return self.agenda.moment.now

    def go(self) -> RunDueResult:
        """Run what is due until nothing more can be done."""
        self._enter()
        open_ones = list(self.agenda.due(self.agenda.specs))
        with self._workers() as start, self.claims.kept():
            while True:
                for name in open_ones:
                    decision = None if name in self.running else self._decide(name)
                    if isinstance(decision, Fire) and not self.stopped and self._has_room(name):
                        self._fire(name, decision, start)
                        self._reap()
                self._wait()
                open_ones = [n for n in open_ones if n in self.running or self._decide(n)]
                if not self.running and not self._can_go_on(open_ones):
                    break
        for name in open_ones:
            decision = self._decide(name)
            if isinstance(decision, Wait):
                self._tell(SkippedEvent(name, decision.reason, decision.slot, decision.loud))
            elif decision is not None:
                self._tell(SkippedEvent(name, "the pass was stopped before it", decision.slot))
        return self.result

    def _enter(self) -> None:
        """Note from when on slots of pipelines count that were never looked at before."""
        since = self.now - self.how.fresh
        fresh = {
            self.keys[name]: Turn(slot=since)
            for name, spec in self.agenda.specs.items()
            if spec.schedule is not None and not self.agenda.standing(name).turn.epoch
        }
        if not fresh:
            return
        self.log.enter(fresh)
        found = self.log.standings({key.origin for key in fresh})
        for key in fresh:
            if key in found:
                self.agenda.standings[key.pipeline] = found[key]

    def _can_go_on(self, names: Collection[str]) -> bool:
        return not self.stopped and any(isinstance(self._decide(name), Fire) for name in names)

    def _decide(self, name: str) -> Decision:
        return self.set_aside.get(name) or self.agenda.decide(name)

    def _has_room(self, name: str) -> bool:
        """Whether one more may run: of all, and of those with the same tags."""
        if len(self.running) >= self.how.max_parallel:
            return False
        for tag in self.agenda.specs[name].tags:
            most = self.how.limits.get(tag)
            busy = sum(tag in self.agenda.specs[other].tags for other in self.running)
            if most is not None and busy >= most:
                return False
        return True

    @contextmanager
    def _workers(self) -> Iterator[Callable[[Callable[[], None]], Future[None]]]:
        """What runs one pipeline beside another; a single one runs here, where signals arrive."""
        if self.how.max_parallel == 1:
            yield _done_here
            return
        with ThreadPoolExecutor(self.how.max_parallel, thread_name_prefix="ematix-run") as pool:

            def start(work: Callable[[], None]) -> Future[None]:
                # The registry of a project is the context's, and a new thread starts without one.
                return pool.submit(contextvars.copy_context().run, work)

            try:
                yield start
            except KeyboardInterrupt:
                self.stopped = True
                _cancel_spark()
                raise

    def _fire(
        self, name: str, fire: Fire, start: Callable[[Callable[[], None]], Future[None]]
    ) -> None:
        key, spec = self.keys[name], self.agenda.specs[name]
        standing = self.agenda.standing(name)
        if self._runs_elsewhere(standing):
            self.set_aside[name] = Wait(
                "a run of it that no schedule began is under way", fire.slot
            )
            return
        run_id = new_run_id()
        if not self.claims.take(key, standing.turn, fire, fire.previous or run_id):
            # Somebody else was faster: what they have made of it is looked at like all else.
            found = self.log.standings([key.origin]).get(key, Standing())
            self._note(name, without_the_dead(found))
            return
        self.running[name] = start(lambda: self._work(spec, fire, run_id))

    def _runs_elsewhere(self, standing: Standing) -> bool:
        """Whether a run of it that no schedule has begun is under way."""
        last = standing.last
        if last is None or last.status != "running" or last.run_id == standing.turn.run_id:
            return False
        return any(effective_status(r, utc_now()) == "running" for r in self.log.get(last.run_id))

    def _work(self, spec: PipelineSpec, fire: Fire, run_id: str) -> None:
        """Run one slot and note what became of it."""
        try:
            if fire.lost and self._is_settled(spec, fire):
                return
            result = self._carried_out(spec, fire, run_id)
        except (Cancelled, KeyboardInterrupt) as error:
            self.stopped = True
            self._end(spec, fire, error, lambda turn: after_cancelling(turn, self.now))
        except Exception as error:  # noqa: BLE001 - one pipeline's surprise must not stop the others
            failed = functools.partial(after_failure, spec.retry, now=self.now, error=error)
            self._end(spec, fire, error, failed)
        else:
            self._succeed(spec, fire, result)

    def _carried_out(self, spec: PipelineSpec, fire: Fire, run_id: str) -> RunResult | None:
        """The rest of an earlier run, where that is all there is to do; else a run anew."""
        work = Assignment(
            spec,
            fire.slot,
            fire.attempt,
            fire.previous or run_id,
            self.log,
            self.how.trigger,
            progress=self.how.progress,
        )
        if fire.previous is not None:
            rest = self.how.worker.resume(work)
            if rest is not None:
                return rest
            if not self.claims.name_run(self.keys[spec.name], run_id):
                raise Fenced(f"the slot of {spec.name!r} was taken over")
        return self.how.worker.run(dataclasses.replace(work, run_id=run_id))

    def _is_settled(self, spec: PipelineSpec, fire: Fire) -> bool:
        """Whether nothing can be done for a slot whose last run nobody hears of any more."""
        lost = fire.previous or ""
        try:
            committed = self.how.worker.settle(self.log, spec, lost)
        except EmatixError as error:
            self.set_aside[spec.name] = Wait(
                f"what became of its run {lost} is not known: {error}", fire.slot, loud=True
            )
            self.claims.give_back(self.keys[spec.name], after_silence)
            return True
        if committed and not spec.transforms_post:
            logger.warning("%s: run %s had committed; its slot is done", spec.name, lost)
            self._succeed(spec, fire, None)
            return True
        if committed or after_loss(spec.retry, Turn(attempt=fire.attempt - 1)) is None:
            return False
        lost_runs = EmatixError(
            f"{fire.attempt - 1} runs of {spec.name!r} for this slot were lost",
            fix="see what ends their processes: flow runs list",
        )
        self._end(spec, fire, lost_runs, lambda turn: turn.ended(GAVE_UP))
        return True

    def _succeed(self, spec: PipelineSpec, fire: Fire, result: RunResult | None) -> None:
        self._given_back(spec.name, after_success, "succeeded")
        self._tell(FiredEvent(spec.name, result, fire.slot, fire.attempt))

    def _end(
        self,
        spec: PipelineSpec,
        fire: Fire,
        error: BaseException,
        change: Callable[[Turn], Turn],
    ) -> None:
        cancelled = isinstance(error, Cancelled | KeyboardInterrupt)
        turn = self._given_back(spec.name, change, "cancelled" if cancelled else "failed")
        self._tell(
            FailedEvent(
                spec.name,
                str(error) or "cancelled on request",
                type(error).__name__,
                fire.attempt,
                gave_up=turn is not None and turn.state == GAVE_UP,
                slot=fire.slot,
                retry_at=turn.retry_at if turn is not None else None,
            )
        )

    def _given_back(self, name: str, change: Callable[[Turn], Turn], status: str) -> Turn | None:
        turn = self.claims.give_back(self.keys[name], change)
        held = self.agenda.standing(name)
        if turn is None:
            found = self.log.standings([self.keys[name].origin])
            self._note(name, found.get(self.keys[name], held))
            return None
        if turn.retry_at is None:
            self.agenda.ended[name] = status
        else:
            # It has not ended: what an earlier slot of this pass came to does not count any more.
            self.agenda.ended.pop(name, None)
        last = Last(turn.run_id or "", status, self.now, self.now)
        self._note(name, Standing(last, turn))
        return turn

    def _note(self, name: str, standing: Standing) -> None:
        self.agenda.standings[name] = standing

    def _wait(self) -> None:
        """Wait for one of those that run, if any does."""
        try:
            wait(self.running.values(), return_when=FIRST_COMPLETED)
        except KeyboardInterrupt:
            self.stopped = True
            _cancel_spark()
        self._reap()

    def _reap(self) -> None:
        for name, future in list(self.running.items()):
            if future.done():
                del self.running[name]
                future.result()

    def _tell(self, event: Event) -> None:
        lists: dict[type, list[Any]] = {
            FiredEvent: self.result.fired,
            FailedEvent: self.result.failed,
            SkippedEvent: self.result.skipped,
        }
        lists[type(event)].append(event)
        self.how.tell(event)


def _done_here(work: Callable[[], None]) -> Future[None]:
    work()
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _cancel_spark() -> None:
    from ematix_flow.engine.session import current_engine

    engine = current_engine()
    if engine is not None:
        engine.cancel_all()
