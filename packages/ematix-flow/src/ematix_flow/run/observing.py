"""What a run tells those who observe it: its start, and how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow import config
from ematix_flow.errors import EmatixError, Undecided
from ematix_flow.model import PipelineSpec
from ematix_flow.observe.observer import SILENT, Observer, RunEnd, RunStart, Watched
from ematix_flow.run.records import RunRecord, status_of, utc_now
from ematix_flow.run.result import summed

if TYPE_CHECKING:
    from ematix_flow.run.journal import Journal
    from ematix_flow.run.log import RunLog

_TROUBLE = ("failed", "lost")


def observed_run(
    observer: Observer, spec: PipelineSpec, records: Mapping[str, RunRecord], run_log: RunLog
) -> Watched:
    """A run that begins; to be called before the log knows of it."""
    if not observer.listens:
        return SILENT
    record = next(iter(records.values()))
    before: RunRecord | None = None
    with contextlib.suppress(EmatixError):  # a log that does not answer stops no run
        before = run_log.last(spec.name, declared_in=config.origin_of(spec.location.file))
    return observer.started(
        RunStart(
            run_id=record.run_id,
            pipeline=spec.name,
            trigger=record.trigger,
            started_at=record.started_at,
            targets=tuple(records),
            host=record.host,
            attempt=record.attempt,
            max_attempts=spec.retry.max_attempts if record.slot and spec.retry else 1,
            after_failure=before is not None and before.status in _TROUBLE,
        )
    )


def run_end(journal: Journal, error: BaseException | None = None) -> RunEnd:
    """How a run ended, with the rows of those targets that hold theirs."""
    held = [r for r in journal.results.values() if r.status == "succeeded"]
    status = "succeeded"
    if error is not None:
        status = "lost" if isinstance(error, Undecided) else status_of(error)
    record = next(iter(journal.records.values()))
    return RunEnd(
        status=status,
        finished_at=utc_now(),
        rows=dataclasses.asdict(summed(r.counts for r in held)),
        bytes=sum(r.bytes for r in held),
        error=error,
        gave_up=status == "failed" and _is_last(journal.spec, record, error),
    )


def _is_last(spec: PipelineSpec, record: RunRecord, error: BaseException | None) -> bool:
    """Whether a slot is not tried again. A run without one is not tried again anyway."""
    policy = spec.retry
    if policy is None or record.slot is None or error is None:
        return False
    return record.attempt >= policy.max_attempts or not policy.covers(error)
