"""``validate``: declarations, connections, source columns, target drift; no Spark, no rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NoReturn

from ematix_flow.declaring import function_shape
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


class _NeedsSpark(Exception):
    """The pipeline's function asks for Spark, which validation does not start."""


def _no_engine() -> NoReturn:
    raise _NeedsSpark


def validate_pipeline(spec: PipelineSpec) -> Validation:
    """Check everything that can be checked without Spark."""
    if "spark" in function_shape(spec.function).wants:
        return Validation(
            spec.name,
            True,
            notes=("its function asks for Spark; its columns are checked by a run",),
        )
    engine: Any = _no_engine
    try:
        with planned(spec, RunInfo(id="validate"), engine=engine) as plan:
            return Validation(spec.name, True, notes=plan.notes)
    except EmatixError as error:
        return Validation(spec.name, False, errors=(str(error),))
