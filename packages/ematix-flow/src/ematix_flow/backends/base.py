"""The seam between the write path and a product: what a backend says and does.

A backend states its ``Capabilities`` as data and takes one or both roles: it reads rows
(``describe``, ``read``) and it lands them (``inspect``, ``begin``, ``stage``, ``commit``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.errors import Unsupported

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame
    from sqlglot import exp

    from ematix_flow.change import Change, Counts
    from ematix_flow.connections import Connection
    from ematix_flow.engine.session import Engine
    from ematix_flow.model import FileOptions, Table, TableName
    from ematix_flow.types import ColumnType


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do, as data. The conformance suite holds it to every word."""

    source: bool = True
    target: bool = True
    verbs: frozenset[str] = frozenset()
    same_database: bool = False
    refused_types: Mapping[str, str] = field(default_factory=dict)
    constraints: bool = False
    nul_in_text: bool = True
    nan_in_floats: bool = True


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
class Load:
    """Everything a target needs to land one run's rows."""

    table: Table
    name: TableName
    columns: tuple[tuple[str, ColumnType], ...]
    change: Change
    run: RunRow
    creates: bool
    files: FileOptions
    prefix: str | None = None
    announce: Callable[[str], None] = lambda point: None

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that land, those this system adds included."""
        return tuple(name for name, _ in self.columns)


@dataclass(frozen=True)
class Staged:
    """Rows that are durable but that no reader sees; ``handle`` is the backend's own."""

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

    @abstractmethod
    def table_query(self, table: str, columns: Mapping[str, str] | None) -> SourceQuery:
        """``SELECT source AS target, …`` from a table named as a user names it."""

    @abstractmethod
    def describe(self, query: SourceQuery) -> tuple[SourceColumn, ...]:
        """The columns a query gives, without reading its rows."""

    @abstractmethod
    def read(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """The rows of a query; each column in the Spark form of its described type."""

    def same_database(self, other: Backend) -> bool:
        """Whether a query here can be inserted there without leaving the database."""
        return False

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

    @abstractmethod
    def locate(self, name: TableName, prefix: str | None) -> str:
        """Where a table is, as this backend spells it: for messages and plans."""

    @abstractmethod
    def inspect(self, name: TableName, prefix: str | None = None) -> FoundTable | None:
        """The table as it exists now, or None."""

    @abstractmethod
    def ddl(self, load: Load) -> list[str]:
        """The statements that create the load's table, for ``preview`` and the commit."""

    @abstractmethod
    def steps_sql(self, load: Load, incoming: str) -> list[str]:
        """The change as this backend runs it, for ``preview``."""

    @abstractmethod
    def land(self, load: Load) -> Landing:
        """One run's way into this target."""

    @abstractmethod
    def committed(self, run_id: str, name: TableName, prefix: str | None = None) -> Counts | None:
        """What the target itself says of a run: its counts, or None if it never committed."""
