"""The seam between the write path and a product: what a backend says and does.

A backend states its ``Capabilities`` as data and takes one or both roles: it reads rows
(``describe``, ``read``) and it lands them (``inspect``, ``begin``, ``stage``, ``commit``).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow import types as t
from ematix_flow.change import CURRENT
from ematix_flow.errors import Unsupported
from ematix_flow.model import LOADED_AT_COLUMN, RUN_ID_COLUMN
from ematix_flow.sql.normalizers import CannotMatch

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame
    from sqlglot import exp

    from ematix_flow.change import Change, Counts
    from ematix_flow.connections import Connection
    from ematix_flow.engine.session import Engine
    from ematix_flow.model import (
        Column,
        FileOptions,
        PipelineSpec,
        Table,
        TableName,
        TargetSpec,
    )
    from ematix_flow.types import ColumnType


# How an onlooker asks about a change that is computed but not applied, and the onlooker itself.
Ask = Callable[["exp.Query"], "Sequence[Sequence[Any]]"]
Inspect = Callable[["Load", Ask], None]

ADDED_TYPES: Mapping[str, ColumnType] = {
    RUN_ID_COLUMN: t.UUID(),
    LOADED_AT_COLUMN: t.TimestampTZ(),
}


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do, as data. The conformance suite holds it to every word."""

    source: bool = True
    target: bool = True
    verbs: frozenset[str] = frozenset()
    same_database: bool = False
    refused_types: Mapping[str, str] = field(default_factory=dict)
    constraints: bool = False
    alterations: frozenset[str] = frozenset()
    nul_in_text: bool = True
    nan_in_floats: bool = True
    infinity_in_floats: bool = True
    statements: bool = True


@dataclass(frozen=True)
class SourceColumn:
    """A column as a source gives it; ``stated`` is False where the source leaves its type open."""

    name: str
    type: ColumnType
    stated: bool = True


@dataclass(frozen=True)
class SourceQuery:
    """What is read: SQL in the source's own dialect."""

    sql: str


@dataclass(frozen=True)
class FoundColumn:
    """A column of a table that exists; ``type`` is None where no logical type matches."""

    name: str
    type: ColumnType | None
    declared: str
    nullable: bool
    has_default: bool = False


@dataclass(frozen=True)
class FoundTable:
    """A table that exists in the target."""

    columns: tuple[FoundColumn, ...]
    primary_key: tuple[str, ...] = ()

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns, in order."""
        return tuple(c.name for c in self.columns)


@dataclass(frozen=True)
class RunRow:
    """The run as the target records it, in the same commit as the rows."""

    run_id: str
    pipeline: str
    mode: str
    path: str
    started_at: datetime
    loaded_at: datetime


@dataclass(frozen=True)
class WatermarkMove:
    """The watermark that the commit moves: to the greatest value that has arrived, never back."""

    column: str
    kind: ColumnType
    previous: str | None


@dataclass(frozen=True)
class Alteration:
    """One change of a table that exists, made in the commit before the first step.

    ``act`` is rename, drop, retype, relax, add or require; ``column`` is its name afterwards, and
    ``type`` and ``nullable`` are what it is then. ``found`` is the column before, ``was`` its exact
    type. Of a retype, ``risky`` says that a stored value may not fit.
    """

    act: str
    column: str
    type: ColumnType | None = None
    nullable: bool = True
    found: FoundColumn | None = None
    was: ColumnType | None = None
    risky: bool = False
    relation: str = CURRENT

    @property
    def before(self) -> str:
        """The column's name before."""
        return self.column if self.found is None else self.found.name


@dataclass(frozen=True)
class Load:
    """Everything a target needs to land one run's rows.

    ``table`` is the target with the mode's own columns, ``columns`` are all that land in it, and
    ``incoming`` are those that are staged. ``batch`` names a piece of work that a target takes
    only once. ``alterations`` start from the table as it was ``found``.
    ``inspect`` is shown the change sets before they are applied.
    """

    table: Table
    name: TableName
    columns: tuple[tuple[str, ColumnType], ...]
    incoming: tuple[Column, ...]
    change: Change
    run: RunRow
    creates: bool
    files: FileOptions
    prefix: str | None = None
    key: tuple[str, ...] = ()
    side: Table | None = None
    watermark: WatermarkMove | None = None
    batch: str | None = None
    inspect: Inspect | None = None
    alterations: tuple[Alteration, ...] = ()
    found: FoundTable | None = None
    announce: Callable[[str], None] = lambda point: None

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that land, those this system adds included."""
        return tuple(name for name, _ in self.columns)

    @property
    def incoming_names(self) -> tuple[str, ...]:
        """The columns that are staged."""
        return tuple(c.name for c in self.incoming)

    def columns_of(self, relation: str) -> tuple[tuple[str, ColumnType], ...]:
        """The columns of ``current`` or ``side``."""
        if relation == CURRENT:
            return self.columns
        return tuple((c.name, c.type) for c in self.side.columns) if self.side else ()

    def type_of(self, column: str) -> ColumnType:
        """The type of a column of any of the load's relations."""
        known = {
            c.name: c.type for c in (*(self.side.columns if self.side else ()), *self.incoming)
        }
        return {**ADDED_TYPES, **known, **dict(self.columns)}[column]


@dataclass
class Staged:
    """Rows that no reader sees yet; ``handle`` is the backend's own.

    Of rows that move in the commit only, it tells afterwards how many they were.
    """

    rows: int
    bytes: int
    handle: Any


class Landing(ABC):
    """One run's way into a target, from the sweep of dead runs to the commit.

    Used as a context manager: leaving it removes whatever was staged.
    """

    @abstractmethod
    def __enter__(self) -> Landing:
        """Sweep what dead runs left, take the pipeline's next epoch."""

    @abstractmethod
    def __exit__(self, *exception: object) -> None:
        """Remove the stage, give back locks."""

    @abstractmethod
    def stage(self, engine: Engine, rows: DataFrame) -> Staged:
        """Write rows where no reader sees them; they have exactly the load's columns."""

    def stage_query(self, select: str) -> Staged:
        """Use a query of the same database as the incoming rows, without moving them."""
        raise Unsupported("this target has no same-database path")

    def stage_copy(self, source: Backend, select: str, *, keep: bool) -> Staged:
        """Copy the rows of a query of another database, without looking at them.

        ``keep`` tells what will be asked of the commit.
        """
        raise Unsupported("this target has no copy path")

    @abstractmethod
    def commit(self, staged: Staged, *, keep: bool) -> Counts:
        """Apply the whole change in one transaction; ``keep=False`` only counts."""


class LiveConnection(ABC):
    """An open connection, as pipeline functions get it."""

    @abstractmethod
    def query(self, sql: str, max_rows: int | None = None) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries."""

    @abstractmethod
    def execute(self, sql: str) -> int:
        """Run a statement and commit it; the number of rows it touched, or -1."""

    @abstractmethod
    def ping(self) -> None:
        """Return if the other side answers, raise if not."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Where it leads, without secrets."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection back."""

    def read_df(self, sql: str) -> pandas.DataFrame:
        """The rows of a query as a pandas DataFrame."""
        import pandas

        rows: pandas.DataFrame = pandas.DataFrame(self.query(sql))
        return rows

    def __enter__(self) -> LiveConnection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Backend(ABC):
    """One product behind a connection. Creating one connects to nothing."""

    kind: ClassVar[str]
    dialect: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    jars: ClassVar[tuple[str, ...]] = ()

    def __init__(self, connection: Connection) -> None:
        self.connection = connection.resolved()

    @property
    def name(self) -> str:
        """The connection's name, for messages."""
        return self.connection.name

    @abstractmethod
    def open(self) -> LiveConnection:
        """A live connection for the user's own queries."""

    def lend(self) -> LiveConnection:
        """The same for a pipeline's function, which may not use it."""
        return self.open()

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """While it lasts, a connection may be kept for the next question."""
        return contextlib.nullcontext()

    def copying_from(self, other: Backend) -> contextlib.AbstractContextManager[object]:
        """While it lasts, rows of another database may be copied here; it may prepare for them."""
        return contextlib.nullcontext()

    @abstractmethod
    def table_query(self, table: str, columns: Mapping[str, str] | None) -> SourceQuery:
        """``SELECT source AS target, …`` from a table named as a user names it."""

    @abstractmethod
    def describe(self, query: SourceQuery) -> tuple[SourceColumn, ...]:
        """The columns a query gives, without reading its rows."""

    @abstractmethod
    def read(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """The rows of a query; each column in the Spark form of its described type."""

    def at_least(
        self, query: SourceQuery, column: str, kind: ColumnType, start: str, end: str | None = None
    ) -> SourceQuery:
        """The rows of a query from a value on, before another, and those where it is NULL.

        Both are canonical text; what is returned may have more rows, never fewer.
        """
        return query

    def same_database(self, other: Backend) -> bool:
        """Whether a query here can be inserted there without leaving the database."""
        return False

    def require_copy(self, other: Backend) -> None:
        """Raise ``CannotMatch`` where rows cannot be copied there without being looked at."""
        raise CannotMatch("source and target are not the same database")

    def subquery(self, query: SourceQuery) -> str:
        """A user's query as something to select from, on the same-database path."""
        raise Unsupported(f"{self.kind} has no same-database path")

    def assign(
        self, value: exp.Expression, source: ColumnType, target: ColumnType
    ) -> exp.Expression:
        """A value as the target's column takes it, on the same-database path.

        Raises ``CannotMatch`` where this dialect would not do what Spark does.
        """
        raise Unsupported(f"{self.kind} has no same-database path")

    def check_table(self, table: Table) -> None:
        """Refuse a declared table that this backend cannot hold."""
        for column in table.columns:
            refusal = self.capabilities.refused_types.get(column.type.kind)
            if refusal:
                raise Unsupported(
                    f"{self.kind} cannot hold column {column.name!r} of type {column.type}",
                    fix=refusal,
                )

    def stored_type(self, column_type: ColumnType) -> str:
        """How this backend spells a type; what ``FoundColumn.declared`` is compared with."""
        return str(column_type)

    def exact_type(self, column: FoundColumn) -> ColumnType | None:
        """The type that ``stored_type`` spells like this column's."""
        return column.type

    @abstractmethod
    def locate(self, name: TableName, prefix: str | None) -> str:
        """Where a table is, as this backend spells it: for messages and plans."""

    @abstractmethod
    def inspect(self, name: TableName, prefix: str | None = None) -> FoundTable | None:
        """The table as it exists now, or None."""

    @abstractmethod
    def ddl(self, load: Load) -> list[str]:
        """The statements that create the load's table, for ``preview`` and the commit."""

    def alter(self, load: Load) -> list[str]:
        """The load's alterations as this backend makes them, for ``preview``."""
        return []

    def inspect_side(self, side: Table, name: TableName, prefix: str | None) -> FoundTable | None:
        """The table that is kept beside a table, as it exists now, or None."""
        return self.inspect(side.name)

    @abstractmethod
    def steps_sql(self, load: Load, incoming: str) -> list[str]:
        """The change as this backend runs it, for ``preview``."""

    @abstractmethod
    def land(self, load: Load) -> Landing:
        """One run's way into this target."""

    def needs_spark_to_read(self, spec: PipelineSpec) -> str | None:
        """Why only Apache Spark reads this source of a pipeline; None where Sail does so alike."""
        return f"{self.kind} has not been proven on it as a source"

    def has_plain_numbers(self, spec: PipelineSpec) -> bool:
        """Whether no text of the source is a number with an exponent."""
        return False

    def needs_spark_to_write(self, target: TargetSpec) -> str | None:
        """Why only Apache Spark writes this target; None where Sail does so alike."""
        return f"{self.kind} has not been proven on it as a target"

    @abstractmethod
    def committed(self, run_id: str, name: TableName, prefix: str | None = None) -> Counts | None:
        """What the target itself says of a run: its counts, or None if it never committed."""

    def settle(
        self, run_id: str, pipeline: str, name: TableName, prefix: str | None = None
    ) -> Counts | None:
        """The counts of a run that was declared dead; where it has none, it never commits now."""
        return self.committed(run_id, name, prefix)

    def watermarks(
        self, pipeline: str, name: TableName, prefix: str | None = None
    ) -> dict[str, str]:
        """How far a pipeline has loaded a target: canonical text by watermark column."""
        raise Unsupported(f"{self.kind} keeps no watermarks")

    def set_watermark(
        self,
        pipeline: str,
        name: TableName,
        column: str,
        value: str | None,
        prefix: str | None = None,
    ) -> None:
        """Move a pipeline's watermark by hand; None forgets it."""
        raise Unsupported(f"{self.kind} keeps no watermarks")

    def applied(
        self, batches: Sequence[str], name: TableName, prefix: str | None = None
    ) -> set[str]:
        """Which of these batches the target has taken already."""
        return set()

    def pipelines(self, name: TableName, prefix: str | None = None) -> set[str]:
        """The pipelines that have committed to a table, as the target itself remembers."""
        return set()
