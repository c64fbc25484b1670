"""``flow freshness-check``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ematix_flow.cli.due import remembering
from ematix_flow.cli.options import (
    common_options,
    examples,
    load,
    module_option,
    observe_options,
    run_log_options,
)
from ematix_flow.cli.output import complain, say, say_json, say_table, took
from ematix_flow.run.records import utc_now

if TYPE_CHECKING:
    from ematix_flow.observe.observer import Observer
    from ematix_flow.run.log import RunLog
    from ematix_flow.schedule.freshness import Freshness

_MISDECLARED = 2


@click.command(
    "freshness-check",
    epilog=examples("flow freshness-check", "flow freshness-check --alerter slack://hooks/…"),
)
@module_option
@run_log_options
@observe_options
@common_options
def freshness_check(
    *,
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    observer: Callable[[RunLog], Observer],
    output: str,
) -> int:
    """Tell whether tables are as fresh as freshness_sla= promises.

    Exit code 1 when one is older than that.
    """
    from ematix_flow.schedule.freshness import BREACHED, freshness_of

    project = load(modules)
    for error in project.errors:
        complain(str(error))
    log, now = remembering(run_log), utc_now()
    states = [freshness_of(pipeline.spec, log, now) for pipeline in project.pipelines]
    found = [state for state in states if state is not None]
    if output == "json":
        say_json({"pipelines": [state.to_dict() for state in found]})
    elif found:
        say_table(
            ["NAME", "STATE", "LAG", "SLA", "NEWEST", "REASON"],
            [
                [
                    s.pipeline,
                    s.state,
                    took(s.lag_seconds),
                    took(s.sla_seconds),
                    s.fresh_at,
                    s.reason,
                ]
                for s in found
            ],
        )
    else:
        say("No pipeline has a freshness_sla=.")
    breached = [state for state in found if state.state == BREACHED]
    told = observer(log)
    for state in breached:
        _alert(told, state)
    if breached:
        return 1
    return _MISDECLARED if project.errors else 0


def _alert(observer: Observer, state: Freshness) -> None:
    from ematix_flow.observe.events import AlertEvent

    lag, sla = took(state.lag_seconds), took(state.sla_seconds)
    observer.alert(
        AlertEvent(
            kind="sla_breached",
            pipeline=state.pipeline,
            error_message=f"its data is {lag} old, and {sla} was promised",
            error_type="FreshnessBreached",
        )
    )
