"""DuckDB: rows are staged as Parquet beside the file and loaded in-process in the commit."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.backends.base import (
    Capabilities,
    FoundColumn,
    FoundTable,
    Load,
    SourceColumn,
    SourceQuery,
)
from ematix_flow.backends.duckdb_errors import translate
from ematix_flow.backends.embedded import EmbeddedBackend, EmbeddedLanding, stage_root
from ematix_flow.backends.spool import read_spooled, spool_folder
from ematix_flow.backends.sql_session import Session
from ematix_flow.errors import EmatixError
from ematix_flow.model import TableName
from ematix_flow.sql.identifiers import bare, quoted
from ematix_flow.sql.spark import spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine

_TYPES = {
    "small_int": "SMALLINT",
    "integer": "INTEGER",
    "big_int": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "text": "VARCHAR",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamp_tz": "TIMESTAMP WITH TIME ZONE",
    "json": "JSON",
    "jsonb": "JSON",
    "uuid": "UUID",
    "bytes": "BLOB",
}
_FOUND: dict[str, t.ColumnType] = {
    "TINYINT": t.SmallInt(),
    "UTINYINT": t.SmallInt(),
    "SMALLINT": t.SmallInt(),
    "USMALLINT": t.Integer(),
    "INTEGER": t.Integer(),
    "UINTEGER": t.BigInt(),
    "BIGINT": t.BigInt(),
    "UBIGINT": t.Numeric(20, 0),
    "HUGEINT": t.AnyNumeric(),
    "UHUGEINT": t.AnyNumeric(),
    "BIGNUM": t.AnyNumeric(),
    "FLOAT": t.Float(),
    "DOUBLE": t.Double(),
    "BOOLEAN": t.Boolean(),
    "VARCHAR": t.Text(),
    "DATE": t.Date(),
    "TIME": t.Time(),
    "TIMESTAMP": t.Timestamp(),
    "TIMESTAMP_S": t.Timestamp(),
    "TIMESTAMP_MS": t.Timestamp(),
    "TIMESTAMP WITH TIME ZONE": t.TimestampTZ(),
    "JSON": t.JSON(),
    "UUID": t.UUID(),
    "BLOB": t.Bytes(),
}
_CLOSING_SECONDS = 10.0
_PAUSE_SECONDS = 0.005
_commit_locks: defaultdict[Path, Any] = defaultdict(threading.RLock)
# DuckDB forgets an instance that one thread opens while another closes the last one before it:
# until that one is closed, nobody else in the process can open the file.
_doors: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


class DuckDB(EmbeddedBackend):
    """A DuckDB file."""

    kind = "duckdb"
    dialect = "duckdb"
    default_schema: ClassVar[str | None] = "main"
    capabilities = Capabilities(
        verbs=frozenset({"insert", "replace", "rewrite", "revise"}),
        same_database=True,
        constraints=True,
        alterations=frozenset({"rename", "drop", "retype", "relax", "add", "require"}),
    )

    def attach(self, file: Path | None) -> Any:
        """Open the file; DuckDB lets one process in at a time."""
        import duckdb

        if file is None:
            return _configured(duckdb.connect(":memory:"))
        # Always the same mode: DuckDB refuses a second connection of another one in a process.
        writable = os.access(file if file.exists() else file.parent, os.W_OK)
        return _configured(_opened(file, read_only=not writable))

    def disconnect(self, raw: Any) -> None:
        """Close it while nobody opens the file."""
        with _doors[self.file]:
            raw.close()

    def run(self, raw: Any, sql: str, parameters: Sequence[Any]) -> int:
        """Execute; DuckDB answers an INSERT, UPDATE or DELETE with its count."""
        result = raw.execute(sql, list(parameters) or None)
        described = result.description
        if not described or described[0][0] != "Count":
            return -1
        row = result.fetchone()
        return int(row[0]) if row else 0

    def rows(self, raw: Any, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Execute and fetch everything."""
        return cast("list[tuple[Any, ...]]", raw.execute(sql, list(parameters) or None).fetchall())

    def fetch(
        self, raw: Any, sql: str, limit: int | None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Execute and fetch names and rows."""
        result = raw.execute(sql)
        names = [d[0] for d in result.description or ()]
        return names, result.fetchall() if limit is None else result.fetchmany(limit)

    def translate(self, error: Exception) -> EmatixError | None:
        """DuckDB's errors by their class."""
        return translate(error, self.name, self.file)

    def table(self, name: TableName) -> exp.Table:
        """Schema and name; the database too where DuckDB could take the schema for it."""
        found = super().table(name)
        schema = name.schema or self.default_schema
        database = self.file.name.partition(".")[0]
        if schema and schema.lower() == database.lower():
            found.set("catalog", exp.to_identifier(database, quoted=True))
        return found

    def create_schema(self, name: TableName) -> list[str]:
        """Create the schema that ``table`` names."""
        table = self.table(name)
        parts = [part for part in (table.catalog, table.db) if part]
        spelled = ".".join(quoted(part, self.dialect) for part in parts)
        return [f"CREATE SCHEMA IF NOT EXISTS {spelled}"]

    @contextlib.contextmanager
    def commit_lock(self, session: Session, *, creates: bool) -> Iterator[None]:
        """One after the other: DuckDB fails the second writer at once instead of waiting.

        One process has the file, so a lock of that process is enough.
        """
        with _commit_locks[self.file]:
            yield

    def stored_type(self, column_type: t.ColumnType) -> str:
        """DuckDB's name of a type."""
        if isinstance(column_type, t.Numeric):
            return f"DECIMAL({column_type.precision},{column_type.scale})"
        if isinstance(column_type, t.Array):
            return f"{self.stored_type(column_type.element)}[]"
        # DuckDB accepts VARCHAR(n) but never enforces n; the load itself does.
        return "VARCHAR" if isinstance(column_type, t.String) else _TYPES[column_type.kind]

    def assign(
        self, value: exp.Expression, source: t.ColumnType, target: t.ColumnType
    ) -> exp.Expression:
        """The shared casts, with the length check that DuckDB does not do itself."""
        assigned = super().assign(value, source, target)
        if isinstance(target, t.String):
            longer = exp.GT(
                this=exp.func("length", assigned.copy()), expression=exp.convert(target.length)
            )
            column = value.find(exp.Column)
            place = f"column {column.name!r}: " if column is not None else ""
            refusal = exp.func(
                "error", exp.convert(f"{place}a value is longer than {target.length} characters")
            )
            return exp.Case().when(longer, refusal).else_(assigned)
        return assigned

    def refusal(self, value: exp.Expression, why: str) -> exp.Expression:
        """DuckDB has a function for it."""
        shown = exp.cast(value, exp.DataType.build("VARCHAR", dialect=self.dialect))
        message = exp.func("concat", shown, exp.convert(f" {why}"))
        return exp.Anonymous(this="error", expressions=[message])

    def constant(self, value: str, column_type: t.ColumnType) -> str:
        """A typed literal."""
        return f"CAST({exp.Literal.string(value).sql()} AS {self.stored_type(column_type)})"

    def inspect_in(self, session: Session, name: TableName) -> FoundTable | None:
        """From DuckDB's own catalogue."""
        schema = name.schema or self.default_schema
        found = session.rows(
            "SELECT column_name, data_type, is_nullable, column_default IS NOT NULL "
            "FROM duckdb_columns() "
            "WHERE schema_name = ? AND table_name = ? AND database_name = current_database() "
            "ORDER BY column_index",
            (schema, name.name),
        )
        if not found:
            return None
        keys = session.rows(
            "SELECT constraint_column_names FROM duckdb_constraints() WHERE schema_name = ? "
            "AND table_name = ? AND database_name = current_database() "
            "AND constraint_type = 'PRIMARY KEY'",
            (schema, name.name),
        )
        return FoundTable(
            tuple(
                FoundColumn(n, found_type(d), d, bool(null), default)
                for n, d, null, default in found
            ),
            tuple(keys[0][0]) if keys else (),
        )

    def unfit(self, column: str, was: t.ColumnType, new: t.ColumnType) -> str | None:
        """DuckDB can try a cast."""
        if isinstance(new, t.String):
            return f"length(CAST({column} AS VARCHAR)) > {new.length}"
        if isinstance(new, t.Text):
            return None
        read = f"TRY_CAST({column} AS {self.stored_type(new)})"
        if isinstance(was, t.Text | t.String | t.JSON):
            return f"{column} IS NOT NULL AND {read} IS NULL"
        return f"{column} IS NOT NULL AND {read} IS DISTINCT FROM {column}"

    def alter_in(self, session: Session, load: Load) -> list[str]:
        """In place, except for columns under a key or an index, which DuckDB does not alter."""
        from ematix_flow.backends.duckdb_alterations import alterations_in

        return alterations_in(self, session, load)

    def describe(self, query: SourceQuery) -> tuple[SourceColumn, ...]:
        """Ask DuckDB to describe the query."""
        with self.session(read_only=True) as session:
            return tuple(
                SourceColumn(name, found_type(declared) or t.Text())
                for name, declared in self._described(session, query)
            )

    def _described(self, session: Session, query: SourceQuery) -> list[tuple[str, str]]:
        rows = session.rows(f"DESCRIBE SELECT * FROM {self.subquery(query)}")
        names = {str(row[0]) for row in rows}
        if any(name.rpartition("_")[0] in names for name in names):
            # Inside another query DuckDB calls the second of two columns "a" silently "a_1".
            rows = session.rows(f"DESCRIBE {bare(query.sql, self.dialect)}")
        return [(str(row[0]), str(row[1])) for row in rows]

    def read(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """Spool the query's rows to Parquet, in their Spark form, and read that."""
        folder = spool_folder()
        with self.session(read_only=True) as session:
            items = ", ".join(
                f"{_spooled(quoted(name, 'duckdb'), declared)} AS {quoted(name, 'duckdb')}"
                for name, declared in self._described(session, query)
            )
            out = exp.Literal.string(str(folder / "rows.parquet")).sql()
            session.run(
                f"COPY (SELECT {items} FROM {self.subquery(query)}) TO {out} "
                "(FORMAT parquet, COMPRESSION snappy)"
            )
        columns = self.describe(query)
        casts = [
            f"CAST(`{c.name.replace('`', '``')}` AS {spark_ddl(c.type)}) AS "
            f"`{c.name.replace('`', '``')}`"
            for c in columns
        ]
        return read_spooled(engine, folder / "rows.parquet").selectExpr(*casts)

    def land(self, load: Load) -> EmbeddedLanding:
        """Stage as Parquet beside the file."""
        return DuckDBLanding(self, load, stage_root(self.file))


class DuckDBLanding(EmbeddedLanding):
    """Loads the staged Parquet by DuckDB's own scan."""

    def define_incoming(self, staged: Any) -> None:
        """``incoming`` is a view over the staged files."""
        files = exp.Literal.string(f"{staged.handle}/*.parquet").sql()
        values = [
            f"CAST({quoted(c.name, 'duckdb')} AS {self.backend.stored_type(c.type)})"
            for c in self.load.incoming
        ]
        self.define_view(self.backend.incoming_select(self.load, f"read_parquet({files})", values))


def _opened(file: Path, *, read_only: bool) -> Any:
    """Open a file while nobody here closes it; code that is not ours may, for a moment."""
    import duckdb

    deadline = time.monotonic() + _CLOSING_SECONDS
    while True:
        try:
            with _doors[file]:
                return duckdb.connect(str(file), read_only=read_only)
        except duckdb.Error as error:
            if "already attached" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def _configured(raw: Any) -> Any:
    raw.execute("SET TimeZone = 'UTC'")
    return raw


def found_type(declared: str) -> t.ColumnType | None:
    """The logical type behind DuckDB's name of one; None for what only text can carry."""
    if declared.endswith("[]"):
        element = found_type(declared[:-2])
        return t.Array(element) if element and element.kind not in ("array", "bytes") else None
    if declared.startswith("DECIMAL("):
        precision, scale = declared[8:-1].split(",")
        return t.Numeric(int(precision), int(scale))
    if declared.startswith(("STRUCT(", "MAP(")):
        return t.JSON()
    return _FOUND.get(declared)


def _spooled(column: str, declared: str) -> str:
    """A column as Parquet carries it to Spark."""
    logical = found_type(declared)
    if logical is None:
        return f"CAST({column} AS VARCHAR)"
    if declared.startswith(("STRUCT(", "MAP(")):
        return f"CAST(to_json({column}) AS VARCHAR)"
    if isinstance(logical, t.Time):
        return f"strftime(DATE '1970-01-01' + {column}, '%H:%M:%S.%f')"
    if isinstance(logical, t.Array):
        carried = "VARCHAR" if spark_ddl(logical.element) == "STRING" else None
        return f"CAST({column} AS {carried}[])" if carried else column
    if isinstance(logical, t.Numeric) and declared == "UBIGINT":
        return f"CAST({column} AS DECIMAL(20,0))"
    if spark_ddl(logical) == "STRING" and declared != "VARCHAR":
        return f"CAST({column} AS VARCHAR)"
    if isinstance(logical, t.Timestamp) and declared != "TIMESTAMP":
        return f"CAST({column} AS TIMESTAMP)"
    return column
