"""Connections that a process keeps for its next run, for a minute: to connect is to wait."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

SECONDS = 60.0
# A run has a source and a target, which may be one database.
_EACH = 2


@dataclass
class _Held:
    key: Hashable = field(repr=False)
    connection: Any = field(repr=False)
    close: Callable[[], object] = field(repr=False)
    until: float


class Parking:
    """What waits here is as good as new, as far as whoever left it knows: ask it before use."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._held: list[_Held] = []
        self._watched = False
        self._inherited: list[list[_Held]] = []
        atexit.register(self.clear)
        os.register_at_fork(after_in_child=self._disown)

    def take(self, key: Hashable) -> Any | None:
        """A connection that was left under this key, the latest first, or None."""
        with self._changed:
            for held in reversed(self._held):
                if held.key == key:
                    self._held.remove(held)
                    return held.connection
        return None

    def leave(self, key: Hashable, connection: Any, close: Callable[[], object]) -> bool:
        """Keep a connection for a while, to be closed then; False if there are enough of them."""
        with self._changed:
            if sum(held.key == key for held in self._held) >= _EACH:
                return False
            until = time.monotonic() + self._seconds
            self._held.append(_Held(key, connection, close, until))
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="ematix-parked", daemon=True).start()
            self._changed.notify_all()
        return True

    def clear(self) -> None:
        """Close all of them."""
        with self._changed:
            gone, self._held = self._held, []
            self._changed.notify_all()
        _close(gone)

    def _watch(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                gone = [held for held in self._held if held.until <= now]
                self._held = [held for held in self._held if held.until > now]
                if not gone:
                    if not self._held:
                        self._watched = False
                        return
                    self._changed.wait(min(held.until for held in self._held) - now)
            _close(gone)

    def _disown(self) -> None:
        """In a forked process they are the parent's: to close them would end the parent's, too."""
        self._changed = threading.Condition()
        self._inherited.append(self._held)
        self._held, self._watched = [], False


def _close(gone: list[_Held]) -> None:
    for held in gone:
        try:
            held.close()
        except Exception as error:  # noqa: BLE001 - nobody waits for it any more
            logger.debug("a parked connection could not be closed: %s", error)


PARKED = Parking()
