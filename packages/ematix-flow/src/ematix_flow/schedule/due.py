"""One pass over all pipelines: what is due is claimed, run, and noted; what waits is told why."""

from __future__ import annotations

import contextvars
import ctypes
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from ematix_flow import config
from ematix_flow.graph import run_order
from ematix_flow.model import PipelineSpec
from ematix_flow.observe.observer import Observer
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
from ematix_flow.schedule.slots import Assignment, ClaimedSlot, Ended, Here, Worker

logger = logging.getLogger(__name__)

Start: TypeAlias = Callable[[Callable[[], Ended]], "Future[Ended]"]

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
    only: Collection[str] | None = None
    worker: Worker = field(default_factory=Here)
    observer: Observer | None = None
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
    unknown = {
        keys[name]: agenda.standing(name).turn
        for name, spec in agenda.specs.items()
        if spec.schedule is not None and agenda.standing(name).turn.slot is None
    }
    if not unknown:
        return
    log.enter({key: Turn(slot=since) for key, turn in unknown.items() if not turn.epoch})
    for key, turn in unknown.items():
        if turn.epoch:
            # It was paused before anybody had looked at it.
            log.move(key, turn, dataclasses.replace(turn, slot=since))
    found = log.standings({key.origin for key in unknown})
    agenda.standings |= {key.pipeline: found[key] for key in unknown if key in found}


class Room:
    """How many more may begin: of all, and of those with a tag, whoever is at the others."""

    def __init__(
        self,
        agenda: Agenda,
        running: Collection[str],
        max_parallel: int,
        limits: Mapping[str, int],
    ) -> None:
        self._tags: dict[str, set[str]] = {}
        if limits:
            specs = agenda.specs.items()
            self._tags = {name: set(spec.tags) & limits.keys() for name, spec in specs}
        self._left = max_parallel - len(running)
        self._left_of = dict(limits)
        for name, tags in self._tags.items():
            if tags and (name in running or agenda.is_claimed(name)):
                self._count(tags)

    def is_for(self, name: str) -> bool:
        """Whether this one may begin."""
        return self._left > 0 and all(self._left_of[tag] > 0 for tag in self._tags.get(name, ()))

    def take(self, name: str) -> None:
        """This one has begun."""
        self._left -= 1
        self._count(self._tags.get(name, ()))

    def _count(self, tags: Iterable[str]) -> None:
        for tag in tags:
            self._left_of[tag] -= 1

    def full_tag(self, name: str) -> str | None:
        """The tag of which no more may begin."""
        tags = sorted(self._tags.get(name, ()))
        return next((tag for tag in tags if self._left_of[tag] <= 0), None)


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
        self._stands_still, self._began = now is not None, time.monotonic()
        self.agenda, self.keys = agenda_of(specs, log, now, how.fresh)
        self.claims = Claims(log, lease=how.lease)
        self.result = RunDueResult()
        self.running: dict[str, Future[Ended]] = {}
        self.threads: dict[str, int] = {}
        self.set_aside: dict[str, Wait] = {}
        self._decided: dict[str, Decision] = {}
        self._downstream: dict[str, list[str]] = {}
        for name, spec in self.agenda.specs.items():
            for upstream in spec.depends_on:
                self._downstream.setdefault(upstream, []).append(name)
        self.stopped = False

    @property
    def now(self) -> datetime:
        return self.agenda.moment.now

    def _moment(self) -> datetime:
        """The time by now, unless a moment was given that stands still."""
        passed = 0.0 if self._stands_still else time.monotonic() - self._began
        return self.now + timedelta(seconds=passed)

    def go(self) -> RunDueResult:
        """Run what is due until nothing more can be done."""
        enter_new(self.agenda, self.keys, self.log)
        chosen = self.agenda.specs if self.how.only is None else self.how.only
        open_ones = list(self.agenda.due(n for n in self.agenda.specs if n in chosen))
        # The claims outlast the workers, also when something stops this loop.
        with self.claims.kept(), self._workers() as start:
            while self._begin(open_ones, start) or self.running:
                self._wait()
                open_ones = [n for n in open_ones if n in self.running or self._decide(n)]
        self.result.stopped, room = self.stopped, self._room()
        for name in open_ones:
            decision = self._decide(name)
            if isinstance(decision, Wait):
                self._tell(SkippedEvent(name, decision.reason, decision.slot, decision.loud))
            elif decision is not None:
                full = None if self.stopped else room.full_tag(name)
                reason = "the pass was stopped before it"
                if full is not None:
                    reason = f"no more pipelines with tag {full!r} may run at once"
                self._tell(SkippedEvent(name, reason, decision.slot))
        return self.result

    def _begin(self, names: Iterable[str], start: Start) -> bool:
        """Begin what may begin now; whether that has changed anything."""
        changed, room = False, self._room()
        for name in names:
            if self.stopped or len(self.running) >= self.how.max_parallel:
                break
            decision = None if name in self.running else self._decide(name)
            if isinstance(decision, Fire) and room.is_for(name):
                self._fire(name, decision, start)
                self._reap()
                changed = True
                if name in self.running:
                    room.take(name)
        return changed

    def _room(self) -> Room:
        return Room(self.agenda, self.running, self.how.max_parallel, self.how.limits)

    def _decide(self, name: str) -> Decision:
        """What comes next; asked again only where something it goes by has changed."""
        if name not in self._decided:
            self._decided[name] = self.set_aside.get(name) or self.agenda.decide(name)
        return self._decided[name]

    @contextmanager
    def _workers(self) -> Iterator[Start]:
        """What runs one pipeline beside another; a single one runs here, where signals arrive."""
        if self.how.max_parallel == 1:
            yield _done_here
            return
        pool = ThreadPoolExecutor(self.how.max_parallel, thread_name_prefix="ematix-run")

        def start(work: Callable[[], Ended]) -> Future[Ended]:
            # The registry of a project is the context's, and a new thread starts without one.
            return pool.submit(contextvars.copy_context().run, work)

        try:
            yield start
        except KeyboardInterrupt:
            self.stopped = True
            raise
        finally:
            # After an interrupt nobody waits for what does not heed it.
            pool.shutdown(wait=not (self.stopped and self.running), cancel_futures=True)

    def _fire(self, name: str, fire: Fire, start: Start) -> None:
        key, spec = self.keys[name], self.agenda.specs[name]
        standing = self.agenda.standing(name)
        if runs_elsewhere(self.log, standing):
            self._set_aside(name, "a run of it that no schedule began is under way", fire.slot)
            return
        run_id = new_run_id()
        if not self.claims.take(key, standing.turn, fire, fire.previous or run_id):
            # Somebody else was faster: what they have made of it is looked at like all else.
            found = self.log.standings([key.origin]).get(key, Standing())
            if found.turn.epoch == standing.turn.epoch:
                reason = "its turn in the run log can be neither changed nor read"
                self._set_aside(name, reason, fire.slot, loud=True)
                return
            self._note(name, without_the_dead(found))
            return
        work = Assignment(
            spec,
            fire.slot,
            fire.attempt,
            run_id,
            self.log,
            self.how.trigger,
            observer=self.how.observer,
        )
        slot = ClaimedSlot(key, fire, work, self.claims, self.how.worker, self.now, self._moment)
        self.running[name] = start(functools.partial(self._work, name, slot))

    def _work(self, name: str, slot: ClaimedSlot) -> Ended:
        """Run one slot; what it means for the others is seen to where they are decided about."""
        self.threads[name] = threading.get_ident()
        try:
            ended = slot.run()
        finally:
            del self.threads[name]
        if not isinstance(ended.event, SkippedEvent):
            self._tell(ended.event)
        return ended

    def _take_in(self, name: str, ended: Ended) -> None:
        """Go on from what became of a slot."""
        slot = ended.event.slot
        if isinstance(ended.event, SkippedEvent):
            # Told at the end of the pass, with all others that were not run.
            self._set_aside(name, ended.event.reason, slot, loud=True)
            return
        if ended.status == "unknown":
            reason = "what became of its last run is asked in the next pass"
            self._set_aside(name, reason, slot, loud=True)
            return
        self.stopped = self.stopped or ended.status == "cancelled"
        if ended.turn is None:
            key = self.keys[name]
            found = self.log.standings([key.origin])
            self._note(name, found.get(key, self.agenda.standing(name)))
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
        for changed in (name, *self._downstream.get(name, ())):
            self._decided.pop(changed, None)

    def _set_aside(
        self, name: str, reason: str, slot: datetime | None, *, loud: bool = False
    ) -> None:
        self.set_aside[name] = Wait(reason, slot, loud)
        self._decided.pop(name, None)

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
                self._take_in(name, future.result())

    def _tell(self, event: Event) -> None:
        lists: dict[type, list[Any]] = {
            FiredEvent: self.result.fired,
            FailedEvent: self.result.failed,
            SkippedEvent: self.result.skipped,
        }
        lists[type(event)].append(event)
        self.how.tell(event)


def _done_here(work: Callable[[], Ended]) -> Future[Ended]:
    done: Future[Ended] = Future()
    done.set_result(work())
    return done


def _cancel_spark() -> None:
    from ematix_flow.engine.session import current_engine

    engine = current_engine()
    if engine is not None:
        engine.cancel_all()
