"""``flow backfill``: a range of a target loaded again, slice by slice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ematix_flow.cli.options import (
    common_options,
    complete_pipeline,
    engine_option,
    examples,
    load,
    module_option,
    run_log_options,
)
from ematix_flow.cli.output import complain, counted, say, say_json, say_table, took
from ematix_flow.errors import EmatixError

if TYPE_CHECKING:
    from ematix_flow.modes.window import Window
    from ematix_flow.run.backfill import Backfill, Request, SliceResult
    from ematix_flow.run.log import RunLog

_COUNTS = ("inserted", "updated", "closed", "deleted", "unchanged")


@click.command(
    epilog=examples(
        "flow backfill load_orders --from 2026-01-01 --to 2026-02-01 --slice 1d",
        "flow backfill load_orders --from 2026-03-01 --to 2026-04-01 --slice 1d "
        "--timezone Europe/Berlin",
        "flow backfill load_events --from 0 --to 500000 --slice 100000 --column id --dry-run",
        "flow backfill load_orders --resume 3f2a9c01b7de",
    )
)
@click.argument("name", shell_complete=complete_pipeline)
@click.option("--from", "start", metavar="A", help="The first value that is loaded again.")
@click.option("--to", "end", metavar="B", help="The first value after the range.")
@click.option("--slice", "step", metavar="1d|6h|1000", help="Commit after every so much.")
@click.option("--column", metavar="COLUMN", help="The column of the range; its watermark column.")
@click.option("--timezone", "zone", metavar="ZONE", help="Where days begin; UTC if left out.")
@click.option("--resume", metavar="ID", help="Go on with this backfill.")
@click.option(
    "--replace-rows-of",
    "replacing",
    multiple=True,
    metavar="PIPELINE",
    help="Another pipeline, such as an earlier name of this one, whose rows in the range may go, "
    "too. Repeatable.",
)
@click.option("--again", is_flag=True, help="Load slices again that were loaded before.")
@click.option("--dry-run", is_flag=True, help="Count what would change, and write nothing.")
@click.option("--status", is_flag=True, help="Show which slices are loaded, and do nothing.")
@engine_option
@module_option
@run_log_options
@common_options
def backfill(
    *,
    name: str,
    start: str | None,
    end: str | None,
    step: str | None,
    column: str | None,
    zone: str | None,
    resume: str | None,
    replacing: tuple[str, ...],
    again: bool,
    dry_run: bool,
    status: bool,
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    output: str,
) -> int:
    """Load the range from A up to, but without, B again, and replace only that range.

    Every slice is one run and one commit. The same command goes on where an earlier one
    stopped. Of mode="scd2" everything from A on is replayed, to the end of the source.
    """
    from ematix_flow.run.backfill import Request, find_request, plan_backfill

    spec = load(modules).pipeline(name).spec
    log = run_log()
    if resume and again:
        raise click.UsageError("--resume and --again exclude each other")
    if start is not None and end is not None:
        request = Request(start, end, step, zone, column)
    elif resume and start is None and end is None:
        request = find_request(log, spec.name, resume)
    else:
        raise click.UsageError("give --from and --to, or --resume ID")
    planned = plan_backfill(spec, request, resumed=resume, again=again)
    if status:
        _show_status(planned, output)
        return 0
    return _load(planned, log, output, replacing=replacing, dry_run=dry_run)


def _load(
    planned: Backfill, log: RunLog, output: str, *, replacing: tuple[str, ...], dry_run: bool
) -> int:
    from ematix_flow.run.backfill import run_slices

    slices = run_slices(
        planned,
        replacing=replacing,
        run_log=log,
        dry_run=dry_run,
        progress=sys.stderr.isatty(),
    )
    if output == "text":
        _announce(planned)
    done: list[SliceResult] = []
    total = len(planned.windows)
    failure: EmatixError | None = None
    try:
        for one in slices:
            done.append(one)
            if output == "text":
                say(f"[{len(done)}/{total}] {_span(planned, one.window)}: {_line(one)}")
    except EmatixError as error:
        failure = error
        complain(str(error))
        complain(
            f"{len(done)} of {counted(total, 'slice')} are loaded; go on with: "
            f"flow backfill {planned.spec.name} --resume {planned.id}"
            + "".join(f" --replace-rows-of {name}" for name in replacing),
            as_="flow",
        )
    if output == "json":
        say_json({**_head(planned), "slices": [one.to_dict() for one in done]})
    elif failure is None:
        _sum_up(planned, done, dry_run=dry_run)
    return 0 if failure is None else failure.exit_code


def _announce(planned: Backfill) -> None:
    names = ", ".join(str(target.table.name) for target in planned.spec.targets)
    say(f"backfill {planned.id}: {planned.spec.name} → {names}")
    say(f"{planned.column} {_range(planned.request)} in {counted(len(planned.windows), 'slice')}")
    if planned.to_the_end:
        say("the history is replayed from there to the end of the source")


def _range(request: Request) -> str:
    zone = f" ({request.zone})" if request.zone else ""
    return f"from {request.start} to {request.end}{zone}"


def _span(planned: Backfill, window: Window) -> str:
    end = "the end" if planned.to_the_end else window.end
    return f"{window.start} → {end}"


def _line(one: SliceResult) -> str:
    if one.result is None:
        return "loaded before"
    counts = one.result.counts
    parts = [f"{counted(counts.read, 'row')} read"]
    parts += [f"{getattr(counts, n):,} {n}" for n in _COUNTS if getattr(counts, n)]
    return f"{', '.join(parts)} in {took(one.result.seconds)} (run {one.result.run_id})"


def _sum_up(planned: Backfill, done: list[SliceResult], *, dry_run: bool) -> None:
    ran = [one.result for one in done if one.result is not None]
    if not ran:
        say("Nothing to do: every slice was loaded before; --again loads them again.")
        return
    sums = {n: sum(getattr(r.counts, n) for r in ran) for n in _COUNTS}
    parts = [f"{total:,} {n}" for n, total in sums.items() if total] or ["no row changed"]
    done_to = "counted" if dry_run else "loaded"
    say(f"{counted(len(ran), 'slice')} {done_to}: {', '.join(parts)}.")


def _head(planned: Backfill) -> dict[str, Any]:
    return {
        "backfill": planned.id,
        "pipeline": planned.spec.name,
        "column": planned.column,
        "from": planned.windows[0].start,
        "to": None if planned.to_the_end else planned.windows[-1].end,
    }


def _show_status(planned: Backfill, output: str) -> None:
    applied = planned.applied()
    states = [
        (window, "loaded" if planned.batch(window) in applied else "missing")
        for window in planned.windows
    ]
    if output == "json":
        slices = [{"start": w.start, "end": w.end, "status": state} for w, state in states]
        say_json({**_head(planned), "slices": slices})
        return
    say(f"backfill {planned.id}")
    say_table(["FROM", "TO", "STATUS"], [[w.start, w.end, state] for w, state in states])
