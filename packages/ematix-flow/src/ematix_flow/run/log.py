"""The run log: one history of every run, however it was started.

``open_run_log`` finds the log that is configured; by default a SQLite file in the user's own
folder. A log that cannot be written never stops a run: it is replaced, with a warning, by one
that forgets.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeAlias

from ematix_flow import config
from ematix_flow.connections import Connection, build_connection, nearest
from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.redaction import redact_text
from ematix_flow.run.buckets import SCHEMES
from ematix_flow.run.records import STATUSES, RunRecord, effective_status, utc_now
from ematix_flow.run.turns import Key, Last, Standing, Turn
from ematix_flow.secrets import expand

logger = logging.getLogger(__name__)

Records: TypeAlias = list[RunRecord]

_DATABASE_KINDS = ("duckdb", "mysql", "postgres", "sqlite")
_DATABASE_SCHEMES = ("duckdb", "mariadb", "mysql", "postgres", "postgresql")


class RunLog(Protocol):
    """Where runs are recorded. Every method may be called from several threads."""

    def begin(self, record: RunRecord) -> None:
        """Record a run that has started."""

    def heartbeat(self, run_id: str) -> None:
        """Say that a run is still alive."""

    def finish(self, record: RunRecord) -> None:
        """Record how a run ended.

        The first word stands, unless it was ``lost``, or the run turns out to have succeeded:
        that is only ever said of a commit, and a run may wake after it was given up for dead.
        """

    def list(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50
    ) -> Records:
        """The latest records, newest first; ``status`` is the one shown, so ``lost`` works."""

    def get(self, run_id: str) -> Records:
        """The records of one run, given by its id or the beginning of it."""

    def running(self, pipeline: str) -> Records:
        """The records of a pipeline whose end is not known: running, dead or alive, or lost."""

    def last(self, pipeline: str, *, declared_in: str) -> RunRecord | None:
        """The record that tells how the last run of this file's pipeline ended."""

    def prune(self, before: datetime, *, dry_run: bool = False) -> frozenset[str]:
        """Remove the records of what began before; the ids of the runs.

        Whatever has no known end stays, and so does the last run of each pipeline.
        """

    def standings(self, origins: Iterable[str]) -> dict[Key, Standing]:
        """How the pipelines of these origins stand: all that are known, in one question."""

    def enter(self, turns: Mapping[Key, Turn]) -> None:
        """Write first turns down; those of pipelines that have one already stay."""

    def move(self, key: Key, before: Turn, after: Turn) -> bool:
        """Change a turn; False if somebody else has changed it since it was read."""

    def clock(self) -> datetime:
        """The time, by a clock that all who share the log go by."""

    def close(self) -> None:
        """Give back files."""


def open_memory_of_slots(url: str | None = None) -> RunLog:
    """The run log, for whoever must know what has fired: without it nothing may fire."""
    log = open_run_log(url)
    if isinstance(log, NullRunLog):
        raise ConfigError(
            "what has fired is kept in the run log, and it cannot be opened",
            fix="name another run log",
        )
    return log


def as_file(path: str | None) -> str | None:
    """A path, so that no name of a connection is seen in it."""
    return path if path is None or "://" in path else f"sqlite://{path}"


def open_run_log(url: str | None = None) -> RunLog:
    """The run log at ``url``, or the one that the environment or the project configures."""
    chosen = (
        url
        or config.setting("RUN_LOG_URL")
        or as_file(config.setting("RUN_LOG_PATH"))
        or config.project_settings().run_log
        or str(config.home() / "run_log.db")
    )
    chosen = expand(chosen)
    scheme, separator, rest = chosen.partition("://")
    if not separator:
        if chosen in config.connection_names():
            return _open_database(config.resolve_connection(chosen).connection)
        if chosen.isidentifier() and not Path(chosen).exists():
            # A new file would remember nothing of what has fired elsewhere.
            raise ConfigError(
                f"the run log {chosen!r} is no connection that is known here",
                fix=f"declare it under [connections.{chosen}] in {config.PROJECT_FILE}, where all "
                f"commands see it, or write sqlite://{chosen} for a file",
            )
        path = chosen
    elif scheme in _DATABASE_SCHEMES:
        return _open_url(chosen)
    elif scheme == "memory":
        return _process_log()
    elif scheme in ("sqlite", "file"):
        path = "/" + rest.lstrip("/") if rest.startswith("/") else rest
    elif scheme in SCHEMES:
        return _open_bucket(chosen)
    else:
        known = ("sqlite", "memory", *_DATABASE_SCHEMES, *SCHEMES)
        raise ConfigError(
            f"a run log cannot be at {scheme}://",
            fix=f"{nearest(scheme, known).rstrip('?')}; for a file write "
            "sqlite://path/to/run_log.db",
        )
    if not path:
        raise ConfigError("the run log has no path", fix="write sqlite://path/to/run_log.db")
    return _open_file(Path(path).expanduser())


def _open_bucket(url: str) -> RunLog:
    from ematix_flow.run.object_log import open_object_log

    return open_object_log(url)


def _open_url(url: str) -> RunLog:
    """A database by its URL; ``?create_tables=false`` leaves its schema alone."""
    from urllib.parse import parse_qsl, urlencode

    address, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    create = options.pop("create_tables", "true").lower()
    if create not in ("true", "false"):
        raise ConfigError(
            f"create_tables={create} of the run log is not known", fix="write true or false"
        )
    rest = f"?{urlencode(options)}" if options else ""
    connection = build_connection("run_log", {"url": address + rest})
    return _open_database(connection, create_tables=create == "true")


def _open_database(connection: Connection, *, create_tables: bool = True) -> RunLog:
    if connection.kind == "sqlite":
        return _open_file(Path(connection.file()).expanduser())  # type: ignore[attr-defined]  # by its kind
    if connection.kind not in _DATABASE_KINDS:
        raise ConfigError(
            f"a run log cannot be kept at the {connection.kind} connection {connection.name!r}",
            fix=f"name one of kind {', '.join(_DATABASE_KINDS)}",
        )
    from ematix_flow.run.database_log import DatabaseRunLog
    from ematix_flow.run.undelivered import BufferedRunLog, undelivered_folder

    # How a connection shows itself tells it from others and holds no secret.
    return BufferedRunLog(
        lambda: DatabaseRunLog(connection, create_tables=create_tables),
        undelivered_folder(repr(connection)),
    )


def _open_file(path: Path) -> RunLog:
    import sqlite3

    from ematix_flow.run.sqlite_log import SqliteRunLog

    try:
        return SqliteRunLog(path)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        warn_of_lost_records(
            f"the run log {path} cannot be written ({reason}); this run will not be recorded"
        )
        return NullRunLog()


def warn_of_lost_records(text: str) -> None:
    """Tell the caller, and the log, that runs go unrecorded."""
    safe = redact_text(text)
    logger.info(safe)
    warnings.warn(safe, stacklevel=4)


class NullRunLog:
    """Forgets everything: a log that could not be opened, or none that was ``asked_for``."""

    def __init__(self, *, asked_for: bool = False) -> None:
        self.asked_for = asked_for

    def begin(self, record: RunRecord) -> None:
        """Forget it."""

    def heartbeat(self, run_id: str) -> None:
        """Forget it."""

    def finish(self, record: RunRecord) -> None:
        """Forget it."""

    def list(
        self,
        *,
        pipeline: str | None = None,
        status: str | None = None,
        limit: int = 50,
    ) -> Records:
        """Nothing."""
        return []

    def get(self, run_id: str) -> Records:
        """Nothing."""
        return []

    def running(self, pipeline: str) -> Records:
        """Nothing."""
        return []

    def last(self, pipeline: str, *, declared_in: str) -> RunRecord | None:
        """Nothing."""
        return None

    def prune(self, before: datetime, *, dry_run: bool = False) -> frozenset[str]:
        """Nothing."""
        return frozenset()

    def standings(self, origins: Iterable[str]) -> dict[Key, Standing]:
        """Nothing."""
        return {}

    def enter(self, turns: Mapping[Key, Turn]) -> None:
        """Forget them."""

    def move(self, key: Key, before: Turn, after: Turn) -> bool:
        """Nobody else can have changed it."""
        return True

    def clock(self) -> datetime:
        """This machine's."""
        return utc_now()

    def close(self) -> None:
        """Nothing is open."""


@functools.cache
def _process_log() -> MemoryRunLog:
    """``memory://`` is one log per process, so that all its runs share one history."""
    return MemoryRunLog()


class MemoryRunLog:
    """Keeps records for the life of the process."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str, str], RunRecord] = {}
        self._turns: dict[Key, Turn] = {}
        self._lock = threading.Lock()

    def begin(self, record: RunRecord) -> None:
        """Record a run that has started."""
        with self._lock:
            self._records[_key(record)] = record

    def heartbeat(self, run_id: str) -> None:
        """Say that a run is still alive."""
        with self._lock:
            for key, held in self._records.items():
                if held.run_id == run_id and held.status == "running":
                    self._records[key] = dataclasses.replace(held, heartbeat_at=utc_now())

    def finish(self, record: RunRecord) -> None:
        """Record how a run ended."""
        with self._lock:
            held = self._records.get(_key(record))
            open_end = held is None or held.status in ("running", "lost")
            if open_end or record.status == "succeeded":
                self._records[_key(record)] = record

    def list(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50
    ) -> Records:
        """The latest records, newest first."""
        check_filter(status, limit)
        now = utc_now()
        found = [
            r
            for r in self._newest_first()
            if pipeline in (None, r.pipeline) and status in (None, effective_status(r, now))
        ]
        return found[:limit]

    def get(self, run_id: str) -> Records:
        """The records of one run."""
        found = [r for r in reversed(self._newest_first()) if r.run_id.startswith(run_id)]
        return only_one_run(run_id, found)

    def running(self, pipeline: str) -> Records:
        """The records of a pipeline whose end is not known."""
        held = self._newest_first()
        return [r for r in held if r.pipeline == pipeline and r.status in ("running", "lost")]

    def last(self, pipeline: str, *, declared_in: str) -> RunRecord | None:
        """The record that tells how the last run of this file's pipeline ended."""
        held = [
            r
            for r in self._newest_first()
            if (r.pipeline, r.declared_in) == (pipeline, declared_in)
        ]
        return decisive([r for r in held if r.run_id == held[0].run_id])

    def prune(self, before: datetime, *, dry_run: bool = False) -> frozenset[str]:
        """Remove the records of what began before; the ids of the runs."""
        latest: dict[tuple[str, str], str] = {}
        for held in self._newest_first():
            latest.setdefault((held.pipeline, held.declared_in), held.run_id)
        with self._lock:
            gone = [
                key
                for key, r in self._records.items()
                if r.started_at < before
                and r.status not in ("running", "lost")
                and latest.get((r.pipeline, r.declared_in)) != r.run_id
            ]
            if not dry_run:
                for key in gone:
                    del self._records[key]
        return frozenset(run_id for run_id, _, _ in gone)

    def standings(self, origins: Iterable[str]) -> dict[Key, Standing]:
        """How the pipelines of these origins stand."""
        asked = set(origins)
        with self._lock:
            turns = dict(self._turns)
            keys = {*turns, *(Key(r.declared_in, r.pipeline) for r in self._records.values())}
        found = {}
        for key in keys:
            if key.origin in asked:
                record = self.last(key.pipeline, declared_in=key.origin)
                found[key] = Standing(last_of(record), turns.get(key, Turn()))
        return found

    def enter(self, turns: Mapping[Key, Turn]) -> None:
        """Write first turns down; those of pipelines that have one already stay."""
        for key, turn in turns.items():
            self.move(key, Turn(), turn)

    def move(self, key: Key, before: Turn, after: Turn) -> bool:
        """Change a turn; False if somebody else has changed it since it was read."""
        with self._lock:
            if self._turns.get(key, Turn()).epoch != before.epoch:
                return False
            self._turns[key] = dataclasses.replace(after, epoch=before.epoch + 1)
            return True

    def clock(self) -> datetime:
        """This machine's: all who use it are here."""
        return utc_now()

    def close(self) -> None:
        """Keep the records: the next one to open ``memory://`` reads them."""

    def _newest_first(self) -> Sequence[RunRecord]:
        with self._lock:
            held = list(self._records.values())[::-1]
        return sorted(held, key=lambda r: r.started_at, reverse=True)


def last_of(record: RunRecord | None) -> Last | None:
    """What a standing tells of the record that tells how a run ended."""
    if record is None:
        return None
    return Last(
        record.run_id,
        record.status,
        record.started_at,
        record.finished_at,
        record.rows_written,
        record.error_class,
    )


def _key(record: RunRecord) -> tuple[str, str, str]:
    return record.run_id, record.target, record.step


def decisive(records: Records) -> RunRecord | None:
    """Of the records of one run, newest first: what it failed by, else its first load."""
    bad = [r for r in records if r.status != "succeeded" and not r.metrics.get("went_on")]
    return next(iter([*bad[::-1], *records[::-1]]), None)


def check_filter(status: str | None, limit: int) -> None:
    """Refuse a filter that no record could pass."""
    if status is not None and status not in STATUSES:
        raise UnknownName(f"no run has status {status!r}", fix=nearest(status, STATUSES))
    if limit < 1:
        raise ConfigError(f"a limit of {limit} runs shows nothing", fix="use 1 or more")


def only_one_run(given: str, found: Records) -> Records:
    """The records found for an id or the beginning of one, if they are of one run."""
    exact = [r for r in found if r.run_id == given]
    ids = sorted({r.run_id for r in exact or found})
    if len(ids) > 1:
        shown = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")  # noqa: PLR2004 - enough to choose from
        raise UnknownName(
            f"{len(ids)} runs have an id that starts with {given!r}: {shown}",
            fix="give more of the id",
        )
    return exact or found
