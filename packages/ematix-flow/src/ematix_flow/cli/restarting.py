"""``flow restart``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ematix_flow import config
from ematix_flow.cli.history import find_run, readable
from ematix_flow.cli.options import (
    common_options,
    engine_option,
    examples,
    load,
    module_option,
    observe_options,
    run_log_options,
)
from ematix_flow.cli.output import say_json
from ematix_flow.cli.running import tell_result, terminated_like_interrupted
from ematix_flow.errors import ConfigError
from ematix_flow.run.records import effective_status, utc_now

if TYPE_CHECKING:
    from ematix_flow.observe.observer import Observer
    from ematix_flow.run.log import RunLog


@click.command(epilog=examples("flow restart 3f2a"))
@click.argument("run")
@engine_option
@module_option
@run_log_options
@observe_options
@common_options
def restart(
    *,
    run: str,
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    observer: Callable[[RunLog], Observer],
    output: str,
) -> None:
    """Do what is left of a run that failed; what it has done already is kept.

    Where all of its targets were committed, the steps after them go on with the one that failed.
    Otherwise it is run again, with the same parameters: targets that it had loaded are left alone
    if their rows are still the same. The beginning of its id is enough.
    """
    from ematix_flow.run.batch import run_pipeline
    from ematix_flow.run.journal import settle_run
    from ematix_flow.run.resuming import resume_run

    project = load(modules)
    log = readable(run_log)
    records = find_run(log, run)
    first, now = records[0], utc_now()
    spec = project.pipeline(first.pipeline).spec
    states = {effective_status(record, now) for record in records}
    if first.declared_in != config.origin_of(spec.location.file):
        raise ConfigError(
            f"run {first.run_id} is of another project ({first.declared_in})",
            fix="call it there, or name that project's files with --module",
        )
    if "running" in states:
        raise ConfigError(f"run {first.run_id} is under way", fix="wait for its end")
    if states == {"succeeded"}:
        raise ConfigError(
            f"run {first.run_id} succeeded: nothing of it is left to do",
            fix=f"to load again: flow run {first.pipeline}",
        )
    with terminated_like_interrupted():
        if "lost" in states:
            settle_run(log, spec, first.run_id)
        result = resume_run(spec, first.run_id, run_log=log, trigger="cli") or run_pipeline(
            spec,
            trigger="cli",
            parameters=first.parameters,
            run_log=log,
            slot=first.slot,
            attempt=first.attempt + 1,
            observer=observer(log),
            progress=sys.stderr.isatty(),
        )
    if output == "json":
        say_json(result.to_dict())
    else:
        tell_result(result)
