"""SQLite: rows are staged as Parquet beside the file and inserted in one transaction.

SQLite has four storage classes. Types beyond them are kept as canonical text, under declared
type names that end in ``TEXT``, so that nothing is rounded and everything reads back as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from hashlib import sha256
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
    Staged,
)
from ematix_flow.backends.embedded import EmbeddedBackend, EmbeddedLanding, stage_root
from ematix_flow.backends.spool import read_spooled, spool_folder
from ematix_flow.backends.sql_session import Session
from ematix_flow.backends.sqlite_alterations import (
    alterations_in,
    conversion,
    converted,
    exact_type,
    fits,
)
from ematix_flow.change import Revise
from ematix_flow.errors import BadValue, EmatixError, Permanent, Transient
from ematix_flow.model import Column, TableName
from ematix_flow.redaction import redact_text
from ematix_flow.sql.identifiers import column_list, quoted
from ematix_flow.sql.normalizers import CannotMatch
from ematix_flow.sql.spark import literal, quote, spark_ddl

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine

_TYPES = {
    "small_int": "SMALLINT",
    "integer": "INTEGER",
    "big_int": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN_INT",
    "text": "TEXT",
    "date": "DATE_TEXT",
    "time": "TIME_TEXT",
    "timestamp": "TIMESTAMP_TEXT",
    "timestamp_tz": "TIMESTAMPTZ_TEXT",
    "json": "JSON_TEXT",
    "jsonb": "JSON_TEXT",
    "uuid": "UUID_TEXT",
    "bytes": "BLOB",
}
# What a foreign table's declared type means; the rest is read as text.
_FOUND: dict[str, t.ColumnType] = {
    "INT": t.BigInt(),
    "INTEGER": t.BigInt(),
    "BIGINT": t.BigInt(),
    "SMALLINT": t.SmallInt(),
    "TINYINT": t.SmallInt(),
    "REAL": t.Double(),
    "DOUBLE": t.Double(),
    "DOUBLE PRECISION": t.Double(),
    "FLOAT": t.Double(),
    "BOOLEAN": t.Boolean(),
    "BOOLEAN_INT": t.Boolean(),
    "BOOL": t.Boolean(),
    "TEXT": t.Text(),
    "CLOB": t.Text(),
    "BLOB": t.Bytes(),
    "DATE": t.Date(),
    "DATE_TEXT": t.Date(),
    "TIME": t.Time(),
    "TIME_TEXT": t.Time(),
    "DATETIME": t.Timestamp(),
    "TIMESTAMP": t.Timestamp(),
    "TIMESTAMP_TEXT": t.Timestamp(),
    "TIMESTAMPTZ_TEXT": t.TimestampTZ(),
    "JSON": t.JSON(),
    "JSON_TEXT": t.JSON(),
    "UUID": t.UUID(),
    "UUID_TEXT": t.UUID(),
}
_EXACT_STORAGE = ("small_int", "integer", "big_int", "double", "text", "bytes")
_BATCH = 20_000
_BUSY_SECONDS = 30.0


class SQLite(EmbeddedBackend):
    """A SQLite file."""

    kind = "sqlite"
    dialect = "sqlite"
    default_schema: ClassVar[str | None] = None
    capabilities = Capabilities(
        verbs=frozenset({"insert", "replace", "rewrite", "revise"}),
        same_database=True,
        constraints=True,
        alterations=frozenset({"rename", "drop", "retype", "relax", "add", "require"}),
        nan_in_floats=False,
    )

    def attach(self, file: Path | None) -> Any:
        """Open the file; transactions are ours to begin."""
        import sqlite3

        raw = sqlite3.connect(file or ":memory:", timeout=_BUSY_SECONDS, isolation_level=None)
        raw.execute("PRAGMA foreign_keys = ON")
        raw.create_function("ematix_sha256", 1, _sha256, deterministic=True)
        raw.create_function("ematix_later", 2, _later, deterministic=True)
        raw.create_collation("ematix_number", _compare_numbers)
        raw.create_function("ematix_fits", 3, fits, deterministic=True)
        raw.create_function("ematix_converted", 3, converted, deterministic=True)
        return raw

    def begin(self, raw: Any) -> None:
        """Take the write lock at once, so that a commit cannot lose it half-way."""
        raw.execute("BEGIN IMMEDIATE")

    def run(self, raw: Any, sql: str, parameters: Sequence[Any]) -> int:
        """Execute."""
        return int(raw.execute(sql, tuple(parameters)).rowcount)

    def rows(self, raw: Any, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Execute and fetch everything."""
        return cast("list[tuple[Any, ...]]", raw.execute(sql, tuple(parameters)).fetchall())

    def fetch(
        self, raw: Any, sql: str, limit: int | None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Execute and fetch names and rows."""
        cursor = raw.execute(sql)
        names = [d[0] for d in cursor.description or ()]
        return names, cursor.fetchall() if limit is None else cursor.fetchmany(limit)

    def translate(self, error: Exception) -> EmatixError | None:
        """SQLite's errors by class and text."""
        import sqlite3

        if not isinstance(error, sqlite3.Error):
            return None
        text = redact_text(str(error))
        if isinstance(error, sqlite3.IntegrityError):
            return BadValue(
                f"connection {self.name!r}: {_about_rows(text)}",
                fix="correct the rows in the source, or change the declaration",
            )
        if "locked" in text:
            return Transient(
                f"the file {self.file} is locked by another program",
                connection=self.name,
                fix="close it there and run again",
            )
        if self.file.is_dir():
            return Permanent(
                f"{self.file} is a folder, not a file", connection=self.name, fix="correct path="
            )
        if "readonly" in text or "unable to open" in text:
            return Permanent(
                f"the file {self.file} cannot be written: {text}",
                connection=self.name,
                fix="check the permissions of the file and its folder",
            )
        if "not a database" in text or "malformed" in text:
            return Permanent(
                f"{self.file} is not a SQLite database, or it is damaged",
                connection=self.name,
                fix="correct path= or restore the file",
            )
        if "no such table" in text and not self.file.exists():
            return Permanent(
                f"{text}: there is no file {self.file} yet",
                connection=self.name,
                fix="correct path=, or load that table first",
            )
        if "syntax error" in text:
            return Permanent(text, connection=self.name, fix="correct the SQL")
        if "no such" in text:
            return Permanent(text, connection=self.name, fix="check the names in the SQL")
        if "is full" in text:
            return Permanent(
                f"the disk of {self.file} is full", connection=self.name, fix="free some space"
            )
        return Permanent(text, connection=self.name, fix="correct the SQL or the rows it reads")

    def table(self, name: TableName) -> exp.Table:
        """SQLite has no schemas: ``schema__name``, except in ``main``."""
        plain = name.name if name.schema in (None, "main") else f"{name.schema}__{name.name}"
        return exp.table_(exp.to_identifier(plain, quoted=True))

    def create_schema(self, name: TableName) -> list[str]:
        """There is nothing to create."""
        return []

    def stored_type(self, column_type: t.ColumnType) -> str:
        """The declared type, whose letters give the affinity SQLite derives from it."""
        if isinstance(column_type, t.Numeric):
            return f"DECIMAL_TEXT({column_type.precision},{column_type.scale})"
        if isinstance(column_type, t.String):
            return f"VARCHAR({column_type.length})"
        if isinstance(column_type, t.Array):
            return "ARRAY_TEXT"
        return _TYPES[column_type.kind]

    def assign(
        self, value: exp.Expression, source: t.ColumnType, target: t.ColumnType
    ) -> exp.Expression:
        """Only what SQLite stores as it is, and checked, since its columns take any value."""
        if source.kind != target.kind or source.kind not in _EXACT_STORAGE:
            raise CannotMatch(f"SQLite does not check that a value is a {target}")
        storage = {"double": "real", "text": "text", "bytes": "blob"}.get(target.kind, "integer")
        fits = exp.EQ(this=exp.func("typeof", value.copy()), expression=exp.convert(storage))
        missing = exp.Is(this=value.copy(), expression=exp.null())
        # abs() of the smallest integer is the one error SQLite can be made to raise in a query.
        refusal = exp.func("abs", exp.Literal.number("-9223372036854775808"))
        return exp.Case().when(exp.or_(fits, missing), value).else_(refusal)

    def constant(self, value: str, column_type: t.ColumnType) -> str:
        """Plain text for the types that are kept as text, a number for the others."""
        if column_type.kind in ("small_int", "integer", "big_int"):
            return str(int(value))
        return exp.Literal.string(value).sql()

    def castable_type(self, column_type: t.ColumnType) -> str:
        """NULL has no type here."""
        return "TEXT"

    def later(self, instant: exp.Expression, seconds: float) -> exp.Expression:
        """Instants are text here, so that the sum is this program's own function."""
        return exp.Anonymous(this="ematix_later", expressions=[instant, exp.convert(seconds)])

    def comparable(self, value: exp.Expression, column_type: t.ColumnType) -> exp.Expression:
        """Decimals are text here; they compare as numbers."""
        if isinstance(column_type, t.Numeric):
            return exp.Collate(this=value, expression=exp.Var(this="ematix_number"))
        return value

    def instant(self, moment: datetime) -> Any:
        """Canonical text."""
        return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f+00:00")

    def inspect_in(self, session: Session, name: TableName) -> FoundTable | None:
        """From ``pragma table_info``."""
        plain = self.table(name).name
        found = session.rows("SELECT * FROM pragma_table_info(?)", (plain,))
        if not found:
            return None
        keys = sorted((row[5], row[1]) for row in found if row[5])
        return FoundTable(
            tuple(
                FoundColumn(row[1], found_type(row[2]), row[2], not row[3], row[4] is not None)
                for row in found
            ),
            tuple(name for _, name in keys),
        )

    def exact_type(self, column: FoundColumn) -> t.ColumnType | None:
        """What this system means by a declared type, where it means more than SQLite does."""
        return exact_type(column.declared, column.type)

    def unfit(self, column: str, was: t.ColumnType, new: t.ColumnType) -> str | None:
        """This program's own function decides."""
        return f"NOT {conversion('ematix_fits', column, was, new)}"

    def alter_in(self, session: Session, load: Load) -> list[str]:
        """Columns are added, renamed and dropped in place, and changed by a table made anew."""
        return alterations_in(self, session, load)

    def describe(self, query: SourceQuery) -> tuple[SourceColumn, ...]:
        """The declared types of the query's columns; an expression without one is text."""
        with self.session(read_only=True) as session:
            return self._described(session, query)

    def _described(self, session: Session, query: SourceQuery) -> tuple[SourceColumn, ...]:
        view = quoted(f"ematix_described_{id(session)}", self.dialect)
        session.run(f"CREATE TEMPORARY VIEW {view} AS SELECT * FROM {self.subquery(query)}")
        found = session.rows(f"SELECT name, type FROM pragma_table_info({view})")
        session.run(f"DROP VIEW {view}")
        names = {name for name, _ in found}
        return tuple(
            SourceColumn(
                # The second of two columns "a" comes out as "a:1".
                name.rpartition(":")[0] if name.rpartition(":")[0] in names else name,
                found_type(kind) or t.Text(),
                stated=found_type(kind) is not None,
            )
            for name, kind in found
        )

    def read(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """Spool the query's rows to Parquet and read that."""
        import pyarrow.parquet as pq

        file = spool_folder() / "rows.parquet"
        with self.session(read_only=True) as session:
            columns = self._described(session, query)
            schema = _spool_schema(columns)
            with self.translated(), pq.ParquetWriter(file, schema) as writer:
                cursor = session.raw.execute(f"SELECT * FROM {self.subquery(query)}")
                for batch in _batches(cursor, columns, schema):
                    writer.write_batch(batch)
        decoded = [f"{_decoded(c)} AS {quote(c.name)}" for c in columns]
        return read_spooled(engine, file).selectExpr(*decoded)

    def land(self, load: Load) -> EmbeddedLanding:
        """Stage as Parquet beside the file."""
        return SQLiteLanding(self, load, stage_root(self.file))

    def delete_rows(self, target: str, step: Revise, operations: Sequence[str]) -> str:
        """By row id, so that the target's index is used and not the change set scanned."""
        rows = f"SELECT {target}.rowid FROM {step.changes} AS x JOIN {target} ON "
        named = ", ".join(f"'{name}'" for name in operations)
        found = f"{rows}{self.matched(target, step)} WHERE x._op IN ({named})"
        return f"DELETE FROM {target} WHERE rowid IN ({found})"


class SQLiteLanding(EmbeddedLanding):
    """Inserts the staged Parquet through a temporary table, in the commit's transaction."""

    def staged_columns(self) -> list[str]:
        """Each column in the form SQLite stores."""
        return [f"{_encoded(c)} AS {quote(c.name)}" for c in self.load.incoming]

    def define_incoming(self, staged: Staged) -> None:
        """A temporary table with the staged rows, and ``incoming`` as a view of it."""
        import pyarrow.parquet as pq

        names = self.load.incoming_names
        columns = column_list(names, "sqlite")
        self.session.run(f"CREATE TEMPORARY TABLE staged_rows ({columns})")
        marks = ", ".join("?" * len(names))
        insert = f"INSERT INTO staged_rows VALUES ({marks})"
        with self.backend.translated():
            for file in sorted(staged.handle.glob("*.parquet")):
                for batch in pq.ParquetFile(file).iter_batches(_BATCH):
                    rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                    self.session.raw.executemany(insert, rows)
        if self.load.key:
            keys = column_list(self.load.key, "sqlite")
            self.session.run(f"CREATE INDEX staged_keys ON staged_rows ({keys})")
        values = [quoted(name, "sqlite") for name in names]
        self.define_view(self.backend.incoming_select(self.load, "staged_rows", values))


def _sha256(text: str | None) -> str | None:
    return None if text is None else sha256(text.encode()).hexdigest()


def _later(instant: str | None, seconds: float) -> str | None:
    if instant is None:
        return None
    moved = datetime.fromisoformat(instant) + timedelta(seconds=seconds)
    return moved.strftime("%Y-%m-%d %H:%M:%S.%f+00:00")


def _compare_numbers(left: str, right: str) -> int:
    a, b = Decimal(left), Decimal(right)
    return (a > b) - (a < b)


def _about_rows(text: str) -> str:
    """A refused row, its columns without the table's name."""
    broken, _, columns = text.partition(" constraint failed: ")
    names = ", ".join(repr(c.rpartition(".")[2]) for c in columns.split(", "))
    if broken == "NOT NULL":
        return f"column {names} is NULL in the source but declared NOT NULL"
    if broken == "UNIQUE":
        return f"duplicate key in {names}"
    return text


def found_type(declared: str) -> t.ColumnType | None:
    """The logical type behind a declared type; None where it says nothing."""
    name, _, parameters = declared.upper().partition("(")
    if name.strip() in ("DECIMAL_TEXT", "DECIMAL", "NUMERIC"):
        numbers = [int(n) for n in re.findall(r"\d+", parameters)]
        if numbers and numbers[0] <= t.Numeric.max_precision:
            return t.Numeric(numbers[0], numbers[1] if len(numbers) > 1 else 0)
        return t.AnyNumeric()
    if name.strip() in ("VARCHAR", "CHARACTER VARYING", "CHAR", "NVARCHAR"):
        return t.Text()
    return _FOUND.get(name.strip())


def _encoded(declared: Column) -> str:
    """Spark SQL for the form a value is stored in."""
    column, kind = quote(declared.name), declared.type
    if isinstance(kind, t.Float | t.Double):
        # SQLite would turn it into NULL without a word.
        refusal = literal(f"column {declared.name!r}: SQLite cannot hold NaN")
        return f"CASE WHEN isnan({column}) THEN raise_error({refusal}) ELSE {column} END"
    if isinstance(kind, t.Boolean):
        return f"CAST({column} AS INT)"
    if isinstance(kind, t.Timestamp):
        return f"date_format({column}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
    if isinstance(kind, t.TimestampTZ):
        return f"date_format({column}, \"yyyy-MM-dd HH:mm:ss.SSSSSS'+00:00'\")"
    if isinstance(kind, t.Array):
        return f"to_json(CAST({column} AS ARRAY<STRING>))"
    if isinstance(kind, t.Numeric | t.Date):
        return f"CAST({column} AS STRING)"
    return column


def _decoded(column: SourceColumn) -> str:
    """Spark SQL for the Spark form of a spooled column."""
    name = quote(column.name)
    if isinstance(column.type, t.Boolean | t.SmallInt | t.Integer | t.Float):
        return f"CAST({name} AS {spark_ddl(column.type)})"
    if isinstance(column.type, t.Numeric | t.Date | t.Timestamp | t.TimestampTZ):
        return f"CAST({name} AS {spark_ddl(column.type)})"
    return name


def _spool_schema(columns: Sequence[SourceColumn]) -> pyarrow.Schema:
    import pyarrow as pa

    carried: dict[str, pyarrow.DataType] = {
        **dict.fromkeys(("small_int", "integer", "big_int", "boolean"), pa.int64()),
        **dict.fromkeys(("float", "double"), pa.float64()),
        "bytes": pa.binary(),
    }
    return pa.schema([(c.name, carried.get(c.type.kind, pa.string())) for c in columns])


def _batches(
    cursor: Any, columns: Sequence[SourceColumn], schema: pyarrow.Schema
) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    while rows := cursor.fetchmany(_BATCH):
        arrays = [
            _array(column, [row[i] for row in rows], schema.field(i).type)
            for i, column in enumerate(columns)
        ]
        yield pa.record_batch(arrays, schema=schema)


def _array(column: SourceColumn, values: list[Any], kind: pyarrow.DataType) -> pyarrow.Array[Any]:
    import pyarrow as pa

    if pa.types.is_string(kind):
        values = [_as_text(column, v) for v in values]
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        wrong = next(v for v in values if v is not None and not _fits(v, kind))
        raise BadValue(
            f"column {column.name!r}: SQLite holds the value {wrong!r:.80}, which is not a "
            f"{column.type}",
            fix="cast it in the source SQL",
        ) from error


def _as_text(column: SourceColumn, value: Any) -> str | None:
    if isinstance(value, bytes):
        raise BadValue(
            f"column {column.name!r}: SQLite holds bytes where {column.type} was expected",
            fix="cast it in the source SQL",
        )
    return value if value is None or isinstance(value, str) else repr(value)


def _fits(value: Any, kind: pyarrow.DataType) -> bool:
    import pyarrow as pa

    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True
