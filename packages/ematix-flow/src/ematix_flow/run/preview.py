"""``preview``: source, target, path and reason, DDL and steps; no row is loaded.

Nothing is written. To say how Spark would read a database, a few keys may be looked at.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.backends.splits import ReadsInParts
from ematix_flow.engine.placing import current_place
from ematix_flow.engine.session import run_session
from ematix_flow.model import PipelineSpec
from ematix_flow.run.function import RunInfo
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.plan import Plan, planned
from ematix_flow.run.row_transforms import described
from ematix_flow.run.transforms import step_text


@dataclass(frozen=True)
class Preview:
    """What a run would do; ``also`` is what it would do to its other targets."""

    pipeline: str
    schedule: str | None
    mode: str
    source_connection: str
    source_info: dict[str, Any]
    source_sql: str
    target: str
    target_connection: str
    target_info: dict[str, Any]
    path: str
    path_reason: str
    engine: str
    engine_reason: str
    columns: list[dict[str, Any]]
    ddl: list[str]
    steps: list[str]
    notes: list[str]
    transform_sql: str | None = None
    transforms_pre: list[str] = field(default_factory=list)
    transforms_post: list[str] = field(default_factory=list)
    source_read: str | None = None
    machines: list[str] = field(default_factory=list)
    also: list[Preview] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dataclasses.asdict(self)


@run_session()
def preview_pipeline(spec: PipelineSpec) -> Preview:
    """Plan the pipeline and stop there."""
    with planned(spec, RunInfo(id=new_run_id()), asking=True) as plans:
        first, *others = map(preview_of, plans)
        return dataclasses.replace(first, also=others)


def preview_of(plan: Plan) -> Preview:
    """A plan as it is shown."""
    told = {
        "same_db": f"this query: {plan.select}",
        "copy": f"what is copied from this query of {plan.source.name}: {plan.select}",
    }
    incoming = told.get(plan.path, "the rows that Spark has read, normalized and staged")
    return Preview(
        pipeline=plan.spec.name,
        schedule=plan.spec.schedule.cron if plan.spec.schedule else None,
        mode=plan.target.mode,
        source_connection=plan.source.name,
        source_info=plan.source.connection.shown() | {"kind": plan.source.kind},
        source_sql=plan.reading.query.sql if plan.reading.query else "a Spark DataFrame",
        target=plan.sink.locate(plan.target.table.name, plan.target.prefix),
        target_connection=plan.sink.name,
        target_info=plan.sink.connection.shown() | {"kind": plan.sink.kind},
        path=plan.path,
        path_reason=plan.path_reason,
        engine=plan.shown_engine,
        engine_reason=_engine_reason(plan),
        columns=[
            {
                "name": c.column.name,
                "type": str(c.column.type),
                "source_type": str(c.source_type) if c.source_type else None,
                "expression": c.normalized,
            }
            for c in plan.columns
        ],
        ddl=plan.sink.ddl(plan.load),
        steps=plan.sink.steps_sql(plan.load, incoming),
        notes=list(plan.notes),
        transform_sql=plan.reading.transform,
        transforms_pre=[described(entry) for entry in plan.spec.transforms_pre],
        transforms_post=[step_text(entry) for entry in plan.spec.transforms_post],
        source_read=_source_read(plan),
        machines=_machines(plan),
    )


def _machines(plan: Plan) -> list[str]:
    """Whom Spark runs on, where that is not this machine."""
    place = current_place()
    return place.machines if plan.shown_engine == "spark" and place is not None else []


def _source_read(plan: Plan) -> str | None:
    """How Spark would read the source, where that is a database which can tell."""
    source, query = plan.source, plan.reading.query
    if plan.path != "spark" or query is None or not isinstance(source, ReadsInParts):
        return None
    if plan.engine.is_sail:
        return "in one stream: this process copies it for Sail"
    return source.how_read(query)


def _engine_reason(plan: Plan) -> str:
    if plan.select is None:
        return plan.engine.reason
    if plan.path == "copy":
        return "one database hands its rows to the other"
    return "no row leaves the database"
