"""What alerters have told, kept in the run log, so that the next process does not tell it again."""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import datetime, timedelta

from ematix_flow.errors import EmatixError
from ematix_flow.run.log import RunLog
from ematix_flow.run.turns import Key, Standing, Turn

_ORIGIN = "@alerts"


class LogMemory:
    """Who was told what, and when it may be told again.

    A log that does not answer does not keep an alert back: told twice is better than never.
    """

    def __init__(self, log: RunLog) -> None:
        self._log = log

    def claim(
        self, receiver: str, pipeline: str, key: str, *, at: datetime, repeat: timedelta
    ) -> bool:
        """Whether this is to be told now; if so, it is noted as told."""
        place = _place(receiver, pipeline, key)
        try:
            turn = self._turn(place)
            if turn.expires_at is not None and turn.expires_at > at:
                return False
            return self._log.move(place, turn, dataclasses.replace(turn, expires_at=at + repeat))
        except EmatixError:
            return True

    def release(self, receiver: str, pipeline: str, key: str) -> None:
        """It was not told after all."""
        self._clear(_place(receiver, pipeline, key))

    def forget(self, receiver: str, pipeline: str) -> None:
        """What comes next is new again."""
        prefix = _place(receiver, pipeline, "").pipeline
        try:
            held = self._log.standings([_ORIGIN])
        except EmatixError:
            return
        for place in held:
            if place.pipeline.startswith(prefix):
                self._clear(place)

    def _turn(self, place: Key) -> Turn:
        return self._log.standings([_ORIGIN]).get(place, Standing()).turn

    def _clear(self, place: Key) -> None:
        try:
            turn = self._turn(place)
            self._log.move(place, turn, dataclasses.replace(turn, expires_at=None))
        except EmatixError:
            return


def _place(receiver: str, pipeline: str, key: str) -> Key:
    """Where it is noted: the address of a receiver may hold a secret, and stays out of the log."""
    who = hashlib.sha256(f"{receiver}\n{pipeline}".encode()).hexdigest()[:24]
    what = hashlib.sha256(key.encode()).hexdigest()[:16] if key else ""
    return Key(_ORIGIN, f"{who} {what}")
