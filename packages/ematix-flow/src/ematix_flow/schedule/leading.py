"""Of all schedulers that share a run log one decides: by a lease that it has to renew."""

from __future__ import annotations

import dataclasses
import secrets
from datetime import timedelta

from ematix_flow.run.log import RunLog
from ematix_flow.run.turns import CLAIMED, Key, Standing, Turn

LEAD = timedelta(seconds=60)
_ORIGIN = "@scheduler"


class Leadership:
    """A scheduler's claim to decide for a project.

    Two who both believe to lead do no harm: a slot is claimed by one of them.
    """

    def __init__(self, log: RunLog, project: str, *, holder: str, lease: timedelta = LEAD) -> None:
        self._log = log
        self._key = Key(_ORIGIN, project)
        self._holder = holder
        self._lease = lease
        self._token = secrets.token_hex(16)

    def is_held(self) -> bool:
        """Whether this process decides: it takes what is free, and renews what it has."""
        turn, clock = self._turn(), self._log.clock()
        if turn.token != self._token and turn.is_claimed(clock):
            return False
        taken = Turn(
            state=CLAIMED,
            token=self._token,
            holder=self._holder,
            expires_at=clock + self._lease,
            # It counts the leaders there have been.
            attempt=turn.attempt + (turn.token != self._token),
        )
        return self._log.move(self._key, turn, taken)

    def resign(self) -> None:
        """Let another decide at once."""
        turn = self._turn()
        if turn.token == self._token:
            self._log.move(self._key, turn, dataclasses.replace(turn, expires_at=None))

    def _turn(self) -> Turn:
        return self._log.standings([_ORIGIN]).get(self._key, Standing()).turn
