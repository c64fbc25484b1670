"""The options that commands share, and what they do before a command begins."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ematix_flow import config
from ematix_flow.cli.output import keep_stdout_for_json, warn

if TYPE_CHECKING:
    from ematix_flow.discovery import Project
    from ematix_flow.observe.observer import Observer
    from ematix_flow.run.log import RunLog

Command = TypeVar("Command", bound=Callable[..., Any])


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in lines)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--format``, ``--log-level``, ``--log-format``, ``--verbose``."""

    @click.option(
        "--format",
        "output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of the result on stdout.",
    )
    @click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="Finest log lines to show on stderr; warning, or info with --verbose.",
    )
    @click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of the log lines.",
    )
    @click.option("-v", "--verbose", is_flag=True, help="Show more, and traces of failures.")
    @functools.wraps(command)
    def prepared(
        *,
        output: str,
        log_level: str | None,
        log_format: str,
        verbose: bool,
        **rest: Any,
    ) -> Any:
        from ematix_flow.run.logs import configure_logging

        context = click.get_current_context()
        level = log_level or ("info" if verbose else None)
        context.call_on_close(configure_logging(level, log_format))
        _show_warnings_as_lines(context)
        if output == "json":
            keep_stdout_for_json()
        return command(output=output, **rest)

    return prepared


def _show_warnings_as_lines(context: click.Context) -> None:
    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        # Deprecations speak to whoever wrote the code, not to whoever runs it.
        if not issubclass(category, DeprecationWarning | PendingDeprecationWarning):
            warn(str(message))

    context.with_resource(warnings.catch_warnings())
    warnings.simplefilter("default", UserWarning)
    warnings.showwarning = show


def module_option(command: Command) -> Command:
    """``--module``, as often as needed."""
    return click.option(
        "-m",
        "--module",
        "modules",
        multiple=True,
        metavar="MODULE|FILE|FOLDER",
        help="Where pipelines are declared; may be left out inside a project. Repeatable.",
    )(command)


def engine_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--engine``; what it says holds for the length of the command."""

    @click.option(
        "--engine",
        type=click.Choice(config.ENGINES),
        help="What moves the rows: a Spark of this process (local), Spark on peers (distributed), "
        "Sail where it does the same as Spark (sail); or peers if any are named, else the warm "
        "engine when there is one that fits (auto). Otherwise as the pipeline or the project says.",
    )
    @functools.wraps(command)
    def chosen(*, engine: str | None, **rest: Any) -> Any:
        if engine is not None:
            before = os.environ.get(config.ENGINE_VARIABLE)
            os.environ[config.ENGINE_VARIABLE] = engine
            click.get_current_context().call_on_close(lambda: _put_back(before))
        return command(**rest)

    return chosen


def _put_back(engine: str | None) -> None:
    if engine is None:
        os.environ.pop(config.ENGINE_VARIABLE, None)
    else:
        os.environ[config.ENGINE_VARIABLE] = engine


def run_log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--run-log`` and its other spellings; the command gets ``run_log``, a function."""

    @click.option("--run-log", "--run-log-url", "url", metavar="URL", help="The run log to use.")
    @click.option("--run-log-path", "path", metavar="FILE", help="The same, as a SQLite file.")
    @click.option("--no-run-log", "none", is_flag=True, help="Record nothing.")
    @functools.wraps(command)
    def chosen(*, url: str | None, path: str | None, none: bool, **rest: Any) -> Any:
        if sum(map(bool, (url, path, none))) > 1:
            raise click.UsageError("--run-log, --run-log-path and --no-run-log exclude each other")

        if url or path:
            click.get_current_context().meta["ematix_flow.run_log"] = url or path

        def open_chosen() -> RunLog:
            from ematix_flow.run.log import NullRunLog, as_file, open_run_log

            log: RunLog = NullRunLog(asked_for=True) if none else open_run_log(url or as_file(path))
            click.get_current_context().call_on_close(log.close)
            return log

        return command(run_log=open_chosen, **rest)

    return chosen


def observe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--alerter``, ``--metrics``, ``--traces``; the command gets ``observer``, of a run log."""

    @click.option(
        "--alerter",
        "alerters",
        multiple=True,
        metavar="URL",
        help="Who is told of failures and recoveries: stdout://, slack://, webhook://, email://, "
        "pagerduty://. Repeatable.",
    )
    @click.option(
        "--metrics",
        metavar="URL",
        help="Where numbers go: prometheus://:PORT, prometheus+push://, prometheus+file://, "
        "otlp://, stdout://, memory://, null://.",
    )
    @click.option(
        "--traces",
        metavar="URL",
        help="Where spans go: otel://stdout, otel+otlp+grpc://, otel+otlp+http://.",
    )
    @functools.wraps(command)
    def chosen(
        *, alerters: tuple[str, ...], metrics: str | None, traces: str | None, **rest: Any
    ) -> Any:
        def open_chosen(log: RunLog) -> Observer:
            import dataclasses

            from ematix_flow.observe.observer import open_observer
            from ematix_flow.run.alert_memory import LogMemory

            held = config.observe_settings()
            asked = dataclasses.replace(
                held,
                alerters=alerters or held.alerters,
                metrics=metrics or held.metrics,
                traces=traces or held.traces,
            )
            opened = open_observer(asked, memory=LogMemory(log))
            click.get_current_context().call_on_close(opened.close)
            return opened

        told = {"ALERTERS": ",".join(alerters), "METRICS": metrics, "TRACES": traces}
        for_workers = {f"EMATIX_FLOW_{name}": url for name, url in told.items() if url}
        click.get_current_context().meta["ematix_flow.observe"] = for_workers
        return command(observer=open_chosen, **rest)

    return chosen


def load(modules: tuple[str, ...]) -> Project:
    """The project, its registry active until the command ends."""
    from ematix_flow.discovery import load_project

    project = click.get_current_context().with_resource(load_project(modules))
    if not modules and not project.errors:
        config.check_placed(project.registry.pipelines)
    return project


def complete_pipeline(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of pipelines, for the shell."""
    from ematix_flow.discovery import load_project
    from ematix_flow.errors import EmatixError

    try:
        with load_project(ctx.params.get("modules") or ()) as project:
            return [p.name for p in project.pipelines if p.name.startswith(incomplete)]
    except EmatixError:
        return []
