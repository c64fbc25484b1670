"""The objects that the decorators put in place of a function: run them, ask about them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import DeclarationError, SourceLocation
from ematix_flow.model import PipelineSpec

if TYPE_CHECKING:
    from ematix_flow.run.log import RunLog
    from ematix_flow.run.preview import Preview
    from ematix_flow.run.result import RunResult, StepResult
    from ematix_flow.run.validate import Validation
    from ematix_flow.schedule.events import RunDueResult


def run_due_with_dag_detailed(
    due: Iterable[str | Pipeline] | None = None,
    *,
    now: datetime | None = None,
    run_log: str | RunLog | None = None,
    max_parallel: int = 1,
) -> RunDueResult:
    """Run what is due of the pipelines that are declared in this process, or of some of them.

    Each runs after those it depends on, and each slot once, however often and from however many
    machines this is called, as long as they share a run log.
    """
    from ematix_flow.config import limits
    from ematix_flow.registry import active_registry
    from ematix_flow.run.log import open_memory_of_slots
    from ematix_flow.schedule.due import How, run_due

    registry = active_registry()
    only = None if due is None else [p if isinstance(p, str) else p.name for p in due]
    for name in only or ():
        registry.pipeline(name)
    specs = [pipeline.spec for pipeline in registry.pipelines.values()]
    if now is not None and now.tzinfo is None:
        raise DeclarationError(
            f"now={now.isoformat()} has no time zone", fix="write for example tzinfo=timezone.utc"
        )
    if isinstance(max_parallel, bool) or not isinstance(max_parallel, int) or max_parallel < 1:
        raise DeclarationError(
            f"max_parallel must be a whole number from 1 upwards, not {max_parallel!r}",
            fix="write 1 to run one after the other",
        )
    how = How(max_parallel=max_parallel, limits=limits(), only=only)
    if run_log is not None and not isinstance(run_log, str):
        return run_due(specs, run_log, now=now, how=how)
    with contextlib.closing(open_memory_of_slots(run_log)) as log:
        return run_due(specs, log, now=now, how=how)


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

    def sync(
        self,
        *,
        parameters: Mapping[str, str] | None = None,
        all_targets: bool | None = None,
        **overrides: Any,
    ) -> RunResult:
        """Run it now. ``overrides`` are load options such as ``keys=`` or ``mode=``.

        After a run that loaded only some of several targets, those it loaded are left alone if
        their rows are still the same; ``all_targets`` decides whether they are loaded anyway.
        """
        from ematix_flow.run.batch import run_pipeline
        from ematix_flow.run.overrides import with_overrides

        return run_pipeline(
            with_overrides(self.spec, overrides),
            trigger="python",
            parameters=parameters,
            all_targets=all_targets,
        )

    def __call__(self, **overrides: Any) -> RunResult:
        """Run it now, like ``.sync()``."""
        return self.sync(**overrides)

    def preview(self, **overrides: Any) -> Preview:
        """What a run would do, without loading a row or writing anything."""
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


class Transform:
    """A declared transform: SQL or a function that runs on a connection, by itself or after a load.

    Calling it runs it, like ``.run()``.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        connection: str | None,
        location: SourceLocation,
    ) -> None:
        self.name = name
        self.function = function
        self.connection = connection
        self.location = location
        self.__wrapped__ = function
        self.__doc__ = inspect.getdoc(function) or ""
        self.__name__ = name

    def run(self) -> StepResult:
        """Run it now, on its own connection or the default one."""
        from ematix_flow.run.transforms import run_transform

        return run_transform(self, trigger="python")

    def __call__(self) -> StepResult:
        """Run it now, like ``.run()``."""
        return self.run()

    def __repr__(self) -> str:
        return f"<Transform {self.name}>"
