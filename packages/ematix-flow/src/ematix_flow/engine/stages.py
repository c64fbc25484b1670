"""What an in-process Spark tells of the stages of a job, and what its tasks are told of theirs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ematix_flow.engine.protocol import Engine, Job

TRACEPARENT = "traceparent"
_MOST_STAGES = 200


@dataclass(frozen=True)
class Stage:
    """A stage that has run."""

    stage_id: int
    name: str
    began: datetime
    ended: datetime
    tasks: int
    failed_tasks: int


def telling_tasks(
    engine: Engine, traceparent: str | None
) -> contextlib.AbstractContextManager[None]:
    """Give every task that this thread starts the local property ``traceparent``.

    Only an in-process Spark has such properties: elsewhere nothing happens.
    """
    if traceparent is None:
        return contextlib.nullcontext()
    from ematix_flow.engine.classic import ClassicEngine

    if not isinstance(engine, ClassicEngine):
        return contextlib.nullcontext()
    return engine.local_property(TRACEPARENT, traceparent)


def stages_of(job: Job) -> tuple[Stage, ...]:
    """The stages of a job that have run; none where the engine does not tell."""
    from ematix_flow.engine.classic import ClassicJob

    if not isinstance(job, ClassicJob):
        return ()
    found = []
    for told in job.stage_data(_MOST_STAGES):
        began, ended = _moment(told.submissionTime()), _moment(told.completionTime())
        if began is not None and ended is not None:
            found.append(
                Stage(
                    told.stageId(),
                    told.name(),
                    began,
                    ended,
                    told.numTasks(),
                    told.numFailedTasks(),
                )
            )
    return tuple(found)


def _moment(option: Any) -> datetime | None:
    if not option.isDefined():
        return None
    return datetime.fromtimestamp(option.get().getTime() / 1000, timezone.utc)
