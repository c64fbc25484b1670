"""What an alert is about."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ematix_flow.connections import nearest
from ematix_flow.errors import UnknownName
from ematix_flow.redaction import redact_text

KINDS = ("failed", "gave_up", "recovered", "sla_breached", "quality_failed")
_WORDS = {
    "failed": "failed",
    "gave_up": "failed and will not be tried again",
    "recovered": "has recovered",
    "sla_breached": "is late",
    "quality_failed": "failed a quality check",
}
_LONGEST_MESSAGE = 2_000
# Ids, counts and times differ between two failures that are the same one to whoever reads.
_PARTICULARS = re.compile(r"\b[0-9A-Fa-f]{4,}(?:-[0-9A-Fa-f]{4,})+\b|\b[0-9A-Fa-f]{8,}\b|\d+")


@dataclass(frozen=True)
class AlertEvent:
    """Something that happened to a pipeline and that somebody wants to hear of.

    Secrets are masked when it is made. ``held_back`` counts alerts that were not sent before this
    one because there were too many.
    """

    kind: str
    pipeline: str
    timestamp: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    error_message: str | None = None
    error_type: str | None = None
    attempt_count: int = 1
    max_attempts: int = 1
    gave_up: bool = False
    run_id: str | None = None
    trigger: str | None = None
    host: str | None = None
    held_back: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownName(f"there is no alert {self.kind!r}", fix=nearest(self.kind, KINDS))
        if self.timestamp.tzinfo is None:
            object.__setattr__(self, "timestamp", self.timestamp.replace(tzinfo=timezone.utc))
        if self.error_message is not None:
            message = redact_text(_one_line(self.error_message))
            if len(message) > _LONGEST_MESSAGE:
                message = message[: _LONGEST_MESSAGE - 1] + "…"
            object.__setattr__(self, "error_message", message)
        object.__setattr__(self, "gave_up", self.gave_up or self.kind == "gave_up")

    @property
    def is_good_news(self) -> bool:
        """Whether it ends an earlier alert."""
        return self.kind == "recovered"

    @property
    def title(self) -> str:
        """What happened, in a few words."""
        return f"{redact_text(_one_line(self.pipeline))} {_WORDS[self.kind]}"

    @property
    def text(self) -> str:
        """What happened, in a line."""
        line = self.title
        if self.error_message:
            kind = f"{self.error_type}: " if self.error_type else ""
            line += f": {kind}{self.error_message}"
        notes = []
        if self.max_attempts > 1:
            notes.append(f"attempt {self.attempt_count} of {self.max_attempts}")
        if self.run_id:
            notes.append(f"run {self.run_id}")
        if self.held_back:
            notes.append(f"{self.held_back} alerts before this one were held back")
        return f"{line} ({', '.join(notes)})" if notes else line

    @property
    def sameness(self) -> str:
        """A digest that two alerts share if the second tells nothing new."""
        gist = _PARTICULARS.sub("#", self.error_message or "")
        told = "\n".join((self.kind, self.error_type or "", gist))
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = dataclasses.asdict(self)
        return plain | {"timestamp": self.timestamp.isoformat(), "text": self.text}


def _one_line(text: str) -> str:
    """Without line breaks, and without what no mail or JSON may hold."""
    sound = text.encode("utf-8", "replace").decode()
    return " ".join("".join(c if c.isprintable() else " " for c in sound).split())
