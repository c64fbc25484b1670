"""``flow plan`` and ``flow apply``: the changes of a run, first shown and then made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
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
from ematix_flow.cli.output import counted, say, say_json, took

if TYPE_CHECKING:
    from ematix_flow.run.change_sets import RowChange, TargetChanges
    from ematix_flow.run.log import RunLog

_COUNTS = ("inserted", "updated", "closed", "deleted", "unchanged")


@click.command(
    epilog=examples(
        "flow plan load_orders",
        "flow plan load_orders --out plan.json --sample 20",
        "flow plan load_orders --format json",
    )
)
@click.argument("name", shell_complete=complete_pipeline)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the plan, for flow apply.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Rows to show of each kind; counts are exact.",
)
@engine_option
@module_option
@common_options
def plan(
    *, name: str, out: Path | None, sample: int, modules: tuple[str, ...], output: str
) -> None:
    """Show every change that a run would make, before it is made.

    Everything is read, staged and compared as in a run, and then put back. With --out the plan
    is kept, with fingerprints of the source's rows and the target's.
    """
    from ematix_flow.run.change_sets import plan_changes

    spec = load(modules).pipeline(name).spec
    made = plan_changes(spec, sample=sample, kept=out is not None, progress=sys.stderr.isatty())
    if out is not None:
        made.save(out)
    if output == "json":
        say_json(made.to_dict())
        return
    say(f"pipeline  {made.pipeline}")
    for target in made.targets:
        _show(target)
    if out is not None:
        say(f"\nkept in {out}; apply it with: flow apply {out}")


def _show(target: TargetChanges) -> None:
    say(f"\ntarget    {target.target} in {target.connection}, mode {target.mode}")
    say(f"path      {target.path}: {target.path_reason}")
    say(f"rows      {_counts(target)}")
    for statement in target.ddl:
        lines = statement.strip().splitlines()
        say("DDL       " + "\n          ".join(lines))
    for operation in target.operations:
        say(f"\n{operation.name}: {counted(operation.rows, 'row')}")
        for change in operation.sample:
            say(f"  {_line(change)}")
        if operation.sample and operation.rows > len(operation.sample):
            say(f"  … and {operation.rows - len(operation.sample):,} more")


def _counts(target: TargetChanges) -> str:
    parts = [f"{target.counts.read:,} read"]
    parts += [f"{getattr(target.counts, name):,} {name}" for name in _COUNTS]
    return ", ".join(parts)


def _line(change: RowChange) -> str:
    if change.old and change.new:
        values = (f"{n}: {_value(change.old[n])} → {_value(v)}" for n, v in change.new.items())
        return f"{_pairs(change.key)}  {', '.join(values)}"
    whole = change.new or change.old
    rest = {n: v for n, v in whole.items() if n not in change.key}
    return f"{_pairs(change.key)}  {_pairs(rest)}".strip()


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value).lower() if isinstance(value, bool) else str(value)


@click.command(epilog=examples("flow apply plan.json", "flow apply plan.json --format json"))
@click.argument("file", type=click.Path(path_type=Path), metavar="PLAN")
@engine_option
@module_option
@run_log_options
@common_options
def apply(
    *,
    file: Path,
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    output: str,
) -> None:
    """Make the changes of a plan that flow plan --out has kept.

    Refused, and nothing is written, if the declaration, the source's rows or the target's have
    changed since. A plan is applied once.
    """
    from ematix_flow.run.change_sets import apply_plan, read_plan_file

    saved = read_plan_file(file)
    spec = load(modules).pipeline(saved.pipeline).spec
    result = apply_plan(saved, spec, run_log=run_log(), progress=sys.stderr.isatty())
    if output == "json":
        say_json(result.to_dict())
        return
    counts = result.counts
    parts = [f"{counted(counts.read, 'row')} read"]
    parts += [f"{getattr(counts, n):,} {n}" for n in _COUNTS if getattr(counts, n)]
    done = f"{result.pipeline} → {result.target}: {', '.join(parts)}"
    say(f"{done} in {took(result.seconds)} ({result.path}, run {result.run_id})")
