"""``flow list``."""

from __future__ import annotations

from typing import Any

import click

from ematix_flow.cli.options import common_options, examples, load, module_option
from ematix_flow.cli.output import complain, say, say_json, say_table
from ematix_flow.errors import DeclarationError
from ematix_flow.model import PipelineSpec


@click.command(epilog=examples("flow list", "flow list --module pipelines.py --format json"))
@module_option
@common_options
def list_pipelines(*, modules: tuple[str, ...], output: str) -> int:
    """Show the pipelines of the project, and what is wrong with the others.

    Exit code 2 when some declaration is wrong.
    """
    project = load(modules)
    specs = [pipeline.spec for pipeline in project.pipelines]
    for error in project.errors:
        complain(str(error))
    if output == "json":
        errors = [described(error) for error in project.errors]
        say_json({"pipelines": [_plain(spec) for spec in specs], "errors": errors})
    elif specs:
        say_table(
            ["NAME", "SCHEDULE", "MODE", "FROM", "TO", "DEPENDS ON"],
            [
                [
                    spec.name,
                    spec.schedule.cron if spec.schedule else None,
                    ", ".join(dict.fromkeys(t.mode for t in spec.targets)),
                    spec.source,
                    ", ".join(f"{t.connection}: {t.table.name}" for t in spec.targets),
                    ", ".join(spec.depends_on),
                ]
                for spec in specs
            ],
        )
    elif not project.errors:
        say(f"No pipeline is declared in {', '.join(project.modules)}.")
    return 2 if project.errors else 0


def described(error: DeclarationError) -> dict[str, Any]:
    """A declaration's error as plain data."""
    return {
        "message": str(error),
        "class": type(error).__name__,
        "file": error.where.file if error.where else None,
        "line": error.where.line if error.where else None,
    }


def _plain(spec: PipelineSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "description": spec.doc,
        "schedule": spec.schedule.cron if spec.schedule else None,
        "timezone": spec.schedule.zone if spec.schedule else None,
        "source_connection": spec.source,
        "source_table": spec.source_table,
        "targets": [
            {"table": str(t.table.name), "connection": t.connection, "mode": t.mode}
            for t in spec.targets
        ],
        "depends_on": list(spec.depends_on),
        "file": spec.location.file,
        "line": spec.location.line,
    }
