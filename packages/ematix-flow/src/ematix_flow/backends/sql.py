"""What every SQL database shares: rendering a change, the commit, and its bookkeeping.

A product adds its driver, its types, and how rows are staged and read. The commit is one
transaction: fence, DDL, assertions, steps and the run's row, all or nothing.
"""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.backends.base import (
    Backend,
    FoundTable,
    Landing,
    LiveConnection,
    Load,
    SourceQuery,
    Staged,
)
from ematix_flow.backends.bookkeeping import Bookkeeping
from ematix_flow.change import CURRENT, INCOMING, Change, Counts, Insert, Replace, Step
from ematix_flow.errors import (
    BackendError,
    BadValue,
    EmatixError,
    Fenced,
    Transient,
    Unsupported,
)
from ematix_flow.model import LOADED_AT_COLUMN, RUN_ID_COLUMN, Column, TableName
from ematix_flow.sql.assignment import may_round, require_same
from ematix_flow.sql.identifiers import bare, column_list, quoted, split_name
from ematix_flow.sql.normalizers import CannotMatch

if TYPE_CHECKING:
    from ematix_flow.types import ColumnType

logger = logging.getLogger(__name__)

ADDED_COLUMNS = (RUN_ID_COLUMN, LOADED_AT_COLUMN)


class Session:
    """One driver connection, with what the write path needs of it."""

    def __init__(self, backend: SqlBackend, raw: Any) -> None:
        self.backend = backend
        self.raw = raw

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it touched, or -1."""
        with self.backend.translated():
            return self.backend.run(self.raw, sql, parameters)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self.backend.translated():
            return self.backend.rows(self.raw, sql, parameters)

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first value of the first row, or None."""
        found = self.rows(sql, parameters)
        return found[0][0] if found else None

    @contextlib.contextmanager
    def transaction(self, *, keep: bool = True) -> Iterator[None]:
        """One transaction; rolled back on any error, and where it is not to be kept."""
        with self.backend.translated():
            self.backend.begin(self.raw)
        try:
            yield
        except BaseException:
            with contextlib.suppress(EmatixError), self.backend.translated():
                self.backend.finish(self.raw, keep=False)
            raise
        with self.backend.translated():
            self.backend.finish(self.raw, keep=keep)

    def close(self) -> None:
        """Close the driver's connection."""
        with contextlib.suppress(EmatixError), self.backend.translated():
            self.raw.close()


class SqlBackend(Backend):
    """A database that speaks SQL and commits transactions."""

    placeholder: ClassVar[str] = "?"
    default_schema: ClassVar[str | None] = None

    @abstractmethod
    def connect(self, *, read_only: bool = False) -> Any:
        """A driver connection in autocommit mode."""

    @abstractmethod
    def run(self, raw: Any, sql: str, parameters: Sequence[Any]) -> int:
        """Execute; the number of rows touched, or -1."""

    @abstractmethod
    def rows(self, raw: Any, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Execute and fetch everything."""

    @abstractmethod
    def fetch(
        self, raw: Any, sql: str, limit: int | None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Execute and fetch column names and at most ``limit`` rows."""

    @abstractmethod
    def translate(self, error: Exception) -> EmatixError | None:
        """A driver's error as one of ours, or None if it is not the driver's."""

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Let driver errors out as ours, without the driver's text leaking a secret."""
        try:
            yield
        except EmatixError:
            raise
        except Exception as error:
            known = self.translate(error)
            if known is None:
                raise
            raise known from error

    def begin(self, raw: Any) -> None:
        """Start a transaction that reads one snapshot."""
        self.run(raw, "BEGIN", ())

    def finish(self, raw: Any, *, keep: bool) -> None:
        """End the transaction."""
        self.run(raw, "COMMIT" if keep else "ROLLBACK", ())

    @contextlib.contextmanager
    def session(self, *, read_only: bool = False) -> Iterator[Session]:
        """A connection for the length of a block."""
        with self.translated():
            raw = self.connect(read_only=read_only)
        session = Session(self, raw)
        try:
            yield session
        finally:
            session.close()

    def open(self) -> LiveConnection:
        """A live connection for the user's own queries."""
        live = SqlConnection(self)
        if not self.creates_by_connecting():
            live.session()
        return live

    def creates_by_connecting(self) -> bool:
        """Whether a first connection would bring the database into being."""
        return False

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Where the connection leads, without secrets."""

    def table(self, name: TableName) -> exp.Table:
        """A table's full, quoted name."""
        schema = name.schema or self.default_schema
        return exp.table_(
            exp.to_identifier(name.name, quoted=True),
            db=exp.to_identifier(schema, quoted=True) if schema else None,
        )

    def locate(self, name: TableName, prefix: str | None = None) -> str:
        """The table's full name in this dialect."""
        if prefix is not None:
            raise Unsupported(
                f"prefix= does not go with a {self.kind} target", fix="it is for object stores"
            )
        return self.table(name).sql(dialect=self.dialect)

    def table_query(self, table: str, columns: Mapping[str, str] | None) -> SourceQuery:
        """``SELECT source AS target, …`` from a table."""
        source = self.table(split_name(table, self.dialect)).sql(dialect=self.dialect)
        if columns is None:
            return SourceQuery(f"SELECT * FROM {source}")
        items = ", ".join(
            f"{quoted(theirs, self.dialect)} AS {quoted(ours, self.dialect)}"
            for ours, theirs in columns.items()
        )
        return SourceQuery(f"SELECT {items} FROM {source}")

    def subquery(self, query: SourceQuery) -> str:
        """A user's query as something to select from."""
        return f"(\n{bare(query.sql, self.dialect)}\n) AS {quoted('source_query', self.dialect)}"

    def assign(
        self, value: exp.Expression, source: ColumnType, target: ColumnType
    ) -> exp.Expression:
        """An explicit cast, where every engine casts alike."""
        require_same(source, target)
        if source == target:
            return value
        if isinstance(target, t.Numeric) and may_round(source, target):
            return self._exactly(value, target)
        return exp.cast(value, exp.DataType.build(self.stored_type(target), dialect=self.dialect))

    def _exactly(self, value: exp.Expression, target: t.Numeric) -> exp.Expression:
        stored = exp.DataType.build(self.stored_type(target), dialect=self.dialect)
        cast = exp.cast(value.copy(), stored)
        exact = exp.EQ(this=cast.copy(), expression=value.copy())
        missing = exp.Is(this=value.copy(), expression=exp.null())
        refusal = self.refusal(value.copy(), f"is not an exact {target}")
        return exp.Case().when(exp.or_(exact, missing), cast).else_(refusal)

    def refusal(self, value: exp.Expression, why: str) -> exp.Expression:  # the value is shown
        """An expression that fails the statement, on the same-database path."""
        raise CannotMatch(f"{self.kind} cannot refuse a value that {why}")

    @abstractmethod
    def inspect_in(self, session: Session, name: TableName) -> FoundTable | None:
        """The table as this session sees it, or None."""

    def inspect(self, name: TableName, prefix: str | None = None) -> FoundTable | None:
        """The table as it exists now, or None."""
        self.locate(name, prefix)
        with self.session(read_only=True) as session:
            return self.inspect_in(session, name)

    @contextlib.contextmanager
    def commit_lock(self, session: Session, *, creates: bool) -> Iterator[None]:
        """Keep commits apart that the product itself would not; ``creates`` tells of new tables."""
        yield

    def instant(self, moment: datetime) -> Any:
        """A UTC instant as the driver takes it."""
        return moment

    @abstractmethod
    def constant(self, value: str, column_type: ColumnType) -> str:
        """A literal of the given type, from its canonical text."""

    def create_schema(self, name: TableName) -> list[str]:
        """What must run before a table of that schema can be created."""
        schema = name.schema or self.default_schema
        return [f"CREATE SCHEMA IF NOT EXISTS {quoted(schema, self.dialect)}"] if schema else []

    def ddl(self, load: Load) -> list[str]:
        """Schema and table from the declaration; nothing where the table exists."""
        if not load.creates:
            return []
        declared = {c.name: c for c in load.table.columns}
        lines = [
            self._column_ddl(name, column_type, declared.get(name))
            for name, column_type in load.columns
        ]
        if load.table.primary_key:
            lines.append(f"PRIMARY KEY ({column_list(load.table.primary_key, self.dialect)})")
        lines += [
            f"UNIQUE ({column_list(group, self.dialect)})" for group in load.table.unique_groups
        ]
        body = ",\n  ".join(lines)
        create = f"CREATE TABLE {self.locate(load.name)} (\n  {body}\n)"
        return [*self.create_schema(load.name), create]

    def _column_ddl(self, name: str, column_type: ColumnType, column: Column | None) -> str:
        nullable = column.nullable if column else False
        constraint = "" if nullable else " NOT NULL"
        return f"{quoted(name, self.dialect)} {self.stored_type(column_type)}{constraint}"

    def render(self, query: exp.Expression, load: Load) -> str:
        """A step's query with ``current`` in its place; ``incoming`` is a relation of that name."""

        def place(node: exp.Expression) -> exp.Expression:
            if isinstance(node, exp.Table) and node.name == CURRENT and not node.db:
                return self.table(load.name)
            if isinstance(node, exp.Table) and node.name == INCOMING and not node.db:
                return exp.table_(exp.to_identifier(INCOMING, quoted=True))
            return node

        return query.transform(place).sql(dialect=self.dialect)

    def statements(self, step: Step, load: Load) -> list[tuple[str, str]]:
        """A step as SQL, each statement with the count it adds to."""
        target = self.locate(load.name)
        columns = column_list(load.column_names, self.dialect)
        insert = f"INSERT INTO {target} ({columns}) {self.render(step.rows, load)}"
        match step:
            case Insert():
                return [("inserted", insert)]
            case Replace():
                # DELETE, not TRUNCATE: readers keep their snapshot and never see it empty.
                return [("deleted", f"DELETE FROM {target}"), ("inserted", insert)]

    def steps_sql(self, load: Load, incoming: str) -> list[str]:
        """The change as it will run."""
        made = [sql for step in load.change.steps for _, sql in self.statements(step, load)]
        return [f"-- {INCOMING} is {incoming}", *made]

    def incoming_select(self, load: Load, rows: str, values: Sequence[str]) -> str:
        """``incoming`` as a query: staged values plus the columns this system adds."""
        added = {
            RUN_ID_COLUMN: load.run.run_id,
            LOADED_AT_COLUMN: load.run.loaded_at.strftime("%Y-%m-%d %H:%M:%S.%f+00:00"),
        }
        items = [
            f"{value} AS {quoted(name, self.dialect)}"
            for name, value in zip(load.table.column_names, values, strict=True)
        ]
        items += [
            f"{self.constant(added[name], column_type)} AS {quoted(name, self.dialect)}"
            for name, column_type in load.columns
            if name in added
        ]
        return f"SELECT {', '.join(items)} FROM {rows}"

    def committed(self, run_id: str, name: TableName, prefix: str | None = None) -> Counts | None:
        """What the run history in the target says of a run."""
        with self.session(read_only=True) as session:
            return Bookkeeping(session).find_run(run_id, str(name))


@dataclass(frozen=True)
class QueryStage:
    """Incoming rows that are a query of the target's own database."""

    select: str


class SqlLanding(Landing):
    """The commit shared by all SQL databases; a product adds its stage."""

    def __init__(self, backend: SqlBackend, load: Load) -> None:
        self.backend = backend
        self.load = load
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> SqlLanding:
        with contextlib.ExitStack() as stack:
            self.session = stack.enter_context(self.backend.session())
            self.books = Bookkeeping(self.session)
            self.sweep()
            self.epoch = self.books.epoch(self.load.run.pipeline, str(self.load.name))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.remove_stage()
        except EmatixError as error:
            # The run has ended, well or not; this must not hide how. The next one sweeps.
            logger.warning("the stage of run %s is still there: %s", self.load.run.run_id, error)
        finally:
            self._stack.close()

    @abstractmethod
    def sweep(self) -> None:
        """Remove what runs that died before their commit have left."""

    @abstractmethod
    def remove_stage(self) -> None:
        """Remove this run's stage."""

    @abstractmethod
    def define_incoming(self, staged: Staged) -> None:
        """Make ``incoming`` a relation of this session, inside the transaction."""

    def stage_query(self, select: str) -> Staged:
        """The incoming rows are a query of this database; nothing moves before the commit."""
        return Staged(rows=-1, bytes=0, handle=QueryStage(select))

    def query_incoming(self, select: str) -> None:
        """``incoming`` as a view of a query of this database."""
        rows = f"({select}) AS {quoted('assigned', self.backend.dialect)}"
        values = [quoted(name, self.backend.dialect) for name in self.load.table.column_names]
        self.define_view(self.backend.incoming_select(self.load, rows, values))

    def define_view(self, select: str) -> None:
        """``incoming`` as a view that lives as long as this session."""
        name = quoted(INCOMING, self.backend.dialect)
        self.session.run(f"CREATE TEMPORARY VIEW {name} AS {select}")

    def commit(self, staged: Staged, *, keep: bool) -> Counts:
        """Everything in one transaction."""
        self.load.announce("committing")
        with self.backend.commit_lock(self.session, creates=self.load.creates or not keep):
            try:
                if keep:
                    self.books.ensure()
                counts = self._apply(staged, keep=keep)
            except (BackendError, BadValue) as error:
                self._explain_race(error)
                if isinstance(error, BadValue):
                    error.what = f"table {self.load.name}: {error.what}"
                raise
        if keep:
            self.load.announce("committed")
        return counts

    def _apply(self, staged: Staged, *, keep: bool) -> Counts:
        load, session = self.load, self.session
        with session.transaction(keep=keep):
            if not keep:
                self.books.create_missing()
            self._take_fence()
            for statement in self.backend.ddl(load):
                session.run(statement)
            if isinstance(staged.handle, QueryStage):
                self.query_incoming(staged.handle.select)
            else:
                self.define_incoming(staged)
            self._check(load.change)
            done: dict[str, int] = {}
            for step in load.change.steps:
                for count, sql in self.backend.statements(step, load):
                    done[count] = done.get(count, 0) + session.run(sql)
                load.announce(f"applied {step.verb}")
            read = staged.rows if staged.rows >= 0 else done.get("inserted", 0)
            counts = Counts(read=read, **done)
            self.books.record_run(load.run, str(load.name), counts)
        return counts

    def _take_fence(self) -> None:
        if not self.books.advance(self.load.run, str(self.load.name), self.epoch):
            raise self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another run of pipeline {self.load.run.pipeline!r} committed to {self.load.name} "
            "after this one had started; this run changed nothing",
            fix="run it again if its rows are still needed",
        )

    def _explain_race(self, error: EmatixError) -> None:
        """Every product reports a lost race in its own words; what is there now tells which."""
        load = self.load
        try:
            if self.books.find_run(load.run.run_id, str(load.name)) is not None:
                return
            fenced = self.books.epoch(load.run.pipeline, str(load.name)) != self.epoch
            created = load.creates and self.backend.inspect_in(self.session, load.name) is not None
        except EmatixError:
            return
        if fenced:
            raise self._fenced() from error
        if created:
            raise Transient(
                f"table {load.name} was created by somebody else while this run was under way",
                connection=self.backend.name,
                fix="run it again",
            ) from error

    def _check(self, change: Change) -> None:
        for assertion in change.assertions:
            if self.session.one(self.backend.render(assertion.violations, self.load)):
                raise assertion.error


class SqlConnection(LiveConnection):
    """A live connection to a SQL database.

    It connects when first used, so that a misspelt path creates no empty file.
    """

    def __init__(self, backend: SqlBackend) -> None:
        self._backend = backend
        self._session: Session | None = None

    def session(self) -> Session:
        """The driver's connection, opened if it is not."""
        if self._session is None:
            with self._backend.translated():
                self._session = Session(self._backend, self._backend.connect())
        return self._session

    def query(self, sql: str, max_rows: int | None = None) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries."""
        session = self.session()
        with self._backend.translated():
            names, rows = self._backend.fetch(session.raw, sql, max_rows)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def execute(self, sql: str) -> int:
        """Run a statement and commit it."""
        return self.session().run(sql)

    def ping(self) -> None:
        """Ask the database for a 1."""
        self.session().one("SELECT 1")

    def info(self) -> dict[str, Any]:
        """Where it leads, without secrets."""
        return self._backend.info()

    def close(self) -> None:
        """Give the connection back."""
        if self._session is not None:
            self._session.close()
            self._session = None
