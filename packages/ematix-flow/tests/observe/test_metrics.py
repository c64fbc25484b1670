"""What is counted, and where it goes; Prometheus, its gateway and a collector are real."""

from __future__ import annotations

import logging
import multiprocessing
import sys
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ematix_flow.errors import EmatixError, MissingExtra
from ematix_flow.observe.measures import BUCKETS, DURATION, FAILING, ROWS, RUNS, Distribution
from ematix_flow.observe.metrics import MemoryMetrics, MetricsSink, open_metrics
from ematix_flow.observe.metrics_prometheus import ServedMetrics

from .ends import OtlpEnd, free_port, otlp_grpc_end, otlp_http_end

if TYPE_CHECKING:
    from services.prometheus import PrometheusServer
    from services.pushgateway import PushGateway


def count(sink: MetricsSink, name: str = "load", *, seconds: float = 2.0) -> None:
    """Two runs, of which the second failed."""
    for outcome in ("succeeded", "failed"):
        sink.set_attempt(name, 1)
        sink.inc_runs(name, outcome)
        sink.observe_duration(name, seconds)
        sink.add_rows(name, "inserted", 5)
        sink.add_bytes(name, 100)
        sink.set_end(name, 1_000.0, outcome)
        sink.flush()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


EXPECTED = {
    ("pipeline_runs_total", (("name", "load"), ("outcome", "succeeded"))): 1,
    ("pipeline_runs_total", (("name", "load"), ("outcome", "failed"))): 1,
    ("pipeline_duration_seconds_count", (("name", "load"),)): 2,
    ("pipeline_duration_seconds_sum", (("name", "load"),)): 4,
    ("pipeline_duration_seconds_bucket", (("le", "1.0"), ("name", "load"))): 0,
    ("pipeline_duration_seconds_bucket", (("le", "5.0"), ("name", "load"))): 2,
    ("pipeline_retry_attempt", (("name", "load"),)): 1,
    ("pipeline_rows_total", (("name", "load"), ("verb", "inserted"))): 10,
    ("pipeline_bytes_total", (("name", "load"),)): 200,
    ("pipeline_last_success_timestamp_seconds", (("name", "load"),)): 1000,
    ("pipeline_failing", (("name", "load"),)): 1,
}


def test_memory_can_be_read() -> None:
    sink = open_metrics("memory://")
    assert isinstance(sink, MemoryMetrics)
    count(sink)
    assert sink.measures.value(RUNS, "load", "failed") == 1
    assert sink.measures.value(ROWS, "load", "inserted") == 10
    assert sink.measures.value(ROWS, "other", "inserted") == 0
    sink.close(1)


def test_a_cancelled_run_says_nothing_about_failing() -> None:
    sink = open_metrics("memory://")
    assert isinstance(sink, MemoryMetrics)
    for outcome, failing in (("failed", 1), ("cancelled", 1), ("succeeded", 0), ("cancelled", 0)):
        sink.set_end("load", 1.0, outcome)
        assert sink.measures.value(FAILING, "load") == failing


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("prometheus://127.0.0.1:0", "prometheus_client", "metrics-prometheus"),
        ("prometheus+push://127.0.0.1", "prometheus_client", "metrics-prometheus"),
        ("prometheus+file://x.prom", "prometheus_client", "metrics-prometheus"),
        ("otlp://", "opentelemetry.sdk.resources", "metrics-otel"),
    ],
)
def test_a_package_that_is_not_there_is_named(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as caught:
        open_metrics(url)
    assert f"ematix-flow[{extra}]" in str(caught.value)


def test_stdout_prints_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("null://", "stdout://"):
        sink = open_metrics(url)
        count(sink)
        assert capsys.readouterr().out == ""
        sink.close(1)
    printed = capsys.readouterr().out.splitlines()
    assert 'pipeline_runs_total{name="load", outcome="failed"} 1' in printed
    assert 'pipeline_duration_seconds{name="load"} 4.000 in 2' in printed


@pytest.mark.parametrize("value", [0.0, 0.1, 0.100001, 60, 21_600, 1e9])
def test_a_value_falls_into_the_bucket_of_its_bound(value: float) -> None:
    held = Distribution()
    held.observe(value)
    for bound, number in held.cumulative():
        assert number == (1 if value <= float(bound) else 0)
    assert len(held.counts) == len(BUCKETS) + 1


def test_prometheus_scrapes_what_was_counted(prometheus: PrometheusServer) -> None:
    sink = open_metrics("prometheus://127.0.0.1:0")
    assert isinstance(sink, ServedMetrics)
    target = f"127.0.0.1:{sink.port}"
    try:
        count(sink, "scraped")
        prometheus.scrape(target)
        for (name, labels), value in EXPECTED.items():
            matching = ",".join(f'{k}="{"scraped" if k == "name" else v}"' for k, v in labels)
            (series,) = prometheus.query(f'{name}{{{matching},instance="{target}"}}')
            assert float(series["value"][1]) == value, name
    finally:
        prometheus.forget(target)
        sink.close(5)


def test_a_port_that_is_taken_is_no_reason_not_to_run(caplog: pytest.LogCaptureFixture) -> None:
    first = open_metrics("prometheus://127.0.0.1:0")
    assert isinstance(first, ServedMetrics)
    second = open_metrics(f"prometheus://127.0.0.1:{first.port}")
    assert "going on without them" in caplog.text
    count(second)
    for sink in (second, first):
        sink.close(5)


def test_the_gateway_keeps_what_processes_left(pushgateway: PushGateway) -> None:
    for name in ("load", "other"):
        sink = open_metrics(f"prometheus+push://127.0.0.1:{pushgateway.port}?job=tests")
        count(sink, name)
        sink.close(10)
    held = samples(pushgateway.metrics())
    for (metric, labels), value in EXPECTED.items():
        for name in ("load", "other"):
            of = {**dict(labels), "name": name, "pipeline": name, "job": "tests", "instance": ""}
            if "le" in of:
                of["le"] = f"{float(of['le']):g}"  # as the gateway writes numbers
            assert held[metric, tuple(sorted(of.items()))] == value


def test_a_gateway_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    sink = open_metrics(f"prometheus+push://127.0.0.1:{free_port()}")
    count(sink)
    sink.close(10)
    assert "metrics could not be pushed" in caplog.text


def write_to(path: str) -> None:
    sink = open_metrics(f"prometheus+file://{path}")
    for _ in range(10):
        count(sink)
    sink.close(1)


def test_a_file_goes_on_counting_whoever_writes(tmp_path: Path) -> None:
    path = tmp_path / "flow.prom"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_to, args=(str(path),)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    held = samples(path.read_text())
    for (name, labels), value in EXPECTED.items():
        grows = name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert held[name, labels] == (30 * value if grows else value), name
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


def test_a_file_of_something_else_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "flow.prom"
    path.write_text("not { metrics")
    write_to(str(path))
    assert "counting starts anew" in caplog.text
    assert samples(path.read_text())[RUNS, (("name", "load"), ("outcome", "failed"))] == 10


def check(end: OtlpEnd) -> None:
    points = end.points()
    held: dict[str, dict[str, Any]] = {}
    for name, found in points.items():
        for point in found:
            labels = {a.key: a.value.string_value for a in point.attributes}
            held.setdefault(name, {})[labels.get("outcome") or labels.get("verb") or ""] = point
            assert labels["name"] == "load"
    assert held[RUNS]["failed"].as_int == 1
    assert held[ROWS]["inserted"].as_int == 10
    duration = held[DURATION][""]
    assert (duration.count, duration.sum) == (2, 4.0)
    assert list(duration.explicit_bounds) == list(BUCKETS)
    assert held["pipeline_last_success_timestamp_seconds"][""].as_double == 1000
    (resource,) = end.metrics[-1].resource_metrics
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert attributes["service.name"] == "ematix-flow"


@pytest.mark.parametrize("scheme", ["otlp", "otlp+http"])
def test_a_collector_by_http(scheme: str) -> None:
    with otlp_http_end() as end:
        sink = open_metrics(f"{scheme}://127.0.0.1:{end.port}")
        count(sink)
        sink.close(10)
        check(end)


def test_a_collector_by_grpc() -> None:
    with otlp_grpc_end() as end:
        sink = open_metrics(f"otlp+grpc://127.0.0.1:{end.port}")
        count(sink)
        sink.close(10)
        check(end)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_collector_that_asks_for_a_login(protocol: str) -> None:
    with otlp_http_end() if protocol == "http" else otlp_grpc_end() as end:
        sink = open_metrics(f"otlp+{protocol}://me:p%40ss@127.0.0.1:{end.port}")
        count(sink)
        sink.close(10)
        assert set(end.logins) == {"Basic " + b64encode(b"me:p@ss").decode()}


@pytest.mark.parametrize("scheme", ["otlp+http", "otlp+grpc"])
def test_a_collector_that_is_gone_is_not_waited_for_long(scheme: str) -> None:
    import time

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    sink = open_metrics(f"{scheme}://127.0.0.1:{free_port()}")
    count(sink)
    began = time.monotonic()
    sink.close(1)
    assert time.monotonic() - began < 3
    logging.getLogger("opentelemetry").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("promtheus://:9100", "there is no metrics promtheus://; did you mean 'prometheus'?"),
        ("prometheus://:9100?job=x", "metrics prometheus:// has no option 'job'"),
        ("prometheus://:port", "the port of metrics prometheus:// is no port"),
        ("prometheus+push://", "names no host"),
        ("prometheus+push://host?jb=x", "no option 'jb'; did you mean 'job'?"),
        ("prometheus+file:///tmp/x.txt", "needs the path of a file that ends in .prom"),
        ("otlp://host?x=1", "metrics otlp:// has no option 'x'"),
        ("memory", "metrics needs a URL"),
        ("prometheus://me:pw@host", "metrics prometheus:// takes no user and no password"),
        ("memory://here", "metrics memory:// takes nothing after it"),
        ("prometheus://:9100/metrics", "metrics prometheus:// takes no path"),
    ],
)
def test_a_url_that_is_not_written_well(url: str, says: str) -> None:
    with pytest.raises(EmatixError) as caught:
        open_metrics(url)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2
