"""``otel://stdout`` and ``otel+otlp+…://``: a span for every run, step and Spark stage.

A run continues the trace that ``TRACEPARENT`` names, if that is set.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, cast

from ematix_flow.errors import ConfigError
from ematix_flow.observe.addresses import Address, parse_address
from ematix_flow.observe.otlp import EXPORT_SECONDS, collector, end_within, resource, telling
from ematix_flow.redaction import redact_text

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

SCHEMES = (
    "otel",
    "otel+otlp",
    "otel+otlp+http",
    "otel+otlp+https",
    "otel+otlp+grpc",
    "otel+otlp+grpcs",
)
RUN_SPAN = "flow.pipeline.run"

Attributes = Mapping[str, str | int | float | bool]


class Traces:
    """Makes spans and sends them from a thread of its own."""

    def __init__(self, url: str) -> None:
        address = parse_address(url, what="traces", schemes=SCHEMES)
        who = resource()
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider(resource=who, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(_exporter(address), schedule_delay_millis=1_000)
        )
        self._tracer = self._provider.get_tracer("ematix_flow")

    def begin(self, name: str, attributes: Attributes, parent: Span | None = None) -> Span:
        """A span that has begun; without a parent it continues the trace of ``TRACEPARENT``."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if parent is not None:
            context = trace.set_span_in_context(parent)
        else:
            carrier = {
                key: os.environ[key.upper()]
                for key in ("traceparent", "tracestate")
                if key.upper() in os.environ
            }
            context = TraceContextTextMapPropagator().extract(carrier)
        return self._tracer.start_span(name, context=context, attributes=dict(attributes))

    def add(
        self,
        name: str,
        parent: Span,
        *,
        began: datetime,
        ended: datetime,
        attributes: Attributes,
    ) -> None:
        """A span that is over already."""
        from opentelemetry import trace

        context = trace.set_span_in_context(parent)
        span = self._tracer.start_span(
            name, context=context, attributes=dict(attributes), start_time=_nanos(began)
        )
        span.end(_nanos(ended))

    def close(self, timeout: float) -> None:
        """Send what is left."""
        end_within(timeout, self._provider.shutdown, "traces to the collector")


def end_span(span: Span, error: BaseException | None = None) -> None:
    """End a span, with the error that ended what it is of."""
    from opentelemetry.trace import Status, StatusCode

    if error is not None:
        text = redact_text(" ".join(str(error).split()))
        span.set_attribute("error.type", type(error).__name__)
        # Not the trace of the error: it may quote rows and settings.
        span.set_status(Status(StatusCode.ERROR, text))
    span.end()


def traceparent_of(span: Span) -> str:
    """The span as others are told of it, in the form of W3C Trace Context."""
    held = span.get_span_context()
    return f"00-{held.trace_id:032x}-{held.span_id:016x}-{int(held.trace_flags):02x}"


def _nanos(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1_000


def _exporter(address: Address) -> SpanExporter:
    if address.scheme == "otel":
        address.check_options()
        if address.host not in ("stdout", None):
            raise ConfigError(
                "traces otel:// can only go to stdout",
                fix="write otel://stdout, or otel+otlp+http://host for a collector",
            )
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=cast(IO[str], _Stdout()), formatter=_line)
    where = collector(address, "v1/traces")
    if where.grpc:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        by_grpc = telling(GrpcExporter, "traces", where)
        return by_grpc(
            endpoint=where.endpoint,
            insecure=not where.tls,
            headers=where.headers or None,
            timeout=EXPORT_SECONDS,
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
        OTLPSpanExporter as HttpExporter,
    )

    by_http = telling(HttpExporter, "traces", where)
    return by_http(endpoint=where.endpoint, headers=where.headers or None, timeout=EXPORT_SECONDS)


class _Stdout(io.TextIOBase):
    """Standard output as it is when something is written, which ``--format json`` changes."""

    def write(self, text: str) -> int:
        return sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()


def _line(span: Any) -> str:
    return str(span.to_json(indent=None)) + "\n"
