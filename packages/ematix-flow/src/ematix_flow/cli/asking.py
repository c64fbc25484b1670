"""``flow explain``, ``preview``, ``dry-run`` and ``validate``: asking before doing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from ematix_flow.cli.listing import described
from ematix_flow.cli.options import (
    common_options,
    complete_pipeline,
    engine_option,
    examples,
    load,
    module_option,
    run_log_options,
)
from ematix_flow.cli.output import complain, counted, say, say_json, say_table
from ematix_flow.errors import EmatixError

if TYPE_CHECKING:
    from ematix_flow.run.log import RunLog
    from ematix_flow.run.preview import Preview
    from ematix_flow.run.result import RunResult


_WAY = (
    *("pipeline", "target", "target_connection", "path", "path_reason"),
    *("engine", "engine_reason", "machines", "source_read"),
)
_MACHINES_SHOWN = 5


@click.command(
    epilog=examples("flow preview load_orders", "flow preview load_orders --counts --format json")
)
@click.argument("name", shell_complete=complete_pipeline)
@click.option("--counts", is_flag=True, help="Also count the changes; the same as dry-run.")
@engine_option
@module_option
@run_log_options
@common_options
def preview(
    *,
    name: str,
    counts: bool,
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    output: str,
) -> int:
    """Show source, target, path, DDL and steps of a run, without loading a row."""
    return _ask(name, modules, run_log if counts else None, output)


@click.command(
    epilog=examples("flow dry-run load_orders", "flow dry-run load_orders --format json")
)
@click.argument("name", shell_complete=complete_pipeline)
@engine_option
@module_option
@run_log_options
@common_options
def dry_run(
    *, name: str, modules: tuple[str, ...], run_log: Callable[[], RunLog], output: str
) -> int:
    """Read, transform and stage, count what would change, and put everything back."""
    return _ask(name, modules, run_log, output)


def _ask(
    name: str, modules: tuple[str, ...], run_log: Callable[[], RunLog] | None, output: str
) -> int:
    from ematix_flow.run.batch import run_pipeline
    from ematix_flow.run.preview import preview_of, preview_pipeline

    spec = load(modules).pipeline(name).spec
    shown: list[Preview] = []

    def show(plan: Preview) -> None:
        shown.append(plan)
        if output == "text":
            _show(plan, first=len(shown) == 1)

    counted: RunResult | None = None
    if run_log is None:
        found = preview_pipeline(spec)
        for plan in (found, *found.also):
            show(plan)
    else:
        # One dry run shows its plan and then counts, so that the function is called once.
        counted = run_pipeline(
            spec,
            trigger="cli",
            dry_run=True,
            run_log=run_log(),
            progress=sys.stderr.isatty(),
            on_plan=lambda plan: show(preview_of(plan)),
        )
    document = shown[0].to_dict() | {"also": [plan.to_dict() for plan in shown[1:]]}
    if counted is not None:
        document["counts"] = counted.to_dict()
    if output == "text":
        _show_rest(shown[0], counted)
    if output == "json":
        say_json(document)
    return 0


def _show(plan: Preview, *, first: bool) -> None:
    if first:
        say(f"pipeline  {plan.pipeline}")
        say(f"schedule  {plan.schedule or 'none'}")
        say(f"source    {plan.source_connection} {_info(plan.source_info)}".rstrip())
    else:
        say()
    say(f"target    {plan.target} in {plan.target_connection} {_info(plan.target_info)}".rstrip())
    say(f"mode      {plan.mode}")
    _show_way(plan)
    _block("source SQL", [plan.source_sql])
    if first:
        _block("transform SQL", [plan.transform_sql] if plan.transform_sql else [])
        _block("before the load", plan.transforms_pre)
    say("\ncolumns")
    shown = [[f"  {c['name']}", c["type"], c["source_type"], c["expression"]] for c in plan.columns]
    say_table(["  NAME", "TYPE", "SOURCE TYPE", "EXPRESSION"], shown)
    _block("DDL", plan.ddl)
    _block("steps", plan.steps)
    for note in plan.notes:
        say(f"\nnote: {note}")


def _on(machines: Sequence[str]) -> str:
    """``on 3 peers (…)``, of many the first ones."""
    if not machines:
        return ""
    if not machines[0].startswith("http"):
        return f" on {machines[0]}"
    rest = len(machines) - _MACHINES_SHOWN
    more = f" and {rest} more" if rest > 0 else ""
    shown = ", ".join(machines[:_MACHINES_SHOWN])
    return f" on {counted(len(machines), 'peer')} ({shown}{more})"


def _show_way(plan: Preview) -> None:
    say(f"path      {plan.path}: {plan.path_reason}")
    say(f"engine    {plan.engine}{_on(plan.machines)}: {plan.engine_reason}")
    if plan.source_read is not None:
        say(f"read      {plan.source_read}")


@click.command(epilog=examples("flow explain", "flow explain load_orders --engine sail"))
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_pipeline)
@engine_option
@module_option
@common_options
def explain(*, names: tuple[str, ...], modules: tuple[str, ...], output: str) -> int:
    """Tell by which path, on which engine and in how many parts rows would move, and why."""
    from ematix_flow.run.preview import preview_pipeline

    project = load(modules)
    chosen = [project.pipeline(name) for name in dict.fromkeys(names)] or project.pipelines
    shown: list[Preview] = []
    failed: list[EmatixError] = []
    for pipeline in chosen:
        try:
            found = preview_pipeline(pipeline.spec)
        except EmatixError as error:
            failed.append(error)
            complain(f"{pipeline.name}: {error}")
            continue
        for plan in (found, *found.also):
            shown.append(plan)
            if output == "text":
                say(f"{plan.pipeline} → {plan.target} in {plan.target_connection}")
                _show_way(plan)
                say()
    if output == "json":
        say_json({"pipelines": [{name: getattr(p, name) for name in _WAY} for p in shown]})
    return failed[0].exit_code if failed else 0


def _show_rest(plan: Preview, counted: RunResult | None) -> None:
    _block("after the load (not run now)", plan.transforms_post)
    if counted is not None:
        _show_counts(counted)


def _info(info: dict[str, object]) -> str:
    shown = ", ".join(f"{k}={v}" for k, v in info.items() if v is not None)
    return f"({shown})" if shown else ""


def _block(title: str, statements: list[str]) -> None:
    if statements:
        say(f"\n{title}")
        for statement in statements:
            say("\n".join(f"  {line}" for line in statement.strip().splitlines()))


def _show_counts(result: RunResult) -> None:
    say("\nchanges of a run now (nothing was written)")
    for label, held in result.targets.items():
        if len(result.targets) > 1:
            say(f"{label}")
        for verb in ("read", "inserted", "updated", "closed", "deleted", "unchanged", "rejected"):
            say(f"  {verb:<10}{getattr(held.counts, verb):>12,}")


@click.command(epilog=examples("flow validate", "flow validate load_orders --format json"))
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_pipeline)
@module_option
@common_options
def validate(*, names: tuple[str, ...], modules: tuple[str, ...], output: str) -> int:
    """Check declarations, connections, source columns and targets, without starting Spark.

    Exit code 2 when a declaration is wrong, 1 when another check fails.
    """
    from ematix_flow.run.validate import validate_pipeline

    project = load(modules)
    chosen = [project.pipeline(name) for name in dict.fromkeys(names)] or project.pipelines
    found = [validate_pipeline(pipeline.spec) for pipeline in chosen]
    places = {pipeline.spec.location for pipeline in chosen}
    errors = [e for e in project.errors if not names or e.where in places]
    for error in errors:
        complain(str(error))
    if output == "json":
        say_json(
            {
                "ok": not errors and all(v.ok for v in found),
                "pipelines": [v.to_dict() for v in found],
                "errors": [described(error) for error in errors],
            }
        )
    for validation in found:
        for problem in validation.errors:
            complain(f"{validation.pipeline}: {problem}")
        if output == "text":
            say(f"{validation.pipeline}: {'ok' if validation.ok else 'not ok'}")
            for note in validation.notes:
                say(f"  note: {note}")
    if not found and not errors and output == "text":
        say(f"No pipeline is declared in {', '.join(project.modules)}.")
    if errors:
        return 2
    return 0 if all(v.ok for v in found) else 1
