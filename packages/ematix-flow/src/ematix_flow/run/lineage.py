"""Lineage of runs and of projects: what a run has done, and what declarations alone can tell."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from ematix_flow.config import origin_of
from ematix_flow.engine.session import current_engine
from ematix_flow.errors import EmatixError, RunError
from ematix_flow.lineage.declarations import declared_columns
from ematix_flow.lineage.edges import Lineage
from ematix_flow.lineage.names import Names
from ematix_flow.lineage.pipelines import PipelineTracer
from ematix_flow.model import PipelineSpec
from ematix_flow.registry import active_registry
from ematix_flow.run.function import RunInfo, call_function
from ematix_flow.transforms import RowTransform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.run.log import RunLog
    from ematix_flow.run.plan import Plan

logger = logging.getLogger(__name__)
METRIC = "lineage"
# More than this would make the run log a store of lineage; a project's declarations still tell it.
_LARGEST = 200_000
_SEARCHED_RUNS = 20
_UNSEEN = "is not told by Spark Connect"
_ONLY_A_RUN = "its function must be run to know what it reads, and no run of it has been recorded"


def run_lineage(plan: Plan, rows: DataFrame | None) -> Lineage | None:
    """How the columns of a target came about in this run; ``rows`` are those Spark has staged.

    None where it cannot be told: that never stops a run.
    """
    try:
        return _of_run(plan, rows)
    except Exception as error:  # noqa: BLE001 - the rows are there; their lineage is an extra
        logger.info("the lineage of %s is not known: %s", plan.label, error)
        return None


def _of_run(plan: Plan, rows: DataFrame | None) -> Lineage:
    names, spec = Names(), plan.spec
    declared = (p.spec for p in active_registry().pipelines.values())
    tracer = PipelineTracer(spec, names, declared_columns(declared, names))
    reading = plan.reading
    query = (reading.whole or reading.query) if spec.source_table is None else None
    sql = None if query is None else query.sql
    engine = current_engine()
    called = any(not isinstance(entry, RowTransform) for entry in spec.transforms_pre)
    if rows is not None and engine is not None and (called or reading.frame is not None):
        told = engine.analysed_plan(rows)
        if told is not None:
            return tracer.landed_as_staged(plan.target, tracer.staged(told, sql))
    if reading.frame is not None:
        traced = tracer.unknown(f"what its DataFrame is made of {_UNSEEN}")
    else:
        traced = tracer.source(sql)
    return tracer.landed(plan.target, traced, unseen=_UNSEEN)


def kept_lineage(lineage: Lineage | None) -> dict[str, Any]:
    """What the run log keeps of it, beside the other metrics of a run."""
    if lineage is None:
        return {}
    held = lineage.to_dict()
    return {METRIC: held} if len(json.dumps(held)) <= _LARGEST else {}


def project_lineage(
    specs: Iterable[PipelineSpec], *, names: Names, run_log: RunLog | None = None
) -> list[Lineage]:
    """What the declarations tell, and what runs have kept of the rest."""
    listed = list(specs)
    declared = declared_columns(listed, names)
    return [
        lineage
        for spec in listed
        for lineage in _of_declaration(PipelineTracer(spec, names, declared), run_log)
    ]


def _of_declaration(tracer: PipelineTracer, run_log: RunLog | None) -> list[Lineage]:
    spec = tracer.spec
    called = any(not isinstance(entry, RowTransform) for entry in spec.transforms_pre)
    reason = _ONLY_A_RUN
    traced = None
    try:
        asked = None if spec.source_table else _asked(spec)
        if asked is None or isinstance(asked, str):
            traced = tracer.source(asked)
    except EmatixError as error:
        if not isinstance(error, _NotNow) and not isinstance(error.__cause__, _NotNow):
            reason = f"its function cannot be asked: {error.what}"
    kept = _kept(spec, run_log) if traced is None or called else {}
    if traced is None:
        traced = tracer.unknown(reason)
    return [
        dataclasses.replace(kept[label], target=tracer.target(target))
        if label in kept
        else dataclasses.replace(tracer.landed(target, traced), origin="declaration")
        for target, label in zip(spec.targets, spec.target_labels, strict=True)
    ]


def _kept(spec: PipelineSpec, run_log: RunLog | None) -> dict[str, Lineage]:
    """What the latest runs of this file's pipeline have kept, by target."""
    found: dict[str, Lineage] = {}
    if run_log is None:
        return found
    origin = origin_of(spec.location.file)
    for record in run_log.list(pipeline=spec.name, status="succeeded", limit=_SEARCHED_RUNS):
        held = record.metrics.get(METRIC)
        if held and record.declared_in == origin and record.target not in found:
            lineage = Lineage.from_dict(held, pipeline=spec.name, run_id=record.run_id)
            if lineage is not None:
                found[record.target] = lineage
    return found


class _NotNow(RunError):
    """What a pipeline's function wants to use is there in a run only."""


class _Absent:
    """Stands for a connection or a session; using it ends the question."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _NotNow("its function uses what is there in a run only")


def _asked(spec: PipelineSpec) -> Any:
    """What the function gives without a connection, which most functions do not use."""
    givers = {
        "source": _Absent,
        "target": _Absent,
        "spark": _Absent,
        "run": lambda: RunInfo(id=METRIC),
    }
    return call_function(spec, givers)
