"""``flow doctor``: what a run needs from this machine and this project, checked without Spark."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata

import click

from ematix_flow import config
from ematix_flow.cli.connections import load_declared
from ematix_flow.cli.options import common_options, examples, module_option, run_log_options
from ematix_flow.cli.output import counted, say, say_json
from ematix_flow.errors import EmatixError
from ematix_flow.redaction import redact_text
from ematix_flow.run.log import NullRunLog, RunLog
from ematix_flow.run.undelivered import BufferedRunLog

_OLDEST, _NEWEST = (3, 10), (3, 13)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; ``verdict`` is ok, note or fail."""

    name: str
    verdict: str
    detail: str


@click.command(epilog=examples("flow doctor", "flow doctor --module pipelines.py --format json"))
@module_option
@run_log_options
@common_options
def doctor(*, modules: tuple[str, ...], run_log: Callable[[], RunLog], output: str) -> int:
    """Check Python, Java, Spark, caches, the run log, the project and its connections.

    Nothing is started or changed. Exit code 1 when a check fails.
    """
    checks = list(_checks(modules, run_log))
    failed = any(check.verdict == "fail" for check in checks)
    if output == "json":
        say_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            say(f"{check.verdict:<5} {check.name:<{width}}  {check.detail}")
    return 1 if failed else 0


def _checks(modules: tuple[str, ...], run_log: Callable[[], RunLog]) -> Iterator[Check]:
    yield _guarded("python", _python)
    yield _guarded("pyspark", _pyspark)
    yield _guarded("java", _java)
    yield _guarded("cache", _cache)
    yield _guarded("class archive", _archive)
    yield _guarded("connector jars", _jars)
    yield _guarded("warm engine", _engine)
    yield _guarded("run log", lambda: _run_log(run_log))
    yield _guarded("project", lambda: _project(modules))
    for name in config.connection_names():
        yield _guarded(f"connection {name}", lambda name=name: _connection(name))  # type: ignore[misc]  # a default binds the loop's value


def _guarded(name: str, look: Callable[[], tuple[str, str]]) -> Check:
    try:
        verdict, detail = look()
    except EmatixError as error:
        verdict, detail = "fail", str(error)
    except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
        verdict, detail = "fail", f"{type(error).__name__}: {error}"
    return Check(name, verdict, redact_text(" ".join(detail.split())))


def _python() -> tuple[str, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    if _OLDEST <= sys.version_info[:2] <= _NEWEST:
        return "ok", f"{version} at {sys.executable}"
    return "fail", f"{version} is not supported; use Python 3.10 to 3.13"


def _pyspark() -> tuple[str, str]:
    wanted = next(
        (
            requirement.partition("==")[2].split(";")[0].strip()
            for requirement in metadata.requires("ematix-flow") or ()
            if requirement.startswith("pyspark==")
        ),
        "",
    )
    try:
        found = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return "fail", f"not installed; install it with: pip install pyspark=={wanted}"
    if wanted and found != wanted:
        return "fail", f"{found} is installed, {wanted} is needed: pip install pyspark=={wanted}"
    return "ok", found


def _java() -> tuple[str, str]:
    from ematix_flow.engine.java import find_java

    java = find_java()
    return "ok", f"Java {java.major} at {java.home}"


def _cache() -> tuple[str, str]:
    from ematix_flow.engine.cache import cache_dir

    return "ok", str(cache_dir())


def _archive() -> tuple[str, str]:
    from ematix_flow.engine.archive import archive_path, is_sound
    from ematix_flow.engine.classic import default_plan

    path = archive_path(default_plan())
    if is_sound(path):
        return "ok", str(path)
    return "note", "not built yet; the first run builds it in the background, the next start faster"


def _jars() -> tuple[str, str]:
    from ematix_flow.engine.cache import cache_dir
    from ematix_flow.engine.jars import read_lock

    folder = cache_dir() / "jars"
    jars = {jar.file_name for locked in read_lock().values() for jar in locked}
    missing = sorted(name for name in jars if not (folder / name).is_file())
    if missing:
        return "note", f"{', '.join(missing)} will be fetched when a pipeline needs it"
    return "ok", f"{counted(len(jars), 'jar')} in {folder}"


def _engine() -> tuple[str, str]:
    from ematix_flow.cli.engine import reason_against
    from ematix_flow.engine.warm import look, own_slot

    found = look(own_slot())
    reason = reason_against(found)
    if reason is None and found.record is not None:
        return "ok", f"up, process {found.record.process_id}; runs in this folder use it"
    if found.state == "off":
        return "note", "none in this folder; flow engine start makes runs start at once"
    return "note", f"not used by runs in this folder: {reason}"


def _run_log(run_log: Callable[[], RunLog]) -> tuple[str, str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        log = run_log()
    if isinstance(log, NullRunLog):
        return "fail" if said else "note", str(said[0].message) if said else "switched off"
    if isinstance(log, BufferedRunLog):
        log = log.reached()
        log.list(limit=1)
    return "ok", str(getattr(log, "path", "in memory"))


def _project(modules: tuple[str, ...]) -> tuple[str, str]:
    project = load_declared(modules)
    if project is None:
        return "note", "none in this folder"
    if project.errors:
        return "fail", " | ".join(str(error) for error in project.errors)
    return "ok", counted(len(project.pipelines), "pipeline")


def _connection(name: str) -> tuple[str, str]:
    resolved = config.resolve_connection(name)
    resolved.connection.resolved()
    return "ok", f"{resolved.connection.kind}, {resolved.origin}"
