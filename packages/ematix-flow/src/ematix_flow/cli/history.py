"""``flow status``, ``flow runs list|show|tail|prune`` and ``flow logs``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ematix_flow import config
from ematix_flow.cli.options import (
    common_options,
    complete_pipeline,
    examples,
    load,
    module_option,
    run_log_options,
)
from ematix_flow.cli.output import complain, say, say_json, say_table, took, when
from ematix_flow.clock import zone_named
from ematix_flow.config import project_settings
from ematix_flow.durations import duration
from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.model import PipelineSpec
from ematix_flow.run.records import STATUSES, RunRecord, effective_status, utc_now
from ematix_flow.run.turns import Key, Standing

if TYPE_CHECKING:
    from ematix_flow.run.log import RunLog

# Ids begin with their time: this much of one is a millisecond.
_SHORT_ID = 13
# How many runs may begin or end between two looks, and how often lines are looked for.
_MOST_AT_ONCE = 500
_LOOK_SECONDS = 0.3


@click.command(epilog=examples("flow status", "flow status --module pipelines.py --format json"))
@module_option
@run_log_options
@common_options
def status(*, modules: tuple[str, ...], run_log: Callable[[], RunLog], output: str) -> int:
    """Show for each pipeline its schedule, when it is due next, and how its last run ended."""
    project = load(modules)
    log, now = readable(run_log), utc_now()
    for error in project.errors:
        complain(str(error))
    named = config.project_settings().name
    keys = {p.name: Key(named or p.spec.location.file, p.name) for p in project.pipelines}
    standings = log.standings({key.origin for key in keys.values()})
    found = [
        (p.spec, standings.get(keys[p.name], Standing()), next_due(p.spec, now))
        for p in project.pipelines
    ]
    if output == "json":
        told = [
            _status(spec, log.last(spec.name, declared_in=keys[spec.name].origin), held, due, now)
            for spec, held, due in found
        ]
        say_json({"pipelines": told})
    elif found:
        say_table(
            ["NAME", "SCHEDULE", "NEXT DUE", "LAST RUN", "OUTCOME", "ROWS", "STATE"],
            [
                [
                    spec.name,
                    spec.schedule.cron if spec.schedule else None,
                    due,
                    held.last.started_at if held.last else None,
                    _outcome(log, held, now),
                    held.last.rows if held.last else None,
                    _state(held, now),
                ]
                for spec, held, due in found
            ],
        )
    elif not project.errors:
        say(f"No pipeline is declared in {', '.join(project.modules)}.")
    return 2 if project.errors else 0


def _outcome(log: RunLog, standing: Standing, now: datetime) -> str:
    """How the last run ended; one that says it runs may be gone."""
    last = standing.last
    if last is None:
        return "never ran"
    if last.status != "running":
        return last.status
    seen = {effective_status(record, now) for record in log.get(last.run_id)}
    return "lost" if "lost" in seen else "running"


def next_due(spec: PipelineSpec, now: datetime) -> datetime | None:
    """When the schedule fires next, in its own time zone."""
    if spec.schedule is None or (slot := spec.schedule.next_after(now)) is None:
        return None
    return spec.schedule.due_at(slot, spec.name).astimezone(zone_named(spec.schedule.zone))


def _status(
    spec: PipelineSpec,
    last: RunRecord | None,
    standing: Standing,
    due: datetime | None,
    now: datetime,
) -> dict[str, Any]:
    turn = standing.turn
    return {
        "name": spec.name,
        "schedule": spec.schedule.cron if spec.schedule else None,
        "timezone": spec.schedule.zone if spec.schedule else None,
        "next_due": due.isoformat() if due else None,
        "depends_on": list(spec.depends_on),
        "last_run": last.to_dict(now=now) if last else None,
        "paused": turn.paused,
        "gave_up": standing.has_given_up,
        "attempt_count": turn.attempt,
        "retry_at": turn.retry_at.isoformat() if turn.retry_at else None,
        "slot": turn.slot.isoformat() if turn.slot and turn.state else None,
    }


def _state(standing: Standing, now: datetime) -> str | None:
    """How a pipeline stands with its schedule, where that is not as usual."""
    turn = standing.turn
    if turn.paused:
        return "paused"
    if standing.has_given_up:
        return "gave up"
    if turn.is_claimed(now):
        return "under way"
    if turn.retry_at is not None:
        return f"again at {when(turn.retry_at)}"
    return None


@click.group()
def runs() -> None:
    """Look into the run log: every run, however it was started."""


@runs.command(
    "list",
    epilog=examples(
        "flow runs list", "flow runs list --pipeline load_orders --status failed --limit 5"
    ),
)
@click.option("--pipeline", help="Only runs of this pipeline.", shell_complete=complete_pipeline)
@click.option("--status", type=click.Choice(STATUSES), help="Only runs with this status.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@run_log_options
@common_options
def list_runs(
    *,
    pipeline: str | None,
    status: str | None,
    limit: int,
    run_log: Callable[[], RunLog],
    output: str,
) -> None:
    """List the latest runs, newest first."""
    now = utc_now()
    records = readable(run_log).list(pipeline=pipeline, status=status, limit=limit)
    if output == "json":
        say_json({"runs": [record.to_dict(now=now) for record in records]})
        return
    if not records:
        say("No run is recorded." if pipeline is None and status is None else "No such run.")
        return
    short = _short_ids(records)
    say_table(
        ["RUN", "PIPELINE", "TARGET", "STATUS", "STARTED", "TOOK", "ROWS", "TRIGGER", "ERROR"],
        [
            [
                short[r.run_id],
                r.pipeline,
                r.target if r.step == "load" else f"{r.target} ({r.step})",
                effective_status(r, now),
                r.started_at,
                took(r.seconds),
                r.rows_written,
                r.trigger,
                r.error_class,
            ]
            for r in records
        ],
    )


def _short_ids(records: Sequence[RunRecord]) -> dict[str, str]:
    """Each id as short as tells it from the others, so that it can be typed."""
    ids = {r.run_id for r in records}
    length = _SHORT_ID
    while len({i[:length] for i in ids}) < len(ids):
        length += 1
    return {i: i[:length] for i in ids}


@runs.command("show", epilog=examples("flow runs show 3f2a", "flow runs show 3f2a --format json"))
@click.argument("run")
@run_log_options
@common_options
def show_run(*, run: str, run_log: Callable[[], RunLog], output: str) -> None:
    """Show everything that is recorded of a run; the beginning of its id is enough."""
    now = utc_now()
    records = find_run(readable(run_log), run)
    if output == "json":
        say_json({"run_id": records[0].run_id, "records": [r.to_dict(now=now) for r in records]})
        return
    for position, record in enumerate(records):
        if position:
            say()
        for name, value in _shown(record, now):
            say(f"{name:<17} {value}")


def _shown(record: RunRecord, now: datetime) -> list[tuple[str, str]]:
    lines = []
    for name, held in vars(record).items():
        # Lineage is long, and `flow lineage` shows it in a form to read.
        value = {k: v for k, v in held.items() if k != "lineage"} if name == "metrics" else held
        if value in (None, "", 0) or value == {}:
            continue
        text = when(value) if isinstance(value, datetime) else str(value)
        if isinstance(value, dict):
            text = ", ".join(f"{k}={v}" for k, v in value.items())
        lines.append((name, effective_status(record, now) if name == "status" else text))
        if name == "finished_at":
            lines.append(("took", took(record.seconds)))
    return lines


@runs.command(
    "prune",
    epilog=examples("flow runs prune --older-than 90d --dry-run", "flow runs prune"),
)
@click.option(
    "--older-than",
    metavar="AGE",
    help="What began longer ago than this, such as 90d; else run_log_keep of the project.",
)
@click.option("--dry-run", is_flag=True, help="Only tell how many there are.")
@run_log_options
@common_options
def prune_runs(
    *, older_than: str | None, dry_run: bool, run_log: Callable[[], RunLog], output: str
) -> None:
    """Remove old runs from the run log, and their log lines.

    The last run of each pipeline stays, and whatever is running.
    """
    from ematix_flow.run.retention import prune

    kept = duration(older_than, "--older-than") if older_than else project_settings().run_log_keep
    if kept is None:
        raise ConfigError(
            "how long runs are kept is not said",
            fix='give --older-than 90d, or write run_log_keep = "90d" under [project]',
        )
    gone = prune(readable(run_log), older_than=kept, dry_run=dry_run)
    if output == "json":
        say_json({"removed": 0 if dry_run else len(gone), "runs": sorted(gone)})
    else:
        many = "1 run" if len(gone) == 1 else f"{len(gone)} runs"
        say(f"{many} would be removed." if dry_run else f"{many} removed.")


@runs.command("tail", epilog=examples("flow runs tail", "flow runs tail --pipeline load_orders"))
@click.option("--pipeline", help="Only runs of this pipeline.", shell_complete=complete_pipeline)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="How many to begin with.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look.",
)
@run_log_options
@common_options
def tail_runs(
    *,
    pipeline: str | None,
    limit: int,
    interval: float,
    run_log: Callable[[], RunLog],
    output: str,
) -> None:
    """Show runs as they begin and end, a line each, until Ctrl-C."""
    import time

    log = readable(run_log)
    told: dict[tuple[str, str, str], str] | None = None
    while True:
        now = utc_now()
        latest = log.list(pipeline=pipeline, limit=max(limit, _MOST_AT_ONCE))
        states = {(r.run_id, r.target, r.step): effective_status(r, now) for r in latest}
        shown = latest[:limit] if told is None else latest
        before, told = told or {}, states
        for record in reversed(shown):
            state = states[record.run_id, record.target, record.step]
            if before.get((record.run_id, record.target, record.step)) != state:
                _tell_change(record, state, output)
        time.sleep(interval)


def _tell_change(record: RunRecord, state: str, output: str) -> None:
    if output == "json":
        say_json({**record.to_dict(), "status": state}, indent=None)
        return
    moment = when(record.finished_at or record.started_at)
    target = record.target if record.step == "load" else f"{record.target} ({record.step})"
    parts = [f"{moment}  {record.pipeline} → {target}: {state}"]
    if state == "succeeded":
        parts.append(f"{record.rows_written:,} rows in {took(record.seconds)}")
    if record.error_text:
        parts.append(record.error_text)
    say(", ".join(parts))


@click.command(
    epilog=examples("flow logs 3f2a", "flow logs 3f2a --tail 20", "flow logs 3f2a --follow")
)
@click.argument("run")
@click.option("--tail", type=click.IntRange(min=1), metavar="N", help="Only the last N lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@run_log_options
@common_options
def logs(
    *, run: str, tail: int | None, follow: bool, run_log: Callable[[], RunLog], output: str
) -> None:
    """Show the log lines of a run; the beginning of its id is enough."""
    from ematix_flow.run.logs import read_run_log, run_log_file

    if follow and output == "json":
        raise click.UsageError("--follow does not go with --format json")
    lines, run_id = read_run_log(run), run
    if lines is None:
        run_id = find_run(readable(run_log), run)[0].run_id
        lines = read_run_log(run_id)
    if lines is None:
        raise ConfigError(
            f"no log lines were kept of run {run_id}",
            fix=f"they would be in {run_log_file(run_id).parent}",
        )
    shown = lines[-tail:] if tail else lines
    if output == "json":
        say_json({"run_id": run_id, "lines": shown})
        return
    for line in shown:
        say(line)
    if follow:
        _follow(run_id, len(lines), readable(run_log))


def _follow(run_id: str, seen: int, log: RunLog) -> None:
    """Show what a run still writes, until it has ended."""
    import time

    from ematix_flow.run.logs import read_run_log

    ended = False
    while not ended:
        now = utc_now()
        # What is looked at first was written before the end that is seen after it.
        ended = "running" not in {effective_status(r, now) for r in log.get(run_id)}
        lines = read_run_log(run_id) or []
        for line in lines[seen:]:
            say(line)
        seen = max(seen, len(lines))
        if not ended:
            time.sleep(_LOOK_SECONDS)


def find_run(log: RunLog, run: str) -> list[RunRecord]:
    """The records of a run, by its id or the beginning of it."""
    records = log.get(run)
    if not records:
        raise UnknownName(f"there is no run {run!r} in the run log", fix="see: flow runs list")
    return records


def readable(run_log: Callable[[], RunLog]) -> RunLog:
    """A log that was opened; one that was replaced by nothing has nothing to tell."""
    import warnings

    from ematix_flow.run.log import NullRunLog
    from ematix_flow.run.undelivered import BufferedRunLog

    with warnings.catch_warnings(record=True) as told:
        # Said below, as an error: here nothing goes on without the log.
        warnings.simplefilter("always", UserWarning)
        log = run_log()
    if isinstance(log, NullRunLog):
        reason = "".join(f": {w.message}".partition("; this run")[0] for w in told[-1:])
        raise ConfigError(
            f"the run log cannot be read{reason}", fix="name another with --run-log URL"
        )
    return log.reached() if isinstance(log, BufferedRunLog) else log
