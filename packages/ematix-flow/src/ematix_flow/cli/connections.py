"""``flow connections list``, ``check`` and ``set``."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import click

from ematix_flow import config
from ematix_flow.cli.options import common_options, examples, load, module_option
from ematix_flow.cli.output import complain, say, say_json, say_table
from ematix_flow.connections import CONNECTION_CLASSES, build_connection
from ematix_flow.errors import EmatixError

if TYPE_CHECKING:
    from ematix_flow.discovery import Project


@click.group()
def connections() -> None:
    """List, check and set connections."""


@connections.command(
    "list",
    epilog=examples("flow connections list", "flow connections list -m pipelines.py --format json"),
)
@module_option
@common_options
def list_connections(*, modules: tuple[str, ...], output: str) -> int:
    """Show every connection, where it was found, and its fields without secrets.

    Exit code 2 when one of them is declared wrongly.
    """
    load_declared(modules)
    found: list[dict[str, Any]] = []
    wrong = 0
    for name in config.connection_names():
        try:
            resolved = config.resolve_connection(name)
        except EmatixError as error:
            wrong += 1
            complain(str(error))
            found.append({"name": name, "error": str(error)})
            continue
        found.append(
            {
                "name": name,
                "kind": resolved.connection.kind,
                "origin": resolved.origin,
                "fields": resolved.connection.shown(),
            }
        )
    if output == "json":
        say_json({"connections": found})
    elif found:
        say_table(
            ["NAME", "KIND", "WHERE", "FIELDS"],
            [
                [c["name"], c.get("kind"), c.get("origin"), _fields(c.get("fields", {}))]
                for c in found
            ],
        )
    else:
        say("No connection is declared.")
    return 2 if wrong else 0


def load_declared(modules: tuple[str, ...]) -> Project | None:
    """Load the project, if there is one, for the connections it declares in Python."""
    if not modules and not config.project_settings().modules:
        return None
    return load(modules)


def _fields(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fields.items())


@connections.command(
    "check",
    epilog=examples("flow connections check", "flow connections check warehouse --format json"),
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@module_option
@common_options
def check(*, names: tuple[str, ...], modules: tuple[str, ...], output: str) -> int:
    """Connect, ask for a sign of life, and report; all connections when none is named.

    Exit code 1 when one does not answer, 2 when one is declared wrongly.
    """
    load_declared(modules)
    chosen = list(dict.fromkeys(names)) or config.connection_names()
    results = [_check(name) for name in chosen]
    if output == "json":
        say_json({"connections": [result for result, _ in results]})
    for result, _ in results:
        if not result["ok"]:
            complain(f"{result['name']}: {result['error']}")
        elif output == "text":
            say(f"{result['name']}: ok {_fields(result['info'])}".rstrip())
    if not chosen and output == "text":
        say("No connection is declared.")
    return max((code for _, code in results), default=0)


def _check(name: str) -> tuple[dict[str, Any], int]:
    try:
        with contextlib.closing(config.connect(name)) as live:
            live.ping()
            info = live.info()
    except EmatixError as error:
        return {"name": name, "ok": False, "error": str(error)}, error.exit_code
    return {"name": name, "ok": True, "info": info}, 0


@connections.command(
    "set",
    epilog=examples(
        "flow connections set warehouse url='postgres://me:${PGPASSWORD}@db/shop'",
        "flow connections set lake kind=object_store_local path=data format=parquet",
        "flow connections set warehouse=duckdb://warehouse.duckdb",
    ),
)
@click.argument("name", metavar="NAME|NAME=URL")
@click.argument("fields", nargs=-1, metavar="[KEY=VALUE]...")
@common_options
def set_connection(*, name: str, fields: tuple[str, ...], output: str) -> None:
    """Write a connection to your own file, readable by you alone.

    Quote ${…} references: they are kept as written and resolved when the connection is used.
    """
    values: dict[str, Any] = {}
    name, equals, url = name.partition("=")
    if equals:
        values["url"] = url
    for text in fields:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="KEY=VALUE")
        values[key] = value
    if not name or not values:
        raise click.UsageError("give a name and at least url=…")
    connection = build_connection(name, typed(values))
    path = config.set_connection(name, typed(values))
    if output == "json":
        say_json({"name": name, "kind": connection.kind, "file": str(path)})
    else:
        say(f"Connection {name} ({connection.kind}) is written to {path}.")


def typed(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers and flags as such, where the kind of connection has such fields."""
    cls = CONNECTION_CLASSES.get(values.get("kind", ""))
    hints = {f.name: str(f.type) for f in dataclasses.fields(cls)} if cls else {"port": "int"}
    result = dict(values)
    for name, value in values.items():
        if hints.get(name, "").startswith("int") and value.isdecimal():
            result[name] = int(value)
        elif hints.get(name, "").startswith("bool") and value in ("true", "false"):
            result[name] = value == "true"
    return result
