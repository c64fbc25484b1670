"""Metrics for Prometheus: served, pushed to a gateway, or left in a file for a node exporter."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ematix_flow.errors import ConfigError, MissingExtra
from ematix_flow.observe.addresses import Address
from ematix_flow.observe.courier import Courier
from ematix_flow.observe.measures import BUCKETS, LAST_RUN, METRICS, Distribution, Measures
from ematix_flow.observe.metrics import MeasuredMetrics
from ematix_flow.redaction import redact_text

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

logger = logging.getLogger(__name__)

DEFAULT_PORT, GATEWAY_PORT = 9100, 9091
_PUSH_SECONDS = 5.0


class _Collector:
    """Shows ``Measures`` to prometheus-client, those of one pipeline or all."""

    def __init__(self, held: Measures, pipeline: str | None = None) -> None:
        self._held = held
        self._pipeline = pipeline

    def collect(self) -> Iterable[Family]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                family = HistogramMetricFamily(name, metric.help, labels=metric.labels)
                for labels, held in self._held.distributions(name).items():
                    if self._pipeline in (None, labels[0]):
                        bounds = held.cumulative()
                        family.add_metric(labels, buckets=bounds, sum_value=held.total)
                yield family
                continue
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            numbers = kind(name, metric.help, labels=metric.labels)
            for labels, number in self._held.numbers(name).items():
                if self._pipeline in (None, labels[0]):
                    numbers.add_metric(labels, number)
            yield numbers


def _registry(held: Measures, pipeline: str | None = None) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        raise MissingExtra("metrics for Prometheus", "metrics-prometheus") from error
    registry = CollectorRegistry()
    registry.register(_Collector(held, pipeline))
    return registry


class ServedMetrics(MeasuredMetrics):
    """``prometheus://[host]:port``: ``/metrics`` for as long as the process lives."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        address.check_options()
        address.check_no_path()
        address.check_no_login()
        registry = _registry(self.measures)
        self.port = DEFAULT_PORT if address.port is None else address.port
        self._server: Any = None
        self._thread: threading.Thread | None = None
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(
                self.port,
                addr=address.host or "0.0.0.0",  # noqa: S104 - who names no host means all
                registry=registry,
            )
        except OSError as error:
            # Another run may hold the port; that is no reason not to load.
            logger.warning(
                "metrics cannot be served at port %d (%s); going on without them",
                self.port,
                error.strerror or error,
            )
        else:
            self.port = self._server.server_port

    def close(self, timeout: float) -> None:
        """Serve no more."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout)
            self._server = None


class PushedMetrics(MeasuredMetrics):
    """``prometheus+push://gateway:9091``: pushed after every run, for processes that end.

    Each pipeline is a group of its own, so that pushing one leaves the others alone.
    """

    def __init__(self, address: Address) -> None:
        super().__init__()
        host = address.need_host("prometheus+push://gateway:9091")
        address.check_options("job", "tls")
        address.check_no_path()
        scheme = "https" if address.flag("tls", default=False) else "http"
        shown = f"[{host}]" if ":" in host else host
        self._gateway = f"{scheme}://{shown}:{address.port or GATEWAY_PORT}"
        self._job = address.options.get("job", "ematix_flow")
        self._login = (address.user, address.password)
        _registry(self.measures)
        self._courier: Courier[bool] = Courier("ematix-metrics push", self._push, most=1)

    def flush(self) -> None:
        """Push soon; where a push waits already, it takes these numbers along."""
        self._courier.take(True)

    def close(self, timeout: float) -> None:
        """Let the last push end."""
        if not self._courier.close(timeout):
            logger.warning("metrics were not pushed to %s in time", self._gateway)

    def _push(self, _: bool) -> None:
        from prometheus_client import pushadd_to_gateway
        from prometheus_client.exposition import basic_auth_handler, default_handler

        user, password = self._login

        def handler(
            url: str, method: str, timeout: float | None, headers: Any, data: bytes
        ) -> Callable[[], None]:
            if user is None:
                return default_handler(url, method, timeout, headers, data)
            return basic_auth_handler(url, method, timeout, headers, data, user, password)

        try:
            for (pipeline,) in self.measures.numbers(LAST_RUN):
                pushadd_to_gateway(
                    self._gateway,
                    job=self._job,
                    registry=_registry(self.measures, pipeline),
                    grouping_key={"pipeline": pipeline},
                    timeout=_PUSH_SECONDS,
                    handler=handler,
                )
        except (OSError, http.client.HTTPException) as error:
            told = redact_text(str(error) or type(error).__name__)
            logger.warning("metrics could not be pushed to %s: %s", self._gateway, told)


class FiledMetrics(MeasuredMetrics):
    """``prometheus+file:///folder/name.prom``: for the textfile collector of a node exporter.

    Counters go on from what the file holds, also where several processes write to it.
    """

    def __init__(self, address: Address) -> None:
        super().__init__()
        address.check_options()
        self.path = Path(unquote(address.rest.partition("?")[0])).expanduser()
        if self.path.suffix != ".prom":
            raise ConfigError(
                "metrics prometheus+file:// needs the path of a file that ends in .prom",
                fix="write prometheus+file:///var/lib/node_exporter/ematix_flow.prom",
            )
        _registry(self.measures)

    def flush(self) -> None:
        """Add what was counted since the last time to the file."""
        from prometheus_client import generate_latest

        fresh, self.measures = self.measures, Measures()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_suffix(".lock")):
                held = self._read()
                _add(held, fresh)
                beside = self.path.with_suffix(f".{os.getpid()}.tmp")
                beside.write_bytes(generate_latest(_registry(held)))
                # Node exporters run as somebody else.
                beside.chmod(0o644)
                beside.replace(self.path)
        except OSError as error:
            logger.warning("metrics cannot be written to %s: %s", self.path, error.strerror)

    def _read(self) -> Measures:
        from prometheus_client.parser import text_string_to_metric_families

        held = Measures()
        if not self.path.exists():
            return held
        try:
            families = list(text_string_to_metric_families(self.path.read_text(encoding="utf-8")))
        except (ValueError, UnicodeDecodeError):
            logger.warning("%s was no file of metrics; counting starts anew", self.path)
            return held
        bounds: dict[tuple[str, tuple[str, ...]], dict[str, float]] = {}
        totals: dict[tuple[str, tuple[str, ...]], float] = {}
        for sample in (s for family in families for s in family.samples):
            base = sample.name.removesuffix("_bucket").removesuffix("_sum")
            metric = METRICS.get(sample.name) or METRICS.get(base)
            if metric is None or any(name not in sample.labels for name in metric.labels):
                continue
            labels = tuple(sample.labels[name] for name in metric.labels)
            if metric.kind != "histogram":
                held.set(metric.name, labels, sample.value)
            elif sample.name.endswith("_sum"):
                totals[metric.name, labels] = sample.value
            elif sample.name.endswith("_bucket"):
                bounds.setdefault((metric.name, labels), {})[sample.labels["le"]] = sample.value
        for (name, labels), found in bounds.items():
            kept = _distribution(found, totals.get((name, labels), 0.0))
            held.put_distribution(name, labels, kept)
        return held


def _distribution(cumulative: dict[str, float], total: float) -> Distribution:
    counts, before = [], 0.0
    for bound in (*map(str, BUCKETS), "+Inf"):
        so_far = cumulative.get(bound, before)
        counts.append(so_far - before)
        before = so_far
    return Distribution(counts, total)


def _add(held: Measures, fresh: Measures) -> None:
    for name, metric in METRICS.items():
        for labels, number in fresh.numbers(name).items():
            if metric.kind == "counter":
                held.add(name, labels, number)
            else:
                held.set(name, labels, number)
        old = held.distributions(name)
        for labels, new in fresh.distributions(name).items():
            kept = old.get(labels, Distribution())
            counts = [a + b for a, b in zip(kept.counts, new.counts, strict=True)]
            held.put_distribution(name, labels, Distribution(counts, kept.total + new.total))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
