"""What ``.sync()``, ``.dry_run()`` and a transform's ``.run()`` return."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ematix_flow.change import Counts


@dataclass(frozen=True)
class TargetResult:
    """What became of one target: succeeded, counted, skipped, failed or not tried."""

    target: str
    connection: str
    mode: str
    status: str
    path: str = ""
    path_reason: str = ""
    counts: Counts = field(default_factory=Counts)
    bytes: int = 0
    note: str = ""
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return _plain(self)


@dataclass(frozen=True)
class StepResult:
    """What became of one transform: succeeded or failed.

    ``rows`` is how many rows its SQL touched, where the database tells.
    """

    name: str
    status: str
    seconds: float
    rows: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dataclasses.asdict(self) | {"seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class RunResult:
    """A run that ended well. A run that did not raises an ``EmatixError`` instead.

    With several targets the counts are sums; ``targets`` has those of each, by its table.
    """

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
    targets: Mapping[str, TargetResult] = field(default_factory=dict)
    post: tuple[StepResult, ...] = ()

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
        plain = _plain(self)
        plain["started_at"] = self.started_at.isoformat()
        plain["finished_at"] = self.finished_at.isoformat()
        plain["seconds"] = round(self.seconds, 3)
        plain["targets"] = {name: held.to_dict() for name, held in self.targets.items()}
        plain["post"] = [step.to_dict() for step in self.post]
        return plain


def _plain(result: RunResult | TargetResult) -> dict[str, Any]:
    plain = dataclasses.asdict(result)
    counts = plain.pop("counts")
    return plain | {f"rows_{name}": value for name, value in counts.items()}


def summed(counts: Iterable[Counts]) -> Counts:
    """What several commits did together."""
    held = [dataclasses.asdict(c) for c in counts]
    names = [f.name for f in dataclasses.fields(Counts)]
    return Counts(**{name: sum(c[name] for c in held) for name in names})


def joined(texts: Iterable[str]) -> str:
    """Different texts in one, each once."""
    return ", ".join(dict.fromkeys(text for text in texts if text))
