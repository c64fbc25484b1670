"""What metrics and traces share of OpenTelemetry: where a collector is, and how it is ended."""

from __future__ import annotations

import logging
import threading
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ematix_flow.errors import MissingExtra
from ematix_flow.observe.addresses import Address
from ematix_flow.redaction import remember_secret

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

logger = logging.getLogger(__name__)

Exporter = TypeVar("Exporter")

GRPC_PORT, HTTP_PORT = 4317, 4318
EXPORT_SECONDS = 5


@dataclass(frozen=True)
class Collector:
    """Where a collector listens, and by which protocol."""

    grpc: bool
    endpoint: str
    tls: bool
    headers: dict[str, str] = field(repr=False)


def collector(address: Address, path: str) -> Collector:
    """The collector behind an address; ``otlp://`` is HTTP, but gRPC at gRPC's own port.

    A user and password become basic authentication; ``OTEL_EXPORTER_OTLP_HEADERS`` works as well.
    """
    address.check_options()
    protocol = address.scheme.removeprefix("otel+").removeprefix("otlp").removeprefix("+")
    grpc = protocol.startswith("grpc") or (not protocol and address.port == GRPC_PORT)
    tls = protocol.endswith("s")
    host = address.host or "localhost"
    shown = f"[{host}]" if ":" in host else host
    port = address.port or (GRPC_PORT if grpc else HTTP_PORT)
    endpoint = f"{'https' if tls else 'http'}://{shown}:{port}"
    if not grpc:
        endpoint += f"/{address.path or path}"
    headers = {}
    if address.user is not None:
        login = b64encode(f"{address.user}:{address.password or ''}".encode()).decode()
        headers["authorization"] = f"Basic {login}"
        remember_secret(login)
    return Collector(grpc, endpoint, tls, headers)


def resource() -> Resource:
    """Who sends; ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME`` may say more."""
    try:
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        raise MissingExtra("OpenTelemetry", "metrics-otel") from error
    import os

    from ematix_flow import __version__

    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "ematix-flow"}
    return Resource.create({**named, "service.version": __version__})


def telling(exporter: type[Exporter], what: str, where: Collector) -> type[Exporter]:
    """The same exporter, which says in one line of ours when it could not export."""

    class Telling(exporter):  # type: ignore[misc, valid-type] # one of several with one method
        def export(self, *given: Any, **options: Any) -> Any:
            result = super().export(*given, **options)
            if result.name != "SUCCESS":
                logger.warning("%s did not get through to %s", what, where.endpoint)
            return result

    return Telling


def end_within(timeout: float, end: Callable[[], object], what: str) -> None:
    """Call ``end`` and wait so many seconds for it; a collector that hangs is left behind."""

    def attempt() -> None:
        try:
            end()
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises, the run is over
            logger.warning("%s: %s", what, error)

    thread = threading.Thread(target=attempt, name=f"ematix-end {what}", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # A process that is ending makes no new threads; the exporter has a time-out of its own.
        attempt()
        return
    thread.join(timeout)
    if thread.is_alive():
        logger.warning("%s were still under way at the end", what)
