"""Every query of the Grafana dashboard, run against a Prometheus that has scraped real runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import Pipeline
from ematix_flow.config import ObserveSettings
from ematix_flow.errors import EmatixError
from ematix_flow.observe.measures import METRICS
from ematix_flow.observe.metrics_prometheus import ServedMetrics
from ematix_flow.observe.observer import RunObserver, open_observer
from ematix_flow.run.batch import run_pipeline

from .ends import wait_for

if TYPE_CHECKING:
    from services.prometheus import PrometheusServer

ROOT = Path(__file__).resolve().parents[4]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/pipelines.json").read_text())
QUERIES = {
    f"{panel['title']} {target['refId']}": str(target["expr"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
VARIABLES = {"$pipeline": ".*", "$__rate_interval": "1m", "$__range": "1m"}


def asked(expression: str, instance: str) -> str:
    """As Grafana would ask, of this test's runs alone."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression.replace('name=~".*"', f'name=~".*",instance="{instance}"')


@pytest.fixture
def observed(prometheus: PrometheusServer) -> Iterator[tuple[RunObserver, str]]:
    observer = open_observer(ObserveSettings(metrics="prometheus://127.0.0.1:0"))
    assert isinstance(observer, RunObserver)
    assert isinstance(observer.metrics, ServedMetrics)
    target = f"127.0.0.1:{observer.metrics.port}"
    yield observer, target
    prometheus.forget(target)
    observer.close(5)


def test_every_query_has_an_answer(
    prometheus: PrometheusServer,
    observed: tuple[RunObserver, str],
    pipelines: Mapping[str, Pipeline],
) -> None:
    observer, target = observed

    def run(name: str) -> None:
        run_pipeline(pipelines[name].spec, trigger="python", observer=observer)

    run("load_numbers")
    with pytest.raises(EmatixError, match="missing"):
        run("load_more")
    prometheus.scrape(target)
    before = f'sum(pipeline_runs_total{{instance="{target}"}}) == 2'
    wait_for(lambda: prometheus.query(before))
    run("load_numbers")
    with pytest.raises(EmatixError, match="missing"):
        run("load_more")
    after = f'sum(pipeline_runs_total{{instance="{target}"}}) == 4'
    wait_for(lambda: prometheus.query(after))
    found = {title: prometheus.query(asked(expr, target)) for title, expr in QUERIES.items()}
    assert [title for title, series in found.items() if not series] == []

    def number(title: str, **labels: str) -> float:
        (series,) = [s for s in found[title] if labels.items() <= s["metric"].items()]
        return float(series["value"][1])

    assert number("Failing now A") == 1
    assert number("Pipelines A") == 2
    assert 0 <= number("Longest time since a success A") < 60
    assert number("Share of runs that failed A", name="load_more") == 1
    assert 0 < number("Mean duration A", name="load_numbers") < 60
    assert number("Rows by what became of them A", verb="unchanged") > 0
    assert number("Attempt of the last run A", name="load_more") == 1


def test_it_asks_only_for_what_there_is_and_for_all_of_it() -> None:
    named = set(re.findall(r"pipeline_[a-z_]+", " ".join(QUERIES.values())))
    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
    assert bare == set(METRICS)
    (pipeline,) = [v for v in DASHBOARD["templating"]["list"] if v["name"] == "pipeline"]
    assert pipeline["definition"] == "label_values(pipeline_runs_total, name)"
