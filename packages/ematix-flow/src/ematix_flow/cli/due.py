"""``flow run-due``, ``flow reset``, ``flow pause`` and ``flow resume``."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import click

from ematix_flow import config
from ematix_flow.cli.options import (
    common_options,
    complete_pipeline,
    engine_option,
    examples,
    load,
    module_option,
    observe_options,
    run_log_options,
)
from ematix_flow.cli.output import complain, counted, say, say_json, when
from ematix_flow.cli.running import (
    refused_pipelines,
    tell_result,
    terminated_like_interrupted,
    tidy_log,
)
from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.run.turns import GAVE_UP, SUCCEEDED, Key, Standing, Turn

if TYPE_CHECKING:
    from ematix_flow.discovery import Project
    from ematix_flow.model import PipelineSpec
    from ematix_flow.observe.observer import Observer
    from ematix_flow.run.log import RunLog
    from ematix_flow.schedule.events import Event

_MISDECLARED, _CANCELLED = 2, 130
_MOST_BESIDE = 4


def slot_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--limit``, ``--interval``, ``--lease-seconds``: what all who fire slots have in common."""

    @click.option(
        "--limit",
        "limit",
        multiple=True,
        metavar="TAG=N",
        help="How many of those with a tag may run at once; [limits] says the same. Repeatable.",
    )
    @click.option(
        "--interval",
        type=click.FloatRange(min=0, min_open=True),
        default=60,
        show_default=True,
        metavar="SECONDS",
        help="How old a slot may be that fires although nobody has looked at its pipeline before.",
    )
    @click.option(
        "--lease-seconds",
        type=click.FloatRange(min=1),
        default=300,
        show_default=True,
        help="After so long without a sign of life, a run is taken over by others.",
    )
    @functools.wraps(command)
    def chosen(**given: Any) -> Any:
        return command(**given)

    return chosen


@click.command(
    "run-due",
    epilog=examples(
        "flow run-due",
        "flow run-due --dry-run",
        "flow run-due --run-log 'postgres://flow:${PASSWORD}@logs/flow' --max-parallel 8",
    ),
)
@click.option("--dry-run", is_flag=True, help="Show what would fire, and run nothing.")
@click.option(
    "--max-parallel",
    type=click.IntRange(min=1),
    default=lambda: min(_MOST_BESIDE, os.cpu_count() or 1),
    show_default=f"the number of cores, at most {_MOST_BESIDE}",
    help="How many pipelines may run at once.",
)
@slot_options
@click.option("--now", metavar="ISO", help="Decide as if it were this moment.")
@engine_option
@module_option
@run_log_options
@observe_options
@common_options
def run_due(
    *,
    dry_run: bool,
    max_parallel: int,
    limit: tuple[str, ...],
    interval: float,
    lease_seconds: float,
    now: str | None,
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    observer: Callable[[RunLog], Observer],
    output: str,
) -> int:
    """Run every pipeline whose schedule says so, each after those it depends on.

    A slot is run once, however often and from however many machines this is called. Exit code 1
    when a run failed or a pipeline has given up, 2 when a declaration is wrong.
    """
    from ematix_flow.schedule.due import How
    from ematix_flow.schedule.due import run_due as run_all_due

    moment, asked = _moment(now), read_limits(limit)
    project = load(modules)
    refused = refused_pipelines(project)
    for error in project.errors:
        complain(str(error))
    specs = [p.spec for p in project.pipelines if p.name not in refused]
    limits = config.limits() | known_tags(asked, project)
    log, fresh = remembering(run_log), timedelta(seconds=interval)
    if dry_run:
        _show_planned(specs, log, moment, fresh, output)
        return _MISDECLARED if project.errors else 0
    how = How(
        fresh=fresh,
        lease=timedelta(seconds=lease_seconds),
        max_parallel=max_parallel,
        limits=limits,
        observer=observer(log),
        tell=_tell if output == "text" else lambda event: None,
    )
    with terminated_like_interrupted():
        try:
            result = run_all_due(specs, log, now=moment, how=how)
        except KeyboardInterrupt:
            # Asked twice: threads that do not heed it would keep the process. Whoever looks next
            # sees that it is gone, and asks the targets how far it came.
            complain("stopped; the next pass takes over what was under way", as_="flow")
            sys.stdout.flush()
            os._exit(_CANCELLED)
        tidy_log(log)
    if output == "json":
        say_json(result.to_dict())
    elif not (result.fired or result.failed or result.skipped):
        say("Nothing is due.")
    if result.stopped:
        return _CANCELLED
    if not result.ok:
        return 1
    return _MISDECLARED if project.errors else 0


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is not a time such as 2026-01-31T09:30:00Z", param_hint="--now"
        ) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def read_limits(given: Sequence[str]) -> dict[str, int]:
    """``TAG=N``, as often as given."""
    limits = {}
    for text in given:
        tag, _, most = text.partition("=")
        if not tag or not most.isdecimal() or int(most) < 1:
            raise click.BadParameter(f"{text!r} is not TAG=N", param_hint="--limit")
        limits[tag] = int(most)
    return limits


def known_tags(limits: dict[str, int], project: Project) -> dict[str, int]:
    """The limits that were asked for, if pipelines have their tags."""
    tags = {tag for pipeline in project.pipelines for tag in pipeline.spec.tags}
    for tag in limits:
        # One that could not be declared may have it.
        if tag not in tags and not project.errors:
            fix = nearest(tag, tags) if tags else 'add tags=["…"] to some'
            raise UnknownName(f"--limit: no pipeline has the tag {tag!r}", fix=fix)
    return limits


def remembering(run_log: Callable[[], RunLog]) -> RunLog:
    """A log that remembers what has fired, unless none was asked for."""
    from ematix_flow.run.log import NullRunLog
    from ematix_flow.run.undelivered import BufferedRunLog

    log = run_log()
    if isinstance(log, NullRunLog) and not log.asked_for:
        raise ConfigError(
            "what has fired is kept in the run log, and it cannot be opened",
            fix="name another with --run-log URL",
        )
    return log.insist() if isinstance(log, BufferedRunLog) else log


def _show_planned(
    specs: Sequence[PipelineSpec],
    log: RunLog,
    moment: datetime | None,
    fresh: timedelta,
    output: str,
) -> None:
    from ematix_flow.schedule.agenda import Fire
    from ematix_flow.schedule.due import planned

    found = planned(specs, log, now=moment, fresh=fresh)
    fires = {name: d for name, d in found.items() if isinstance(d, Fire)}
    waits = {name: d for name, d in found.items() if not isinstance(d, Fire)}
    if output == "json":
        say_json(
            {
                "would_run": [
                    {"pipeline": n, "slot": d.slot.isoformat(), "attempt_count": d.attempt}
                    for n, d in fires.items()
                ],
                "skipped": [{"pipeline": n, "reason": d.reason} for n, d in waits.items()],
            }
        )
        return
    for name, fire in fires.items():
        again = f", attempt {fire.attempt}" if fire.attempt > 1 else ""
        say(f"{name}: would run for {when(fire.slot)}{again}")
    for name, waiting in waits.items():
        say(f"{name}: {waiting.reason}")
    if not found:
        say("Nothing is due.")


def _tell(event: Event) -> None:
    from ematix_flow.schedule.events import FailedEvent, FiredEvent

    if isinstance(event, FiredEvent):
        if event.result is not None:
            tell_result(event.result)
        else:
            say(f"{event.name}: a run that was lost had done its work")
    elif isinstance(event, FailedEvent):
        tries = counted(event.attempt_count, "attempt")
        after = f"; it has given up after {tries}" if event.gave_up else ""
        if event.retry_at is not None:
            after = f"; it is tried again at {when(event.retry_at)} UTC"
        known = f"'{event.name}'" in event.error_message
        place = "" if known else f"pipeline '{event.name}': "
        complain(f"{place}{event.error_message}{after}")
    elif event.loud:
        complain(f"{event.name}: {event.reason}", as_="flow")
    else:
        complain(f"{event.name}: skipped, {event.reason}", as_="flow")


def _change_turns(
    names: Sequence[str],
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    change: Callable[[str, Turn], tuple[Turn, str]],
    output: str,
) -> int:
    """Change the turns of the pipelines of these names, and say what became of each."""
    project = load(modules)
    log = remembering(run_log)
    specs = [project.pipeline(name).spec for name in names]
    told = []
    for spec in specs:
        key = Key(config.origin_of(spec.location.file), spec.name)
        while True:
            turn = log.standings([key.origin]).get(key, Standing()).turn
            after, text = change(spec.name, turn)
            if after == turn or log.move(key, turn, after):
                break
        told.append({"pipeline": spec.name, "changed": after != turn, "text": text})
    if output == "json":
        say_json({"pipelines": told})
    else:
        for line in told:
            say(f"{line['pipeline']}: {line['text']}")
    return 0


@click.command(epilog=examples("flow reset load_orders"))
@click.argument("names", nargs=-1, required=True, shell_complete=complete_pipeline)
@module_option
@run_log_options
@common_options
def reset(
    *, names: tuple[str, ...], modules: tuple[str, ...], run_log: Callable[[], RunLog], output: str
) -> int:
    """Let pipelines that have given up go on with their next slot."""

    def cleared(_: str, turn: Turn) -> tuple[Turn, str]:
        waits = turn.state == "failed" and turn.retry_at is not None
        if turn.state != GAVE_UP and not waits:
            return turn, "had not given up; nothing to do"
        # No run of this slot counts as one that succeeded.
        after = dataclasses.replace(turn.ended(SUCCEEDED), run_id=None)
        return after, "goes on with its next slot"

    return _change_turns(names, modules, run_log, cleared, output)


@click.command(epilog=examples("flow pause load_orders", "flow resume load_orders"))
@click.argument("names", nargs=-1, required=True, shell_complete=complete_pipeline)
@module_option
@run_log_options
@common_options
def pause(
    *, names: tuple[str, ...], modules: tuple[str, ...], run_log: Callable[[], RunLog], output: str
) -> int:
    """Let no schedule run these pipelines until they are resumed; a run under way goes on."""

    def paused(_: str, turn: Turn) -> tuple[Turn, str]:
        text = "was paused already" if turn.paused else "is paused"
        return dataclasses.replace(turn, paused=True), text

    return _change_turns(names, modules, run_log, paused, output)


@click.command(epilog=examples("flow resume load_orders"))
@click.argument("names", nargs=-1, required=True, shell_complete=complete_pipeline)
@module_option
@run_log_options
@common_options
def resume(
    *, names: tuple[str, ...], modules: tuple[str, ...], run_log: Callable[[], RunLog], output: str
) -> int:
    """Let schedules run these pipelines again; missed slots are caught up as catchup= says."""

    def resumed(_: str, turn: Turn) -> tuple[Turn, str]:
        text = "goes on with its schedule" if turn.paused else "was not paused"
        return dataclasses.replace(turn, paused=False), text

    return _change_turns(names, modules, run_log, resumed, output)
