"""``flow run``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

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
from ematix_flow.cli.output import complain, counted, say, say_json, took, warn
from ematix_flow.errors import (
    Cancelled,
    DeclarationError,
    DependencyCycle,
    EmatixError,
    TargetsFailed,
    UnknownName,
)
from ematix_flow.graph import run_order
from ematix_flow.model import PipelineSpec

if TYPE_CHECKING:
    from ematix_flow.discovery import Project
    from ematix_flow.observe.observer import Observer
    from ematix_flow.run.log import RunLog
    from ematix_flow.run.result import RunResult, TargetResult

_MISDECLARED, _CANCELLED = 2, 130


@dataclass
class _Outcome:
    """What became of the pipelines that were asked for."""

    ran: list[RunResult] = field(default_factory=list)
    failed: dict[str, EmatixError] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    cancelled: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "ran": [result.to_dict() for result in self.ran],
            "failed": [
                {"pipeline": name, "error": str(error), "error_class": type(error).__name__}
                | _targets_of(error)
                for name, error in self.failed.items()
            ],
            "skipped": [{"pipeline": n, "reason": reason} for n, reason in self.skipped.items()],
        }


def _targets_of(error: EmatixError) -> dict[str, Any]:
    if not isinstance(error, TargetsFailed):
        return {}
    return {"targets": {name: result.to_dict() for name, result in error.results.items()}}


@dataclass(frozen=True)
class _How:
    """What all pipelines of one command are run with."""

    parameters: dict[str, str]
    log: RunLog
    all_targets: bool | None
    observer: Observer
    show: bool


@click.command(
    epilog=examples(
        "flow run",
        "flow run load_orders",
        "flow run load_orders --module pipelines.py --param day=2026-01-31",
        "flow run --format json --run-log sqlite://runs.db",
    )
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_pipeline)
@click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="KEY=VALUE",
    help="A run parameter. Repeatable.",
)
@click.option(
    "--all-targets/--only-missing",
    default=None,
    help="Load every target, also those that the last, failed run has loaded; or only the others. "
    "Otherwise those are left alone whose rows are still the same.",
)
@click.option(
    "--claim-token",
    metavar="TOKEN",
    help="Run the slot that a scheduler has claimed by this token.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    help="With a token: after so long without a sign of life the slot is taken over by others.",
)
@click.option("--previous-run", metavar="RUN", hidden=True)
@click.option("--lost-run", metavar="RUN", hidden=True)
@engine_option
@module_option
@run_log_options
@observe_options
@common_options
def run(
    *,
    names: tuple[str, ...],
    params: tuple[str, ...],
    all_targets: bool | None,
    claim_token: str | None,
    lease_seconds: float,
    previous_run: str | None,
    lost_run: str | None,
    modules: tuple[str, ...],
    run_log: Callable[[], RunLog],
    observer: Callable[[RunLog], Observer],
    output: str,
) -> int:
    """Run pipelines: those named, or all, each after those it depends on.

    When one fails, those that depend on it are skipped and the others still run. Exit code 1
    when a run failed, 2 when a declaration is wrong, 130 when cancelled.
    """
    parameters = _parameters(params)
    project = load(modules)
    if claim_token is not None:
        if len(names) != 1 or params or all_targets is not None:
            raise click.UsageError(
                "--claim-token goes with one pipeline, without --param and --all-targets"
            )
        claim = _Claim(claim_token, lease_seconds, previous_run, lost_run)
        log = run_log()
        return _run_claimed(
            project, names[0], claim, log=log, observer=observer(log), output=output
        )
    if previous_run or lost_run or _is_typed("lease_seconds"):
        raise click.UsageError(
            "--lease-seconds, --previous-run and --lost-run go with --claim-token"
        )
    refused = refused_pipelines(project)
    chosen = _chosen(project, refused, names)
    outcome = _Outcome()
    if not names:
        outcome.skipped |= {name: str(error) for name, error in refused.items()}
    with terminated_like_interrupted():
        log = run_log()
        how = _How(parameters, log, all_targets, observer(log), show=output == "text")
        _run_all(chosen, project, how, outcome)
        tidy_log(how.log)
    if output == "json":
        say_json(outcome.to_dict())
    elif len(chosen) > 1:
        say(_summary(outcome))
    _prepare_next_start(outcome)
    if outcome.cancelled:
        return _CANCELLED
    if outcome.failed:
        return min(error.exit_code for error in outcome.failed.values())
    return _MISDECLARED if project.errors and not names else 0


def _is_typed(option: str) -> bool:
    """Whether an option was given, and is not what it is by default."""
    source = click.get_current_context().get_parameter_source(option)
    return source is click.core.ParameterSource.COMMANDLINE


def tidy_log(log: RunLog) -> None:
    """Once a day, remove what is older than the project keeps."""
    from ematix_flow.run.retention import tidy

    tidy(log)


@dataclass(frozen=True)
class _Claim:
    """What a scheduler tells a worker of the slot that it is to run."""

    token: str
    lease_seconds: float
    previous: str | None
    lost: str | None


def _run_claimed(
    project: Project, name: str, claim: _Claim, *, log: RunLog, observer: Observer, output: str
) -> int:
    from ematix_flow.schedule.events import FailedEvent, FiredEvent
    from ematix_flow.schedule.worker import run_claimed

    with terminated_like_interrupted():
        ended = run_claimed(
            project.pipeline(name).spec,
            claim.token,
            log,
            lease=timedelta(seconds=claim.lease_seconds),
            previous=claim.previous or claim.lost,
            lost=claim.lost is not None,
            observer=observer,
        )
    tidy_log(log)
    event = ended.event
    if output == "json":
        say_json(event.to_dict())
    elif isinstance(event, FiredEvent):
        if event.result is not None:
            tell_result(event.result)
    else:
        complain(event.error_message if isinstance(event, FailedEvent) else event.reason)
    if ended.status == "cancelled":
        return _CANCELLED
    return 0 if ended.status == "succeeded" else 1


def _parameters(params: Sequence[str]) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for text in params:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--param")
        parameters[key] = value
    return parameters


def refused_pipelines(project: Project) -> dict[str, DeclarationError]:
    """The pipelines that cannot run as declared, each with its reason."""
    refused = {name: broken.error for name, broken in project.registry.broken.items()}
    specs = {p.name: p.spec for p in project.pipelines}
    for error in project.errors:
        for name, spec in specs.items():
            # Dependency errors are found after loading and know a pipeline by its place only.
            if isinstance(error, UnknownName) and error.where == spec.location:
                refused[name] = error
            if isinstance(error, DependencyCycle) and name in _upstream(name, specs):
                refused[name] = error
    return refused


def _upstream(name: str, specs: dict[str, PipelineSpec]) -> set[str]:
    """All that a pipeline depends on, directly or not."""
    found: set[str] = set()
    waiting = list(specs[name].depends_on)
    while waiting:
        upstream = waiting.pop()
        if upstream not in found:
            found.add(upstream)
            waiting += specs[upstream].depends_on if upstream in specs else ()
    return found


def _chosen(
    project: Project, refused: dict[str, DeclarationError], names: Sequence[str]
) -> list[PipelineSpec]:
    for name in names:
        if name in refused:
            raise refused[name]
        project.pipeline(name)
    tell = warn if names else complain
    for error in project.errors:
        tell(str(error))
    sound = run_order([p.spec for p in project.pipelines if p.name not in refused])
    chosen = [spec for spec in sound if not names or spec.name in names]
    if not chosen and not project.errors:
        raise DeclarationError(
            f"no pipeline is declared in {', '.join(project.modules)}",
            fix="declare one with @ematix.pipeline",
        )
    return chosen


def _run_all(
    chosen: Sequence[PipelineSpec],
    project: Project,
    how: _How,
    outcome: _Outcome,
) -> None:
    with _one_cluster(chosen):
        _run_each(chosen, project, how, outcome)


@contextmanager
def _one_cluster(chosen: Sequence[PipelineSpec]) -> Iterator[None]:
    """Peers that one pipeline has joined stay for the others."""
    from ematix_flow.engine.placing import Place
    from ematix_flow.engine.session import run_session

    spread = False
    with suppress(EmatixError):
        spread = any(Place(spec).is_distributed for spec in chosen)
    with run_session() if spread else nullcontext():
        yield


def _run_each(
    chosen: Sequence[PipelineSpec],
    project: Project,
    how: _How,
    outcome: _Outcome,
) -> None:
    from ematix_flow.run.batch import run_pipeline

    specs = {p.name: p.spec for p in project.pipelines}
    for spec in chosen:
        bad = [
            n
            for n in sorted(_upstream(spec.name, specs))
            if n in (outcome.failed | outcome.skipped)
        ]
        if outcome.cancelled or bad:
            reason = f"{bad[0]} did not succeed" if bad else "cancelled"
            outcome.skipped[spec.name] = reason
            complain(f"{spec.name}: skipped, {reason}", as_="flow")
            continue
        try:
            result = run_pipeline(
                spec,
                trigger="cli",
                parameters=how.parameters,
                run_log=how.log,
                progress=sys.stderr.isatty(),
                all_targets=how.all_targets,
                observer=how.observer,
            )
        except EmatixError as error:
            _note_failure(spec.name, error, outcome)
        except KeyboardInterrupt:
            _note_failure(spec.name, Cancelled("cancelled on request"), outcome)
        except Exception as error:  # noqa: BLE001 - one pipeline's surprise must not stop the others
            unexpected = EmatixError(f"unexpected {type(error).__name__}: {error}")
            _note_failure(spec.name, unexpected.with_traceback(error.__traceback__), outcome)
        else:
            outcome.ran.append(result)
            if how.show:
                tell_result(result)


def _note_failure(name: str, error: EmatixError, outcome: _Outcome) -> None:
    import logging

    outcome.failed[name] = error
    outcome.cancelled = isinstance(error, Cancelled)
    complain(_with_pipeline(name, error))
    if error.__traceback__ is not None:
        # The screen shows it with --verbose only; the level of this line is what --verbose lowers.
        logging.getLogger(__name__).info("pipeline %s failed", name, exc_info=error)


def _with_pipeline(name: str, error: EmatixError) -> str:
    """What went wrong, with the pipeline's name after the place in the user's file."""
    text = str(error)
    if f"'{name}'" in text:
        return text
    place = f"{error.where}: " if error.where else ""
    return f"{place}pipeline '{name}': {text.removeprefix(place)}"


def tell_result(result: RunResult) -> None:
    """Say in a line for each target what a run has done."""
    for target in result.targets.values():
        say(f"{_line(result, target)}")
    if len(result.targets) > 1:
        say(f"{result.pipeline}: {counted(len(result.targets), 'target')} in {_end(result)}")
    for step in result.post:
        if step.error is None:
            say(f"{result.pipeline}, then {step.name}: done in {took(step.seconds)}")
        else:
            warn(step.error)


def _line(result: RunResult, target: TargetResult) -> str:
    done = f"{result.pipeline} → {target.target}: "
    if target.status == "skipped":
        return done + target.note
    counts = target.counts
    parts = [f"{counted(counts.read, 'row')} read"]
    for verb in ("inserted", "updated", "closed", "deleted", "unchanged", "rejected"):
        number = getattr(counts, verb)
        if number or verb == "inserted":
            parts.append(f"{number:,} {verb}")
    done += ", ".join(parts)
    if len(result.targets) > 1:
        return f"{done} ({target.path})"
    return f"{done} in {_end(result)}"


def _end(result: RunResult) -> str:
    return f"{took(result.seconds)} ({result.path or 'nothing to load'}, run {result.run_id})"


def _summary(outcome: _Outcome) -> str:
    parts = [f"{counted(len(outcome.ran), 'pipeline')} succeeded"]
    if outcome.failed:
        parts.append(f"{len(outcome.failed)} failed")
    if outcome.skipped:
        parts.append(f"{len(outcome.skipped)} skipped")
    return ", ".join(parts) + "."


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: cancelled, cleaned up, recorded."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only the main thread may do this
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _prepare_next_start(outcome: _Outcome) -> None:
    """After the result is out, let the class archive be built for the next start."""
    if all(result.path in ("same_db", "copy", "") for result in outcome.ran):
        return
    from ematix_flow.engine.archive import build_archive_in_background

    sys.stdout.flush()
    build_archive_in_background()
