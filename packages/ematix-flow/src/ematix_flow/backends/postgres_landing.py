"""One run's way into PostgreSQL: rows are copied into a staging table, then committed.

Executors copy what Spark has read; what another PostgreSQL database holds is copied straight from
there. A new table is the stage itself, moved to its place by the commit; what another database
only adds to a table has no stage, the commit copies it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ematix_flow import types as t
from ematix_flow.backends.base import Backend, Load, Staged
from ematix_flow.backends.bookkeeping import SCHEMA
from ematix_flow.backends.postgres_copy import CopyTask, copied_value, copy_pieces
from ematix_flow.backends.postgres_reads import spare_connections
from ematix_flow.backends.spark_changes import SparkChange
from ematix_flow.backends.sql_landing import SqlLanding
from ematix_flow.change import INCOMING, Counts, Insert, Revise
from ematix_flow.errors import BadValue, EmatixError, Transient
from ematix_flow.model import DELETED_COLUMN, ROW_HASH_COLUMN
from ematix_flow.sql.hashing import row_hash
from ematix_flow.sql.identifiers import column_list, quoted
from ematix_flow.sql.spark import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlglot import exp

    from ematix_flow.backends.postgres import Postgres
    from ematix_flow.backends.postgres_relay import Relay
    from ematix_flow.engine.session import Engine

logger = logging.getLogger(__name__)

_STAGE = "stage_"


@dataclass(frozen=True)
class CopyStage:
    """Rows under way to a table from another database, as ``COPY`` sends them.

    ``types`` are those that the table's columns must have to take them: kind and length of each.
    """

    pieces: Iterator[bytes]
    types: list[tuple[int, int]]


class PostgresLanding(SqlLanding):
    """Copies into ``ematix_flow.stage_<run>``; a session lock marks the run as alive."""

    backend: Postgres

    def __init__(self, backend: Postgres, load: Load) -> None:
        super().__init__(backend, load)
        self._made_schema = False
        self._staged = False
        self._becomes_target = False
        self._spread = False
        self._constants: dict[str, str] = {}

    @property
    def _stage_name(self) -> str:
        return _STAGE + self.load.run.run_id

    @property
    def _stage(self) -> str:
        return f"{quoted(SCHEMA, 'postgres')}.{quoted(self._stage_name, 'postgres')}"

    @property
    def _parts(self) -> str:
        name = quoted(f"{_STAGE}{self.load.run.run_id}_parts", "postgres")
        return f"{quoted(SCHEMA, 'postgres')}.{name}"

    def sweep(self) -> None:
        """Drop the stages whose run no longer holds its lock."""
        tables = self.session.rows(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE %s "
            "ORDER BY tablename",
            (SCHEMA, _STAGE.replace("_", r"\_") + "%"),
        )
        for (table,) in tables:
            run_id = table.removeprefix(_STAGE).removesuffix("_parts")
            if self.session.one("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (run_id,)):
                try:
                    self._drop_orphan(f"{quoted(SCHEMA, 'postgres')}.{quoted(table, 'postgres')}")
                except EmatixError as error:
                    # Another user's, perhaps: no reason to fail a run that does not need it.
                    logger.warning("the stage %s of a dead run is still there: %s", table, error)
                self.session.rows("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", (run_id,))

    def _drop_orphan(self, table: str) -> None:
        """Executors may outlive their driver: a copy still under way would block the drop."""
        self.session.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE pid <> pg_backend_pid() "
            "AND relation = to_regclass(%s) AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())",
            (table,),
        )
        self.session.run(f"DROP TABLE IF EXISTS {table}")

    def _end_stragglers(self) -> None:
        """A machine that has fallen silent, or is too late, would hold the stage for ever."""
        if self._spread:
            self.session.rows(
                "SELECT pg_terminate_backend(l.pid) FROM pg_locks l "
                "JOIN pg_stat_activity a ON a.pid = l.pid AND a.datid = l.database "
                "WHERE l.pid <> pg_backend_pid() AND a.usename = current_user "
                "AND a.datname = current_database() "
                "AND l.relation IN (to_regclass(%s), to_regclass(%s))",
                (self._stage, self._parts),
            )

    def stage(self, engine: Engine, rows: DataFrame) -> Staged:
        """Every task copies its partition in one transaction, at most once.

        Into the target itself where the run is to create that.
        """
        load = self.load
        self._begin_stage()
        columns = [(c.name, c.type) for c in load.incoming]
        arrays = any(isinstance(kind, t.Array) for _, kind in load.columns)
        if (opening := self._opening()) is not None and not arrays:
            self._becomes_target = True
            change = SparkChange(engine.spark, load, lambda _, relation: relation)
            change.arrive(rows)
            columns, rows = list(load.columns), change.query(opening)
        self._create_stage((name, _staged_type(self.backend, kind)) for name, kind in columns)
        task = CopyTask(self.backend.conninfo(), self._stage, self._parts, self.backend.name)
        # Numbered, because mapInArrow cannot take a name with a dot in it.
        values = [
            f"{copied_value(quote(name), kind)} AS c{i}" for i, (name, kind) in enumerate(columns)
        ]
        self._spread = bool(getattr(engine, "distributed", False))
        most = spare_connections(self.session)
        count, size = engine.copy_rows(rows.selectExpr(*values), task, most=most)
        self._end_stragglers()
        self._know_stage()
        load.announce("staged")
        return Staged(count, size, self._stage)

    def stage_copy(self, source: Backend, select: str, *, keep: bool) -> Staged:
        """One ``COPY`` to another, into the target itself where the run is to create that.

        What is only added to a table that is as declared waits for the commit, which copies it.
        """
        way = self.backend.relay_from(cast("Postgres", source))
        # What is only counted is not worth holding up others, as its commit does.
        if keep and (types := self._types_to_add_to()) is not None:
            self._begin_stage()
            relay = self._stack.enter_context(way)
            added = self._copied(select, list(self.load.columns), self.load.change.opening)
            stage = CopyStage(relay.arriving(added), types)
            self.load.announce("staged")
            return Staged(-1, 0, stage)
        with way as relay:
            count, size = self._relayed(relay, select)
        self._know_stage()
        self.load.announce("staged")
        return Staged(count, size, self._stage)

    def _relayed(self, relay: Relay, select: str) -> tuple[int, int]:
        load, backend = self.load, self.backend
        self._begin_stage()
        opening = self._opening()
        self._becomes_target = opening is not None
        columns = list(load.columns)
        if opening is None:
            columns = [(c.name, c.type) for c in load.incoming if c.name not in self._computed()]
        else:
            self._constants = self._same_in_all(opening)
        sent = [(name, kind) for name, kind in columns if name not in self._constants]
        # To hash a row takes longer than to hand it over to another process.
        parallel = ROW_HASH_COLUMN in dict(columns)
        relay.begin(self._copied(select, sent, opening), parallel=parallel)
        # Looked at while it is copied, a row is not read again to see that it has its values.
        required = self._required() if self._becomes_target else ()
        ends = {name: f" DEFAULT {value}" for name, value in self._constants.items()}
        ends |= {name: f"{ends.get(name, '')} NOT NULL" for name in required}
        self._create_stage(
            (name, backend.stored_type(kind) + ends.get(name, "")) for name, kind in columns
        )
        try:
            return relay.copy(SCHEMA, self._stage_name, [name for name, _ in sent])
        except BadValue as error:
            # It is the table's value, wherever that is for the moment.
            told = error.what.replace(self._stage_name, load.name.name)
            raise BadValue(told, fix=error.fix) from error

    def _same_in_all(self, rows: exp.Query) -> dict[str, str]:
        """What need not be sent with each row: the values that no column has a part in."""
        from sqlglot import exp

        return {
            item.alias: self.backend.render(item.unalias(), self.load)
            for item in rows.selects
            if item.find(exp.Column) is None
        }

    def _copied(
        self, select: str, columns: Sequence[tuple[str, t.ColumnType]], rows: exp.Query | None
    ) -> str:
        """What the source is asked for: the rows that arrive, or those that they become."""
        load, backend = self.load, self.backend
        values = [quoted(name, "postgres") for name in load.incoming_names]
        assigned = f"({select}) AS {quoted('assigned', 'postgres')}"
        incoming = backend.incoming_select(load, assigned, values)
        if rows is not None:
            made = backend.render(rows, load)
            incoming = f"WITH {quoted(INCOMING, 'postgres')} AS ({incoming}) {made}"
        # Without lengths: a cast would cut what is too long, the table refuses it.
        copied = ", ".join(
            f"CAST({quoted(name, 'postgres')} AS {_unlimited(backend.stored_type(kind))})"
            for name, kind in columns
        )
        return f"SELECT {copied} FROM ({incoming}) AS {quoted('copied', 'postgres')}"

    def _types_to_add_to(self) -> list[tuple[int, int]] | None:
        """Of the table's columns, where a load only adds rows, asks nothing of them, and they fit.

        They fit where every column is as declared: what is copied in binary is not converted.
        """
        load, change = self.load, self.load.change
        if change.opening is None or [type(step) for step in change.steps] != [Insert]:
            return None
        if load.creates or load.alterations or load.inspect or load.watermark or change.assertions:
            return None
        if not set(load.incoming_names) <= set(load.column_names):
            return None
        # A COPY passes by rules and policies, and writes what a sequence or formula should. It is
        # one of several statements, for each of which triggers fire and references are checked.
        found = self.session.rows(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid, a.atttypmod "
            "FROM pg_attribute a "
            "JOIN pg_class c ON c.oid = a.attrelid WHERE c.oid = to_regclass(%s) "
            "AND c.relkind IN ('r', 'p') AND NOT c.relrowsecurity AND NOT c.relhasrules "
            "AND NOT EXISTS (SELECT 1 FROM pg_constraint k WHERE k.contype = 'f' "
            "AND k.conrelid = c.oid AND k.confrelid = c.oid) "
            "AND NOT EXISTS (SELECT 1 FROM pg_trigger g WHERE g.tgrelid = c.oid "
            "AND NOT g.tgisinternal AND g.tgtype & 1 = 0) "
            "AND a.attnum > 0 AND a.attidentity = '' AND a.attgenerated = ''",
            (self.backend.locate(load.name),),
        )
        wanted = {name: self.backend.stored_type(kind) for name, kind in load.columns}
        held = {name: (spelled, (kind, length)) for name, spelled, kind, length in found}
        if any(held.get(name, ("",))[0] != spelled for name, spelled in wanted.items()):
            return None
        return [held[name][1] for name in wanted]

    def _computed(self) -> dict[str, str]:
        """What is computed from a copied row when it is asked for: of few rows, as a rule."""
        load = self.load
        if load.side is not None or ROW_HASH_COLUMN not in load.incoming_names:
            return {}
        added = (ROW_HASH_COLUMN, DELETED_COLUMN)
        hashed = {c.name: c.type for c in load.incoming if c.name not in added}
        return {ROW_HASH_COLUMN: row_hash(hashed, "postgres")}

    def _know_stage(self) -> None:
        """Let the planner know what waits, to join few rows by the target's index."""
        if self.load.change.revisions and not self._becomes_target:
            self.session.run(f"ANALYZE {self._stage}")

    def _opening(self) -> exp.Query | None:
        """The query of the target's first rows; None where they must be computed there."""
        load = self.load
        opening, schema = load.change.opening, load.name.schema or self.backend.default_schema
        if opening is None or not load.creates or load.inspect is not None:
            return None
        if load.side is not None or not set(load.incoming_names) <= set(load.column_names):
            return None
        # What a schema grants on its new tables is not granted on one that is moved there.
        if self.session.rows(
            "SELECT 1 FROM pg_default_acl WHERE defaclnamespace = to_regnamespace(%s)",
            (quoted(schema or "", "postgres"),),
        ):
            return None
        return opening

    def _begin_stage(self) -> None:
        load = self.load
        self.session.rows("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (load.run.run_id,))
        load.announce("staging")

    def _create_stage(self, columns: Iterable[tuple[str, str]]) -> None:
        self._made_schema = not self.session.rows(
            "SELECT 1 FROM pg_namespace WHERE nspname = %s", (SCHEMA,)
        )
        alone = self.backend.commit_lock(self.session, creates=self._made_schema)
        with alone, self.session.transaction():
            if self._made_schema:
                self.session.run(f"CREATE SCHEMA IF NOT EXISTS {quoted(SCHEMA, 'postgres')}")
            listed = ", ".join(f"{quoted(name, 'postgres')} {kind}" for name, kind in columns)
            logged = "" if self._becomes_target else "UNLOGGED "
            self.session.run(f"CREATE {logged}TABLE {self._stage} ({listed})")
            if self.load.run.path == "spark":
                self.session.run(f"CREATE UNLOGGED TABLE {self._parts} (part bigint PRIMARY KEY)")
        self._staged = True

    def arrive(self, staged: Staged) -> None:
        """Copy what waits into the table itself; nobody sees it before the commit."""
        if not isinstance(staged.handle, CopyStage):
            return
        listed = column_list(self.load.column_names, "postgres")
        table = self.backend.locate(self.load.name)
        raw = self.session.raw
        self.session.run(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
        with self.backend.translated(), raw.cursor() as cursor:
            result = cursor.execute(f"SELECT {listed} FROM {table} LIMIT 0").pgresult
            now = [(result.ftype(i), result.fmod(i)) for i in range(result.nfields)]
            if now != staged.handle.types:
                raise Transient(
                    f"table {self.load.name} was altered while rows were on their way to it",
                    connection=self.backend.name,
                    fix="run it again",
                )
            copying = f"COPY {table} ({listed}) FROM STDIN (FORMAT BINARY)"
            staged.rows, staged.bytes = copy_pieces(cursor, copying, staged.handle.pieces)

    def prepare_tables(self) -> None:
        """Let the stage take the target's place, where it was copied as the target's rows."""
        if not self._becomes_target:
            super().prepare_tables()
            return
        load, backend = self.load, self.backend
        for statement in backend.create_schema(load.name):
            self.session.run(statement)
        schema = quoted(load.name.schema or backend.default_schema or "", "postgres")
        moved = f"{schema}.{quoted(self._stage_name, 'postgres')}"
        self.session.run(f"ALTER TABLE {self._stage} SET SCHEMA {schema}")
        self.session.run(f"ALTER TABLE {moved} RENAME TO {quoted(load.name.name, 'postgres')}")
        if load.run.path == "copy":
            acts = [f"ALTER {quoted(name, 'postgres')} DROP DEFAULT" for name in self._constants]
        else:
            acts = [f"ALTER {quoted(name, 'postgres')} SET NOT NULL" for name in self._required()]
        if acts:
            self.session.run(f"ALTER TABLE {backend.locate(load.name)} {', '.join(acts)}")

    def _required(self) -> list[str]:
        nullable = {c.name for c in self.load.table.columns if c.nullable}
        return [name for name in self.load.column_names if name not in nullable]

    def change(self, staged: Staged) -> Counts:
        """Nothing is left to do where the rows are in the target already."""
        if self._becomes_target:
            self.check("incoming")
        elif not isinstance(staged.handle, CopyStage):
            self._know_tables()
            return super().change(staged)
        for step in self.load.change.steps:
            self.load.announce(f"applied {step.verb}")
        return Counts(read=staged.rows, inserted=staged.rows)

    def _know_tables(self) -> None:
        """Let the planner know a table that was filled so lately that nobody has looked at it."""
        load, backend = self.load, self.backend
        if not load.change.revisions:
            return
        for table in (load.name, *([load.side.name] if load.side else [])):
            held = (table.schema or backend.default_schema, table.name)
            known = "SELECT 1 FROM pg_stats WHERE schemaname = %s AND tablename = %s LIMIT 1"
            if not self.session.rows(known, held):
                self.session.run(f"ANALYZE {backend.locate(table)}")

    def define_incoming(self, staged: Staged) -> None:
        """``incoming`` is a view over the staging table, wherever that is by now."""
        load, backend = self.load, self.backend
        if isinstance(staged.handle, CopyStage):
            return
        if self._becomes_target:
            there = self.session.rows("SELECT to_regclass(%s)", (self._stage,))[0][0]
            rows = self._stage if there else backend.locate(load.name)
            values = [quoted(c.name, "postgres") for c in load.incoming]
        elif load.run.path == "copy":
            rows, computed = self._stage, self._computed()
            values = [computed.get(n) or quoted(n, "postgres") for n in load.incoming_names]
        else:
            rows = self._stage
            values = [_unstaged(backend, c.name, c.type) for c in load.incoming]
        self.define_view(backend.incoming_select(load, rows, values))

    def changes_known(self, step: Revise) -> None:
        """Let the planner know how many rows change."""
        self.session.run(f"ANALYZE {step.changes}")

    def remove_stage(self) -> None:
        """Drop the stage, and the schema if only a dry run has made it."""
        if not self._staged:
            return
        self._end_stragglers()
        self.session.run(
            f"DROP VIEW IF EXISTS pg_temp.{quoted('incoming', 'postgres')}; "
            f"DROP TABLE IF EXISTS {self._stage}, {self._parts}"
        )
        if self._made_schema:
            self._drop_empty_schema()

    def _drop_empty_schema(self) -> None:
        with self.backend.commit_lock(self.session, creates=True):
            held = "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace(%s)"
            if not self.session.rows(held, (SCHEMA,)):
                self.session.run(f"DROP SCHEMA IF EXISTS {quoted(SCHEMA, 'postgres')}")


def _staged_type(backend: Postgres, column_type: t.ColumnType) -> str:
    return "jsonb" if isinstance(column_type, t.Array) else backend.stored_type(column_type)


def _unlimited(stored: str) -> str:
    return re.sub(r"character varying\(\d+\)", "character varying", stored)


def _unstaged(backend: Postgres, name: str, column_type: t.ColumnType) -> str:
    column = quoted(name, "postgres")
    if not isinstance(column_type, t.Array):
        return column
    stored = backend.stored_type(column_type)
    element = backend.stored_type(column_type.element)
    gathered = (
        f"(SELECT array_agg(e::{element} ORDER BY i) FROM "
        f"jsonb_array_elements_text({column}) WITH ORDINALITY AS a(e, i))"
    )
    return f"CASE WHEN {column} IS NOT NULL THEN coalesce({gathered}, '{{}}'::{stored}) END"
