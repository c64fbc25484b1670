"""What ``.sync()`` and ``.dry_run()`` return."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ematix_flow.change import Counts


@dataclass(frozen=True)
class RunResult:
    """A run that ended well. A run that did not raises an ``EmatixError`` instead."""

    run_id: str
    pipeline: str
    target: str
    mode: str
    path: str
    path_reason: str
    status: str
    started_at: datetime
    finished_at: datetime
    counts: Counts
    bytes: int
    dry_run: bool = False

    @property
    def rows_inserted(self) -> int:
        """How many rows were inserted."""
        return self.counts.inserted

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.finished_at - self.started_at).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        plain = dataclasses.asdict(self)
        counts = plain.pop("counts")
        plain |= {f"rows_{name}": value for name, value in counts.items()}
        plain["started_at"] = self.started_at.isoformat()
        plain["finished_at"] = self.finished_at.isoformat()
        plain["seconds"] = round(self.seconds, 3)
        return plain
