"""Where settings come from: the environment, the project's TOML, the user's TOML, this process.

The only module that reads configuration files and ``EMATIX_FLOW_*`` variables. Values keep
their ``${…}`` references until a connection is used.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import Connection, build_connection, nearest
from ematix_flow.errors import ConfigError, EmatixError, UnknownConnection, UnknownName
from ematix_flow.registry import active_registry

if TYPE_CHECKING:
    from ematix_flow.backends.base import LiveConnection

PROJECT_FILE = ".ematix-flow.toml"
DEFAULT_CONNECTION = "default"
_PREFIX = "EMATIX_FLOW_"
LOCAL = "local"
SAIL = "sail"
ENGINES = ("auto", LOCAL, SAIL)
ENGINE_VARIABLE = "EMATIX_FLOW_ENGINE"
_PROJECT_KEYS = ("modules", "run_log", "engine")


@dataclass(frozen=True)
class ProjectSettings:
    """The ``[project]`` table of a project's TOML file."""

    folder: Path
    modules: tuple[str, ...] = ()
    run_log: str | None = None
    engine: str | None = None


@dataclass(frozen=True)
class ResolvedConnection:
    """A connection and the place that declared it."""

    connection: Connection
    origin: str


def home() -> Path:
    """The user's own folder for settings, run log and logs."""
    return Path(os.environ.get("EMATIX_FLOW_HOME") or Path.home() / ".ematix-flow")


def setting(name: str) -> str | None:
    """An ``EMATIX_FLOW_<NAME>`` variable, unset and empty being the same."""
    return os.environ.get(_PREFIX + name) or None


def user_file() -> Path:
    """The user's connections file."""
    return home() / "connections.toml"


def project_settings() -> ProjectSettings:
    """The settings of the project in the working directory; defaults where there is none."""
    path = Path.cwd() / PROJECT_FILE
    table = _section(path, "project")
    for key in table:
        if key not in _PROJECT_KEYS:
            raise UnknownName(
                f"{path}: [project] has no key {key!r}", fix=nearest(key, _PROJECT_KEYS)
            )
    modules = table.get("modules", [])
    if not isinstance(modules, list) or not all(isinstance(m, str) for m in modules):
        raise ConfigError(
            f"{path}: modules in [project] must be a list of texts",
            fix='write for example modules = ["pipelines.py"]',
        )
    run_log = table.get("run_log")
    if not isinstance(run_log, str | None):
        raise ConfigError(
            f"{path}: run_log in [project] must be a text",
            fix='write for example run_log = "sqlite://runs.db"',
        )
    engine = table.get("engine")
    if engine is not None:
        _check_engine(engine, f"{path}: engine in [project]")
    return ProjectSettings(path.parent, tuple(modules), run_log, engine)


def engine_choice(declared: str | None = None) -> tuple[str, str]:
    """Which engine to use, and who says so; ``declared`` is what the pipeline says.

    ``local`` is a Spark of this process, ``auto`` may be the warm engine, ``sail`` is Sail.
    """
    named = setting("ENGINE")
    if named is not None:
        _check_engine(named, ENGINE_VARIABLE)
        return named, f"{ENGINE_VARIABLE} or --engine"
    if declared not in (None, ENGINES[0]):
        return str(declared), f"engine={declared!r} of the pipeline"
    project = project_settings().engine
    return (project, f"engine in {PROJECT_FILE}") if project else (ENGINES[0], "the default")


def _check_engine(name: object, where: str) -> None:
    if name not in ENGINES:
        *most, last = ENGINES
        allowed = f"{', '.join(most)} or {last}"
        raise ConfigError(f"{where} is {name!r}", fix=f"it may be {allowed}")


def resolve_connection(name: str) -> ResolvedConnection:
    """The connection behind a name; ``UnknownConnection`` when nothing declares it."""
    found = _find(name)
    if found is None:
        known = sorted({*connection_names()})
        places = (
            f"declare it with @ematix.connection, set {_variable(name)}, or add "
            f"[connections.{name}] to {PROJECT_FILE}"
        )
        close = nearest(name, known) if known else ""
        fix = f"{close} Otherwise {places}" if close.startswith("did you mean") else places
        raise UnknownConnection(f"there is no connection {name!r}", fix=fix)
    return found


def connection_names() -> list[str]:
    """Every name that some source declares."""
    names = set(active_registry().connections)
    for path in (Path.cwd() / PROJECT_FILE, user_file()):
        names |= set(_section(path, "connections"))
    for variable in os.environ:
        if variable.startswith(f"{_PREFIX}DSN_"):
            names.add(variable.removeprefix(f"{_PREFIX}DSN_").lower())
    if f"{_PREFIX}DSN" in os.environ:
        names.add(DEFAULT_CONNECTION)
    return sorted(names)


def _variable(name: str) -> str:
    return f"{_PREFIX}DSN_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}"


def _find(name: str) -> ResolvedConnection | None:
    variables = [_variable(name)]
    if name == DEFAULT_CONNECTION:
        variables.append(f"{_PREFIX}DSN")
    for variable in variables:
        if os.environ.get(variable):
            built = build_connection(name, {"url": os.environ[variable]})
            return ResolvedConnection(built, f"environment variable {variable}")
    for path in (Path.cwd() / PROJECT_FILE, user_file()):
        declared = _section(path, "connections")
        if name in declared:
            return ResolvedConnection(_from_toml(path, name, declared[name]), str(path))
    held = active_registry().connections.get(name)
    return ResolvedConnection(held, "declared in Python") if held else None


def _from_toml(path: Path, name: str, fields: object) -> Connection:
    if isinstance(fields, str):
        fields = {"url": fields}
    if not isinstance(fields, Mapping):
        raise ConfigError(
            f"{path}: [connections.{name}] must be a table", fix='write for example url = "…"'
        )
    try:
        return build_connection(name, fields)
    except EmatixError as error:
        error.what = f"{path}: {error.what}"
        raise


def _section(path: Path, name: str) -> dict[str, Any]:
    section = _read_toml(path).get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: {name} must be a section", fix=f"write [{name}]")
    return section


def _read_toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", fix="correct the file") from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", fix="check its permissions"
        ) from error
    known = ("connections", "project")
    for key in content:
        if key not in known:
            raise UnknownName(f"{path} has no section [{key}]", fix=nearest(key, known))
    return content


def set_connection(name: str, fields: Mapping[str, str]) -> Path:
    """Write a connection to the user's file, readable by the user alone."""
    import tomlkit

    path = user_file()
    build_connection(name, fields)
    _section(path, "connections")
    held = path.read_text(encoding="utf-8") if path.exists() else ""
    document = tomlkit.parse(held)
    connections = document.setdefault("connections", tomlkit.table(is_super_table=True))
    entry = tomlkit.table()
    entry.update(fields)
    connections[name] = entry
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(tomlkit.dumps(document))
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", fix="check its permissions"
        ) from error
    return path


def connect(name: str = DEFAULT_CONNECTION, *, url: str | None = None) -> LiveConnection:
    """Open a live connection by name, or by URL without declaring one."""
    from ematix_flow.backends.loading import open_connection

    if url is not None:
        return open_connection(build_connection(name, {"url": url}))
    return open_connection(resolve_connection(name).connection)
