"""Spans of runs, steps and Spark stages, as a collector gets them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import Pipeline
from ematix_flow.config import ObserveSettings
from ematix_flow.errors import EmatixError
from ematix_flow.observe.observer import open_observer
from ematix_flow.observe.traces import Traces
from ematix_flow.run.batch import run_pipeline

from .ends import OtlpEnd, otlp_grpc_end, otlp_http_end

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def run_traced(pipeline: Pipeline, url: str, **options: Any) -> EmatixError | None:
    observer = open_observer(ObserveSettings(traces=url))
    try:
        run_pipeline(pipeline.spec, trigger="python", observer=observer, **options)
    except EmatixError as error:
        return error
    finally:
        observer.close(10)
    return None


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def by_name(end: OtlpEnd) -> dict[str, Any]:
    return {span.name: span for span in end.spans}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_run_and_its_steps(
    protocol: str, pipelines: Mapping[str, Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{PARENT}-01")
    with otlp_http_end() if protocol == "http" else otlp_grpc_end() as end:
        assert (
            run_traced(pipelines["load_numbers"], f"otel+otlp+{protocol}://127.0.0.1:{end.port}")
            is None
        )
        spans = by_name(end)
    assert set(spans) == {
        "flow.pipeline.run", "flow.step.plan", "flow.step.stage", "flow.step.commit",
    }  # fmt: skip
    run = spans.pop("flow.pipeline.run")
    assert (run.trace_id.hex(), run.parent_span_id.hex()) == (TRACE, PARENT)
    told = attributes(run)
    assert (told["flow.pipeline.name"], told["flow.pipeline.attempt"]) == ("load_numbers", 1)
    assert (told["flow.run.status"], told["flow.rows.inserted"]) == ("succeeded", 5)
    for step in spans.values():
        assert step.parent_span_id == run.span_id
        assert step.trace_id == run.trace_id
        assert run.start_time_unix_nano <= step.start_time_unix_nano
        assert step.end_time_unix_nano <= run.end_time_unix_nano


def test_a_run_that_fails(pipelines: Mapping[str, Pipeline]) -> None:
    with otlp_http_end() as end:
        error = run_traced(pipelines["load_more"], f"otel+otlp+http://127.0.0.1:{end.port}")
        spans = by_name(end)
    run = spans["flow.pipeline.run"]
    assert error is not None
    assert run.status.code == 2
    assert "missing" in run.status.message
    assert attributes(run)["error.type"] == type(error).__name__
    assert run.parent_span_id == b""
    assert not run.events  # an error's trace may quote rows


SPARK = """
@ematix.table(schema="shop")
class Told:
    number: Annotated[BigInt, pk()]
    traceparent: Text


@ematix.pipeline(target=Told, target_connection="warehouse", mode="truncate")
def load_told(spark):
    def told_tasks(frames):
        from pyspark import TaskContext

        for frame in frames:
            told = TaskContext.get().getLocalProperty("traceparent") or ""
            yield frame.rename(columns={"id": "number"}).assign(traceparent=told)

    rows = spark.range(4).repartition(2)
    return rows.mapInPandas(told_tasks, "number bigint, traceparent string")
"""


@pytest.mark.usefixtures("engine")
def test_spark_stages_and_what_tasks_are_told(project: Path) -> None:
    import duckdb

    from ematix_flow.discovery import load_project

    file = project / "pipelines.py"
    file.write_text(file.read_text().replace("ematix, pk", "Text, ematix, pk") + SPARK)
    with load_project(()) as loaded, otlp_http_end() as end:
        pipeline = loaded.pipeline("load_told")
        assert run_traced(pipeline, f"otel+otlp+http://127.0.0.1:{end.port}") is None
        spans = end.spans
    (stage_step,) = [s for s in spans if s.name == "flow.step.stage"]
    stages = [s for s in spans if s.name == "flow.spark.stage"]
    assert len(stages) >= 2  # before and after the rows were spread
    for stage in stages:
        assert stage.parent_span_id == stage_step.span_id
        assert stage.start_time_unix_nano <= stage.end_time_unix_nano
        assert attributes(stage)["spark.stage.tasks"] >= 1
    with duckdb.connect(str(project / "warehouse.duckdb"), read_only=True) as connection:
        told = connection.execute("SELECT DISTINCT traceparent FROM shop.told").fetchall()
    ((traceparent,),) = told
    version, trace, parent, flags = traceparent.split("-")
    assert (version, trace, parent) == ("00", stage_step.trace_id.hex(), stage_step.span_id.hex())
    assert int(flags, 16) & 1  # it is recorded


def test_spans_on_stdout(
    pipelines: Mapping[str, Pipeline], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_traced(pipelines["load_numbers"], "otel://stdout") is None
    spans = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "flow.pipeline.run" in {span["name"] for span in spans}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "otel+otlp+htp://x",
            "there is no traces otel+otlp+htp://; did you mean 'otel+otlp+http'?",
        ),
        ("otel://stderr", "can only go to stdout"),
        ("otel+otlp+http://host?x=1", "has no option 'x'"),
    ],
)
def test_a_url_that_is_not_written_well(url: str, says: str) -> None:
    with pytest.raises(EmatixError) as caught:
        Traces(url)
    assert says in str(caught.value)
