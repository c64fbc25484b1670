"""One pass over all pipelines: what is due is claimed, run, and noted; what waits is told why."""

from __future__ import annotations

import contextvars
import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ematix_flow import config
from ematix_flow.graph import run_order
from ematix_flow.model import PipelineSpec
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.log import RunLog
from ematix_flow.run.records import effective_status, utc_now
from ematix_flow.run.turns import Key, Last, Standing, Turn
from ematix_flow.schedule.agenda import (
    Agenda,
    Decision,
    Fire,
    Moment,
    Wait,
)
from ematix_flow.schedule.claims import LEASE, Claims, without_the_dead
from ematix_flow.schedule.events import (
    Event,
    FailedEvent,
    FiredEvent,
    RunDueResult,
    SkippedEvent,
)
from ematix_flow.schedule.slots import Assignment, ClaimedSlot, Here, Worker

logger = logging.getLogger(__name__)

# How old a slot may be that fires although nobody has looked before.
FRESH = timedelta(seconds=60)


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
    agenda, _ = agenda_of(specs, log, now, fresh)
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


def agenda_of(
    specs: Sequence[PipelineSpec], log: RunLog, now: datetime | None, fresh: timedelta
) -> tuple[Agenda, dict[str, Key]]:
    """What is to be decided now, and the keys of the pipelines in the log."""
    named = config.project_settings().name
    ordered = {spec.name: spec for spec in run_order(specs)}
    keys = {name: Key(named or s.location.file, name) for name, s in ordered.items()}
    found = log.standings({key.origin for key in keys.values()})
    standings = {name: without_the_dead(found[key]) for name, key in keys.items() if key in found}
    clock = log.clock()
    return Agenda(ordered, Moment(now or clock, clock, fresh), standings), keys


def enter_new(agenda: Agenda, keys: Mapping[str, Key], log: RunLog) -> None:
    """Note from when on slots of pipelines count that were never looked at before."""
    since = agenda.moment.now - agenda.moment.fresh
    fresh = {
        keys[name]: Turn(slot=since)
        for name, spec in agenda.specs.items()
        if spec.schedule is not None and not agenda.standing(name).turn.epoch
    }
    if not fresh:
        return
    log.enter(fresh)
    found = log.standings({key.origin for key in fresh})
    agenda.standings |= {key.pipeline: found[key] for key in fresh if key in found}


def has_room(
    name: str,
    running: Collection[str],
    agenda: Agenda,
    max_parallel: int,
    limits: Mapping[str, int],
) -> bool:
    """Whether one more may run: of all, and of those with the same tags."""
    if len(running) >= max_parallel:
        return False
    for tag in agenda.specs[name].tags:
        if tag in limits:
            alike = {n for n, spec in agenda.specs.items() if tag in spec.tags}
            # Also those that others are at.
            busy = {n for n in alike if n in running or agenda.is_claimed(n)}
            if len(busy) >= limits[tag]:
                return False
    return True


def runs_elsewhere(log: RunLog, standing: Standing) -> bool:
    """Whether a run of it that no schedule has begun is under way."""
    last = standing.last
    if last is None or last.status != "running" or last.run_id == standing.turn.run_id:
        return False
    return any(effective_status(r, utc_now()) == "running" for r in log.get(last.run_id))


class _Pass:
    """One pass over all pipelines."""

    def __init__(
        self, specs: Sequence[PipelineSpec], log: RunLog, now: datetime | None, how: How
    ) -> None:
        self.log = log
        self.how = how
        self.agenda, self.keys = agenda_of(specs, log, now, how.fresh)
        self.claims = Claims(log, lease=how.lease)
        self.result = RunDueResult()
        self.running: dict[str, Future[None]] = {}
        self.threads: dict[str, int] = {}
        self.set_aside: dict[str, Wait] = {}
        self.stopped = False

    @property
    def now(self) -> datetime:
        return self.agenda.moment.now

    def go(self) -> RunDueResult:
        """Run what is due until nothing more can be done."""
        enter_new(self.agenda, self.keys, self.log)
        open_ones = list(self.agenda.due(self.agenda.specs))
        with self._workers() as start, self.claims.kept():
            while True:
                for name in open_ones:
                    decision = None if name in self.running else self._decide(name)
                    if not isinstance(decision, Fire) or self.stopped:
                        continue
                    if has_room(
                        name, self.running, self.agenda, self.how.max_parallel, self.how.limits
                    ):
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

    def _can_go_on(self, names: Collection[str]) -> bool:
        return not self.stopped and any(isinstance(self._decide(name), Fire) for name in names)

    def _decide(self, name: str) -> Decision:
        return self.set_aside.get(name) or self.agenda.decide(name)

    @contextmanager
    def _workers(self) -> Iterator[Callable[[Callable[[], None]], Future[None]]]:
        """What runs one pipeline beside another; a single one runs here, where signals arrive."""
        if self.how.max_parallel == 1:
            yield _done_here
            return
        pool = ThreadPoolExecutor(self.how.max_parallel, thread_name_prefix="ematix-run")

        def start(work: Callable[[], None]) -> Future[None]:
            # The registry of a project is the context's, and a new thread starts without one.
            return pool.submit(contextvars.copy_context().run, work)

        try:
            yield start
        finally:
            # After an interrupt nobody waits for what does not heed it.
            pool.shutdown(wait=not self.running, cancel_futures=True)

    def _fire(
        self, name: str, fire: Fire, start: Callable[[Callable[[], None]], Future[None]]
    ) -> None:
        key, spec = self.keys[name], self.agenda.specs[name]
        standing = self.agenda.standing(name)
        if runs_elsewhere(self.log, standing):
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
        work = Assignment(
            spec,
            fire.slot,
            fire.attempt,
            run_id,
            self.log,
            self.how.trigger,
            progress=self.how.progress,
        )
        slot = ClaimedSlot(key, fire, work, self.claims, self.how.worker, self.now)
        self.running[name] = start(functools.partial(self._work, name, slot))

    def _work(self, name: str, slot: ClaimedSlot) -> None:
        """Run one slot and take in what became of it."""
        self.threads[name] = threading.get_ident()
        try:
            ended = slot.run()
        finally:
            del self.threads[name]
        if isinstance(ended.event, SkippedEvent):
            # Told at the end of the pass, with all others that were not run.
            self.set_aside[name] = Wait(ended.event.reason, slot.fire.slot, loud=True)
            return
        self._tell(ended.event)
        if ended.status == "unknown":
            reason = "what became of its last run is asked in the next pass"
            self.set_aside[name] = Wait(reason, slot.fire.slot, loud=True)
            return
        self.stopped = self.stopped or ended.status == "cancelled"
        if ended.turn is None:
            found = self.log.standings([slot.key.origin])
            self._note(name, found.get(slot.key, self.agenda.standing(name)))
            return
        if ended.turn.retry_at is None:
            self.agenda.ended[name] = ended.status
        else:
            # It has not ended: what an earlier slot of this pass came to does not count any more.
            self.agenda.ended.pop(name, None)
        last = Last(ended.turn.run_id or "", ended.status, self.now, self.now)
        self._note(name, Standing(last, ended.turn))

    def _note(self, name: str, standing: Standing) -> None:
        self.agenda.standings[name] = standing

    def _wait(self) -> None:
        """Wait for one of those that run, if any does."""
        try:
            wait(self.running.values(), return_when=FIRST_COMPLETED)
        except KeyboardInterrupt:
            if self.stopped:
                raise
            self._stop()
        self._reap()

    def _stop(self) -> None:
        """Begin nothing more, and have those that run stop as Ctrl-C would."""
        self.stopped = True
        _cancel_spark()
        for thread in list(self.threads.values()):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
            )

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
