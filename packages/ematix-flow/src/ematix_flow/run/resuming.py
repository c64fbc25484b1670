"""A run that came as far as its commits: what is left of it is done later, under its own id."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ematix_flow import config
from ematix_flow.backends.loading import load_backend
from ematix_flow.change import Counts
from ematix_flow.engine.placing import placed
from ematix_flow.engine.session import run_session
from ematix_flow.model import PipelineSpec
from ematix_flow.run.batch import heartbeats
from ematix_flow.run.function import RunInfo
from ematix_flow.run.log import RunLog
from ematix_flow.run.logs import capture_run_log
from ematix_flow.run.records import RunRecord, utc_now
from ematix_flow.run.result import RunResult, TargetResult, joined
from ematix_flow.run.transforms import post_steps, run_steps


def steps_left(spec: PipelineSpec, records: Sequence[RunRecord]) -> tuple[int, ...] | None:
    """The steps after the commit that a run has not done; None if it has not loaded all targets."""
    loaded = {r.target for r in records if r.step == "load" and r.status == "succeeded"}
    if loaded != set(spec.target_labels):
        return None
    done = {r.step for r in records if r.status == "succeeded" or r.metrics.get("went_on")}
    numbers = range(1, len(spec.transforms_post) + 1)
    return tuple(n for n in numbers if f"post:{n}" not in done)


@run_session()
def resume_run(
    spec: PipelineSpec, run_id: str, *, run_log: RunLog, trigger: str
) -> RunResult | None:
    """Do what is left of a run; None where it must be run anew. Raises if that fails, too."""
    records = run_log.get(run_id)
    left = steps_left(spec, records)
    if left is None:
        return None
    started = utc_now()
    loads = [r for r in records if r.step == "load"]
    run = RunInfo(id=run_id, slot=loads[0].slot, parameters=dict(loads[0].parameters))
    with contextlib.ExitStack() as stack:
        stack.enter_context(placed(spec))
        stack.enter_context(capture_run_log(run_id))
        stack.enter_context(heartbeats(run_log, run_id))
        sink = load_backend(config.resolve_connection(spec.targets[0].connection).connection)
        steps = post_steps(spec, sink)
        post = run_steps(spec, steps, run, run_log, trigger=trigger, only=left)
    results = {
        label: TargetResult(
            label,
            target.connection,
            target.mode,
            "skipped",
            note=f"already loaded by run {run_id}",
        )
        for label, target in zip(spec.target_labels, spec.targets, strict=True)
    }
    return RunResult(
        run_id=run_id,
        pipeline=spec.name,
        target=joined(results),
        mode=joined(r.mode for r in results.values()),
        path="",
        path_reason="",
        status="succeeded",
        started_at=started,
        finished_at=utc_now(),
        counts=Counts(),
        bytes=0,
        targets=results,
        post=post,
    )
