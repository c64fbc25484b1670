"""The tables this system keeps in a target database: run history, fences, schema version.

They are created by the first commit; a dry run creates them only inside a transaction that it
rolls back. Newer code migrates them under the same lock; older code refuses to touch them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ematix_flow.change import Counts
from ematix_flow.errors import Permanent, Transient
from ematix_flow.model import BOOKKEEPING_SCHEMA, TableName
from ematix_flow.sql.identifiers import column_list
from ematix_flow.types import BigInt, String, Text, TimestampTZ

if TYPE_CHECKING:
    from ematix_flow.backends.base import RunRow
    from ematix_flow.backends.sql_session import Session
    from ematix_flow.types import ColumnType

SCHEMA = BOOKKEEPING_SCHEMA
VERSION = 2
_COUNTS = tuple(f"rows_{f.name}" for f in dataclasses.fields(Counts))

_TABLES: dict[str, tuple[tuple[tuple[str, ColumnType], ...], tuple[str, ...]]] = {
    "schema_version": ((("version", BigInt()),), ("version",)),
    "fences": (
        (
            ("pipeline_name", String(255)),
            ("target", String(255)),
            ("epoch", BigInt()),
            ("run_id", String(64)),
        ),
        ("pipeline_name", "target"),
    ),
    "run_history": (
        (
            ("run_id", String(64)),
            ("target", String(255)),
            ("pipeline_name", String(255)),
            ("mode", String(64)),
            ("path", String(64)),
            ("status", String(64)),
            ("started_at", TimestampTZ()),
            ("finished_at", TimestampTZ()),
            *((name, BigInt()) for name in _COUNTS),
        ),
        ("run_id", "target"),
    ),
    "watermarks": (
        (
            ("pipeline_name", String(255)),
            ("target", String(255)),
            ("column_name", String(255)),
            ("last_value", Text()),
            ("updated_at", TimestampTZ()),
        ),
        ("pipeline_name", "target", "column_name"),
    ),
    "applied_batches": (
        (
            ("target", String(255)),
            ("batch", String(255)),
            ("run_id", String(64)),
            ("applied_at", TimestampTZ()),
        ),
        ("target", "batch"),
    ),
}


class Bookkeeping:
    """The bookkeeping tables behind one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.backend = session.backend

    def _name(self, table: str) -> str:
        return self.backend.table(TableName(SCHEMA, table)).sql(dialect=self.backend.dialect)

    def exists(self) -> bool:
        """Whether the tables are there, in the version of this code."""
        return self._version() == VERSION

    def _version(self) -> int | None:
        if self.session.books_current:
            return VERSION
        if self.backend.inspect_in(self.session, TableName(SCHEMA, "schema_version")) is None:
            return None
        found = self.session.one(f"SELECT max(version) FROM {self._name('schema_version')}")
        if found is not None and found > VERSION:
            raise Permanent(
                f"its {SCHEMA} tables were written by a newer version (schema {found}, this "
                f"version knows {VERSION})",
                connection=self.backend.name,
                fix="upgrade ematix-flow",
            )
        # Once they are there, they stay: no need to ask again for every question.
        self.session.books_current = found == VERSION
        return None if found is None else int(found)

    def ensure(self) -> None:
        """Create or migrate the tables before the first commit, in a transaction of their own."""
        if self.exists():
            return
        with self.backend.commit_lock(self.session, creates=True), self.session.transaction():
            self.create_missing()

    def create_missing(self) -> None:
        """Create what is missing inside the open transaction: everything, or what is new."""
        if self.exists():
            return
        for statement in self.backend.create_schema(TableName(SCHEMA, "schema_version")):
            self.session.run(statement)
        for table, (columns, key) in _TABLES.items():
            if self.backend.inspect_in(self.session, TableName(SCHEMA, table)) is not None:
                continue
            dialect = self.backend.dialect
            lines = [
                f"{column_list((name,), dialect)} {self.backend.stored_type(kind)} NOT NULL"
                for name, kind in columns
            ]
            lines.append(f"PRIMARY KEY ({column_list(key, dialect)})")
            self.session.run(f"CREATE TABLE {self._name(table)} ({', '.join(lines)})")
        self.session.run(f"INSERT INTO {self._name('schema_version')} VALUES ({VERSION})")

    def epoch(self, pipeline: str, target: str) -> int:
        """How many commits this pipeline has made to this target."""
        if self._version() is None:
            return 0
        mark = self.backend.placeholder
        found = self.session.one(
            f"SELECT epoch FROM {self._name('fences')} "
            f"WHERE pipeline_name = {mark} AND target = {mark}",
            (pipeline, target),
        )
        return int(found or 0)

    def advance(self, run: RunRow, target: str, epoch: int) -> bool:
        """Take the next epoch; False if somebody else has taken it."""
        if self.epoch(run.pipeline, target) != epoch:
            return False
        return self._advance(run.pipeline, target, epoch, run.run_id)

    def _advance(self, pipeline: str, target: str, epoch: int, run_id: str) -> bool:
        mark, fences = self.backend.placeholder, self._name("fences")
        if epoch == 0:
            values = (pipeline, target, 1, run_id)
            marks = ", ".join([mark] * len(values))
            return self.session.run(f"INSERT INTO {fences} VALUES ({marks})", values) == 1
        touched = self.session.run(
            f"UPDATE {fences} SET epoch = epoch + 1, run_id = {mark} "
            f"WHERE pipeline_name = {mark} AND target = {mark} AND epoch = {mark}",
            (run_id, pipeline, target, epoch),
        )
        return touched == 1

    def record_run(self, run: RunRow, target: str, counts: Counts) -> None:
        """The run's row, in the same transaction as its rows."""
        finished = datetime.now(timezone.utc)
        values = (
            run.run_id,
            target,
            run.pipeline,
            run.mode,
            run.path,
            "succeeded",
            self.backend.instant(run.started_at),
            self.backend.instant(finished),
            *dataclasses.astuple(counts),
        )
        marks = ", ".join([self.backend.placeholder] * len(values))
        self.session.run(f"INSERT INTO {self._name('run_history')} VALUES ({marks})", values)

    def find_run(self, run_id: str, target: str) -> Counts | None:
        """The counts of a committed run, or None."""
        if self._version() is None:
            return None
        mark = self.backend.placeholder
        rows = self.session.rows(
            f"SELECT {', '.join(_COUNTS)} FROM {self._name('run_history')} "
            f"WHERE run_id = {mark} AND target = {mark}",
            (run_id, target),
        )
        return Counts(*(int(n) for n in rows[0])) if rows else None

    def pipelines(self, target: str) -> set[str]:
        """The pipelines whose runs the history of a target lists."""
        if self._version() is None:
            return set()
        rows = self.session.rows(
            f"SELECT DISTINCT pipeline_name FROM {self._name('run_history')} "
            f"WHERE target = {self.backend.placeholder}",
            (target,),
        )
        return {str(pipeline) for (pipeline,) in rows}

    def fence_off(self, pipeline: str, target: str, run_id: str) -> None:
        """Take an epoch for a run that was declared dead, so that it cannot commit any more."""
        run = (pipeline, target, self.epoch(pipeline, target))
        if not self._advance(*run, run_id):
            raise Transient(
                f"another run of {pipeline!r} committed to {target} at the same moment",
                connection=self.backend.name,
                fix="run it again",
            )

    def is_given_up(self, run: RunRow, target: str) -> bool:
        """Whether a run's epoch was last taken because it was declared dead."""
        mark = self.backend.placeholder
        holder = self.session.one(
            f"SELECT run_id FROM {self._name('fences')} "
            f"WHERE pipeline_name = {mark} AND target = {mark}",
            (run.pipeline, target),
        )
        return bool(holder == run.run_id)

    def watermarks(self, pipeline: str, target: str) -> dict[str, str]:
        """The last value of each watermark column."""
        if not self.exists():
            return {}
        mark = self.backend.placeholder
        rows = self.session.rows(
            f"SELECT {column_list(('column_name', 'last_value'), self.backend.dialect)} "
            f"FROM {self._name('watermarks')} "
            f"WHERE pipeline_name = {mark} AND target = {mark}",
            (pipeline, target),
        )
        return {str(column): str(value) for column, value in rows}

    def move_watermark(self, pipeline: str, target: str, column: str, value: str | None) -> None:
        """Set a watermark in the open transaction; None forgets it."""
        mark, table = self.backend.placeholder, self._name("watermarks")
        key = (pipeline, target, column)
        where = f"pipeline_name = {mark} AND target = {mark} AND column_name = {mark}"
        self.session.run(f"DELETE FROM {table} WHERE {where}", key)
        if value is not None:
            now = self.backend.instant(datetime.now(timezone.utc))
            marks = ", ".join([mark] * 5)
            self.session.run(f"INSERT INTO {table} VALUES ({marks})", (*key, value, now))

    def applied(self, batches: Sequence[str], target: str) -> set[str]:
        """Which of these batches have been applied."""
        if not batches or not self.exists():
            return set()
        mark = self.backend.placeholder
        marks = ", ".join([mark] * len(batches))
        rows = self.session.rows(
            f"SELECT batch FROM {self._name('applied_batches')} "
            f"WHERE target = {mark} AND batch IN ({marks})",
            (target, *batches),
        )
        return {str(batch) for (batch,) in rows}

    def record_batch(self, batch: str, target: str, run_id: str) -> None:
        """Say in the open transaction that a batch has been applied."""
        now = self.backend.instant(datetime.now(timezone.utc))
        marks = ", ".join([self.backend.placeholder] * 4)
        values = (target, batch, run_id, now)
        self.session.run(f"INSERT INTO {self._name('applied_batches')} VALUES ({marks})", values)
