"""What becomes of the slots of one pass, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ematix_flow.run.result import RunResult


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
        return {"pipeline": self.name, "reason": self.reason, "slot": slot, "loud": self.loud}


def _slot(slot: datetime | None, attempt: int) -> dict[str, Any]:
    return {"slot": slot.isoformat() if slot else None, "attempt_count": attempt}


@dataclass
class RunDueResult:
    """What one pass has done; ``stopped`` if somebody ended it early."""

    fired: list[FiredEvent] = field(default_factory=list)
    failed: list[FailedEvent] = field(default_factory=list)
    skipped: list[SkippedEvent] = field(default_factory=list)
    stopped: bool = False

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
