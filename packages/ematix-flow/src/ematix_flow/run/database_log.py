"""The run log in a database of its own or of others: PostgreSQL, MySQL, MariaDB, DuckDB.

Its tables are in the schema that this system keeps in every database. A server's own clock is the
one that all go by; a DuckDB file is opened for each question, since one process has it at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ematix_flow import types as t
from ematix_flow.backends.loading import load_backend
from ematix_flow.errors import ConfigError, EmatixError, RunLogUnavailable, Transient
from ematix_flow.model import BOOKKEEPING_SCHEMA, TableName
from ematix_flow.run.records import utc_now
from ematix_flow.run.sql_log import LogDown, SqlRunLog, positional

if TYPE_CHECKING:
    from ematix_flow.backends.sql import SqlBackend
    from ematix_flow.backends.sql_session import Session
    from ematix_flow.connections import Connection

VERSION = 1
_WAIT_SECONDS = 30.0
_PAUSE_SECONDS = 0.05
# After so long a connection may have been cut off by what is between.
_IDLE_SECONDS = 2.0
_SHORT, _NAME, _PLACE, _TIME = t.String(64), t.String(255), t.String(400), t.String(32)
_LONG = t.Text()
_RUNS: dict[str, t.ColumnType] = {
    "run_id": _SHORT,
    "pipeline": _NAME,
    "target": _NAME,
    "trigger": _SHORT,
    "started_at": _TIME,
    "step": _NAME,
    "parent_id": _SHORT,
    "workflow_id": _SHORT,
    "kind": _SHORT,
    "slot": _TIME,
    "parameters": _LONG,
    "attempt": t.BigInt(),
    "host": _NAME,
    "pid": t.BigInt(),
    "heartbeat_at": _TIME,
    "code_version": _SHORT,
    "engine": _SHORT,
    "mode": _SHORT,
    "path": _SHORT,
    "finished_at": _TIME,
    "status": _SHORT,
    **{
        f"rows_{what}": t.BigInt()
        for what in ("read", "inserted", "updated", "closed", "deleted", "unchanged", "rejected")
    },
    "bytes": t.BigInt(),
    "watermark_before": _LONG,
    "watermark_after": _LONG,
    "verdict": _LONG,
    "error_class": _NAME,
    "error_text": _LONG,
    "metrics": _LONG,
    "declared_in": _PLACE,
    "source": _LONG,
    "seq": t.BigInt(),
}
_PIPELINES: dict[str, t.ColumnType] = {
    "origin": _PLACE,
    "pipeline": _NAME,
    "last_run_id": _SHORT,
    "last_status": _SHORT,
    "last_started_at": _TIME,
    "last_finished_at": _TIME,
    "last_rows": t.BigInt(),
    "last_error": _NAME,
    "slot": _TIME,
    "state": _SHORT,
    "attempt": t.BigInt(),
    "retry_at": _TIME,
    "run_id": _SHORT,
    "token": _SHORT,
    "holder": _NAME,
    "expires_at": _TIME,
    "paused": t.BigInt(),
    "epoch": t.BigInt(),
}
_TABLES: dict[str, tuple[dict[str, t.ColumnType], tuple[str, ...]]] = {
    "log_runs": (_RUNS, ("run_id", "target", "step")),
    "log_pipelines": (_PIPELINES, ("origin", "pipeline")),
    "log_version": ({"version": t.BigInt()}, ("version",)),
}
_INDEXES = {
    "log_runs_by_start": ("started_at",),
    "log_runs_by_pipeline": ("pipeline", "started_at"),
    "log_runs_by_status": ("status", "started_at"),
}
_CLOCKS = {
    "postgres": "SELECT extract(epoch FROM clock_timestamp())",
    "mysql": "SELECT unix_timestamp(sysdate(6))",
}


class DatabaseRunLog(SqlRunLog):
    """The run log behind a connection to a database."""

    def __init__(self, connection: Connection, *, create_tables: bool = True) -> None:
        super().__init__()
        self._backend: SqlBackend = load_backend(connection)  # type: ignore[assignment]  # chosen by its kind
        self.place = f"at {connection.kind} connection {connection.name!r}"
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._used_at = 0.0
        self._keeps = connection.kind in _CLOCKS
        self.runs, self.pipelines = (self._named(n) for n in ("log_runs", "log_pipelines"))
        self._prepare(create=create_tables)

    def _named(self, table: str) -> str:
        name = TableName(BOOKKEEPING_SCHEMA, table)
        return self._backend.table(name).sql(dialect=self._backend.dialect)

    def _insertion(self, table: str, names: Sequence[str]) -> str:
        statement = super()._insertion(table, names)
        if self._backend.dialect == "mysql":
            bare = statement.removesuffix(self.unless_there)
            return bare.replace("INSERT INTO", "INSERT IGNORE INTO", 1)
        return statement

    @contextlib.contextmanager
    def connected(self) -> Iterator[DatabaseRunLog]:
        """One connection; where it was lost since it was last used, another."""
        try:
            with self._lock, self._opened() as session:
                outer, self._session = self._session, session
                try:
                    yield self
                finally:
                    self._session = session if self._keeps else outer
        except Transient as error:
            self._drop()
            raise LogDown(str(error)) from error
        except EmatixError as error:
            if isinstance(error, LogDown | ConfigError):
                raise
            raise LogDown(str(error)) from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Session]:
        if self._keeps:
            idle = time.monotonic() - self._used_at > _IDLE_SECONDS
            if self._session is not None and idle and not self._answers(self._session):
                self._drop()
            yield self._session or self._connect()
            self._used_at = time.monotonic()
            return
        session = self._connect()
        try:
            with self._backend.commit_lock(session, creates=False):
                yield session
        finally:
            session.close()

    @staticmethod
    def _answers(session: Session) -> bool:
        try:
            session.one("SELECT 1")
        except EmatixError:
            return False
        return True

    def _connect(self) -> Session:
        """Connect; another process that has the file is waited for."""
        from ematix_flow.backends.sql_session import Session

        deadline = time.monotonic() + (0 if self._keeps else _WAIT_SECONDS)
        while True:
            try:
                with self._backend.translated():
                    return Session(self._backend, self._backend.connect())
            except Transient:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """Said by whoever keeps the record until it can be delivered."""
        try:
            yield
        except LogDown as error:
            raise RunLogUnavailable(
                f"the run log {self.place} cannot be written: {error.what}",
                fix="correct it, or name another with --run-log",
            ) from error

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def run(self, sql: str, values: Mapping[str, Any]) -> int:
        """Run a statement; how many rows it has changed."""
        assert self._session is not None  # noqa: S101 - only inside ``connected``
        return self._session.run(*self._spelled(sql, values))

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        assert self._session is not None  # noqa: S101 - only inside ``connected``
        return self._session.rows(*self._spelled(sql, values))

    def _spelled(self, sql: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
        if self._backend.dialect == "mysql":
            sql = sql.replace('"', "`")
        return positional(sql, values, self._backend.placeholder)

    def clock(self) -> datetime:
        """The server's; a file's is this machine's, where all are who use it."""
        question = _CLOCKS.get(self._backend.dialect)
        if question is None:
            return utc_now()
        with self._readable() as log:
            (seconds,) = log.rows(question, {})[0]
        return datetime.fromtimestamp(float(seconds), timezone.utc)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _prepare(self, *, create: bool) -> None:
        """See that the tables are there; of several who come first at once, one creates them."""
        with self.connected() as log:
            if log._version() == VERSION:
                return
            if not create:
                raise ConfigError(
                    f"the run log {self.place} has no tables, and create_tables=false",
                    fix=f"create them by one run without it, by a user who may create schema "
                    f"{BOOKKEEPING_SCHEMA}",
                )
            try:
                self._create(log)
            except EmatixError:
                deadline = time.monotonic() + _WAIT_SECONDS
                while log._version() != VERSION:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_PAUSE_SECONDS)

    def _version(self) -> int | None:
        assert self._session is not None  # noqa: S101 - only inside ``connected``
        name = TableName(BOOKKEEPING_SCHEMA, "log_version")
        if self._backend.inspect_in(self._session, name) is None:
            return None
        found = self._session.one(f"SELECT max(version) FROM {self._named('log_version')}")
        if found is not None and found > VERSION:
            raise ConfigError(
                f"the run log {self.place} was written by a newer version (its schema is {found}, "
                f"this version knows {VERSION})",
                fix="upgrade ematix-flow, or name another run log with --run-log",
            )
        return None if found is None else int(found)

    def _stored(self, kind: t.ColumnType) -> str:
        """A type in which texts are in the order of their bytes, whatever the database's is."""
        stored = self._backend.stored_type(kind)
        is_text = isinstance(kind, t.String | t.Text)
        return f'{stored} COLLATE "C"' if is_text and self._backend.kind == "postgres" else stored

    def _create(self, log: DatabaseRunLog) -> None:
        backend = self._backend
        for statement in backend.create_schema(TableName(BOOKKEEPING_SCHEMA, "log_version")):
            log.run(statement, {})
        for table, (columns, key) in _TABLES.items():
            lines = [
                f'"{name}" {self._stored(kind)}' + (" NOT NULL" if name in key else "")
                for name, kind in columns.items()
            ]
            lines.append(f"PRIMARY KEY ({', '.join(key)})")
            log.run(f"CREATE TABLE IF NOT EXISTS {self._named(table)} ({', '.join(lines)})", {})
            if table == "log_runs":
                for name, over in _INDEXES.items():
                    # One who died before the end may have left it.
                    with contextlib.suppress(EmatixError):
                        log.run(f"CREATE INDEX {name} ON {self.runs} ({', '.join(over)})", {})
        log.run(f"INSERT INTO {self._named('log_version')} VALUES ({VERSION})", {})
