"""``flow transform list`` and ``flow transform run``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from ematix_flow.cli.options import (
    common_options,
    engine_option,
    examples,
    load,
    module_option,
    run_log_options,
)
from ematix_flow.cli.output import complain, counted, say, say_json, say_table, took

if TYPE_CHECKING:
    from ematix_flow.pipeline import Pipeline
    from ematix_flow.run.log import RunLog


@click.group()
def transform() -> None:
    """List named transforms, and run one by itself."""


@transform.command(
    "list", epilog=examples("flow transform list", "flow transform list --format json")
)
@module_option
@common_options
def list_transforms(*, modules: tuple[str, ...], output: str) -> int:
    """Show the transforms of the project, with the pipelines that run them after a load.

    Exit code 2 when some declaration is wrong.
    """
    project = load(modules)
    held = list(project.registry.transforms.values())
    used = {t.name: _users(t.name, project.pipelines) for t in held}
    for error in project.errors:
        complain(str(error))
    if output == "json":
        documents = [
            {
                "name": t.name,
                "description": t.__doc__,
                "connection": t.connection,
                "after": used[t.name],
                "file": t.location.file,
                "line": t.location.line,
            }
            for t in held
        ]
        say_json({"transforms": documents})
    elif held:
        say_table(
            ["NAME", "CONNECTION", "AFTER", "DESCRIPTION"],
            [
                [
                    t.name,
                    t.connection or "that of the pipeline, or default",
                    ", ".join(used[t.name]),
                    (t.__doc__ or "").partition("\n")[0],
                ]
                for t in held
            ],
        )
    elif not project.errors:
        say(f"No transform is declared in {', '.join(project.modules)}.")
    return 2 if project.errors else 0


def _users(name: str, pipelines: Sequence[Pipeline]) -> list[str]:
    return [
        p.name
        for p in pipelines
        if any(getattr(entry, "name", None) == name for entry in p.spec.transforms_post)
    ]


@transform.command(
    "run", epilog=examples("flow transform run update_mart", "flow transform run update_mart -v")
)
@click.argument("name")
@engine_option
@module_option
@run_log_options
@common_options
def run_named(
    *, name: str, modules: tuple[str, ...], run_log: Callable[[], RunLog], output: str
) -> None:
    """Run a named transform now, on its own connection or the default one."""
    from ematix_flow.run.transforms import run_transform

    project = load(modules)
    held = project.registry.transform(name)
    result = run_transform(held, trigger="cli", run_log=run_log())
    if output == "json":
        say_json(result.to_dict())
        return
    rows = "" if result.rows is None else f"{counted(result.rows, 'row')} touched "
    say(f"{name}: done, {rows}in {took(result.seconds)}")
    for measured, value in result.metrics.items():
        say(f"  {measured}: {value}")
