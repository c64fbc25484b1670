"""``validate``: declarations, connections, source columns, target drift; no Spark, no rows."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.loading import load_backend
from ematix_flow.config import resolve_connection
from ematix_flow.engine.session import EngineBarred, without_engine
from ematix_flow.errors import EmatixError
from ematix_flow.model import PipelineSpec
from ematix_flow.registry import active_registry
from ematix_flow.run.function import RunInfo
from ematix_flow.run.plan import planned


@dataclass(frozen=True)
class Validation:
    """Whether a pipeline could run, and what stands in its way."""

    pipeline: str
    ok: bool
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dataclasses.asdict(self)


def validate_pipeline(spec: PipelineSpec) -> Validation:
    """Check everything that can be checked without Spark."""
    failures: dict[str, EmatixError] = {}
    notes: dict[str, None] = {}
    run = RunInfo(id="validate")
    try:
        with without_engine(), planned(spec, run, asking=True, failures=failures) as plans:
            notes |= dict.fromkeys(note for plan in plans for note in plan.notes)
    except EmatixError as error:
        failures = {"": error}
    errors: list[str] = []
    for label, failure in failures.items():
        if isinstance(failure, EngineBarred):
            notes["its columns are known to Spark only; they are checked when it runs"] = None
        else:
            several = len(spec.targets) > 1 and label
            errors.append(f"{label}: {failure}" if several else str(failure))
    upstream = _not_made_yet(spec) if errors else None
    if upstream is not None:
        note = f"its source is made by {upstream}, which has not run yet"
        return Validation(spec.name, True, notes=(note,))
    return Validation(spec.name, not errors, errors=tuple(errors), notes=tuple(notes))


def _not_made_yet(spec: PipelineSpec) -> str | None:
    """A pipeline that this one depends on and whose target is not there yet."""
    declared = active_registry().pipelines
    for upstream in (declared[name].spec for name in spec.depends_on if name in declared):
        for target in upstream.targets:
            if target.connection != spec.source:
                continue
            with contextlib.suppress(EmatixError):
                sink = load_backend(resolve_connection(target.connection).connection)
                if sink.inspect(target.table.name, target.prefix) is None:
                    return upstream.name
    return None
