"""MySQL and MariaDB: executors load rows into a staging table, the driver commits them.

A schema is a database. Tables are created with a binary collation, so that no two texts that
differ are ever taken for equal. Reads go through JDBC, with only plain types on the wire.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
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
from ematix_flow.backends.bookkeeping import SCHEMA
from ematix_flow.backends.mysql_alterations import alterations_in, unfit
from ematix_flow.backends.mysql_errors import translate
from ematix_flow.backends.mysql_landing import MySQLLanding, scratch
from ematix_flow.backends.mysql_reads import in_parts, read
from ematix_flow.backends.mysql_session import Server, arguments, connected, server_of
from ematix_flow.backends.mysql_types import (
    castable_type,
    constant,
    described_type,
    found_type,
    plain_spelling,
    stored_type,
)
from ematix_flow.backends.mysql_windows import windows_apart
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.backends.sql_session import Session
from ematix_flow.backends.visibility import is_elsewhere
from ematix_flow.change import CHANGES, CURRENT, INCOMING, SIDE, SIDE_CHANGES, Revise
from ematix_flow.connections import MySQLConnection
from ematix_flow.engine.session import configured, slots
from ematix_flow.errors import ConfigError, EmatixError, Transient, Unsupported
from ematix_flow.model import Table, TableName
from ematix_flow.sql.identifiers import column_list, quoted, split_name
from ematix_flow.sql.spark import spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine

_CREATION_LOCK = "ematix_flow.creation"
_LOCK_SECONDS = 600
_LONGEST_NAME = 64
# How long a driver may be silent inside a commit: it says something every moment.
COMMIT_SECONDS = 600
_KEY_BYTES = 3072
_KEY_TEXT = 255
_LONGEST_STRING = 16_383
_BYTES_PER_CHARACTER = 4
_KEY_TEXT_MARK = "Text"
_NO_KEYS = {
    "json": "declare a String column",
    "jsonb": "declare a String column",
    "array": "declare a String column",
    "bytes": "declare a String column with its hexadecimal text",
}


class MySQL(SqlBackend):
    """A MySQL or MariaDB server."""

    kind = "mysql"
    dialect = "mysql"
    placeholder: ClassVar[str] = "%s"
    keeps_sessions: ClassVar[bool] = True
    jars = ("mysql",)
    capabilities = Capabilities(
        verbs=frozenset({"insert", "replace", "rewrite", "revise"}),
        constraints=True,
        alterations=frozenset({"rename", "drop", "retype", "relax", "add", "require"}),
        nan_in_floats=False,
        infinity_in_floats=False,
    )

    def address(self) -> dict[str, Any]:
        """Where the server is and who we are there."""
        return cast(MySQLConnection, self.connection).address()

    def arguments(self) -> dict[str, Any]:
        """What the driver connects with."""
        return arguments(self.address(), self.name)

    def connect(self, *, read_only: bool = False) -> Any:
        """A connection in autocommit mode, in UTC."""
        return connected(self.arguments(), read_only=read_only)

    def allow_writes(self, raw: Any) -> None:
        """As a new connection would: a server may refuse it all the same."""
        mariadb = "mariadb" in raw.get_server_info().lower()
        setting = "tx_read_only" if mariadb else "transaction_read_only"
        self.run(raw, f"SET SESSION {setting} = DEFAULT", ())

    @functools.cached_property
    def server(self) -> Server:
        """Which product and version answers."""
        with self.session(read_only=True) as session:
            return server_of(session.raw)

    def info(self) -> dict[str, Any]:
        """Host, port, database and user."""
        address = self.address()
        shown = ("host", "port", "database", "user")
        return {"kind": self.kind, **{k: address[k] for k in shown if k in address}}

    def begin(self, raw: Any) -> None:
        """One snapshot for all that the commit reads; who falls silent in it loses its locks."""
        self.run(raw, f"SET SESSION wait_timeout = {COMMIT_SECONDS}", ())
        raw.begin()

    def run(self, raw: Any, sql: str, parameters: Sequence[Any]) -> int:
        """Execute; without parameters the driver leaves ``%`` alone."""
        with raw.cursor() as cursor:
            return int(cursor.execute(sql, tuple(parameters) or None))

    def rows(self, raw: Any, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Execute and fetch everything."""
        with raw.cursor() as cursor:
            cursor.execute(sql, tuple(parameters) or None)
            return list(cursor.fetchall())

    def fetch(
        self, raw: Any, sql: str, limit: int | None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Execute and fetch names and rows; with a limit, no more rows than that are kept."""
        from pymysql.cursors import Cursor, SSCursor

        with raw.cursor(Cursor if limit is None else SSCursor) as cursor:
            cursor.execute(sql)
            names = [d[0] for d in cursor.description or ()]
            found = cursor.fetchall() if limit is None else cursor.fetchmany(limit)
            return names, list(found)

    def translate(self, error: Exception) -> EmatixError | None:
        """By the server's number."""
        return translate(error, self.name, self.info())

    def schema_of(self, name: TableName) -> str:
        """The database of a table: its own, or the connection's."""
        schema = name.schema or self.address().get("database")
        if not schema:
            raise ConfigError(
                f"table {name} has no schema and connection {self.name!r} names no database",
                fix="declare the table's schema, or add the database to the connection's URL",
            )
        return str(schema)

    def table(self, name: TableName) -> exp.Table:
        """A table's full, quoted name; one that is too long keeps its first part and a hash."""
        plain = name.name
        if len(plain) > _LONGEST_NAME and name.schema == SCHEMA:
            import hashlib

            digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
            plain = f"{plain[: _LONGEST_NAME - 17]}_{digest}"
        return exp.table_(
            exp.to_identifier(plain, quoted=True),
            db=exp.to_identifier(self.schema_of(name), quoted=True),
        )

    def table_query(self, table: str, columns: Mapping[str, str] | None) -> SourceQuery:
        """A user may also write names as other databases quote them."""
        if '"' in table and "`" not in table:
            name = split_name(table, "postgres")
            table = self.table(name).sql(dialect=self.dialect)
        return super().table_query(table, columns)

    def check_table(self, table: Table) -> None:
        """Refuse what no index or row of this product can hold."""
        super().check_table(table)
        kinds = {c.name: c.type for c in table.columns}
        for name, kind in kinds.items():
            if isinstance(kind, t.String) and kind.length > _LONGEST_STRING:
                raise Unsupported(
                    f"mysql cannot hold column {name!r} of type {kind}", fix="declare it Text"
                )
            if isinstance(kind, t.Array) and kind.element.kind in ("array", "bytes"):
                raise Unsupported(
                    f"mysql cannot load column {name!r} of type {kind}", fix="declare it JSON"
                )
        for group in (table.primary_key, *table.unique_groups):
            for name in group:
                if fix := _NO_KEYS.get(kinds[name].kind):
                    raise Unsupported(
                        f"mysql cannot have column {name!r} of type {kinds[name]} in a key",
                        fix=fix,
                    )
            size = sum(_indexed_bytes(kinds[name]) for name in group)
            if size > _KEY_BYTES:
                raise Unsupported(
                    f"mysql cannot have a key of {', '.join(group)}: it takes {size} bytes, at "
                    f"most {_KEY_BYTES} are possible",
                    fix="declare shorter columns, for example String[100]",
                )

    def stored_type(self, column_type: t.ColumnType) -> str:
        """As ``information_schema`` spells it."""
        return stored_type(column_type)

    def castable_type(self, column_type: t.ColumnType) -> str:
        """``CAST`` knows fewer types than columns do."""
        return castable_type(column_type)

    def constant(self, value: str, column_type: t.ColumnType) -> str:
        """A typed literal."""
        return constant(value, column_type)

    def instant(self, moment: datetime) -> Any:
        """In UTC, without a zone: that is how it is stored."""
        return moment.astimezone(timezone.utc).replace(tzinfo=None)

    def later(self, instant: exp.Expression, seconds: float) -> exp.Expression:
        """To the microsecond."""
        held = instant.sql(dialect=self.dialect)
        return exp.Var(this=f"TIMESTAMPADD(MICROSECOND, {round(seconds * 1_000_000)}, {held})")

    def comparable(self, value: exp.Expression, column_type: t.ColumnType) -> exp.Expression:
        """Texts by their characters alone, whatever collation the table has."""
        if spark_ddl(column_type) != "STRING" and not isinstance(column_type, t.Array):
            return value
        if isinstance(column_type, t.Time):
            return value
        held = value.sql(dialect=self.dialect)
        return exp.Var(this=f"CONVERT({held} USING utf8mb4) COLLATE {self.server.collation}")

    @contextlib.contextmanager
    def commit_lock(self, session: Session, *, creates: bool) -> Iterator[None]:
        """Tables come to be outside of any transaction here, so one commit at a time may do it."""
        if not creates:
            yield
            return
        if session.one("SELECT GET_LOCK(%s, %s)", (_CREATION_LOCK, _LOCK_SECONDS)) != 1:
            raise Transient(
                "another run has been creating tables for too long",
                connection=self.name,
                fix="look for a run that hangs, then run again",
            )
        try:
            yield
        finally:
            # A session that is lost has given its locks back.
            with contextlib.suppress(EmatixError):
                session.rows("SELECT RELEASE_LOCK(%s)", (_CREATION_LOCK,))

    def create_schema(self, name: TableName) -> list[str]:
        """A database, whose own collation matters for our bookkeeping only."""
        collation = f" COLLATE {self.server.collation}" if name.schema == SCHEMA else ""
        schema = quoted(self.schema_of(name), self.dialect)
        return [f"CREATE DATABASE IF NOT EXISTS {schema} CHARACTER SET utf8mb4{collation}"]

    def create_table(
        self,
        table: Table,
        columns: Sequence[tuple[str, t.ColumnType]],
        *,
        unless_there: bool = False,
    ) -> list[str]:
        """The statements that create a table with its keys, in a collation that tells all apart."""
        keyed = {name for group in (table.primary_key, *table.unique_groups) for name in group}
        declared = {c.name: c for c in table.columns}
        lines = [
            self.column(
                name,
                kind,
                nullable=name in declared and declared[name].nullable,
                keyed=name in keyed,
            )
            for name, kind in columns
        ]
        lines += self.key_clauses(table)
        body = ",\n  ".join(lines)
        guard = "IF NOT EXISTS " if unless_there else ""
        create = (
            f"CREATE TABLE {guard}{self.locate(table.name)} (\n  {body}\n) "
            f"ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE {self.server.collation}"
        )
        return [*self.create_schema(table.name), create]

    def column(self, name: str, kind: t.ColumnType, *, nullable: bool, keyed: bool) -> str:
        """A column as a statement defines it."""
        stored = self.stored_type(kind)
        if keyed and isinstance(kind, t.Text):
            # No index holds text of any length; the comment tells it from a String[255].
            stored = f"varchar({_KEY_TEXT}) COMMENT '{_KEY_TEXT_MARK}'"
        constraint = "NULL" if nullable else "NOT NULL"
        return f"{quoted(name, self.dialect)} {stored} {constraint}"

    def unfit(self, column: str, was: t.ColumnType, new: t.ColumnType) -> str | None:
        """What the server would round."""
        return unfit(column, was, new)

    def alter_in(self, session: Session, load: Load) -> list[str]:
        """Every column is stated anew."""
        return alterations_in(self, session, load)

    def inspect_in(self, session: Session, name: TableName) -> FoundTable | None:
        """From ``information_schema``."""
        place = (self.schema_of(name), self.table(name).name)
        found = session.rows(
            "SELECT column_name, column_type, is_nullable = 'YES', column_comment, "
            "column_default IS NOT NULL OR extra LIKE '%%auto_increment%%' "
            "OR extra LIKE '%%GENERATED%%' FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            place,
        )
        if not found:
            return None
        keys = session.rows(
            "SELECT column_name FROM information_schema.statistics WHERE table_schema = %s "
            "AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index",
            place,
        )
        documents = self._documents(session, place)
        columns = []
        for column, declared, nullable, comment, default in found:
            spelled = "json" if column in documents else plain_spelling(declared)
            if comment == _KEY_TEXT_MARK:
                spelled = self.stored_type(t.Text())
            kind = found_type(spelled)
            columns.append(FoundColumn(column, kind, spelled, bool(nullable), bool(default)))
        return FoundTable(tuple(columns), tuple(column for (column,) in keys))

    def _documents(self, session: Session, place: tuple[str, str]) -> set[str]:
        """The JSON columns of MariaDB: for it, JSON is text with a check."""
        if not server_of(session.raw).mariadb:
            return set()
        checks = session.rows(
            "SELECT constraint_name, check_clause FROM information_schema.check_constraints "
            "WHERE constraint_schema = %s AND table_name = %s",
            place,
        )
        return {n for n, clause in checks if clause == f"json_valid({quoted(n, self.dialect)})"}

    def render(self, query: exp.Expr, load: Load) -> str:
        """Everything that belongs to the run alone is a table beside its stage."""
        kept = {CHANGES, SIDE_CHANGES, *load.change.derived}

        def place(node: exp.Expression) -> exp.Expression:
            if isinstance(node, exp.Table) and node.name in kept and not node.db:
                placed = self.relation(node.name, load)
                placed.set("alias", node.args.get("alias"))
                return placed
            return node

        placed = query.transform(place)
        return super().render(windows_apart(placed) if self.server.mariadb else placed, load)

    def relation(self, name: str, load: Load) -> exp.Table:
        """Where a relation of the load is."""
        if name in (CURRENT, SIDE):
            return super().relation(name, load)
        return self.table(scratch(load, "" if name == INCOMING else name))

    def revision(self, step: Revise, load: Load) -> list[tuple[str, str]]:
        """The statements that apply a change set, by joins."""
        target = self.relation(step.relation, load).sql(dialect=self.dialect)
        changes = self.relation(step.changes, load).sql(dialect=self.dialect)
        columns = [name for name, _ in load.columns_of(step.relation)]
        pairs = [f"c.{q} = x.{q}" for q in (quoted(n, self.dialect) for n in step.identity)]
        joined = f"{changes} AS x JOIN {target} AS c ON {' AND '.join(pairs)}"
        made = []
        for act in ("delete", "update", "insert"):
            operations = ", ".join(f"'{name}'" for name in step.operations(act))
            if not operations:
                continue
            where = f"WHERE x._op IN ({operations})"
            if act == "delete":
                sql = f"DELETE c FROM {joined} {where}"
            elif act == "update":
                others = [quoted(n, self.dialect) for n in columns if n not in step.identity]
                sql = f"UPDATE {joined} SET {', '.join(f'c.{q} = x.{q}' for q in others)} {where}"
            else:
                listed = column_list(columns, self.dialect)
                sql = f"INSERT INTO {target} ({listed}) SELECT {listed} FROM {changes} AS x {where}"
            made.append((act, sql))
        return made

    def steps_sql(self, load: Load, incoming: str) -> list[str]:
        """The change as it will run; the tables it fills are made before."""
        made = [f"-- {INCOMING} is {incoming}"]
        computed = {**load.change.derived, **{s.changes: s.rows for s in load.change.revisions}}
        for name, rows in computed.items():
            place = self.relation(name, load).sql(dialect=self.dialect)
            made.append(f"INSERT INTO {place} {self.render(rows, load)}")
        for step in load.change.steps:
            made += [sql for _, sql in self.statements(step, load)]
        return made

    def describe(self, query: SourceQuery) -> tuple[SourceColumn, ...]:
        """Let the server plan the query; it reads no rows."""
        with self.session(read_only=True) as session:
            return tuple(
                SourceColumn(f.name, described_type(f) or t.Text())
                for f in self.fields_of(session, query)
            )

    def fields_of(self, session: Session, query: SourceQuery) -> list[Any]:
        """The columns of a query as the server describes them."""
        with self.translated(), session.raw.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {self.subquery(query)} LIMIT 0")
            # The public description leaves out which texts are binary and which numbers unsigned.
            return list(cursor._result.fields)

    def how_read(self, query: SourceQuery) -> str:
        """In how many parts Spark would read the query, or why in one."""
        spread = bool(is_elsewhere())
        with self.session(read_only=True) as session:
            return in_parts(self, session, query, slots(configured()), spread=spread).how

    def read(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """By JDBC, in one stream or in parts that begin together."""
        return read(self, engine, query)

    def land(self, load: Load) -> MySQLLanding:
        """Stage in a table of the bookkeeping database."""
        return MySQLLanding(self, load)


def _indexed_bytes(kind: t.ColumnType) -> int:
    if isinstance(kind, t.Text):
        return _KEY_TEXT * _BYTES_PER_CHARACTER
    if isinstance(kind, t.String):
        return kind.length * _BYTES_PER_CHARACTER
    if isinstance(kind, t.UUID):
        return 36 * _BYTES_PER_CHARACTER
    return 17 if isinstance(kind, t.Numeric) else 8
