"""Where settings come from: the environment, the project's TOML, the user's TOML, this process.

The only module that reads configuration files and ``EMATIX_FLOW_*`` variables. Values keep
their ``${…}`` references until a connection is used.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import Connection, build_connection, nearest
from ematix_flow.durations import duration
from ematix_flow.errors import ConfigError, EmatixError, UnknownConnection, UnknownName
from ematix_flow.peers import Placement, check_master, check_peers
from ematix_flow.registry import active_registry

if TYPE_CHECKING:
    from ematix_flow.backends.base import LiveConnection

PROJECT_FILE = ".ematix-flow.toml"
DEFAULT_CONNECTION = "default"
_PREFIX = "EMATIX_FLOW_"
LOCAL, SAIL, DISTRIBUTED = "local", "sail", "distributed"
ENGINES = ("auto", LOCAL, SAIL, DISTRIBUTED)
ENGINE_VARIABLE = "EMATIX_FLOW_ENGINE"
_PLACEMENT_KEYS = ("engine", "peers", "master", "master_secret")
_OBSERVE_KEYS = ("alerters", "alert_repeat_seconds", "metrics", "traces")
_RUN_LOG_KEYS = ("run_log", "run_log_keep")
_PROJECT_KEYS = (
    *("name", "modules", "openlineage", "tls"),
    *(*_RUN_LOG_KEYS, *_OBSERVE_KEYS, *_PLACEMENT_KEYS),
)
_REPEAT_SECONDS = 6 * 3600
# Between two URLs, not between two addresses of one.
_BETWEEN_URLS = re.compile(r",\s*(?=[a-z][a-z0-9+]*://)")
_TLS_KEYS = ("cert", "key", "ca")
# Settings of Spark that are not the user's to make, by how they begin, and what to do instead.
_NOT_SPARKS = {
    "spark.master": "name the cluster by master=",
    "spark.app.": "leave it out",
    "spark.sql.": "leave it out: it would change what a pipeline does",
    "spark.submit.": "leave it out",
    "spark.jars": "leave it out: connectors bring theirs",
    "spark.spark.": "leave out the spark. in front: [spark] stands for it",
}
_PLAIN_SECRET = re.compile(
    r"(secret|password|token|(secret|access|private)[._]?key)$|account[._]?key", re.IGNORECASE
)
_COUNTS = ("spark.executor.instances", "spark.executor.cores")
# Names of secrets, and of their keys, that Kubernetes holds.
_REFERENCES = ("spark.kubernetes.executor.secrets.", "spark.kubernetes.executor.secretKeyRef.")


@dataclass(frozen=True)
class ObserveSettings:
    """The URLs of those who hear of runs."""

    # Any of them may hold a secret.
    alerters: tuple[str, ...] = field(default=(), repr=False)
    metrics: str | None = field(default=None, repr=False)
    traces: str | None = field(default=None, repr=False)
    alert_repeat_seconds: float = _REPEAT_SECONDS


@dataclass(frozen=True)
class ProjectSettings:
    """The ``[project]`` table of a project's TOML file."""

    folder: Path
    modules: tuple[str, ...] = ()
    run_log: str | None = None
    name: str | None = None
    placement: Placement = field(default_factory=Placement)
    tls: TlsFiles | None = None
    observe: ObserveSettings = field(default_factory=ObserveSettings)
    openlineage: str | None = None
    run_log_keep: timedelta | None = None


@dataclass(frozen=True)
class OpenLineageSettings:
    """Where OpenLineage events go, and what they say of us; values keep their references."""

    url: str
    namespace: str = "ematix-flow"
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TlsFiles:
    """The certificate and key that a driver shows to its peers, and who may have signed theirs."""

    cert: Path
    key: Path
    ca: Path


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
    _check_keys(table, _PROJECT_KEYS, f"{path}: [project]")
    modules = table.get("modules", [])
    if not isinstance(modules, list) or not all(isinstance(m, str) for m in modules):
        raise ConfigError(
            f"{path}: modules in [project] must be a list of texts",
            fix='write for example modules = ["pipelines.py"]',
        )
    examples = {
        "run_log": "sqlite://runs.db",
        "name": "shop",
        "openlineage": "file:///var/log/events.jsonl",
    }
    for key, example in examples.items():
        if not isinstance(table.get(key), str | None) or table.get(key) == "":
            raise ConfigError(
                f"{path}: {key} in [project] must be a text",
                fix=f'write for example {key} = "{example}"',
            )
    run_log, name, events = map(table.get, examples)
    kept = table.get("run_log_keep")
    if kept is not None:
        kept = duration(kept, f"{path}: run_log_keep in [project]")
    placed = _placed(table, f"{path}: [project]")
    transform = _section(path, "transform")
    _check_keys(transform, _PLACEMENT_KEYS, f"{path}: [transform]")
    placed = _first(_placed(transform, f"{path}: [transform]"), placed)
    tls, observe = _tls(path, table), _observed(path, table)
    return ProjectSettings(
        path.parent, tuple(modules), run_log, name, placed, tls, observe, events, kept
    )


def observe_settings() -> ObserveSettings:
    """Who hears of runs: the environment, then the project, each of them for itself."""
    project = project_settings().observe
    alerters, repeat = setting("ALERTERS"), setting("ALERT_REPEAT_SECONDS")
    if repeat is not None and not repeat.isdecimal():
        raise ConfigError(
            f"{_PREFIX}ALERT_REPEAT_SECONDS is no number of seconds", fix="write for example 3600"
        )
    return ObserveSettings(
        project.alerters if alerters is None else split_urls(alerters),
        setting("METRICS") or setting("METRICS_URL") or project.metrics,
        setting("TRACES") or project.traces,
        project.alert_repeat_seconds if repeat is None else float(repeat),
    )


def split_urls(text: str) -> tuple[str, ...]:
    """The URLs of a list with commas, each of which may hold commas itself."""
    return tuple(url.strip(" ,") for url in _BETWEEN_URLS.split(text) if url.strip(" ,"))


def _observed(path: Path, table: Mapping[str, Any]) -> ObserveSettings:
    alerters = table.get("alerters", [])
    if not isinstance(alerters, list) or not all(isinstance(a, str) for a in alerters):
        raise ConfigError(
            f"{path}: alerters in [project] must be a list of texts",
            fix='write for example alerters = ["slack://${SLACK_HOOK}"]',
        )
    for key in ("metrics", "traces"):
        if not isinstance(table.get(key), str | None):
            raise ConfigError(f"{path}: {key} in [project] must be a text", fix="write a URL")
    repeat = table.get("alert_repeat_seconds", _REPEAT_SECONDS)
    if isinstance(repeat, bool) or not isinstance(repeat, int | float) or repeat < 0:
        raise ConfigError(
            f"{path}: alert_repeat_seconds in [project] must be a number", fix="write 3600"
        )
    return ObserveSettings(tuple(alerters), table.get("metrics"), table.get("traces"), repeat)


def origin_of(file: str) -> str:
    """What tells pipelines of one name apart in a shared run log.

    The name of the project, which is the same on all machines; else the file that declares them.
    """
    return project_settings().name or file


def limits() -> dict[str, int]:
    """How many pipelines with a tag may run at once, from ``[limits]`` of the project file."""
    path = Path.cwd() / PROJECT_FILE
    found = _section(path, "limits")
    for tag, most in found.items():
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ConfigError(
                f"{path}: {tag} in [limits] must be a whole number from 1 upwards, not {most!r}",
                fix=f"write for example {tag} = 2",
            )
    return dict(found)


def openlineage_settings() -> OpenLineageSettings | None:
    """Where events of runs go, if anywhere; variables of other OpenLineage producers count too."""
    url = (
        setting("OPENLINEAGE")
        or os.environ.get("OPENLINEAGE_URL")
        or project_settings().openlineage
    )
    if not url:
        return None
    default = OpenLineageSettings(url).namespace
    return OpenLineageSettings(
        url,
        os.environ.get("OPENLINEAGE_NAMESPACE") or default,
        os.environ.get("OPENLINEAGE_API_KEY") or None,
    )


def calendar_named(name: str) -> frozenset[date]:
    """The days that ``[calendars]`` of the project file lists under a name."""
    path = Path.cwd() / PROJECT_FILE
    calendars = _section(path, "calendars")
    if name not in calendars:
        raise UnknownName(
            f"there is no calendar {name!r}",
            fix=nearest(name, calendars)
            if calendars
            else f'write it into {path}: [calendars], {name} = ["2026-12-25"]',
        )
    days = calendars[name]
    try:
        return frozenset(d if isinstance(d, date) else date.fromisoformat(d) for d in days)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: {name} in [calendars] must be a list of days",
            fix=f'write for example {name} = ["2026-12-25"]',
        ) from error


def engine_choice() -> str:
    """Which Spark to use: ``local`` is one of this process, ``auto`` may be the warm engine."""
    return placement_of(None, Placement()).engine or ENGINES[0]


def placement_of(pipeline: str | None, declared: Placement) -> Placement:
    """Where a pipeline runs: the environment, its own table in TOML, its declaration, the project.

    The first that names an engine decides about that, the first that names peers or a master
    about those. A secret counts if nobody before it has named a master.
    """
    placed = _from_environment()
    if pipeline is not None:
        path = Path.cwd() / PROJECT_FILE
        own = _section(path, "pipelines").get(pipeline, {})
        where = f"{path}: [pipelines.{pipeline}]"
        if not isinstance(own, dict):
            raise ConfigError(f"{where} must be a table", fix='write for example engine = "local"')
        _check_keys(own, _PLACEMENT_KEYS, where)
        placed = _first(placed, _placed(own, where))
    return _first(placed, declared, project_settings().placement)


def check_placed(known: Iterable[str]) -> None:
    """Refuse a ``[pipelines.<name>]`` of the project file that is of no pipeline."""
    path, names = Path.cwd() / PROJECT_FILE, tuple(known)
    for name in _section(path, "pipelines"):
        if name not in names:
            raise UnknownName(
                f"{path}: [pipelines.{name}] is of no pipeline of this project",
                fix=nearest(name, names),
            )


def spark_settings() -> dict[str, str]:
    """The ``[spark]`` table of the project: what Spark is told on a cluster of ``master=``.

    ``executor.memory = "4g"`` in it is Spark's ``spark.executor.memory``.
    """
    path = Path.cwd() / PROJECT_FILE
    found: dict[str, str] = {}
    for key, value in _flat("spark", _section(path, "spark")):
        for reserved, instead in _NOT_SPARKS.items():
            if f"{key}.".startswith(reserved if reserved.endswith(".") else f"{reserved}."):
                raise ConfigError(f"{path}: [spark] may not set {key}", fix=instead)
        if _PLAIN_SECRET.search(key) and not key.startswith(_REFERENCES):
            raise ConfigError(
                f"{path}: [spark] may not hold a secret, as {key} is",
                fix="name a file, as in kubernetes.authenticate.oauthTokenFile, or a secret of "
                "the cluster, as in kubernetes.executor.secretKeyRef.<VARIABLE>",
            )
        if not isinstance(value, str | int | float):
            raise ConfigError(
                f"{path}: {key} in [spark] must be a text, a number, true or false",
                fix="correct it",
            )
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)
        if key in _COUNTS and not (found[key].isdecimal() and int(found[key])):
            raise ConfigError(
                f"{path}: {key} in [spark] must be a whole number", fix="write 1 or more"
            )
    return found


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}.{key}"
        if isinstance(value, Mapping):
            yield from _flat(name, value)
        else:
            yield name, value


def tls_files() -> TlsFiles | None:
    """The files for mutual TLS with peers, by environment or of the project."""
    named = {key: setting(f"TLS_{key.upper()}") for key in _TLS_KEYS}
    if not any(named.values()):
        return project_settings().tls
    where = f"{_PREFIX}TLS_CERT, {_PREFIX}TLS_KEY and {_PREFIX}TLS_CA"
    return _all_three(named, Path.cwd(), where)


def _from_environment() -> Placement:
    given: dict[str, object] = {key: setting(key.upper()) for key in _PLACEMENT_KEYS}
    peers = setting("PEERS")
    if peers is not None:
        given["peers"] = [address.strip() for address in peers.split(",") if address.strip()]
    return _placed({k: v for k, v in given.items() if v is not None}, "")


def _placed(table: Mapping[str, Any], where: str) -> Placement:
    """``engine``, ``peers``, ``master`` and its secret, of one place and checked."""

    def place(key: str) -> str:
        return f"{key} in {where.partition(': ')[2]}" if where else f"{_PREFIX}{key.upper()}"

    prefix = f"{where.partition(': ')[0]}: " if where else ""
    engine, peers, master, secret = (table.get(key) for key in _PLACEMENT_KEYS)
    if engine is not None and engine not in ENGINES:
        *most, last = ENGINES
        raise ConfigError(
            f"{prefix}{place('engine')} is {engine!r}", fix=f"it may be {', '.join(most)} or {last}"
        )
    try:
        if peers is not None and not isinstance(peers, list):
            raise ConfigError(f"{place('peers')} must be a list", fix='write ["https://host:port"]')
        for key in ("master", "master_secret"):
            if not isinstance(table.get(key), str | None):
                raise ConfigError(f"{place(key)} must be a text", fix="correct it")
        if master is not None:
            check_master(master)
        if peers and master:
            raise ConfigError(
                f"both {place('peers')} and {place('master')} are given", fix="keep one of them"
            )
        by = f"{place('engine')} of {PROJECT_FILE}" if where else f"{ENGINE_VARIABLE} or --engine"
        return Placement(engine, check_peers(peers or ()), master, secret, by)
    except ConfigError as error:
        error.what = f"{prefix}{error.what}"
        raise


def _first(*placed: Placement) -> Placement:
    named = next((p for p in placed if p.engine is not None), Placement())
    where = next((p for p in placed if p.peers or p.master), placed[-1])
    # A secret is for the cluster that is named beside it, or after.
    beside = placed[: placed.index(where) + 1]
    secret = next((p.secret for p in beside if p.secret), None)
    return Placement(named.engine, where.peers, where.master, secret, named.engine_by)


def _tls(path: Path, table: Mapping[str, Any]) -> TlsFiles | None:
    given = table.get("tls")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: tls must be a table", fix="write [project.tls]")
    _check_keys(given, _TLS_KEYS, f"{path}: [project.tls]")
    return _all_three(given, path.parent, f"{path}: cert, key and ca in [project.tls]")


def _all_three(given: Mapping[str, Any], folder: Path, where: str) -> TlsFiles:
    if not all(isinstance(given.get(key), str) and given[key] for key in _TLS_KEYS):
        raise ConfigError(f"{where} are needed together", fix="name a file for each")
    return TlsFiles(*(folder / Path(given[key]).expanduser() for key in _TLS_KEYS))


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise UnknownName(f"{where} has no key {key!r}", fix=nearest(key, known))


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
    known = ("calendars", "connections", "limits", "project", "pipelines", "spark", "transform")
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
