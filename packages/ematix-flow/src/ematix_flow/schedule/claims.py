"""The slots that this process is at work on: claimed, kept while it lives, and given back.

A claim is a change of a turn that one of all who try can make. It runs out unless it is renewed,
so that the slots of a process that is gone are taken over by others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from ematix_flow.errors import ConfigError, EmatixError
from ematix_flow.run.log import RunLog
from ematix_flow.run.records import is_alive, this_host
from ematix_flow.run.turns import CLAIMED, Key, Standing, Turn
from ematix_flow.schedule.agenda import Fire

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=300)
_PAUSE_SECONDS = 0.5


class Claims:
    """What this process has claimed."""

    def __init__(self, log: RunLog, *, lease: timedelta = LEASE, holder: str | None = None) -> None:
        self._log = log
        self._lease = lease
        self._holder = holder or f"{this_host()}:{os.getpid()}"
        self._held: dict[Key, Turn] = {}
        self._lock = threading.RLock()

    def take(self, key: Key, turn: Turn, fire: Fire, run_id: str) -> str | None:
        """A token for a slot; None if somebody else has changed the turn since it was read."""
        claimed = dataclasses.replace(
            turn,
            slot=fire.slot,
            state=CLAIMED,
            attempt=fire.attempt,
            retry_at=None,
            run_id=run_id,
            token=secrets.token_hex(16),
            holder=self._holder,
            expires_at=self._log.clock() + self._lease,
        )
        with self._lock:
            if not self._log.move(key, turn, claimed):
                return None
            self._held[key] = dataclasses.replace(claimed, epoch=turn.epoch + 1)
            return claimed.token

    def adopt(self, key: Key, token: str) -> Turn | None:
        """Go on with a claim that another process has made; None if it is not good any more."""
        with self._lock:
            turn = self._log.standings([key.origin]).get(key, Standing()).turn
            if turn.state != CLAIMED or turn.token != token:
                return None
            self._held[key] = turn
            expires = self._log.clock() + self._lease
            mine = functools.partial(dataclasses.replace, holder=self._holder, expires_at=expires)
            return self._changed(key, mine, keep=True)

    def name_run(self, key: Key, run_id: str) -> bool:
        """Say which run works on a slot from now on; False if it was taken over meanwhile."""
        named = functools.partial(dataclasses.replace, run_id=run_id)
        return self._changed(key, named, keep=True) is not None

    def give_back(self, key: Key, change: Callable[[Turn], Turn]) -> Turn | None:
        """Write down what became of a slot; None if it was taken over meanwhile."""
        deadline = time.monotonic() + self._lease.total_seconds()
        while True:
            try:
                return self._changed(key, change, keep=False)
            except ConfigError as error:
                # What the target holds decides, should nobody be told: whoever takes over asks it.
                if time.monotonic() > deadline:
                    logger.warning("the end of a run of %s is not noted: %s", key.pipeline, error)
                    return None
                time.sleep(_PAUSE_SECONDS)

    def _changed(self, key: Key, change: Callable[[Turn], Turn], *, keep: bool) -> Turn | None:
        """Change a turn of ours; whatever others have changed beside it stays."""
        with self._lock:
            held = self._held.get(key)
            while held is not None:
                after = dataclasses.replace(change(held), paused=held.paused)
                if self._log.move(key, held, after):
                    after = dataclasses.replace(after, epoch=held.epoch + 1)
                    if keep:
                        self._held[key] = after
                    else:
                        del self._held[key]
                    return after
                found = self._log.standings([key.origin]).get(key, Standing()).turn
                if found.token != held.token:
                    del self._held[key]
                    return None
                held = self._held[key] = found
            return None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renew what is claimed, for the length of a block."""
        ended = threading.Event()

        def renew() -> None:
            third, renewed = self._lease.total_seconds() / 3, True
            # A log that was down for a moment is asked again long before the claims run out.
            while not ended.wait(third if renewed else third / 10):
                renewed = self._renew()

        thread = threading.Thread(target=renew, name="ematix-claims", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _renew(self) -> bool:
        """Whether the log could be asked."""
        for key in list(self._held):
            try:
                expires = self._log.clock() + self._lease
                later = functools.partial(dataclasses.replace, expires_at=expires)
                kept = self._changed(key, later, keep=True)
                if kept is None and key not in self._held:
                    logger.warning("the slot of %s was taken over", key.pipeline)
            except EmatixError as error:
                logger.warning("the claim on %s could not be renewed: %s", key.pipeline, error)
                return False
        return True


def without_the_dead(standing: Standing) -> Standing:
    """A claim of a process of this machine that is gone, as one that has run out."""
    turn = standing.turn
    host, _, pid = (turn.holder or "").rpartition(":")
    if turn.state != CLAIMED or host != this_host() or not pid.isdecimal() or is_alive(int(pid)):
        return standing
    return dataclasses.replace(standing, turn=dataclasses.replace(turn, expires_at=None))
