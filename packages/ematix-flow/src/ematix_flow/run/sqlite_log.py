"""The run log in a SQLite file: write-ahead log, schema version, many writers at once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ematix_flow.errors import ConfigError
from ematix_flow.run.log import (
    Records,
    check_filter,
    decisive,
    only_one_run,
    warn_of_lost_records,
)
from ematix_flow.run.records import RunRecord, effective_status, utc_now

_BUSY_SECONDS = 30.0

_COLUMNS = tuple(f.name for f in dataclasses.fields(RunRecord))
_TIMES = ("started_at", "finished_at", "heartbeat_at", "slot")
_DOCUMENTS = ("parameters", "metrics")

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
)

_VALUES = f"({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{c}' for c in _COLUMNS)})"
_BEGIN = f"INSERT OR REPLACE INTO runs {_VALUES}"
_FINISH = (
    f"INSERT INTO runs {_VALUES} ON CONFLICT (run_id, target, step) "
    f"DO UPDATE SET {', '.join(f'{c} = excluded.{c}' for c in _COLUMNS)} "
    "WHERE runs.status IN ('running', 'lost') OR excluded.status = 'succeeded'"
)


class SqliteRunLog:
    """The run log in a SQLite file that many processes may write at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._complained = False
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

    def begin(self, record: RunRecord) -> None:
        """Record a run that has started."""
        self._write(_BEGIN, _row_of(record))

    def heartbeat(self, run_id: str) -> None:
        """Say that a run is still alive."""
        self._write(
            "UPDATE runs SET heartbeat_at = :now WHERE run_id = :run_id AND status = 'running'",
            {"now": _text_of(utc_now()), "run_id": run_id},
        )

    def finish(self, record: RunRecord) -> None:
        """Record how a run ended."""
        self._write(_FINISH, _row_of(record))

    def list(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50
    ) -> Records:
        """The latest records, newest first."""
        check_filter(status, limit)
        asked = {"pipeline": pipeline, "status": status, "limit": limit}
        conditions = ["pipeline = :pipeline"] if pipeline is not None else []
        if status not in ("running", "lost"):
            conditions += ["status = :status"] if status is not None else []
            return self._select(conditions, asked, limited=True)
        # Whether a run is alive cannot be asked of the file, so these are sorted out here.
        conditions.append("status IN ('running', 'lost')")
        now = utc_now()
        found = self._select(conditions, asked)
        return [r for r in found if effective_status(r, now) == status][:limit]

    def get(self, run_id: str) -> Records:
        """The records of one run."""
        asked = {"run_id": run_id, "end": run_id + "\U0010ffff"}
        found = self._select(["run_id >= :run_id", "run_id < :end"], asked)
        return only_one_run(run_id, found[::-1])

    def running(self, pipeline: str) -> Records:
        """The records of a pipeline whose end is not known."""
        unknown = "status IN ('running', 'lost')"
        return self._select([unknown, "pipeline = :name"], {"name": pipeline})

    def last(self, pipeline: str, *, declared_in: str) -> RunRecord | None:
        """The record that tells how the last run of this file's pipeline ended."""
        conditions = ["pipeline = :name", "declared_in = :file"]
        asked = {"name": pipeline, "file": declared_in, "limit": 1}
        found = self._select(conditions, asked, limited=True)
        if not found:
            return None
        asked["run_id"] = found[0].run_id
        return decisive(self._select([*conditions, "run_id = :run_id"], asked))

    def prune(self, before: datetime, *, dry_run: bool = False) -> frozenset[str]:
        """Remove the records of what began before; the ids of the runs."""
        latest = (
            "SELECT run_id FROM (SELECT run_id, row_number() OVER (PARTITION BY pipeline, "
            "declared_in ORDER BY started_at DESC, rowid DESC) AS place FROM runs) WHERE place = 1"
        )
        ended = "status NOT IN ('running', 'lost')"
        old = f"started_at < :before AND {ended} AND run_id NOT IN ({latest})"
        asked = {"before": _text_of(before)}
        gone = frozenset(r.run_id for r in self._select([old], asked))
        if not dry_run:
            self._write(f"DELETE FROM runs WHERE {old}", asked)
        return gone

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _select(
        self, conditions: Sequence[str], asked: dict[str, Any], *, limited: bool = False
    ) -> Records:
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        limit = " LIMIT :limit" if limited else ""
        statement = (
            f"SELECT {', '.join(_COLUMNS)} FROM runs {where}"
            f"ORDER BY started_at DESC, rowid DESC{limit}"
        )
        try:
            with self._lock:
                rows = self._connection.execute(statement, asked).fetchall()
        except sqlite3.Error as error:
            raise ConfigError(
                f"the run log {self.path} cannot be read: {error}",
                fix="move the file away, or name another with --run-log",
            ) from error
        return [_record_of(row) for row in rows]

    def _write(self, statement: str, values: dict[str, Any]) -> None:
        """A full disk or a lock held too long must not fail a run that did its work."""
        try:
            with self._lock:
                self._connection.execute(statement, values)
        except sqlite3.Error as error:
            if not self._complained:
                self._complained = True
                warn_of_lost_records(f"the run log {self.path} cannot be written ({error})")


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
    connection.execute("PRAGMA synchronous = NORMAL")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema to this version; the write lock keeps a second process waiting."""
    known = len(_MIGRATIONS)
    if _schema_version(connection) != known:
        with _write_transaction(connection):
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
    with _write_transaction(connection):
        pass


@contextlib.contextmanager
def _write_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _schema_version(connection: sqlite3.Connection) -> int:
    named = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'"
    if connection.execute(named).fetchone() is None:
        return 0
    found = connection.execute("SELECT version FROM schema_version").fetchone()
    return int(found[0]) if found else 0


def _row_of(record: RunRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in _COLUMNS}
    for name in _TIMES:
        row[name] = _text_of(row[name])
    for name in _DOCUMENTS:
        row[name] = json.dumps(row[name], default=str, sort_keys=True)
    return row


def _text_of(moment: datetime | None) -> str | None:
    """UTC with microseconds always written, so that text order is time order."""
    if moment is None:
        return None
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _record_of(row: Sequence[Any]) -> RunRecord:
    values = dict(zip(_COLUMNS, row, strict=True))
    for name in _TIMES:
        if values[name] is not None:
            values[name] = datetime.fromisoformat(values[name])
    for name in _DOCUMENTS:
        values[name] = json.loads(values[name])
    return RunRecord(**values)
