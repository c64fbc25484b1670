"""Counters, gauges and histograms of one process, as plain numbers by name and labels."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

RUNS = "pipeline_runs_total"
DURATION = "pipeline_duration_seconds"
ATTEMPT = "pipeline_retry_attempt"
ROWS = "pipeline_rows_total"
BYTES = "pipeline_bytes_total"
LAST_SUCCESS = "pipeline_last_success_timestamp_seconds"
LAST_RUN = "pipeline_last_run_timestamp_seconds"
FAILING = "pipeline_failing"

SUCCEEDED, CANCELLED = "succeeded", "cancelled"

# From a copy inside one database to a night's load.
BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10800.0, 21600.0)


@dataclass(frozen=True)
class Metric:
    """What is measured, and by which labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ("name",)


METRICS = {
    m.name: m
    for m in (
        Metric(RUNS, "counter", "Runs, by how they ended.", ("name", "outcome")),
        Metric(DURATION, "histogram", "How long runs took."),
        Metric(ATTEMPT, "gauge", "Which attempt the last run was."),
        Metric(ROWS, "counter", "Rows, by what became of them.", ("name", "verb")),
        Metric(BYTES, "counter", "Bytes that were moved."),
        Metric(LAST_SUCCESS, "gauge", "When a run last succeeded, in seconds since 1970."),
        Metric(LAST_RUN, "gauge", "When a run last ended, in seconds since 1970."),
        Metric(FAILING, "gauge", "1 if the last run that was not cancelled failed, else 0."),
    )
}

Labels = tuple[str, ...]


@dataclass
class Distribution:
    """How often values fell into each bucket, the last one being for all that are larger."""

    counts: list[float] = field(default_factory=lambda: [0.0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(BUCKETS, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Upper bounds, and how many values were not above each."""
        so_far, found = 0.0, []
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found


class Measures:
    """The numbers themselves; every method may be called from several threads."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._distributions: dict[str, dict[Labels, Distribution]] = {}
        self._lock = threading.Lock()

    def add(self, metric: str, labels: Labels, value: float = 1.0) -> None:
        """Count up."""
        with self._lock:
            held = self._numbers.setdefault(metric, {})
            held[labels] = held.get(labels, 0.0) + value

    def set(self, metric: str, labels: Labels, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._numbers.setdefault(metric, {})[labels] = value

    def observe(self, metric: str, labels: Labels, value: float) -> None:
        """Count a value into its bucket."""
        with self._lock:
            held = self._distributions.setdefault(metric, {})
            held.setdefault(labels, Distribution()).observe(value)

    def value(self, metric: str, *labels: str) -> float:
        """A counter or gauge; 0 where nothing was counted."""
        with self._lock:
            return self._numbers.get(metric, {}).get(labels, 0.0)

    def numbers(self, metric: str) -> dict[Labels, float]:
        """All counters or gauges of one name."""
        with self._lock:
            return dict(self._numbers.get(metric, {}))

    def distributions(self, metric: str) -> dict[Labels, Distribution]:
        """All histograms of one name."""
        with self._lock:
            held = self._distributions.get(metric, {})
            return {k: Distribution(list(d.counts), d.total) for k, d in held.items()}

    def put_distribution(self, metric: str, labels: Labels, held: Distribution) -> None:
        """Set a histogram, as it was kept somewhere."""
        with self._lock:
            self._distributions.setdefault(metric, {})[labels] = held

    def lines(self) -> Iterator[str]:
        """For people: one line per number."""
        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                for labels, held in self.distributions(name).items():
                    runs = sum(held.counts)
                    yield f"{name}{_shown(metric, labels)} {held.total:.3f} in {runs:.0f}"
            for labels, number in self.numbers(name).items():
                yield f"{name}{_shown(metric, labels)} {number:.15g}"


def _shown(metric: Metric, labels: Labels) -> str:
    pairs = zip(metric.labels, labels, strict=True)
    return "{" + ", ".join(f'{name}="{value}"' for name, value in pairs) + "}"
