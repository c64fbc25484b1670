"""The run log in a SQLite file: write-ahead log, schema version, many writers at once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ematix_flow.errors import ConfigError
from ematix_flow.run.records import utc_now
from ematix_flow.run.sql_log import LogDown, SqlRunLog

_BUSY_SECONDS = 30.0

# The statements that lead from one version of the schema to the next. Entries are only ever
# added: version 1 is the first, and a stored log is brought forward from where it stands.
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE runs (
            run_id TEXT NOT NULL, pipeline TEXT NOT NULL, target TEXT NOT NULL,
            trigger TEXT NOT NULL, started_at TEXT NOT NULL, step TEXT NOT NULL,
            parent_id TEXT, workflow_id TEXT, kind TEXT NOT NULL, slot TEXT,
            parameters TEXT NOT NULL, attempt INTEGER NOT NULL, host TEXT NOT NULL,
            pid INTEGER NOT NULL, heartbeat_at TEXT, code_version TEXT NOT NULL,
            engine TEXT NOT NULL, mode TEXT NOT NULL, path TEXT NOT NULL, finished_at TEXT,
            status TEXT NOT NULL, rows_read INTEGER NOT NULL, rows_inserted INTEGER NOT NULL,
            rows_updated INTEGER NOT NULL, rows_closed INTEGER NOT NULL,
            rows_deleted INTEGER NOT NULL, rows_unchanged INTEGER NOT NULL,
            rows_rejected INTEGER NOT NULL, bytes INTEGER NOT NULL, watermark_before TEXT,
            watermark_after TEXT, verdict TEXT, error_class TEXT, error_text TEXT,
            metrics TEXT NOT NULL, declared_in TEXT NOT NULL,
            PRIMARY KEY (run_id, target, step)
        )""",
        "CREATE INDEX runs_by_start ON runs (started_at)",
        "CREATE INDEX runs_by_pipeline ON runs (pipeline, started_at)",
        "CREATE INDEX runs_by_status ON runs (status, started_at)",
    ),
    ("ALTER TABLE runs ADD COLUMN source TEXT NOT NULL DEFAULT ''",),
    (
        "ALTER TABLE runs ADD COLUMN seq INTEGER NOT NULL DEFAULT 0",
        "UPDATE runs SET seq = rowid",
        """CREATE TABLE pipelines (
            origin TEXT NOT NULL, pipeline TEXT NOT NULL, last_run_id TEXT, last_status TEXT,
            last_started_at TEXT, last_finished_at TEXT, last_rows INTEGER, last_error TEXT,
            slot TEXT, state TEXT NOT NULL, attempt INTEGER NOT NULL, retry_at TEXT,
            run_id TEXT, token TEXT, holder TEXT, expires_at TEXT, paused INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            PRIMARY KEY (origin, pipeline)
        )""",
        # Of a run into several targets, what it failed by; SQLite takes the other columns from
        # the row that has the extreme.
        """INSERT INTO pipelines
            SELECT declared_in, pipeline, run_id, status, started_at, finished_at,
                rows_inserted + rows_updated + rows_closed, error_class,
                NULL, '', 0, NULL, NULL, NULL, NULL, NULL, 0, 0
            FROM (
                SELECT *, max(started_at || (status <> 'succeeded')) FROM runs
                GROUP BY declared_in, pipeline
            )""",
    ),
)


class SqliteRunLog(SqlRunLog):
    """The run log in a SQLite file that many processes may write at once."""

    remedy = "move the file away, or name another with --run-log"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.place = str(path)
        self._lock = threading.Lock()
        _create_private(path)
        self._connection = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _use_write_ahead_log(self._connection)
            _migrate(self._connection, path)
        except BaseException:
            self._connection.close()
            raise

    @contextlib.contextmanager
    def connected(self) -> Iterator[SqliteRunLog]:
        """The file, in a transaction; one thread at a time."""
        try:
            with self._lock, _transaction(self._connection, "BEGIN"):
                yield self
        except sqlite3.Error as error:
            raise LogDown(str(error)) from error

    def run(self, sql: str, values: Mapping[str, Any]) -> int:
        """Run a statement; how many rows it has changed."""
        return self._connection.execute(sql, values).rowcount

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self._connection.execute(sql, values).fetchall()

    def clock(self) -> datetime:
        """This machine's: all who use the file are here."""
        return utc_now()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


def _create_private(path: Path) -> None:
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Readers and one writer at a time, none waiting for the others."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            # SQLite answers this change with "locked" at once instead of waiting.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    # What was claimed stays claimed, also when the power fails.
    connection.execute("PRAGMA synchronous = FULL")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema to this version; the write lock keeps a second process waiting."""
    known = len(_MIGRATIONS)
    if _schema_version(connection) != known:
        with _transaction(connection, "BEGIN IMMEDIATE"):
            stored = _schema_version(connection)
            if stored > known:
                raise ConfigError(
                    f"the run log {path} was written by a newer version "
                    f"(its schema is {stored}, this version knows {known})",
                    fix="upgrade ematix-flow, or name another run log with --run-log",
                )
            for statements in _MIGRATIONS[stored:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"
            )
            connection.execute("DELETE FROM schema_version")
            connection.execute("INSERT INTO schema_version VALUES (?)", (known,))
        return
    # An empty write transaction tells a read-only file before a run depends on it.
    with _transaction(connection, "BEGIN IMMEDIATE"):
        pass


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
    except BaseException:
        # A full disk has rolled it back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _schema_version(connection: sqlite3.Connection) -> int:
    named = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'"
    if connection.execute(named).fetchone() is None:
        return 0
    found = connection.execute("SELECT version FROM schema_version").fetchone()
    return int(found[0]) if found else 0
