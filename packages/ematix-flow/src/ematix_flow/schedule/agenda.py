"""What is to be done at a moment: which slots fire, which wait, and why.

Nothing here asks a clock or a run log. An ``Agenda`` looks at declarations and at how their
pipelines stand, and says for each what comes next.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from ematix_flow.model import PipelineSpec, RetryPolicy
from ematix_flow.run.turns import CLAIMED, FAILED, GAVE_UP, SUCCEEDED, Last, Standing, Turn

# A run that nobody hears of any more is no failure of the pipeline: so often it is tried again.
LOST_ATTEMPTS = 3
_MET = {
    "success": ("succeeded",),
    "completed": ("succeeded", "failed", "cancelled", "lost"),
    "failed": ("failed", "lost"),
}
_ENDED = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled"}


@dataclass(frozen=True)
class Fire:
    """A slot whose run begins now.

    ``previous`` is the run of an earlier attempt, ``lost`` if nobody hears of it any more.
    """

    slot: datetime
    attempt: int
    previous: str | None = None
    lost: bool = False


@dataclass(frozen=True)
class Wait:
    """A slot that is due and not run now; ``loud`` if somebody has to see to it."""

    reason: str
    slot: datetime | None = None
    loud: bool = False


Decision: TypeAlias = Fire | Wait | None


@dataclass(frozen=True)
class Moment:
    """What there is to decide by: slots go by ``now``, claims by the ``clock`` of the log."""

    now: datetime
    clock: datetime
    fresh: timedelta


@dataclass
class Agenda:
    """What comes next for each pipeline; ``ended`` tells of those that were run in this pass."""

    specs: Mapping[str, PipelineSpec]
    moment: Moment
    standings: dict[str, Standing]
    ended: dict[str, str] = field(default_factory=dict)

    def due(self, names: Iterable[str]) -> dict[str, Fire | Wait]:
        """Of these pipelines those that are due, each with what comes next."""
        found = ((name, self.decide(name)) for name in names)
        return {name: decision for name, decision in found if decision is not None}

    def decide(self, name: str) -> Decision:
        """What comes next for a pipeline; None if nothing is due."""
        decision = self._own(name)
        if not isinstance(decision, Fire):
            return decision
        missing = self._unmet(self.specs[name], decision.slot)
        return Wait(f"it waits for {missing}", decision.slot) if missing else decision

    def standing(self, name: str) -> Standing:
        """How a pipeline stands."""
        return self.standings.get(name, Standing())

    def is_claimed(self, name: str) -> bool:
        """Whether somebody is at work on it who may still be alive."""
        return self.standing(name).turn.is_claimed(self.moment.clock)

    def _own(self, name: str) -> Decision:
        """The same, whatever it depends on."""
        spec, turn, now = self.specs[name], self.standing(name).turn, self.moment.now
        if spec.schedule is None:
            return None
        if self.is_claimed(name):
            return Wait("a run of it is under way", turn.slot)
        if self.standing(name).has_given_up:
            tries = f"{turn.attempt} attempt{'s' if turn.attempt != 1 else ''}"
            return Wait(
                f"it gave up after {tries}; see to it, then: flow reset {name}",
                turn.slot,
                loud=True,
            )
        fire = self._next(spec, turn)
        if fire is None:
            return None
        if turn.paused:
            return Wait("it is paused", fire.slot)
        if turn.state == FAILED and turn.retry_at is not None and turn.retry_at > now:
            return Wait(f"it is tried again at {turn.retry_at:%Y-%m-%d %H:%M:%S} UTC", fire.slot)
        return fire

    def _next(self, spec: PipelineSpec, turn: Turn) -> Fire | None:
        assert spec.schedule is not None  # noqa: S101 - looked at before
        # A slot that is not done comes before those after it, whoever had begun it.
        if turn.slot is not None and turn.state == CLAIMED:
            return Fire(turn.slot, turn.attempt + 1, turn.run_id, lost=True)
        if turn.slot is not None and turn.state == FAILED and turn.retry_at is not None:
            return Fire(turn.slot, turn.attempt + 1, turn.run_id)
        slots = spec.schedule.due(
            spec.name, handled=turn.slot, now=self.moment.now, fresh=self.moment.fresh
        )
        return Fire(slots[0], 1) if slots else None

    def _unmet(self, spec: PipelineSpec, slot: datetime) -> str:
        """Of the pipelines that one depends on, the first that it still waits for."""
        since = self._since(spec, slot) if spec.depends_on else None
        for name, condition in spec.depends_on.items():
            if name not in self.specs:
                return f"{name}, which is not declared here"
            own = self._own(name)
            if isinstance(own, Fire) and own.slot <= slot:
                return f"{name}, which is due itself"
            if isinstance(own, Wait) and not own.loud and (own.slot is None or own.slot <= slot):
                return f"{name} ({own.reason})"
            if self.ended.get(name) in _MET[condition]:
                continue
            if name in self.ended:
                return f"{name}, which {_ENDED[self.ended[name]]}"
            missing = _not_met(self.standing(name), condition, since)
            if missing:
                return f"{name}, which {missing}"
        return ""

    def _since(self, spec: PipelineSpec, slot: datetime) -> datetime | None:
        """What those that it depends on must have done after this moment counts for its slot."""
        if spec.upstream_freshness_secs is not None:
            return self.moment.now - timedelta(seconds=spec.upstream_freshness_secs)
        assert spec.schedule is not None  # noqa: S101 - it has a slot
        return spec.schedule.latest(slot - timedelta(seconds=1))


def _known_last(standing: Standing) -> Last | None:
    """The last run; its records may have been lost while the log was down, its turn is not."""
    last, turn = standing.last, standing.turn
    if turn.state != SUCCEEDED or turn.run_id is None or turn.slot is None:
        return last
    if last is None or last.run_id < turn.run_id:
        return Last(turn.run_id, "succeeded", turn.slot, turn.slot)
    if last.run_id == turn.run_id and last.status == "running":
        return dataclasses.replace(last, status="succeeded", finished_at=turn.slot)
    return last


def _not_met(standing: Standing, condition: str, since: datetime | None) -> str:
    last, turn = _known_last(standing), standing.turn
    if last is None:
        return "has not run yet"
    if last.status == "running":
        return "is running"
    if last.status not in _MET[condition]:
        return f"{_ENDED.get(last.status, last.status)} when it last ran"
    ended = last.finished_at or last.started_at
    if last.run_id == turn.run_id and turn.slot is not None:
        # The clock of who ran it may be behind; no run ends before its slot.
        ended = max(ended, turn.slot)
    if since is not None and ended <= since:
        return f"has not run since {since:%Y-%m-%d %H:%M:%S} UTC"
    return ""


def after_success(turn: Turn) -> Turn:
    """The turn of a slot whose run has just succeeded."""
    return turn.ended(SUCCEEDED)


def after_failure(
    policy: RetryPolicy | None,
    turn: Turn,
    *,
    now: datetime,
    ended: datetime,
    error: BaseException,
) -> Turn:
    """The turn of a slot whose run has just failed: it pauses from its end on, if it pauses."""
    if policy is None:
        return turn.ended(FAILED)
    if turn.attempt < policy.max_attempts and policy.covers(error):
        pause = policy.pause_after(turn.attempt) * (1 + policy.jitter * _chance(turn))
        after = ended + timedelta(seconds=pause) if pause else now
        return turn.ended(FAILED, retry_at=after)
    return turn.ended(GAVE_UP)


def after_loss(policy: RetryPolicy | None, turn: Turn) -> Turn | None:
    """The turn of a slot whose runs nobody hears of any more; None if it is tried again."""
    most = max(policy.max_attempts if policy is not None else 1, LOST_ATTEMPTS)
    return turn.ended(GAVE_UP) if turn.attempt >= most else None


def after_silence(turn: Turn) -> Turn:
    """The turn of a slot of whose last run the target has to say whether it has committed."""
    return Turn(**{**vars(turn.ended(CLAIMED)), "attempt": turn.attempt - 1})


def _chance(turn: Turn) -> float:
    """A number from 0 to 1 that is another for every attempt, and the same for all who ask."""
    seed = hashlib.sha256(f"{turn.run_id} {turn.attempt}".encode()).digest()
    return int.from_bytes(seed[:6], "big") / (1 << 48)
