"""One run's way into MySQL or MariaDB, where every statement that defines a table commits.

So all tables come first, the target's included: an empty table is a state that the next run
continues from. The transaction after that touches rows only. What belongs to the run alone lies
beside its stage; a lock of the session marks the run as alive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import Load, Staged
from ematix_flow.backends.bookkeeping import SCHEMA
from ematix_flow.backends.mysql_load import LoadTask
from ematix_flow.backends.mysql_reads import spare_connections
from ematix_flow.backends.mysql_types import constant, loaded_text
from ematix_flow.backends.sql_landing import SqlLanding
from ematix_flow.change import CURRENT, OPERATION, SIDE, Counts, Revise
from ematix_flow.errors import EmatixError, SchemaDrift, Transient, Unsupported
from ematix_flow.model import LOADED_AT_COLUMN, RUN_ID_COLUMN, TableName
from ematix_flow.sql.identifiers import column_list, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlglot import exp

    from ematix_flow import types as t
    from ematix_flow.backends.mysql import MySQL
    from ematix_flow.engine.session import Engine

logger = logging.getLogger(__name__)

_STAGE = "stage_"
_LOCK_SECONDS = 10
_JOIN_BYTES = 64 * 1024 * 1024
_INDEXED_CHARACTERS = 128
_UNINDEXED = ("longblob", "json")


def scratch(load: Load, part: str = "") -> TableName:
    """A table that belongs to a run alone: its stage, or a named part beside it."""
    return TableName(SCHEMA, f"{_STAGE}{load.run.run_id}{f'_{part}' if part else ''}")


class MySQLLanding(SqlLanding):
    """Loads into ``ematix_flow.stage_<run>``, then commits in one transaction."""

    backend: MySQL

    def __init__(self, backend: MySQL, load: Load) -> None:
        super().__init__(backend, load)
        self._staged = self._made_schema = self._spread = False
        self._collations: dict[str, str] = {}

    def __enter__(self) -> MySQLLanding:
        super().__enter__()
        collation = self.backend.server.collation
        self.session.run(f"SET NAMES utf8mb4 COLLATE {collation}")
        self.session.run(f"SET SESSION join_buffer_size = {_JOIN_BYTES}")
        if self.backend.server.mariadb:
            # It joins by hashing only when told to, and reads a table once per full buffer.
            self.session.run(
                f"SET SESSION join_cache_level = 8, join_buffer_space_limit = {2 * _JOIN_BYTES}"
            )
        return self

    def _where(self, name: TableName) -> str:
        return self.backend.locate(name)

    def _lock_name(self, run_id: str) -> str:
        return f"{SCHEMA}.{run_id}"

    def sweep(self) -> None:
        """Drop the stages whose run no longer holds its lock."""
        tables = self.session.rows(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s "
            "AND table_name LIKE %s ORDER BY table_name DESC",
            (SCHEMA, _STAGE.replace("_", r"\_") + "%"),
        )
        by_run: dict[str, list[str]] = {}
        for (table,) in tables:
            by_run.setdefault(table.removeprefix(_STAGE).partition("_")[0], []).append(table)
        for run_id, names in by_run.items():
            lock = self._lock_name(run_id)
            if self.session.one("SELECT GET_LOCK(%s, 0)", (lock,)) != 1:
                continue
            try:
                self._end_loads(run_id, names)
                self._drop([TableName(SCHEMA, name) for name in names])
            except EmatixError as error:
                # Another user's, perhaps: no reason to fail a run that does not need it.
                logger.warning("the stage of dead run %s is still there: %s", run_id, error)
            self.session.rows("SELECT RELEASE_LOCK(%s)", (lock,))

    def _end_loads(self, run_id: str, names: list[str]) -> None:
        """Executors may outlive their driver: a load still under way would block the drop."""
        parts = f"{_STAGE}{run_id}_parts"
        if parts not in names:
            return
        sessions = self.session.rows(
            f"SELECT p.session FROM {self._where(TableName(SCHEMA, parts))} AS p "
            "JOIN information_schema.processlist AS l ON l.id = p.session "
            "WHERE l.user = SUBSTRING_INDEX(CURRENT_USER(), '@', 1) AND l.db = %s",
            (SCHEMA,),
        )
        for (session,) in sessions:
            with contextlib.suppress(EmatixError):
                self.session.run(f"KILL {int(session)}")

    def _end_stragglers(self) -> None:
        """A machine that has fallen silent, or is too late, would hold the stage for ever."""
        if self._spread:
            self._end_loads(self.load.run.run_id, [scratch(self.load, "parts").name])

    def _drop(self, names: list[TableName]) -> None:
        self.session.run(f"DROP TABLE IF EXISTS {', '.join(self._where(n) for n in names)}")

    def stage(self, engine: Engine, rows: DataFrame) -> Staged:
        """Every task loads its partition in one transaction, at most once."""
        load = self.load
        lock = (self._lock_name(load.run.run_id), _LOCK_SECONDS)
        if self.session.one("SELECT GET_LOCK(%s, %s)", lock) != 1:
            raise Transient(
                f"the stage of run {load.run.run_id} is held by somebody else",
                connection=self.backend.name,
                fix="run again",
            )
        load.announce("staging")
        self._create_stage()
        task = LoadTask(
            {**self.backend.arguments(), "database": SCHEMA},
            self._where(scratch(load)),
            self._where(scratch(load, "parts")),
            load.incoming_names,
            frozenset(c.name for c in load.incoming if c.type.kind == "bytes"),
            self.backend.name,
        )
        values = ", '\\t', ".join(loaded_text(c.name, c.type) for c in load.incoming)
        lines = rows.selectExpr(f"concat({values}, '\\n') AS line")
        self._spread = bool(getattr(engine, "distributed", False))
        count, size = engine.copy_rows(lines, task, most=spare_connections(self.session))
        self._end_stragglers()
        # The planner would take a table that was empty a moment ago for empty.
        self.session.rows(f"ANALYZE TABLE {self._where(scratch(load))}")
        load.announce("staged")
        return Staged(count, size, self._where(scratch(load)))

    def stage_query(self, select: str) -> Staged:
        """There is no same-database path yet."""
        raise Unsupported("mysql has no same-database path")

    def _create_stage(self) -> None:
        load, backend = self.load, self.backend
        self._staged = True
        self._made_schema = not self.session.rows(
            "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (SCHEMA,)
        )
        with backend.commit_lock(self.session, creates=self._made_schema):
            for statement in backend.create_schema(scratch(load)):
                self.session.run(statement)
        place = (backend.schema_of(load.name), load.name.name)
        found = self.session.rows(
            "SELECT column_name, character_set_name, collation_name "
            "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
            "AND collation_name IS NOT NULL",
            place,
        )
        self._collations = {n: f" CHARACTER SET {s} COLLATE {c}" for n, s, c in found}
        lines = [self._scratch_column(c.name, c.type) for c in load.incoming]
        stamps = backend.stamps(load)
        for name in (RUN_ID_COLUMN, LOADED_AT_COLUMN):
            kind = load.type_of(name)
            value = constant(stamps[name], kind)
            stored = backend.stored_type(kind)
            lines.append(f"{quoted(name, 'mysql')} {stored} GENERATED ALWAYS AS ({value}) VIRTUAL")
        self._create(scratch(load), lines, load.key)
        self._create(
            scratch(load, "parts"), ["`part` bigint NULL UNIQUE", "`session` bigint NULL"], ()
        )

    def _scratch_column(self, name: str, kind: t.ColumnType) -> str:
        """As in the target, where it has one: two keys are equal when the target says so."""
        stored = self.backend.stored_type(kind)
        collation = self._collations.get(name, "") if name in self.load.key else ""
        return f"{quoted(name, 'mysql')} {stored}{collation} NULL"

    def _create(self, name: TableName, lines: list[str], key: tuple[str, ...]) -> None:
        indexed: list[str] = []
        for column in key:
            stored = self.backend.stored_type(self.load.type_of(column))
            if stored in _UNINDEXED:
                indexed = []
                break
            prefix = f"({_INDEXED_CHARACTERS})" if stored == "longtext" else ""
            indexed.append(f"{quoted(column, 'mysql')}{prefix}")
        index = [f"KEY ({', '.join(indexed)})"] if indexed else []
        self.session.run(
            f"CREATE TABLE {self._where(name)} ({', '.join([*lines, *index])}) ENGINE=InnoDB "
            f"CHARACTER SET utf8mb4 COLLATE {self.backend.server.collation}"
        )

    def define_incoming(self, staged: Staged) -> None:
        """The staging table itself: it has the added columns too."""

    def remove_stage(self) -> None:
        """Drop what belongs to this run, and the database if only a dry run has made it."""
        if not self._staged:
            return
        self._end_stragglers()
        self._drop_scratch()
        self._drop([scratch(self.load), scratch(self.load, "parts")])
        if self._made_schema:
            self._drop_empty_schema()

    def _drop_empty_schema(self) -> None:
        with self.backend.commit_lock(self.session, creates=True):
            held = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s LIMIT 1"
            if not self.session.rows(held, (SCHEMA,)):
                self.session.run(f"DROP DATABASE IF EXISTS {quoted(SCHEMA, 'mysql')}")

    def _apply(self, staged: Staged, *, keep: bool) -> Counts:
        load = self.load
        if keep and self.books.epoch(load.run.pipeline, str(load.name)) != self.epoch:
            raise self._fenced()
        if not keep or load.alterations:
            # What is altered stays so: whatever can be refused is refused on a copy.
            counts = self._rehearsed(staged, watched=not keep)
            if not keep:
                return counts
        with self._created():
            self._create_scratch()
            return super()._apply(staged, keep=True)

    def _rehearsed(self, staged: Staged, *, watched: bool) -> Counts:
        """The whole change on tables beside the stage, of which nothing stays."""
        try:
            with self._imagined(watched=watched):
                self._create_scratch()
                with self.session.transaction(keep=False):
                    counts = self.change(staged)
                self._drop_scratch()
        except SchemaDrift as drift:
            # It was found on the copy, whose name means nothing to anybody.
            place = self._where(self.load.name)
            raise SchemaDrift(place, drift.differences, fix=drift.fix) from drift.__cause__
        return counts

    def _drop_scratch(self) -> None:
        change = self.load.change
        made = (*(s.changes for s in change.revisions), *change.derived, CURRENT, SIDE)
        self._drop([scratch(self.load, part) for part in made])

    @contextlib.contextmanager
    def _created(self) -> Iterator[None]:
        """The target's tables; one that was made for a commit that failed goes again."""
        super().prepare_tables()
        try:
            yield
        except EmatixError:
            if self.load.creates:
                with contextlib.suppress(EmatixError):
                    self._drop_unused(self.load.name)
            raise

    def _drop_unused(self, name: TableName) -> None:
        """Drop a table unless somebody has put rows into it; the lock waits until that is known."""
        self.session.run(f"LOCK TABLES {self._where(name)} WRITE")
        try:
            if not self.session.rows(f"SELECT 1 FROM {self._where(name)} LIMIT 1"):
                self._drop([name])
        finally:
            self.session.run("UNLOCK TABLES")

    @contextlib.contextmanager
    def _imagined(self, *, watched: bool) -> Iterator[None]:
        """The target as the commit would find it; what it would create or alter is a copy."""
        real, load = self.load, self.load
        altered = {alteration.relation for alteration in load.alterations}
        if load.creates or CURRENT in altered:
            name = scratch(load, CURRENT)
            table = dataclasses.replace(load.table, name=name)
            if not load.creates:
                self._copy(load.name, name)
            load = dataclasses.replace(load, name=name, table=table)
        if load.side is not None:
            held = self.backend.inspect_in(self.session, load.side.name) is not None
            if not held or SIDE in altered:
                name = scratch(load, SIDE)
                if held:
                    self._copy(load.side.name, name)
                load = dataclasses.replace(load, side=dataclasses.replace(load.side, name=name))
        if not watched:
            load = dataclasses.replace(load, inspect=None, announce=lambda point: None)
        self.load = load
        try:
            super().prepare_tables()
            yield
        finally:
            self.load = real

    def _copy(self, name: TableName, copy: TableName) -> None:
        found = self.session.rows(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s "
            "AND table_name = %s AND extra NOT LIKE '%% GENERATED' ORDER BY ordinal_position",
            (self.backend.schema_of(name), self.backend.table(name).name),
        )
        columns = column_list([column for (column,) in found], "mysql")
        self.session.run(f"CREATE TABLE {self._where(copy)} LIKE {self._where(name)}")
        self.session.run(
            f"INSERT INTO {self._where(copy)} ({columns}) SELECT {columns} FROM {self._where(name)}"
        )

    def prepare_tables(self) -> None:
        """They are there before the transaction begins."""

    def _create_scratch(self) -> None:
        """Empty tables for what the commit computes on its way."""
        load, backend = self.load, self.backend
        for name, query in load.change.derived.items():
            rows = f"SELECT * FROM ({backend.render(query, load)}) AS q LIMIT 0"
            self.session.run(f"CREATE TABLE {self._where(scratch(load, name))} AS {rows}")
        for step in load.change.revisions:
            lines = [
                self._scratch_column(name, kind) for name, kind in load.columns_of(step.relation)
            ]
            operation = f"{OPERATION} varchar(16) NOT NULL"
            self._create(scratch(load, step.changes), [operation, *lines], step.identity)

    def derive(self, name: str, query: exp.Query) -> None:
        """Fill the table that was made for it."""
        rows = self.backend.render(query, self.load)
        self.session.run(f"INSERT INTO {self._where(scratch(self.load, name))} {rows}")

    def _compute(self, step: Revise) -> dict[str, int]:
        changes = self._where(scratch(self.load, step.changes))
        self.session.run(f"INSERT INTO {changes} {self.backend.render(step.rows, self.load)}")
        found: list[tuple[Any, ...]] = self.session.rows(
            f"SELECT {OPERATION}, COUNT(*) FROM {changes} GROUP BY {OPERATION}"
        )
        return {str(operation): int(rows) for operation, rows in found}
