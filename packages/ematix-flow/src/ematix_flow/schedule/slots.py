"""One claimed slot: run to its end, and what became of it noted in its turn."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ematix_flow.errors import Cancelled, EmatixError, Fenced, RunLogUnavailable, Undecided
from ematix_flow.model import PipelineSpec
from ematix_flow.observe.observer import Observer
from ematix_flow.run.log import RunLog
from ematix_flow.run.records import utc_now
from ematix_flow.run.result import RunResult
from ematix_flow.run.turns import CLAIMED, GAVE_UP, Key, Turn
from ematix_flow.schedule.agenda import (
    Fire,
    after_failure,
    after_loss,
    after_silence,
    after_success,
)
from ematix_flow.schedule.claims import Claims
from ematix_flow.schedule.events import Event, FailedEvent, FiredEvent, SkippedEvent

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assignment:
    """One slot to be run: by whom does not matter here."""

    spec: PipelineSpec
    slot: datetime
    attempt: int
    run_id: str
    log: RunLog
    trigger: str
    observer: Observer | None = None


class Worker(Protocol):
    """Who runs slots, and knows what became of runs."""

    def run(self, work: Assignment) -> RunResult | None:
        """Run a slot; an ``EmatixError`` if that fails."""

    def resume(self, work: Assignment) -> RunResult | None:
        """Do what an earlier run has left after its commits; None if it must be run anew."""

    def settle(self, log: RunLog, spec: PipelineSpec, run_id: str) -> bool:
        """Whether a run that nobody hears of any more has committed; if not, it never will."""


class Here:
    """Runs slots in this process. Deciding needs neither the engine nor a backend."""

    def run(self, work: Assignment) -> RunResult | None:
        """Run a slot."""
        from ematix_flow.run.batch import run_pipeline

        return run_pipeline(
            work.spec,
            trigger=work.trigger,
            run_log=work.log,
            slot=work.slot,
            attempt=work.attempt,
            run_id=work.run_id,
            observer=work.observer,
        )

    def resume(self, work: Assignment) -> RunResult | None:
        """Do what an earlier run has left."""
        from ematix_flow.run.resuming import resume_run

        return resume_run(work.spec, work.run_id, run_log=work.log, trigger=work.trigger)

    def settle(self, log: RunLog, spec: PipelineSpec, run_id: str) -> bool:
        """Ask the targets."""
        from ematix_flow.run.journal import settle_run

        return settle_run(log, spec, run_id)


@dataclass(frozen=True)
class Ended:
    """How the run of a slot ended; ``turn`` is None where somebody else has taken it over."""

    status: str
    event: Event
    turn: Turn | None


@dataclass(frozen=True)
class ClaimedSlot:
    """A slot that this process has claimed, and what it is to be run with."""

    key: Key
    fire: Fire
    work: Assignment
    claims: Claims
    worker: Worker
    now: datetime
    clock: Callable[[], datetime]

    def run(self) -> Ended:
        """Run it to its end, whatever that is, and note it."""
        spec = self.work.spec
        try:
            if self.fire.lost:
                settled = self._settled()
                if settled is not None:
                    return settled
            result = self._carried_out()
        except (Cancelled, KeyboardInterrupt) as error:
            # It may have been stopped after its commit.
            return self._failed("cancelled", error, after_silence)
        except Undecided as error:
            # It may have committed: whoever comes next has to ask the target before all else.
            return self._failed("unknown", error, lambda turn: turn.ended(CLAIMED))
        except RunLogUnavailable as error:
            # It says nothing of the pipeline: the slot is still to be done.
            return self._failed("unknown", error, after_silence)
        except Exception as error:  # noqa: BLE001 - one pipeline's surprise must not stop the others
            after = functools.partial(
                after_failure, spec.retry, now=self.now, ended=self.clock(), error=error
            )
            return self._failed("failed", error, after)
        return self._succeeded(result)

    def _carried_out(self) -> RunResult | None:
        """The rest of an earlier run, where that is all there is to do; else a run anew."""
        previous, spec = self.fire.previous, self.work.spec
        if previous is not None:
            # Also a run that failed may have done so after its commit.
            failed_late = not self.fire.lost and self.worker.settle(self.work.log, spec, previous)
            if failed_late and not spec.transforms_post:
                logger.warning("%s: run %s had committed; its slot is done", spec.name, previous)
                return None
            rest = self.worker.resume(dataclasses.replace(self.work, run_id=previous))
            if rest is not None:
                return rest
            if not self.claims.name_run(self.key, self.work.run_id):
                raise Fenced(f"the slot of {self.key.pipeline!r} was taken over")
        return self.worker.run(self.work)

    def _settled(self) -> Ended | None:
        """What is known of a slot whose last run nobody hears of; None if it is to be run."""
        spec, lost, attempt = self.work.spec, self.fire.previous or "", self.fire.attempt
        try:
            committed = self.worker.settle(self.work.log, spec, lost)
        except EmatixError as error:
            reason = f"what became of its run {lost} is not known: {error}"
            event = SkippedEvent(spec.name, reason, self.fire.slot, loud=True)
            return Ended("unknown", event, self.claims.give_back(self.key, after_silence))
        if committed and not spec.transforms_post:
            logger.warning("%s: run %s had committed; its slot is done", spec.name, lost)
            return self._succeeded(None)
        if committed or after_loss(spec.retry, Turn(attempt=attempt - 1)) is None:
            return None
        lost_runs = EmatixError(
            f"{attempt - 1} runs of {spec.name!r} for this slot were lost",
            fix="see what ends their processes: flow runs list",
        )
        self._alert(lost_runs)
        return self._failed("failed", lost_runs, lambda turn: turn.ended(GAVE_UP))

    def _alert(self, error: EmatixError) -> None:
        """Tell of a pipeline that gives up without a run that could."""
        if self.work.observer is None:
            return
        from ematix_flow.observe.events import AlertEvent

        self.work.observer.alert(
            AlertEvent(
                kind="gave_up",
                pipeline=self.key.pipeline,
                timestamp=utc_now(),
                error_message=str(error),
                error_type=type(error).__name__,
                attempt_count=self.fire.attempt - 1,
                gave_up=True,
            )
        )

    def _succeeded(self, result: RunResult | None) -> Ended:
        turn = self.claims.give_back(self.key, after_success)
        event = FiredEvent(self.key.pipeline, result, self.fire.slot, self.fire.attempt)
        return Ended("succeeded", event, turn)

    def _failed(self, status: str, error: BaseException, after: Callable[[Turn], Turn]) -> Ended:
        turn = self.claims.give_back(self.key, after)
        event = FailedEvent(
            self.key.pipeline,
            str(error) or "cancelled on request",
            type(error).__name__,
            self.fire.attempt,
            gave_up=turn is not None and turn.state == GAVE_UP,
            slot=self.fire.slot,
            retry_at=turn.retry_at if turn is not None else None,
        )
        return Ended(status, event, turn)
