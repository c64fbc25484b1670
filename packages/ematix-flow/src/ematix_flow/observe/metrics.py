"""Metrics: what is counted of every run, and ``open_metrics``, which finds where it goes."""

from __future__ import annotations

import importlib
from typing import Protocol

from ematix_flow.observe import measures
from ematix_flow.observe.addresses import Address, parse_address
from ematix_flow.observe.measures import Measures

_PROMETHEUS, _OTLP = "metrics_prometheus", "metrics_otlp"
# Imported when a URL asks for one.
_CLASSES = {
    "null": ("metrics", "NullMetrics"),
    "stdout": ("metrics", "PrintedMetrics"),
    "memory": ("metrics", "MemoryMetrics"),
    "prometheus": (_PROMETHEUS, "ServedMetrics"),
    "prometheus+push": (_PROMETHEUS, "PushedMetrics"),
    "prometheus+file": (_PROMETHEUS, "FiledMetrics"),
    "otlp": (_OTLP, "OtlpMetrics"),
    "otlp+http": (_OTLP, "OtlpMetrics"),
    "otlp+https": (_OTLP, "OtlpMetrics"),
    "otlp+grpc": (_OTLP, "OtlpMetrics"),
    "otlp+grpcs": (_OTLP, "OtlpMetrics"),
}


class MetricsSink(Protocol):
    """Where numbers go. No method waits for a network; every one may be called from any thread."""

    def inc_runs(self, name: str, outcome: str) -> None:
        """Count a run: ``succeeded``, ``failed``, ``cancelled`` or ``lost``."""

    def observe_duration(self, name: str, seconds: float) -> None:
        """Say how long a run took."""

    def set_attempt(self, name: str, attempt: int) -> None:
        """Say which attempt a run is."""

    def add_rows(self, name: str, verb: str, rows: int) -> None:
        """Count rows: ``read``, ``inserted``, ``updated`` and so on."""

    def add_bytes(self, name: str, size: int) -> None:
        """Count bytes."""

    def set_end(self, name: str, at: float, outcome: str) -> None:
        """Say when a run ended, in seconds since 1970, and how."""

    def flush(self) -> None:
        """A run has ended and all of it is counted."""

    def close(self, timeout: float) -> None:
        """Send what is not sent, within so many seconds."""


def open_metrics(url: str) -> MetricsSink:
    """Where a URL says; a ``ConfigError`` or ``UnknownName`` if it is not written well."""
    address = parse_address(url, what="metrics", schemes=_CLASSES)
    module, name = _CLASSES[address.scheme]
    sink: MetricsSink = getattr(importlib.import_module(f"{__package__}.{module}"), name)(address)
    return sink


class MeasuredMetrics:
    """Base of the sinks that keep all numbers in this process, in ``measures``."""

    def __init__(self) -> None:
        self.measures = Measures()

    def inc_runs(self, name: str, outcome: str) -> None:
        """Count a run."""
        self.measures.add(measures.RUNS, (name, outcome))

    def observe_duration(self, name: str, seconds: float) -> None:
        """Say how long a run took."""
        self.measures.observe(measures.DURATION, (name,), seconds)

    def set_attempt(self, name: str, attempt: int) -> None:
        """Say which attempt a run is."""
        self.measures.set(measures.ATTEMPT, (name,), attempt)

    def add_rows(self, name: str, verb: str, rows: int) -> None:
        """Count rows."""
        self.measures.add(measures.ROWS, (name, verb), rows)

    def add_bytes(self, name: str, size: int) -> None:
        """Count bytes."""
        self.measures.add(measures.BYTES, (name,), size)

    def set_end(self, name: str, at: float, outcome: str) -> None:
        """Say when and how a run ended."""
        self.measures.set(measures.LAST_RUN, (name,), at)
        if outcome != measures.CANCELLED:
            self.measures.set(measures.FAILING, (name,), int(outcome != measures.SUCCEEDED))
        if outcome == measures.SUCCEEDED:
            self.measures.set(measures.LAST_SUCCESS, (name,), at)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self, timeout: float) -> None:
        """Nothing is open."""


class NullMetrics(MeasuredMetrics):
    """``null://``: counts, and tells nobody."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        address.check_bare()


class MemoryMetrics(MeasuredMetrics):
    """``memory://``: numbers for whoever asks this object."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        address.check_bare()


class PrintedMetrics(MeasuredMetrics):
    """``stdout://``: all numbers at the end, in lines."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        address.check_bare()

    def close(self, timeout: float) -> None:
        """Print them."""
        for line in self.measures.lines():
            print(line, flush=True)  # noqa: T201 - its job
