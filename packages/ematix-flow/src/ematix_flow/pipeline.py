"""The object that ``@ematix.pipeline`` puts in place of a function: run it, ask about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ematix_flow.model import PipelineSpec

if TYPE_CHECKING:
    from ematix_flow.run.preview import Preview
    from ematix_flow.run.result import RunResult
    from ematix_flow.run.validate import Validation


class Pipeline:
    """A declared pipeline. Calling it runs it, like ``.sync()``."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.spec = spec
        self.__wrapped__ = spec.function
        self.__doc__ = spec.doc
        self.__name__ = spec.name

    @property
    def name(self) -> str:
        """The name it is registered under."""
        return self.spec.name

    def sync(self, *, parameters: Mapping[str, str] | None = None, **overrides: Any) -> RunResult:
        """Run it now. ``overrides`` are load options such as ``keys=`` or ``mode=``."""
        from ematix_flow.run.batch import run_pipeline
        from ematix_flow.run.overrides import with_overrides

        return run_pipeline(
            with_overrides(self.spec, overrides), trigger="python", parameters=parameters
        )

    def __call__(self, **overrides: Any) -> RunResult:
        """Run it now, like ``.sync()``."""
        return self.sync(**overrides)

    def preview(self, **overrides: Any) -> Preview:
        """What a run would do, without reading a row or writing anything."""
        from ematix_flow.run.overrides import with_overrides
        from ematix_flow.run.preview import preview_pipeline

        return preview_pipeline(with_overrides(self.spec, overrides))

    def dry_run(self, **overrides: Any) -> RunResult:
        """Read, transform and stage, count what would change, and put everything back."""
        from ematix_flow.run.batch import run_pipeline
        from ematix_flow.run.overrides import with_overrides

        return run_pipeline(with_overrides(self.spec, overrides), trigger="python", dry_run=True)

    def validate(self) -> Validation:
        """Check connections, source columns and target without starting Spark."""
        from ematix_flow.run.validate import validate_pipeline

        return validate_pipeline(self.spec)

    def __repr__(self) -> str:
        tables = ", ".join(str(t.table.name) for t in self.spec.targets)
        return f"<Pipeline {self.name} → {tables}>"
