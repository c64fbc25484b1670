"""``otlp://``: metrics to an OpenTelemetry collector, by HTTP or gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_flow.observe import measures
from ematix_flow.observe.addresses import Address
from ematix_flow.observe.measures import BUCKETS, METRICS
from ematix_flow.observe.otlp import EXPORT_SECONDS, collector, end_within, resource, telling

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

_EVERY_MILLIS = 15_000


class OtlpMetrics:
    """The SDK's own meters, exported by a thread of its own every 15 seconds and at the end."""

    def __init__(self, address: Address) -> None:
        who = resource()
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        reader = PeriodicExportingMetricReader(
            _exporter(address),
            export_interval_millis=_EVERY_MILLIS,
            export_timeout_millis=EXPORT_SECONDS * 1000,
        )
        # The numbers end with the sink, not with the process.
        self._provider = MeterProvider([reader], resource=who, shutdown_on_exit=False)
        meter = self._provider.get_meter("ematix_flow")
        self._instruments: dict[str, Any] = {}
        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                self._instruments[name] = meter.create_histogram(
                    name,
                    unit="s",
                    description=metric.help,
                    explicit_bucket_boundaries_advisory=list(BUCKETS),
                )
            elif metric.kind == "counter":
                self._instruments[name] = meter.create_counter(name, description=metric.help)
            else:
                self._instruments[name] = meter.create_gauge(name, description=metric.help)

    def inc_runs(self, name: str, outcome: str) -> None:
        """Count a run."""
        self._instruments[measures.RUNS].add(1, {"name": name, "outcome": outcome})

    def observe_duration(self, name: str, seconds: float) -> None:
        """Say how long a run took."""
        self._instruments[measures.DURATION].record(seconds, {"name": name})

    def set_attempt(self, name: str, attempt: int) -> None:
        """Say which attempt a run is."""
        self._instruments[measures.ATTEMPT].set(attempt, {"name": name})

    def add_rows(self, name: str, verb: str, rows: int) -> None:
        """Count rows."""
        self._instruments[measures.ROWS].add(rows, {"name": name, "verb": verb})

    def add_bytes(self, name: str, size: int) -> None:
        """Count bytes."""
        self._instruments[measures.BYTES].add(size, {"name": name})

    def set_end(self, name: str, at: float, outcome: str) -> None:
        """Say when and how a run ended."""
        self._instruments[measures.LAST_RUN].set(at, {"name": name})
        if outcome != measures.CANCELLED:
            failing = int(outcome != measures.SUCCEEDED)
            self._instruments[measures.FAILING].set(failing, {"name": name})
        if outcome == measures.SUCCEEDED:
            self._instruments[measures.LAST_SUCCESS].set(at, {"name": name})

    def flush(self) -> None:
        """The reader exports by itself."""

    def close(self, timeout: float) -> None:
        """Export what is left."""
        end_within(timeout, self._provider.shutdown, "metrics to the collector")


def _exporter(address: Address) -> MetricExporter:
    where = collector(address, "v1/metrics")
    if where.grpc:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
            OTLPMetricExporter as GrpcExporter,
        )

        by_grpc = telling(GrpcExporter, "metrics", where)
        return by_grpc(
            endpoint=where.endpoint,
            insecure=not where.tls,
            headers=where.headers or None,
            timeout=EXPORT_SECONDS,
        )
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
        OTLPMetricExporter as HttpExporter,
    )

    by_http = telling(HttpExporter, "metrics", where)
    return by_http(endpoint=where.endpoint, headers=where.headers or None, timeout=EXPORT_SECONDS)
