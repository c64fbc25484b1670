"""What becomes of every target of a run, told to the run log; and what earlier runs have left."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ematix_flow import config
from ematix_flow.backends.loading import load_backend
from ematix_flow.engine.session import current_engine
from ematix_flow.errors import DataError, EmatixError, RunError, TargetsFailed, Undecided
from ematix_flow.model import PipelineSpec
from ematix_flow.run.function import RunInfo
from ematix_flow.run.lineage import kept_lineage, run_lineage
from ematix_flow.run.log import RunLog
from ematix_flow.run.plan import Plan
from ematix_flow.run.records import RunRecord, effective_status, status_of, utc_now
from ematix_flow.run.result import TargetResult, joined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.change import Counts
    from ematix_flow.lineage.edges import Lineage

logger = logging.getLogger(__name__)


def opened_records(
    spec: PipelineSpec, run: RunInfo, trigger: str, *, attempt: int = 1
) -> dict[str, RunRecord]:
    """One record for each target of a run that starts now."""
    origin = config.origin_of(spec.location.file)
    return {
        label: RunRecord.opened(
            run_id=run.id,
            pipeline=spec.name,
            target=label,
            parameters=run.parameters,
            mode=target.mode,
            declared_in=origin,
            trigger=trigger,
            slot=run.slot,
            attempt=attempt,
        )
        for label, target in zip(spec.target_labels, spec.targets, strict=True)
    }


@dataclass(frozen=True)
class Loaded:
    """A target that the last run loaded before it failed: the run that did, and of what rows."""

    run_id: str
    fingerprint: str | None = None

    def to_metrics(self) -> dict[str, str | None]:
        """As the run log keeps it."""
        return {"loaded_by": self.run_id, "fingerprint": self.fingerprint}


@dataclass
class Journal:
    """What becomes of every target of a run, told to the run log as it happens.

    ``digested`` says that the rows of each target are fingerprinted, for the next run to compare.
    """

    spec: PipelineSpec
    run_log: RunLog | None = None
    records: dict[str, RunRecord] = field(default_factory=dict)
    loaded: Mapping[str, Loaded] = field(default_factory=dict)
    digested: bool = False
    results: dict[str, TargetResult] = field(default_factory=dict)
    errors: dict[str, EmatixError] = field(default_factory=dict)
    lineages: dict[str, Lineage] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)

    def open(self) -> None:
        """Record all targets as running, with what is known of those that are loaded already."""
        for label, known in self.loaded.items():
            self._amend(label, known.to_metrics())
        if self.run_log is not None:
            for record in self.records.values():
                self.run_log.begin(record)

    def expect(self, label: str, fingerprint: str | None) -> None:
        """Record which rows a target is about to get, should nobody live to tell."""
        self._amend(label, {"fingerprint": fingerprint})
        if self.run_log is not None:
            self.run_log.begin(dataclasses.replace(self.records[label], heartbeat_at=utc_now()))

    def _amend(self, label: str, metrics: Mapping[str, Any]) -> None:
        self.records[label] = dataclasses.replace(self.records[label], metrics=metrics)

    def skip(self, label: str) -> None:
        """Leave a target alone that an earlier run has loaded."""
        note = f"already loaded by run {self.loaded[label].run_id}"
        logger.info("%s: %s", label, note)
        self.results[label] = self._result(label, "skipped", note=note)
        if self.run_log is not None:
            self.run_log.finish(self.records[label].closed("succeeded"))

    def compare(self, plan: Plan, fingerprint: str | None) -> None:
        """Skip a target whose rows are still the same; others are loaded, if they may be."""
        label, known = plan.label, self.loaded[plan.label]
        if fingerprint is not None and fingerprint == known.fingerprint:
            self.skip(label)
        elif not repeatable(plan):
            happened = (
                f"whether the source still gives the rows that run {known.run_id} appended to "
                f"{label} is not known"
                if fingerprint is None or known.fingerprint is None
                else f"the source gives other rows than those that run {known.run_id} appended to "
                f"{label}, and whether they are new or the same ones corrected cannot be told"
            )
            raise DataError(
                f"pipeline {self.spec.name!r}: {happened}; nothing was written",
                fix="append them, too, with --all-targets, or leave that table as it is with "
                "--only-missing",
            )

    def succeed(
        self,
        plan: Plan,
        counts: Counts,
        size: int,
        *,
        dry_run: bool,
        staged: DataFrame | None = None,
    ) -> None:
        """A target holds its rows; ``staged`` are those that came through Spark."""
        self.plans[plan.label] = plan
        self.results[plan.label] = self._result(
            plan.label,
            "counted" if dry_run else "succeeded",
            path=plan.path,
            path_reason=plan.path_reason,
            counts=counts,
            bytes=size,
        )
        if self.run_log is None:
            return
        record = self.records[plan.label].closed(
            "succeeded",
            counts=counts,
            path=plan.path,
            bytes=size,
            engine=_engine_of(plan),
            source=_source_of(plan),
        )
        try:
            lineage = run_lineage(plan, staged)
            if lineage is not None:
                self.lineages[plan.label] = lineage
                metrics = {**record.metrics, **kept_lineage(lineage)}
                record = dataclasses.replace(record, metrics=metrics)
        finally:
            # A Ctrl-C while the lineage is worked out comes after the commit.
            self.run_log.finish(record)

    def fail(self, label: str, error: EmatixError) -> None:
        """A target is as it was before."""
        self.errors[label] = error
        self.results[label] = self._result(label, "failed", error=str(error))
        if self.run_log is not None:
            status = "lost" if isinstance(error, Undecided) else status_of(error)
            self.run_log.finish(self.records[label].closed(status, error=error))
            if len(self.records) > 1:
                logger.info("%s failed: %s", label, error)

    def close(self, error: BaseException) -> None:
        """The run has ended by an error: so have the targets that it did not come to."""
        if self.run_log is None:
            return
        known = {n for n, r in self.results.items() if r.status != "not tried"}
        for label, record in self.records.items():
            if label in known:
                continue
            status = "lost" if isinstance(error, Undecided) else status_of(error)
            if label in self.results:
                error = RunError(f"not tried, because {joined(self.errors)} failed")
            self.run_log.finish(record.closed(status, error=error))

    def failure(self) -> TargetsFailed:
        """What the run says when some of several targets failed."""
        committed = [n for n, r in self.results.items() if r.status in ("succeeded", "skipped")]
        waiting = [label for label in self.spec.target_labels if label not in self.results]
        self.results |= {label: self._result(label, "not tried") for label in waiting}
        known = f"pipeline {self.spec.name!r}: "
        told = "; ".join(
            f"{label}: {error.what.removeprefix(known)}" for label, error in self.errors.items()
        )
        failed = f"{len(self.errors)} of {len(self.spec.targets)} targets failed ({told})"
        parts = [failed, f"committed: {', '.join(committed) or 'none'}"]
        if waiting:
            parts.append(f"not tried: {', '.join(waiting)}")
        first = next(iter(self.errors.values()))
        failed_by = TargetsFailed(
            f"pipeline {self.spec.name!r}: {', '.join(parts)}",
            results=self.results,
            fix=first.fix or "correct this and run it again: only what is missing is loaded",
        )
        failed_by.transient = all(error.transient for error in self.errors.values())
        return failed_by

    def _result(self, label: str, status: str, **fields: Any) -> TargetResult:
        target = self.spec.targets[self.spec.target_labels.index(label)]
        return TargetResult(label, target.connection, target.mode, status, **fields)


def repeatable(plan: Plan) -> bool:
    """Whether rows that a target has already may come again without being doubled."""
    return plan.since is not None or plan.target.mode in ("merge", "scd1", "scd2", "truncate")


def _engine_of(plan: Plan) -> str:
    engine = current_engine()
    return "database" if plan.select is not None or engine is None else engine.kind


def _source_of(plan: Plan) -> str:
    from ematix_flow.run.provenance import source_text

    function = str(getattr(plan.spec.function, "__name__", ""))
    text = source_text(
        plan.source, query=plan.reading.query, table=plan.spec.source_table, function=function
    )
    return f"{text}\ntransform_sql: {plan.reading.transform}" if plan.reading.transform else text


def settle_lost_runs(run_log: RunLog, spec: PipelineSpec) -> None:
    """Ask the targets about runs of this pipeline that died: their word decides."""
    now, origin = utc_now(), config.origin_of(spec.location.file)
    lost = [
        r
        for r in run_log.running(spec.name)
        if effective_status(r, now) == "lost" and r.declared_in == origin
    ]
    for label, target in zip(spec.target_labels, spec.targets, strict=True):
        here = [r for r in lost if r.target == label]
        if not here:
            continue
        try:
            sink = load_backend(config.resolve_connection(target.connection).connection)
            for record in here:
                if record.step != "load":
                    gone = RunError("this run died in the step; whether it was done is not known")
                    run_log.finish(record.closed("failed", error=gone))
                    continue
                counts = sink.settle(record.run_id, spec.name, target.table.name, target.prefix)
                if counts is not None:
                    done = dataclasses.replace(record, error_class=None, error_text=None)
                    run_log.finish(done.closed("succeeded", counts=counts))
                else:
                    gone = RunError("this run died before its commit; nothing was written")
                    run_log.finish(record.closed("failed", error=gone))
        except EmatixError as error:
            # The new run meets the same trouble and reports it; the lost ones stay lost till then.
            logger.warning("lost runs of %s could not be settled: %s", spec.name, error)


def settle_run(run_log: RunLog, spec: PipelineSpec, run_id: str) -> bool:
    """Whether a run that nobody hears of any more has committed; if not, it never will.

    The targets decide, whatever the log says of it. Where one does not answer, neither is known,
    and its ``EmatixError`` says why.
    """
    records = {r.target: r for r in run_log.get(run_id) if r.step == "load"}
    committed = True
    for label, target in zip(spec.target_labels, spec.targets, strict=True):
        sink = load_backend(config.resolve_connection(target.connection).connection)
        counts = sink.settle(run_id, spec.name, target.table.name, target.prefix)
        committed = committed and counts is not None
        record = records.get(label)
        if record is None:
            continue
        if counts is not None:
            done = dataclasses.replace(record, error_class=None, error_text=None)
            run_log.finish(done.closed("succeeded", counts=counts))
        else:
            gone = RunError("this run died before its commit; nothing was written")
            run_log.finish(record.closed("failed", error=gone))
    return committed


def already_loaded(
    run_log: RunLog, spec: PipelineSpec, records: Mapping[str, RunRecord]
) -> dict[str, Loaded]:
    """The targets that the last run loaded, or found loaded, before it failed.

    The log says which they are, and each target is asked. A run with other parameters is
    another load, and does not count.
    """
    last = run_log.last(spec.name, declared_in=config.origin_of(spec.location.file))
    if last is None:
        return {}
    loads = {r.target: r for r in run_log.get(last.run_id) if r.step == "load"}
    ends = {r.status for r in loads.values()}
    if ends == {"succeeded"} or "running" in ends:
        return {}
    found = {}
    for label, target in zip(spec.target_labels, spec.targets, strict=True):
        record, now = loads.get(label), records[label]
        if record is None or (record.status != "succeeded" and "loaded_by" not in record.metrics):
            continue
        if (record.parameters, record.mode) != (now.parameters, now.mode):
            return {}
        run_id = str(record.metrics.get("loaded_by", record.run_id))
        with contextlib.suppress(EmatixError):  # the load meets the same trouble and reports it
            sink = load_backend(config.resolve_connection(target.connection).connection)
            if sink.committed(run_id, target.table.name, target.prefix) is not None:
                found[label] = Loaded(run_id, record.metrics.get("fingerprint"))
    return found
