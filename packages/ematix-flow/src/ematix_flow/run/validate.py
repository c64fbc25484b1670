"""``validate``: declarations, connections, source columns, target drift; no Spark, no rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ematix_flow.engine.session import EngineBarred, without_engine
from ematix_flow.errors import EmatixError
from ematix_flow.model import PipelineSpec
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
    try:
        with without_engine(), planned(spec, RunInfo(id="validate")) as plan:
            return Validation(spec.name, True, notes=plan.notes)
    except EngineBarred:
        note = "its columns are known to Spark only; they are checked when it runs"
        return Validation(spec.name, True, notes=(note,))
    except EmatixError as error:
        return Validation(spec.name, False, errors=(str(error),))
