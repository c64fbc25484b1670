"""The scheduler: looks again and again, claims what is due, and has workers run it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ematix_flow.config import origin_of
from ematix_flow.errors import ConfigError
from ematix_flow.model import PipelineSpec
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.log import RunLog
from ematix_flow.run.records import this_host
from ematix_flow.run.turns import CLAIMED, GAVE_UP, Key, Standing
from ematix_flow.schedule.agenda import LOST_ATTEMPTS, Agenda, Fire, Wait, after_silence
from ematix_flow.schedule.claims import LEASE, Claims
from ematix_flow.schedule.due import FRESH, Room, agenda_of, enter_new, runs_elsewhere
from ematix_flow.schedule.executors import DispatchSpec, Executor
from ematix_flow.schedule.leading import LEAD, Leadership

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watch:
    """How a scheduler goes about its work."""

    poll: timedelta = timedelta(seconds=10)
    fresh: timedelta = FRESH
    lease: timedelta = LEASE
    lead: timedelta = LEAD
    max_parallel: int = 8
    limits: Mapping[str, int] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    worker_id: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Dispatched:
    key: Key
    token: str
    worker: str


def _attempts_allowed(spec: PipelineSpec) -> int:
    """So many, then a worker gives up that asks the targets first; and as many once more."""
    own = spec.retry.max_attempts if spec.retry is not None else 1
    return max(own, LOST_ATTEMPTS) + LOST_ATTEMPTS


def _led(specs: Sequence[PipelineSpec]) -> str:
    """What schedulers of the same pipelines have in common, and no others."""
    keys = sorted(f"{origin_of(spec.location.file)} {spec.name}" for spec in specs)
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


class Scheduler:
    """One of perhaps many schedulers of a project."""

    def __init__(
        self,
        specs: Sequence[PipelineSpec],
        log: RunLog,
        executor: Executor,
        watch: Watch,
        *,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self.specs = list(specs)
        self.log = log
        self.executor = executor
        self.watch = watch
        self._now = now or log.clock
        self._holder = watch.worker_id or f"{this_host()}:{os.getpid()}"
        self._leadership = Leadership(log, _led(specs), holder=self._holder, lease=watch.lead)
        self._dispatched: dict[str, _Dispatched] = {}
        self._stopping = False
        # What a signal handler may use while the same thread waits for it.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._told: dict[str, str] = {}

    @property
    def at_work(self) -> list[str]:
        """The pipelines that workers of this scheduler are at."""
        return list(self._dispatched)

    def stop(self) -> None:
        """Begin nothing more; asked again, have the workers stop, too."""
        if self._stopping:
            for dispatched in self._dispatched.values():
                self.executor.cancel(dispatched.worker)
        self._stopping = True
        self._woken.put(None)

    def serve(self, *, max_iterations: int | None = None) -> None:
        """Look again and again until somebody says stop; then wait for the workers."""
        done = 0
        while not self._stopping and (max_iterations is None or done < max_iterations):
            try:
                self.look()
            except ConfigError as error:
                # The log is down: nothing can be claimed, and whoever runs goes on.
                logger.warning("nothing can be claimed: %s", error)
            done += 1
            if max_iterations is None or done < max_iterations:
                with contextlib.suppress(queue.Empty):
                    self._woken.get(timeout=self.watch.poll.total_seconds())
        self._drain()

    def _drain(self) -> None:
        try:
            self._leadership.resign()
        except ConfigError as error:
            logger.warning("the lead could not be given up: %s", error)
        while self._dispatched:
            try:
                self._reap()
            except ConfigError as error:
                logger.warning("what became of the workers is not known yet: %s", error)
            time.sleep(min(0.2, self.watch.poll.total_seconds()))

    def look(self) -> int:
        """Look once: how many slots were handed to workers."""
        self._reap()
        if not self._leadership.is_held():
            return 0
        now = self._now()
        agenda, keys = agenda_of(self.specs, self.log, now, self.watch.fresh)
        enter_new(agenda, keys, self.log)
        room = Room(agenda, self._dispatched, self.watch.max_parallel, self.watch.limits)
        begun = 0
        for name in agenda.specs:
            decision = agenda.decide(name)
            if isinstance(decision, Wait):
                self._tell(name, decision)
                continue
            if decision is None or self._stopping or name in self._dispatched:
                continue
            if room.is_for(name) and self._dispatch(name, decision, agenda, keys[name]):
                room.take(name)
                begun += 1
        return begun

    def _tell(self, name: str, wait: Wait) -> None:
        """Say once why a pipeline waits."""
        if self._told.get(name) != wait.reason:
            self._told[name] = wait.reason
            logger.log(logging.ERROR if wait.loud else logging.INFO, "%s: %s", name, wait.reason)

    def _dispatch(self, name: str, fire: Fire, agenda: Agenda, key: Key) -> bool:
        standing = agenda.standing(name)
        if runs_elsewhere(self.log, standing):
            return False
        if fire.lost and fire.attempt > _attempts_allowed(agenda.specs[name]):
            logger.error("%s: its workers end before they begin; it has given up", name)
            self.log.move(key, standing.turn, standing.turn.ended(GAVE_UP))
            return False
        claims = Claims(self.log, lease=self.watch.lease, holder=self._holder)
        token = claims.take(key, standing.turn, fire, fire.previous or new_run_id())
        if token is None:
            return False
        self._told.pop(name, None)
        spec = DispatchSpec(
            name,
            token,
            self.watch.lease.total_seconds(),
            self.watch.modules,
            fire.previous,
            fire.lost,
            self.watch.env,
        )
        try:
            worker = self.executor.dispatch(spec)
        except OSError as error:
            logger.error("no worker can be started for %s: %s", name, error)
            claims.give_back(key, after_silence)
            return False
        logger.info("%s for %s: worker %s", name, fire.slot.isoformat(), worker)
        self._dispatched[name] = _Dispatched(key, token, worker)
        return True

    def _reap(self) -> None:
        """See which workers have ended; what one has left undone is taken over at once."""
        for name, held in list(self._dispatched.items()):
            if not self.executor.has_ended(held.worker):
                continue
            turn = self.log.standings([held.key.origin]).get(held.key, Standing()).turn
            if turn.state == CLAIMED and turn.token == held.token:
                logger.warning("worker %s of %s ended before its work", held.worker, name)
                self.log.move(held.key, turn, dataclasses.replace(turn, expires_at=None))
            del self._dispatched[name]
