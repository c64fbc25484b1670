"""``flow scheduler``."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from ematix_flow import config
from ematix_flow.cli.due import known_tags, read_limits, remembering, slot_options
from ematix_flow.cli.options import (
    common_options,
    examples,
    load,
    module_option,
    observe_options,
    run_log_options,
)
from ematix_flow.cli.output import complain, say, say_json
from ematix_flow.cli.running import refused_pipelines
from ematix_flow.errors import ConfigError

if TYPE_CHECKING:
    from ematix_flow.observe.observer import Observer
    from ematix_flow.run.log import RunLog
    from ematix_flow.schedule.loop import Scheduler

_MISDECLARED = 2


@click.command(
    epilog=examples(
        "flow scheduler --executor subprocess://",
        "flow scheduler --run-log 'postgres://flow:${PASSWORD}@logs/flow'",
    )
)
@click.option(
    "--executor",
    default="subprocess://",
    show_default=True,
    metavar="URL",
    help="Where pipelines run: in processes of this machine.",
)
@click.option(
    "--poll-interval",
    type=click.FloatRange(min=0, min_open=True),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="How often to look.",
)
@click.option(
    "--leader-lease-seconds",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="After so long without a sign of life, another scheduler decides.",
)
@click.option(
    "--max-parallel",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="How many workers this scheduler may have at once.",
)
@slot_options
@click.option("--worker-id", default="", help="What this scheduler is called in the run log.")
@click.option("--max-iterations", type=click.IntRange(min=1), help="Look so often, then end.")
@module_option
@run_log_options
@observe_options
@common_options
def scheduler(
    *,
    executor: str,
    poll_interval: float,
    lease_seconds: float,
    leader_lease_seconds: float,
    interval: float,
    max_parallel: int,
    limit: tuple[str, ...],
    worker_id: str,
    max_iterations: int | None,
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    observer: Callable[[RunLog], Observer],
    output: str,
) -> int:
    """Look again and again for what is due, and have workers run it.

    Any number of these may share a run log: one of them decides, and when it is gone another
    does. SIGTERM or Ctrl-C begins nothing more and waits for the workers; a second one stops
    them, too, and what they had not finished is run later.
    """
    from ematix_flow.schedule.executors import open_executor
    from ematix_flow.schedule.loop import Scheduler, Watch

    chosen = open_executor(executor)
    project = load(modules)
    refused = refused_pipelines(project)
    for error in project.errors:
        complain(str(error))
    specs = [p.spec for p in project.pipelines if p.name not in refused]
    if not any(spec.schedule for spec in specs):
        raise ConfigError("no pipeline has a schedule", fix='add schedule="0 * * * *" to one')
    log = _shared(remembering(run_log))
    watch = Watch(
        poll=timedelta(seconds=poll_interval),
        fresh=timedelta(seconds=interval),
        lease=timedelta(seconds=lease_seconds),
        lead=timedelta(seconds=leader_lease_seconds),
        max_parallel=max_parallel,
        limits=config.limits() | known_tags(read_limits(limit), project),
        modules=modules,
        worker_id=worker_id,
        env=_told_to_workers(),
    )
    _check_observers(watch.env)
    # The workers tell of their runs; here it is only seen that the addresses are right.
    observer(log).close(0)
    made = Scheduler(specs, log, chosen, watch)
    with _stopped_by_signals(made):
        made.serve(max_iterations=max_iterations)
    if output == "json":
        say_json({"stopped": True, "pipelines": len(specs)})
    else:
        say("The scheduler has stopped.")
    return _MISDECLARED if project.errors else 0


def _shared(log: RunLog) -> RunLog:
    """A log in which a scheduler and its workers, which are other processes, can meet."""
    from ematix_flow.run.log import MemoryRunLog, NullRunLog

    if isinstance(log, NullRunLog | MemoryRunLog):
        raise ConfigError(
            "a scheduler and its workers meet in the run log, and this one no other process sees",
            fix="name one with --run-log, such as sqlite://runs.db",
        )
    return log


def _check_observers(told: Mapping[str, str]) -> None:
    metrics = told.get("EMATIX_FLOW_METRICS") or config.observe_settings().metrics or ""
    if metrics.startswith("prometheus://"):
        raise ConfigError(
            "workers of a scheduler end before Prometheus asks them",
            fix="have them push: --metrics prometheus+push://HOST:PORT, or write to a file: "
            "prometheus+file:///PATH",
        )


def _told_to_workers() -> dict[str, str]:
    """The log and the observers of this command: by environment, which others cannot read."""
    meta = click.get_current_context().meta
    log = meta.get("ematix_flow.run_log")
    told: dict[str, str] = dict(meta.get("ematix_flow.observe", {}))
    return told | ({"EMATIX_FLOW_RUN_LOG_URL": log} if log else {})


@contextmanager
def _stopped_by_signals(scheduler: Scheduler) -> Iterator[None]:
    def stop(*_: object) -> None:
        scheduler.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
