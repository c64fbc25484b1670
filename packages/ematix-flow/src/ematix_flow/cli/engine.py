"""``flow engine``: the warm engine of this folder, started, looked at and stopped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from ematix_flow.cli.options import common_options, examples, module_option
from ematix_flow.cli.output import counted, say, say_json, took
from ematix_flow.errors import ConfigError

if TYPE_CHECKING:
    from ematix_flow.engine.warm import Found

_NOT_USABLE = 1
_MINUTE = 60.0


@click.group(
    epilog=examples("flow engine start", "flow engine status --format json", "flow engine stop"),
)
def engine() -> None:
    """Keep Spark running in the background, so that runs start at once.

    The engine is private to you and to the folder it was started in. Runs there use it by
    themselves while it is up and fits; otherwise they start Spark in their own process.
    """


@engine.command(epilog=examples("flow engine start", "flow engine start --idle-timeout 120"))
@click.option(
    "--idle-timeout",
    "minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="MINUTES",
    help="Stop by itself after so long without work.",
)
@module_option
@common_options
def start(*, minutes: float, modules: tuple[str, ...], output: str) -> int:
    """Start the engine of this folder, unless it is up.

    It is given the connector jars of the project's connections. One that does not fit any more,
    after an installation for example, is replaced.
    """
    from ematix_flow.engine import warm_control

    found, started = warm_control.start(idle_seconds=minutes * _MINUTE, jars=_jars(modules))
    if output == "json":
        say_json({"started": started, **_described(found)})
    else:
        say(f"{'the engine is up' if started else 'the engine was up already'}: {_facts(found)}")
    return 0


@engine.command(epilog=examples("flow engine status", "flow engine status --format json"))
@common_options
def status(*, output: str) -> int:
    """Tell whether the engine of this folder is up and a run would use it.

    Exit code 0 when it would, 1 otherwise.
    """
    from ematix_flow.engine.warm import look, own_slot

    found = look(own_slot())
    reason = reason_against(found)
    others = list(_others(found))
    if output == "json":
        document = {**_described(found), "usable": reason is None, "reason": reason}
        say_json({**document, "others": [_described(other) for other in others]})
        return 0 if reason is None else _NOT_USABLE
    if reason is None:
        say(f"the engine is up: {_facts(found)}")
    elif found.state == "running":
        say(f"the engine is up, but runs do not use it: {reason}; flow engine start replaces it")
    elif found.state == "dead":
        say("the engine has died; flow engine start starts a new one")
    else:
        say(f"{reason} in this folder" if found.state == "off" else reason)
    for other in others:
        say(f"another one is up in {other.record.folder if other.record else '?'}")
    return 0 if reason is None else _NOT_USABLE


@engine.command(epilog=examples("flow engine stop", "flow engine stop --all"))
@click.option("--all", "everywhere", is_flag=True, help="Stop those of other folders, too.")
@common_options
def stop(*, everywhere: bool, output: str) -> int:
    """Stop the engine of this folder, and whatever runs on it."""
    from ematix_flow.engine import warm_control
    from ematix_flow.engine.warm import look, look_everywhere, own_slot

    chosen = list(look_everywhere()) if everywhere else [look(own_slot())]
    stopped = sum(warm_control.stop(found) for found in chosen)
    if output == "json":
        say_json({"stopped": stopped})
    elif stopped:
        say("the engine is stopped" if stopped == 1 else f"{stopped} engines are stopped")
    else:
        say("no engine was running" if everywhere else "no engine was running in this folder")
    return 0


@engine.command(epilog=examples("flow engine logs", "flow engine logs --lines 200"))
@click.option("-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True)
@common_options
def logs(*, lines: int, output: str) -> int:
    """Show the last lines that the engine of this folder wrote, also after its end."""
    from ematix_flow.engine.warm import own_slot

    log = own_slot().log
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            last = file.read().splitlines()[-lines:]
    except FileNotFoundError:
        raise ConfigError(
            "no engine has been started in this folder", fix="start one with: flow engine start"
        ) from None
    if output == "json":
        say_json({"log": str(log), "lines": last})
        return 0
    for line in last:
        say(line)
    return 0


def _jars(modules: tuple[str, ...]) -> list[str]:
    """What the connections of the project need, as far as they can be told."""
    from ematix_flow import config
    from ematix_flow.backends.loading import load_backend
    from ematix_flow.cli.connections import load_declared
    from ematix_flow.errors import EmatixError

    load_declared(modules)
    needed: list[str] = []
    for name in config.connection_names():
        try:
            needed += load_backend(config.resolve_connection(name).connection).jars
        except EmatixError:
            continue  # a run that uses it will say so
    return list(dict.fromkeys(needed))


def reason_against(found: Found) -> str | None:
    """Why a run in this folder would not use the engine; None when it would."""
    from ematix_flow.config import DISTRIBUTED, ENGINES, placement_of
    from ematix_flow.engine.session import configured
    from ematix_flow.engine.warm import misfit
    from ematix_flow.peers import Placement

    placed = placement_of(None, Placement())
    if placed.engine in (None, ENGINES[0], DISTRIBUTED) and (placed.peers or placed.master):
        return "peers or a master are named for this folder"
    settings = configured()
    reason = misfit(found, settings)
    if reason is None and not settings.warm:
        return "the engine is set to local"
    return reason


def _others(found: Found) -> Iterator[Found]:
    from ematix_flow.engine.warm import look_everywhere

    for other in look_everywhere():
        if other.slot != found.slot and other.state in ("running", "starting"):
            yield other


def _described(found: Found) -> dict[str, Any]:
    record = found.record
    if record is None or found.state != "running":
        return {"state": found.state, "log": str(found.slot.log)}
    return {
        "state": found.state,
        "process_id": record.process_id,
        "port": record.port,
        "folder": record.folder,
        "spark": record.spark,
        "started_at": record.started_at,
        "idle_timeout_seconds": record.idle_seconds,
        "jars": list(record.jars),
        "sessions": _sessions(found),
        "log": str(found.slot.log),
    }


def _facts(found: Found) -> str:
    record = found.record
    if record is None:
        return found.state
    age = datetime.now(timezone.utc) - datetime.fromisoformat(record.started_at)
    return (
        f"Spark {record.spark}, process {record.process_id}, up for {took(age.total_seconds())}, "
        f"{counted(_sessions(found), 'session')}, "
        f"stops after {took(record.idle_seconds)} without work"
    )


def _sessions(found: Found) -> int:
    try:
        return len(list(found.slot.clients.iterdir()))
    except OSError:
        return 0
