"""What every SQL database shares: rendering a change, and the bookkeeping of its commits.

A product adds its driver, its types, and how rows are staged and read.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.backends.base import (
    Alteration,
    Backend,
    FoundTable,
    LiveConnection,
    Load,
    SourceQuery,
    WatermarkMove,
)
from ematix_flow.backends.bookkeeping import Bookkeeping
from ematix_flow.backends.sql_alterations import plain_alteration, unfit_by_round_trip
from ematix_flow.backends.sql_session import IdleSession, Session, SqlConnection
from ematix_flow.change import (
    COMPARABLE,
    CURRENT,
    INCOMING,
    LATER,
    MISSING,
    MOMENT,
    OPERATION,
    RUN,
    SIDE,
    VALUE,
    Counts,
    Insert,
    Replace,
    Revise,
    Rewrite,
    Step,
)
from ematix_flow.errors import EmatixError, Unsupported
from ematix_flow.model import LOADED_AT_COLUMN, RUN_ID_COLUMN, Column, Table, TableName
from ematix_flow.sql.assignment import may_round, require_same
from ematix_flow.sql.identifiers import bare, column_list, quoted, split_name
from ematix_flow.sql.normalizers import CannotMatch
from ematix_flow.watermark import canonical_value

if TYPE_CHECKING:
    from ematix_flow.connections import Connection
    from ematix_flow.types import ColumnType

logger = logging.getLogger(__name__)

_RELATIONS = (INCOMING, CURRENT, SIDE)


class SqlBackend(Backend):
    """A database that speaks SQL and commits transactions."""

    placeholder: ClassVar[str] = "?"
    default_schema: ClassVar[str | None] = None
    # Whether ``WITH x AS NOT MATERIALIZED`` is understood.
    inlines: ClassVar[bool] = False
    # Whether a new table is filled faster before it has its keys.
    keys_last: ClassVar[bool] = False

    # Whether connecting takes so long that a run does it as seldom as it can.
    keeps_sessions: ClassVar[bool] = False

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._idle = IdleSession()

    @abstractmethod
    def connect(self, *, read_only: bool = False) -> Any:
        """A driver connection in autocommit mode."""

    def disconnect(self, raw: Any) -> None:
        """Close what ``connect`` has opened."""
        raw.close()

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
        session = self._idle.take(read_only=read_only)
        if session is None:
            session = self._opened(read_only=read_only)
        try:
            yield session
        except BaseException:
            session.close()
            raise
        self._idle.give(session)

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """What is asked one after the other is asked through one connection."""
        if not self.keeps_sessions:
            return contextlib.nullcontext()
        return self._idle.kept(functools.partial(self._opened, read_only=True))

    def _opened(self, *, read_only: bool) -> Session:
        with self.translated():
            raw = self.taken_over(read_only=read_only) or self.connect(read_only=read_only)
            return Session(self, raw, read_only=read_only)

    def taken_over(self, *, read_only: bool) -> Any | None:
        """A connection that an earlier run of this process has left, as good as new."""
        return None

    def left_behind(self, raw: Any) -> bool:
        """Whether a connection was left to the next run of this process, as good as new."""
        return False

    def allow_writes(self, raw: Any) -> None:
        """Let a connection write that was opened for reading."""
        raise NotImplementedError

    def open(self) -> LiveConnection:
        """A live connection for the user's own queries."""
        live = SqlConnection(self)
        if not self.creates_by_connecting():
            live.session()
        return live

    def lend(self) -> LiveConnection:
        """Most functions only return SQL and never use what they are given."""
        return SqlConnection(self)

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

    def at_least(
        self, query: SourceQuery, column: str, kind: ColumnType, start: str, end: str | None = None
    ) -> SourceQuery:
        """The query inside another that compares as this system does."""
        name = quoted(column, self.dialect)
        rows = f"SELECT * FROM {self.subquery(query)}"
        inside = self.within(column, kind, start, end)
        return SourceQuery(f"{rows} WHERE {inside} OR {name} IS NULL")

    def within(self, column: str, kind: ColumnType, start: str, end: str | None) -> str:
        """Whether a column's value is in a range; NULL is in none."""
        reference = exp.column(exp.to_identifier(column, quoted=True))
        value = self.comparable(reference, kind).sql(dialect=self.dialect)
        lower = f"{value} >= {self.constant(start, kind)}"
        return f"({lower} AND {value} < {self.constant(end, kind)})" if end else lower

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
        """Schema and table from the declaration; what alters a table that exists."""
        if load.creates:
            return self.create_table(load.table, load.columns)
        return self.alter(load)

    def alter(self, load: Load) -> list[str]:
        """The statements that make the load's alterations."""
        if not load.alterations:
            return []
        with self.session(read_only=True) as session:
            return self.alter_in(session, load)

    def alter_in(self, session: Session, load: Load) -> list[str]:
        """The same, told from what this session sees."""
        made: list[str] = []
        for alteration in load.alterations:
            table = self.relation(alteration.relation, load).sql(dialect=self.dialect)
            made += self.alteration(table, alteration)
        return made

    def alteration(self, table: str, alteration: Alteration) -> list[str]:
        """One alteration in this dialect."""
        return plain_alteration(self, table, alteration)

    def unfit(self, column: str, was: ColumnType, new: ColumnType) -> str | None:
        """A condition that is true for stored values which a column's new type could not keep.

        None where the database refuses them itself.
        """
        return unfit_by_round_trip(self, column, was, new)

    def create_table(
        self, table: Table, columns: Sequence[tuple[str, ColumnType]], *, unless_there: bool = False
    ) -> list[str]:
        """The statements that create a table with its keys."""
        declared = {c.name: c for c in table.columns}
        lines = [
            self._column_ddl(name, column_type, declared.get(name)) for name, column_type in columns
        ]
        lines += self.key_clauses(table)
        body = ",\n  ".join(lines)
        guard = "IF NOT EXISTS " if unless_there else ""
        create = f"CREATE TABLE {guard}{self.locate(table.name)} (\n  {body}\n)"
        return [*self.create_schema(table.name), create]

    def key_clauses(self, table: Table) -> list[str]:
        """The keys of a table, as a definition lists them."""
        groups = [("UNIQUE", group) for group in table.unique_groups]
        if table.primary_key:
            groups.insert(0, ("PRIMARY KEY", table.primary_key))
        return [f"{kind} ({column_list(group, self.dialect)})" for kind, group in groups]

    def _column_ddl(self, name: str, column_type: ColumnType, column: Column | None) -> str:
        nullable = column.nullable if column else False
        constraint = "" if nullable else " NOT NULL"
        return f"{quoted(name, self.dialect)} {self.stored_type(column_type)}{constraint}"

    def render(self, query: exp.Expr, load: Load) -> str:
        """A mode's query in this dialect, with the load's relations and constants in place."""

        def place(node: exp.Expression) -> exp.Expression:
            if isinstance(node, exp.Table) and node.name in _RELATIONS and not node.db:
                placed = self.relation(node.name, load)
                placed.set("alias", node.args.get("alias"))
                return placed
            if isinstance(node, exp.Anonymous) and str(node.this).startswith("EMATIX_"):
                return self.stand_in(node, load)
            if isinstance(node, exp.CTE) and self.inlines:
                # Kept apart, what is used twice would be computed without indexes and statistics.
                node.set("materialized", False)
            return node

        return query.transform(place).sql(dialect=self.dialect)

    def relation(self, name: str, load: Load) -> exp.Table:
        """Where a relation of the load is."""
        if name == CURRENT:
            return self.table(load.name)
        if name == SIDE and load.side is not None:
            return self.table(load.side.name)
        return exp.table_(exp.to_identifier(name, quoted=True))

    def stand_in(self, node: exp.Anonymous, load: Load) -> exp.Expression:
        """What a mode leaves to the product: typed constants, and how values are compared."""
        given = node.expressions
        kinds = {MOMENT: LOADED_AT_COLUMN, RUN: RUN_ID_COLUMN}
        if node.name in kinds:
            column = kinds[node.name]
            return _raw(self.constant(self.stamps(load)[column], load.type_of(column)))
        if node.name == MISSING:
            stored = self.castable_type(load.type_of(given[0].name))
            return _raw(f"CAST(NULL AS {stored})")
        if node.name == VALUE:
            return _raw(self.constant(given[0].name, load.type_of(given[1].name)))
        if node.name == LATER:
            return self.later(given[0], float(given[1].name))
        if node.name == COMPARABLE:
            return self.comparable(given[0], load.type_of(given[1].name))
        raise Unsupported(f"{self.kind} does not know {node.name}")

    def castable_type(self, column_type: ColumnType) -> str:
        """A type as this dialect's CAST spells it."""
        return self.stored_type(column_type)

    def later(self, instant: exp.Expression, seconds: float) -> exp.Expression:
        """A stored instant so many seconds later."""
        whole = round(seconds * 1_000_000)
        text = f"{instant.sql(dialect=self.dialect)} + INTERVAL '{whole} microseconds'"
        return _raw(f"({text})")

    def comparable(self, value: exp.Expression, column_type: ColumnType) -> exp.Expression:
        """A stored value in the form in which equality and order are exact."""
        return value

    def stamps(self, load: Load) -> dict[str, str]:
        """The values of the columns this system adds, as canonical text."""
        return {
            RUN_ID_COLUMN: load.run.run_id,
            LOADED_AT_COLUMN: load.run.loaded_at.strftime("%Y-%m-%d %H:%M:%S.%f+00:00"),
        }

    def statements(self, step: Step, load: Load) -> list[tuple[str, str]]:
        """A step as SQL, each statement with the count or the act that its rows stand for."""
        if isinstance(step, Revise):
            return self.revision(step, load)
        target = self.locate(load.name)
        columns = column_list(load.column_names, self.dialect)
        insert = f"INSERT INTO {target} ({columns}) {self.render(step.rows, load)}"
        match step:
            case Insert():
                return [("inserted", insert)]
            case Replace():
                # DELETE, not TRUNCATE: readers keep their snapshot and never see it empty.
                return [("deleted", f"DELETE FROM {target}"), ("inserted", insert)]
            case Rewrite():
                where = self.render(step.where, load)
                return [("deleted", f"DELETE FROM {target} WHERE {where}"), ("inserted", insert)]

    def revision(self, step: Revise, load: Load) -> list[tuple[str, str]]:
        """The statements that apply a change set, each with its act."""
        target = self.relation(step.relation, load).sql(dialect=self.dialect)
        columns = [name for name, _ in load.columns_of(step.relation)]
        made = []
        if deletes := step.operations("delete"):
            made.append(("delete", self.delete_rows(target, step, deletes)))
        if updates := step.operations("update"):
            made.append(("update", self.update_rows(target, step, updates, columns)))
        if inserts := step.operations("insert"):
            listed = column_list(columns, self.dialect)
            rows = f"SELECT {listed} FROM {step.changes} WHERE {_among(inserts)}"
            made.append(("insert", f"INSERT INTO {target} ({listed}) {rows}"))
        return made

    def delete_rows(self, target: str, step: Revise, operations: Sequence[str]) -> str:
        """Delete the rows that a change set names."""
        matched = self.matched(target, step)
        rows = f"SELECT 1 FROM {step.changes} AS x WHERE {_among(operations, 'x.')} AND {matched}"
        return f"DELETE FROM {target} WHERE EXISTS ({rows})"

    def update_rows(
        self, target: str, step: Revise, operations: Sequence[str], columns: Sequence[str]
    ) -> str:
        """Set the other columns of the rows that a change set names."""
        sets = ", ".join(
            f"{quoted(c, self.dialect)} = x.{quoted(c, self.dialect)}"
            for c in columns
            if c not in step.identity
        )
        return (
            f"UPDATE {target} SET {sets} FROM {step.changes} AS x "
            f"WHERE {_among(operations, 'x.')} AND {self.matched(target, step)}"
        )

    def matched(self, target: str, step: Revise) -> str:
        """Whether a row of the target and one of the change set are the same."""
        pairs = (
            f"{target}.{quoted(c, self.dialect)} = x.{quoted(c, self.dialect)}"
            for c in step.identity
        )
        return " AND ".join(pairs)

    def steps_sql(self, load: Load, incoming: str) -> list[str]:
        """The change as it will run."""
        made = [f"-- {INCOMING} is {incoming}"]
        for name, query in load.change.derived.items():
            made.append(f"CREATE TEMPORARY TABLE {name} AS {self.render(query, load)}")
        for revision in load.change.revisions:
            rows = self.render(revision.rows, load)
            made.append(f"CREATE TEMPORARY TABLE {revision.changes} AS {rows}")
        for step in load.change.steps:
            made += [sql for _, sql in self.statements(step, load)]
        return made

    def incoming_select(self, load: Load, rows: str, values: Sequence[str]) -> str:
        """``incoming`` as a query: staged values plus the columns this system adds."""
        items = [
            f"{value} AS {quoted(name, self.dialect)}"
            for name, value in zip(load.incoming_names, values, strict=True)
        ]
        items += [
            f"{self.constant(value, load.type_of(name))} AS {quoted(name, self.dialect)}"
            for name, value in self.stamps(load).items()
        ]
        return f"SELECT {', '.join(items)} FROM {rows}"

    def committed(self, run_id: str, name: TableName, prefix: str | None = None) -> Counts | None:
        """What the run history in the target says of a run."""
        with self.session(read_only=True) as session:
            return Bookkeeping(session).find_run(run_id, str(name))

    def settle(
        self, run_id: str, pipeline: str, name: TableName, prefix: str | None = None
    ) -> Counts | None:
        """Look a dead run up; if it never committed, take its epoch so that it never will."""
        with self.session() as session:
            books = Bookkeeping(session)
            books.ensure()
            with self.commit_lock(session, creates=False), session.transaction():
                counts = books.find_run(run_id, str(name))
                if counts is None:
                    books.fence_off(pipeline, str(name), run_id)
                return counts

    def watermarks(
        self, pipeline: str, name: TableName, prefix: str | None = None
    ) -> dict[str, str]:
        """The watermarks that commits have left in the target."""
        with self.session(read_only=True) as session:
            return Bookkeeping(session).watermarks(pipeline, str(name))

    def set_watermark(
        self,
        pipeline: str,
        name: TableName,
        column: str,
        value: str | None,
        prefix: str | None = None,
    ) -> None:
        """Write or forget a watermark."""
        with self.session() as session:
            books = Bookkeeping(session)
            books.ensure()
            with self.commit_lock(session, creates=False), session.transaction():
                books.move_watermark(pipeline, str(name), column, value)

    def applied(
        self, batches: Sequence[str], name: TableName, prefix: str | None = None
    ) -> set[str]:
        """Which batches the target's bookkeeping lists."""
        with self.session(read_only=True) as session:
            return Bookkeeping(session).applied(batches, str(name))

    def pipelines(self, name: TableName, prefix: str | None = None) -> set[str]:
        """The pipelines that the target's run history lists."""
        with self.session(read_only=True) as session:
            return Bookkeeping(session).pipelines(str(name))

    def greatest(self, session: Session, load: Load, move: WatermarkMove) -> str | None:
        """The greatest incoming value of the watermark column, as canonical text."""
        column = exp.column(exp.to_identifier(move.column, quoted=True))
        value = exp.Max(this=self.comparable(column, move.kind))
        query = exp.select(value).from_(self.relation(INCOMING, load))
        return canonical_value(session.one(query.sql(dialect=self.dialect)), move.kind)


def _raw(text: str) -> exp.Expression:
    """Text that is already in the product's dialect, as a piece of a query."""
    return exp.Var(this=text)


def _among(operations: Sequence[str], of: str = "") -> str:
    listed = ", ".join(f"'{name}'" for name in operations)
    return f"{of}{OPERATION} IN ({listed})"
