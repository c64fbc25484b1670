"""PostgreSQL: executors copy rows into an unlogged staging table, the driver commits them.

Reads go through JDBC, over a query that leaves only plain types on the wire.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.backends.base import (
    Alteration,
    Backend,
    Capabilities,
    FoundColumn,
    FoundTable,
    Load,
    SourceColumn,
    SourceQuery,
)
from ematix_flow.backends.parked import PARKED
from ematix_flow.backends.postgres_copy import WATCHFUL, WATCHFUL_HERE
from ematix_flow.backends.postgres_errors import translate
from ematix_flow.backends.postgres_landing import PostgresLanding
from ematix_flow.backends.postgres_reads import in_one, in_parts
from ematix_flow.backends.postgres_relay import Line, Relay, require_known
from ematix_flow.backends.postgres_spool import copied_text, spool_copy
from ematix_flow.backends.spool import spool_folder, until_read
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.backends.sql_session import Session
from ematix_flow.connections import PostgresConnection
from ematix_flow.engine.session import configured, slots
from ematix_flow.errors import EmatixError, Unsupported
from ematix_flow.model import Table, TableName
from ematix_flow.sql.identifiers import quoted
from ematix_flow.sql.spark import quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.connections import Connection
    from ematix_flow.engine.session import Engine
    from ematix_flow.model import PipelineSpec, TargetSpec

# What libpq and JDBC both understand, by their names for it.
_JDBC = {
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
    **{name: name for name in ("options", "sslmode", "sslrootcert", "sslcert", "sslkey")},
}
_TYPES = {
    "small_int": "smallint",
    "integer": "integer",
    "big_int": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "text": "text",
    "date": "date",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamp_tz": "timestamp with time zone",
    "json": "json",
    "jsonb": "jsonb",
    "uuid": "uuid",
    "bytes": "bytea",
}
_FOUND: dict[str, t.ColumnType] = {
    "smallint": t.SmallInt(),
    "integer": t.Integer(),
    "bigint": t.BigInt(),
    "oid": t.BigInt(),
    "real": t.Float(),
    "double precision": t.Double(),
    "numeric": t.AnyNumeric(),
    "boolean": t.Boolean(),
    "text": t.Text(),
    "character varying": t.Text(),
    "date": t.Date(),
    "time without time zone": t.Time(),
    "timestamp without time zone": t.Timestamp(),
    "timestamp with time zone": t.TimestampTZ(),
    "json": t.JSON(),
    "jsonb": t.JSONB(),
    "uuid": t.UUID(),
    "bytea": t.Bytes(),
}
_ROOM = "64MB"
_CREATION_LOCK = 7_239_114_001


def _greeting(*, read_only: bool) -> str:
    only_reads = "; SET default_transaction_read_only = on" if read_only else ""
    spoken = "SET TIME ZONE 'UTC'; SET datestyle = 'ISO'; SET client_encoding TO 'UTF8'"
    return f"{spoken}; {WATCHFUL}{only_reads}"


class Postgres(SqlBackend):
    """A PostgreSQL database."""

    kind = "postgres"
    dialect = "postgres"
    placeholder: ClassVar[str] = "%s"
    inlines: ClassVar[bool] = True
    keys_last: ClassVar[bool] = True
    keeps_sessions: ClassVar[bool] = True
    default_schema: ClassVar[str | None] = "public"
    jars = ("postgres",)
    capabilities = Capabilities(
        verbs=frozenset({"insert", "replace", "rewrite", "revise"}),
        same_database=True,
        constraints=True,
        alterations=frozenset({"rename", "drop", "retype", "relax", "add", "require"}),
        nul_in_text=False,
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._relay: Relay | None = None

    def address(self) -> dict[str, Any]:
        """Where the server is and who we are there."""
        return cast(PostgresConnection, self.connection).address()

    def conninfo(self) -> dict[str, Any]:
        """What psycopg connects with."""
        address = self.address()
        names = {"database": "dbname"}
        return {
            "connect_timeout": 10,
            "application_name": "ematix-flow",
            **{names.get(k, k): v for k, v in address.items() if k != "options"},
            **address["options"],
        }

    def connect(self, *, read_only: bool = False) -> Any:
        """A connection in autocommit mode, in UTC."""
        import psycopg

        raw = psycopg.connect(
            **{**WATCHFUL_HERE, **self.conninfo()},
            autocommit=True,
            # A statement prepared for one run would be unknown after what ends it.
            prepare_threshold=None,
        )
        raw.execute(_greeting(read_only=read_only))
        return raw

    def taken_over(self, *, read_only: bool) -> Any | None:
        """Whatever it was told before is forgotten; if it still answers, it is as good as new."""
        import psycopg

        while (raw := PARKED.take(self._place)) is not None:
            try:
                raw.execute(_greeting(read_only=read_only))
            except psycopg.Error:
                raw.close()
            else:
                return raw
        return None

    def left_behind(self, raw: Any) -> bool:
        """Without locks, settings and temporary tables."""
        raw.execute("DISCARD ALL")
        return PARKED.leave(self._place, raw, raw.close)

    @property
    def _place(self) -> Hashable:
        return (self.kind, *sorted((name, str(value)) for name, value in self.conninfo().items()))

    def allow_writes(self, raw: Any) -> None:
        """As a new connection would: a server may refuse it all the same."""
        raw.execute("RESET default_transaction_read_only")

    def info(self) -> dict[str, Any]:
        """Host, port, database and user."""
        address = self.address()
        shown = ("host", "port", "database", "user")
        return {"kind": self.kind, **{k: address[k] for k in shown if k in address}}

    def begin(self, raw: Any) -> None:
        """One snapshot for all that the commit reads, and room to join whole tables in memory."""
        raw.execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; "
            f"SELECT set_config('work_mem', '{_ROOM}', true) "
            f"WHERE pg_size_bytes(current_setting('work_mem')) < pg_size_bytes('{_ROOM}')"
        )

    def run(self, raw: Any, sql: str, parameters: Sequence[Any]) -> int:
        """Execute; without parameters psycopg leaves ``%`` alone."""
        cursor = raw.execute(sql, tuple(parameters) or None)
        return int(cursor.rowcount)

    def rows(self, raw: Any, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Execute and fetch everything."""
        return cast("list[tuple[Any, ...]]", raw.execute(sql, tuple(parameters) or None).fetchall())

    def fetch(
        self, raw: Any, sql: str, limit: int | None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Execute and fetch names and rows."""
        cursor = raw.execute(sql)
        if cursor.description is None:
            return [], []
        names = [d.name for d in cursor.description]
        return names, cursor.fetchall() if limit is None else cursor.fetchmany(limit)

    def translate(self, error: Exception) -> EmatixError | None:
        """By SQLSTATE."""
        return translate(error, self.name, self.info())

    def same_database(self, other: Any) -> bool:
        """Whether both lead to the same database as the same user."""
        if not isinstance(other, Postgres):
            return False
        keys = ("host", "port", "database", "user")
        ours, theirs = self.address(), other.address()
        return [ours.get(k) for k in keys] == [theirs.get(k) for k in keys]

    def require_copy(self, other: Backend) -> None:
        """Between PostgreSQL databases that asyncpg can reach."""
        if not isinstance(other, Postgres):
            super().require_copy(other)
            return
        for backend in (self, other):
            require_known(backend.conninfo())

    def copying_from(self, other: Backend) -> contextlib.AbstractContextManager[object]:
        """The other is connected to, while others decide what is copied."""
        return self.relay_from(cast("Postgres", other))

    @contextlib.contextmanager
    def relay_from(self, source: Postgres) -> Iterator[Relay]:
        """A way from there to here; whoever asks inside the block is given the same."""
        if self._relay is not None:
            yield self._relay
            return
        place = ("relay", source._place, self._place)
        line: Line = PARKED.take(place) or Line(source.conninfo(), self.conninfo())
        relay = Relay(line, source_error=source.translate, target_error=self.translate)
        self._relay = relay
        try:
            yield relay
        finally:
            self._relay = None
            if not relay.done or not PARKED.leave(place, line, line.close):
                line.close()

    def check_table(self, table: Table) -> None:
        """Arrays of arrays and of bytes have no form on the way in, JSON cannot be compared."""
        super().check_table(table)
        keys = {name for group in (table.primary_key, *table.unique_groups) for name in group}
        for column in table.columns:
            if column.type.kind == "json" and column.name in keys:
                raise Unsupported(
                    f"postgres cannot have column {column.name!r} of type JSON in a key",
                    fix="declare it JSONB",
                )
            if isinstance(column.type, t.Array) and column.type.element.kind in ("array", "bytes"):
                raise Unsupported(
                    f"postgres cannot load column {column.name!r} of type {column.type}",
                    fix="declare it JSONB",
                )

    def stored_type(self, column_type: t.ColumnType) -> str:
        """As ``format_type`` spells it."""
        if isinstance(column_type, t.Numeric):
            return f"numeric({column_type.precision},{column_type.scale})"
        if isinstance(column_type, t.String):
            return f"character varying({column_type.length})"
        if isinstance(column_type, t.Array):
            return f"{self.stored_type(column_type.element)}[]"
        return _TYPES[column_type.kind]

    def assign(
        self, value: exp.Expression, source: t.ColumnType, target: t.ColumnType
    ) -> exp.Expression:
        """The shared casts; a cast to varchar(n) would cut, the assignment refuses."""
        if isinstance(target, t.String):
            return super().assign(value, source, t.Text())
        return super().assign(value, source, target)

    def refusal(self, value: exp.Expression, why: str) -> exp.Expression:
        """A cast that cannot succeed, and shows the value in its message."""
        text = exp.DataType.build("text", dialect=self.dialect)
        shown = exp.DPipe(this=exp.cast(value, text), expression=exp.convert(f" {why}"))
        return exp.cast(exp.paren(shown), exp.DataType.build("numeric", dialect=self.dialect))

    def comparable(self, value: exp.Expression, column_type: t.ColumnType) -> exp.Expression:
        """Text by its bytes, whatever the database's language; ``json`` has no equality itself."""
        if isinstance(column_type, t.JSON):
            text = exp.DataType.build("text", dialect=self.dialect)
            return exp.cast(value, text)
        if isinstance(column_type, t.Text | t.String):
            return exp.Collate(this=value, expression=exp.to_identifier("C", quoted=True))
        return value

    def alteration(self, table: str, alteration: Alteration) -> list[str]:
        """A retype that refuses by itself: rows may come in after the check and before its lock."""
        was, new = alteration.was, alteration.type
        if alteration.act != "retype" or not alteration.risky or was is None or new is None:
            return super().alteration(table, alteration)
        column, stored = quoted(alteration.column, self.dialect), self.stored_type(new)
        change = f"ALTER TABLE {table} ALTER COLUMN {column} SET DATA TYPE {stored}"
        if isinstance(new, t.String):
            # Assigned, a longer text is an error; cast, it would be cut.
            return [change]
        value = f"CAST({column} AS {stored})"
        unfit = self.unfit(column, was, new)
        if unfit is not None:
            refused = f"CAST(CAST({column} AS text) || ' does not fit' AS {stored})"
            value = f"CASE WHEN {unfit} THEN {refused} ELSE {value} END"
        return [f"{change} USING {value}"]

    def unfit(self, column: str, was: t.ColumnType, new: t.ColumnType) -> str | None:
        """A cast to varchar(n) cuts; what text cannot be read as, the server says itself."""
        if isinstance(new, t.String):
            return f"length(CAST({column} AS text)) > {new.length}"
        if isinstance(new, t.Text) or isinstance(was, t.Text | t.String | t.JSON | t.JSONB):
            return None
        if isinstance(was, t.AnyNumeric):
            return f"CAST({column} AS {self.stored_type(new)}) <> {column}"
        return super().unfit(column, was, new)

    def constant(self, value: str, column_type: t.ColumnType) -> str:
        """A typed literal."""
        return f"CAST({exp.Literal.string(value).sql()} AS {self.stored_type(column_type)})"

    @contextlib.contextmanager
    def commit_lock(self, session: Session, *, creates: bool) -> Iterator[None]:
        """``IF NOT EXISTS`` is not enough for two first commits at once."""
        if not creates:
            yield
            return
        session.rows(f"SELECT pg_advisory_lock({_CREATION_LOCK})")
        try:
            yield
        finally:
            # A session that is lost has given its locks back.
            with contextlib.suppress(EmatixError):
                session.rows(f"SELECT pg_advisory_unlock({_CREATION_LOCK})")

    def inspect_in(self, session: Session, name: TableName) -> FoundTable | None:
        """From the system catalogue."""
        found = session.rows(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, "
            "a.atthasdef OR a.attidentity <> '', array_position(i.indkey::int2[], a.attnum) "
            "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary "
            "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped "
            "ORDER BY a.attnum",
            (name.schema or self.default_schema, name.name),
        )
        if not found:
            return None
        keys = sorted((place, column) for column, *_, place in found if place is not None)
        return FoundTable(
            tuple(FoundColumn(n, found_type(d), d, null, given) for n, d, null, given, _ in found),
            tuple(column for _, column in keys),
        )

    def describe(self, query: SourceQuery) -> tuple[SourceColumn, ...]:
        """Let the server plan the query; it reads no rows."""
        with self.session(read_only=True) as session:
            found = self._described(session, query)
        return tuple(SourceColumn(n, found_type(d) or t.Text()) for n, d in found)

    def _described(self, session: Session, query: SourceQuery) -> list[tuple[str, str]]:
        with self.translated():
            cursor = session.raw.execute(f"SELECT * FROM {self.subquery(query)} LIMIT 0")
            result = cursor.pgresult
            fields = [(result.ftype(i), result.fmod(i)) for i in range(result.nfields)]
        names = [d.name for d in cursor.description]
        spelled = session.rows(
            "SELECT format_type(o, m) FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY "
            "AS f(o, m, i) ORDER BY i",
            ([o for o, _ in fields], [m for _, m in fields]),
        )
        return [(name, kind) for name, (kind,) in zip(names, spelled, strict=True)]

    def how_read(self, query: SourceQuery) -> str:
        """In how many parts Spark would read the query, or why in one."""
        with self.session(read_only=True) as session:
            parts = in_parts(self, session, query, slots(configured()))
        if parts.snapshot is not None:
            parts.snapshot.close()
        return parts.how

    def read(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """JDBC over the wrapped query, then the Spark form of every column."""
        if engine.kind == "sail":
            return self._read_spooled(engine, query)
        with self.session(read_only=True) as session:
            columns = self._described(session, query)
            parts = in_parts(self, session, query, slots(configured()))
        if parts.snapshot is not None and not until_read(parts.snapshot.close):
            parts.snapshot.close()
            parts = in_one(self, query, "nobody tells when it has been read", fetch=parts.fetch)
        items = [
            f"{_on_the_wire(quoted(n, 'postgres'), d)} AS {quoted(n, 'postgres')}"
            for n, d in columns
        ]
        engine.require_jars(self.jars)
        address, info = self.address(), self.conninfo()
        options: dict[str, str] = {
            "driver": "org.postgresql.Driver",
            "fetchsize": str(parts.fetch),
            "preferTimestampNTZ": "true",
            "tcpKeepAlive": "true",
            "sessionInitStatement": "; ".join((*parts.before, WATCHFUL, "SET TIME ZONE 'UTC'")),
            **{k: str(address[k]) for k in ("user", "password") if k in address},
            **{theirs: str(info[ours]) for ours, theirs in _JDBC.items() if ours in info},
        }
        source = f"(SELECT {', '.join((*items, *parts.extra))} FROM {parts.rows}) AS jdbc_source"
        reader, url = engine.spark.read, jdbc_url(address)
        if parts.conditions:
            rows = reader.jdbc(url, source, predicates=list(parts.conditions), properties=options)
        else:
            rows = reader.jdbc(url, source, properties=options)
        return rows.selectExpr(*(f"{_in_form(n, d)} AS {quote(n)}" for n, d in columns))

    def _read_spooled(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """Copied to Parquet by this process, which Sail reads: it has no JDBC."""
        file = spool_folder() / "rows.parquet"
        with self.session(read_only=True) as session:
            columns = self._described(session, query)
            kinds = [found_type(declared) for _, declared in columns]
            items = [
                copied_text(_on_the_wire(quoted(n, "postgres"), d), kind)
                for (n, d), kind in zip(columns, kinds, strict=True)
            ]
            select = f"SELECT {', '.join(items)} FROM {self.subquery(query)}"
            with self.translated():
                spool_copy(session.raw, select, kinds, file)
        rows = engine.spark.read.parquet(file.as_uri())
        return rows.selectExpr(
            *(f"{_in_form(f'c{i}', d)} AS {quote(n)}" for i, (n, d) in enumerate(columns))
        )

    def needs_spark_to_read(self, spec: PipelineSpec) -> str | None:
        """This process can copy the rows in place of Spark."""
        return None

    def needs_spark_to_write(self, target: TargetSpec) -> str | None:
        """What is staged is copied by this process, too."""
        return None

    def land(self, load: Load) -> PostgresLanding:
        """Stage in an unlogged table."""
        return PostgresLanding(self, load)


def jdbc_url(address: dict[str, Any]) -> str:
    """The JDBC address, without user and password."""
    port = f":{address['port']}" if "port" in address else ""
    return (
        f"jdbc:postgresql://{address.get('host', 'localhost')}{port}/{address.get('database', '')}"
    )


def found_type(declared: str) -> t.ColumnType | None:
    """The logical type behind ``format_type``'s spelling; None for what only text carries."""
    if declared.endswith("[]"):
        element = found_type(declared[:-2])
        return (
            t.Array(element) if element and element.kind not in ("bytes", "any_numeric") else None
        )
    if found := re.fullmatch(r"numeric\((\d+),(-?\d+)\)", declared):
        precision, scale = int(found[1]), int(found[2])
        fits = precision <= t.Numeric.max_precision and 0 <= scale <= precision
        return t.Numeric(precision, scale) if fits else t.AnyNumeric()
    if found := re.fullmatch(r"character varying\((\d+)\)", declared):
        return t.String(int(found[1]))
    plain = re.sub(r"\(\d+\)", "", declared)
    return _FOUND.get(plain)


def _on_the_wire(column: str, declared: str) -> str:
    """A column as the query sends it: a type that JDBC and Spark agree about."""
    logical = found_type(declared)
    if logical is None:
        return f"{column}::text"
    if isinstance(logical, t.Array):
        return f"array_to_json({column})::text"
    if isinstance(logical, t.Time):
        return f"to_char({column}, 'HH24:MI:SS.US')"
    if spark_ddl(logical) == "STRING" and not isinstance(logical, t.Text | t.String):
        return f"{column}::text"
    return column


def _in_form(name: str, declared: str) -> str:
    """The Spark form of a column as it came over the wire."""
    logical = found_type(declared)
    column = quote(name)
    if isinstance(logical, t.Array):
        return f"CAST(from_json({column}, 'ARRAY<STRING>') AS {spark_ddl(logical)})"
    return f"CAST({column} AS {spark_ddl(logical or t.Text())})"
