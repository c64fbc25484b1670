"""The ``flow`` command: finds the subcommand, and turns every failure into one line.

Subcommands are imported when they are called, so that ``--help`` and ``list`` stay quick.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import click

from ematix_flow.cli.output import complain
from ematix_flow.errors import EmatixError, ProjectErrors

_CANCELLED = 130
_MISUSED = 2

# What each is for stands here and not only in its module, which --help does not load.
COMMANDS = {
    "list": ("listing:list_pipelines", "Show the pipelines of the project."),
    "run": ("running:run", "Run pipelines, all or some, in order of their dependencies."),
    "run-due": ("due:run_due", "Run what is due by schedule, every slot once."),
    "scheduler": ("scheduler:scheduler", "Look again and again, and have workers run what is due."),
    "restart": ("restarting:restart", "Do what is left of a run that failed."),
    "reset": ("due:reset", "Let pipelines that have given up go on."),
    "pause": ("due:pause", "Let no schedule run pipelines for a while."),
    "resume": ("due:resume", "Let schedules run paused pipelines again."),
    "explain": ("asking:explain", "Tell how and on which engine rows would move, and why."),
    "preview": ("asking:preview", "Show what a run would do, without loading a row."),
    "dry-run": ("asking:dry_run", "Do everything but the commit, and count the changes."),
    "validate": ("asking:validate", "Check declarations, connections, columns and targets."),
    "plan": ("planning:plan", "Show every change of a run before it is made, and keep it."),
    "apply": ("planning:apply", "Make the changes of a kept plan, if nothing has moved."),
    "watermark": ("watermarks:watermark", "Show and move the watermarks of pipelines."),
    "backfill": ("backfilling:backfill", "Load a range again, slice by slice, and only that."),
    "transform": ("transforming:transform", "List and run named transforms."),
    "status": ("history:status", "Show when each pipeline ran last and is due next."),
    "freshness-check": (
        "freshness:freshness_check",
        "Tell whether tables are as fresh as promised.",
    ),
    "runs": ("history:runs", "Look into the run log."),
    "logs": ("history:logs", "Show the log lines of a run."),
    "diff": ("diffing:diff", "Compare two tables by key, on any two connections."),
    "why": ("diffing:why", "Tell which runs wrote a row, and from which source."),
    "lineage": ("lineage:lineage", "Show which columns a table or column comes from."),
    "impact": ("lineage:impact", "Show what depends on a column, through all pipelines."),
    "engine": (
        "engine:engine",
        "Keep Spark running in the background, so that runs start at once.",
    ),
    "connections": ("connections:connections", "List, check and set connections."),
    "secrets": ("secrets:secrets", "Test references to secrets."),
    "doctor": ("doctor:doctor", "Check this machine and this project."),
    "init": ("scaffold:init", "Write a new project that runs at once."),
}


class _Flow(click.Group):
    """A group that knows its commands by name and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        from importlib import import_module

        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"ematix_flow.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from ematix_flow.connections import nearest

            raise click.UsageError(
                f"there is no command {args[0]!r}; {nearest(args[0], COMMANDS)}", ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from ematix_flow import __version__

        click.echo(f"flow, version {__version__}")
        ctx.exit()


def _completion(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from ematix_flow.cli import completion

        install = parameter.name == "install_completion"
        click.echo(completion.install(app) if install else completion.script(app))
        ctx.exit()


@click.group(
    cls=_Flow,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:\n\n\b\n  flow init my_project && cd my_project && flow run\n"
    "  flow run load_orders --module pipelines.py\n  flow runs list --status failed",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
@click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_completion,
    help="Install completion for your shell.",
)
@click.option(
    "--show-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_completion,
    help="Show the completion script for your shell.",
)
def app() -> None:
    """Declarative data pipelines on Apache Spark."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; nothing but that line is raised."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Loading modules makes many objects that stay; looking for garbage among them is a tenth of it.
    gc.set_threshold(50_000)
    if os.name == "nt":
        complain("native Windows is not supported; run flow inside WSL (wsl --install)")
        return _MISUSED
    try:
        code = app.main(given, prog_name="flow", standalone_mode=False)
    except click.ClickException as error:
        return _misused(error)
    except (click.Abort, KeyboardInterrupt):
        complain("cancelled", as_="flow")
        return _CANCELLED
    except EmatixError as error:
        _trace(given)
        for single in error.errors if isinstance(error, ProjectErrors) else [error]:
            complain(str(single))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - a user sees a line, not a trace
        _trace(given)
        complain(f"unexpected {type(error).__name__}: {error}; add --verbose to see where")
        return 1
    return code if isinstance(code, int) else 0


def _misused(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return _MISUSED
    where = context.command_path if context else "flow"
    message = error.format_message().rstrip(".")
    hint = " See" if message.endswith("?") else "; see"
    complain(f"{message[:1].lower()}{message[1:]}{hint}: {where} --help")
    return _MISUSED


def _trace(arguments: Sequence[str]) -> None:
    if "--verbose" in arguments or "-v" in arguments:
        import traceback

        from ematix_flow.redaction import redact_text

        click.echo(redact_text(traceback.format_exc()), err=True)


if __name__ == "__main__":
    sys.exit(main())
