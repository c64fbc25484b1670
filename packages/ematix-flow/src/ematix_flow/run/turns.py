"""How a pipeline stands: the end of its last run, and how far it has come with its schedule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

CLAIMED, SUCCEEDED, FAILED, GAVE_UP = "claimed", "succeeded", "failed", "gave_up"


class Key(NamedTuple):
    """A pipeline among those of all projects that share a run log."""

    origin: str
    pipeline: str


@dataclass(frozen=True)
class Turn:
    """The slot that a pipeline has come to, and who is at work on it.

    ``epoch`` counts the changes: a change is made by whoever has seen all that were before it.
    """

    slot: datetime | None = None
    state: str = ""
    attempt: int = 0
    retry_at: datetime | None = None
    run_id: str | None = None
    token: str | None = None
    holder: str | None = None
    expires_at: datetime | None = None
    paused: bool = False
    epoch: int = 0

    def is_claimed(self, clock: datetime) -> bool:
        """Whether somebody is at work on it who may still be alive."""
        return self.state == CLAIMED and self.expires_at is not None and self.expires_at > clock

    def ended(self, state: str, *, retry_at: datetime | None = None) -> Turn:
        """The same slot, with nobody at work on it."""
        return dataclasses.replace(
            self, state=state, retry_at=retry_at, token=None, holder=None, expires_at=None
        )


@dataclass(frozen=True)
class Last:
    """How the last run of a pipeline went, however it was started."""

    run_id: str
    status: str
    started_at: datetime
    finished_at: datetime | None = None
    rows: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Standing:
    """All that is known of a pipeline at a moment."""

    last: Last | None = None
    turn: Turn = field(default_factory=Turn)

    @property
    def has_given_up(self) -> bool:
        """Whether it gave up, and nobody has run it with success since."""
        if self.turn.state != GAVE_UP:
            return False
        # Ids sort by time. The run that gave up may have died before it was recorded.
        last, gave_up = self.last, self.turn.run_id or ""
        return last is None or last.status != "succeeded" or last.run_id <= gave_up
