"""Delta Lake tables in a local folder: read, landed and merged by Delta itself.

What the log says without Spark lives in ``delta_log``, names and paths in ``delta_sources``, the
way of a run in ``delta_landing``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from ematix_flow.backends.base import (
    Backend,
    Capabilities,
    FoundTable,
    Landing,
    LiveConnection,
    Load,
    SourceColumn,
    SourceQuery,
)
from ematix_flow.backends.delta_alterations import alteration_sql
from ematix_flow.backends.delta_landing import (
    SETTLED,
    DeltaLanding,
    commit_lock,
    epoch_of,
    side_version_of,
)
from ematix_flow.backends.delta_log import OWN_FOLDER, DeltaLog, Record, Snapshot
from ematix_flow.backends.delta_sources import (
    DeltaStore,
    found_table,
    table_path,
    with_versions,
)
from ematix_flow.backends.delta_writes import PROPERTIES, merge_sql
from ematix_flow.backends.file_queries import FileQuery, is_path, look_up
from ematix_flow.backends.file_sources import file_errors
from ematix_flow.backends.folder_connection import FolderConnection
from ematix_flow.backends.spark_changes import SparkText
from ematix_flow.change import CURRENT, INCOMING, SIDE, Counts, Replace, Revise, Rewrite
from ematix_flow.connections import DeltaLocalConnection
from ematix_flow.errors import ConfigError, DataError, Permanent, Unsupported
from ematix_flow.model import FileOptions, Table, TableName
from ematix_flow.sql.spark import literal, quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlglot import exp

    from ematix_flow.connections import Connection
    from ematix_flow.engine.session import Engine


class Delta(Backend):
    """A folder of Delta tables, one subfolder each."""

    kind: ClassVar[str] = "delta_local"
    dialect: ClassVar[str] = "spark"
    capabilities: ClassVar[Capabilities] = Capabilities(
        verbs=frozenset({"insert", "replace", "rewrite", "revise"}),
        alterations=frozenset({"rename", "drop", "retype", "relax", "add", "require"}),
        statements=False,
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        path = cast(DeltaLocalConnection, self.connection).path
        root = Path(os.path.abspath(Path(path or "").expanduser()))
        self.store = DeltaStore(self.name, root, "delta", FileOptions())

    def open(self) -> LiveConnection:
        """The folder, with Spark SQL over it."""
        return FolderConnection(self, self.store.root, holding="Delta tables")

    def table_query(self, table: str, columns: Mapping[str, str] | None) -> SourceQuery:
        """``SELECT source AS target, …`` from ``schema.name`` or the path of a table."""
        name = quote(table) if is_path(table) and "`" not in table else table
        if columns is None:
            return SourceQuery(f"SELECT * FROM {name}")
        listed = ", ".join(f"{quote(theirs)} AS {quote(ours)}" for ours, theirs in columns.items())
        return SourceQuery(f"SELECT {listed} FROM {name}")

    def look_up(self, query: SourceQuery) -> FileQuery:
        """A query with its names looked up in the folder."""
        with file_errors(self.name):
            return look_up(with_versions(query.sql, self.store), self.store)

    def describe(self, query: SourceQuery) -> tuple[SourceColumn, ...]:
        """The columns of a query; Spark is asked only where the log alone cannot tell."""
        from ematix_flow.engine.session import current_engine, shared_engine

        found = self.look_up(query)
        engine = current_engine()
        if engine is None or found.is_exact:
            described = found.described()
            if described is not None:
                return described
        return found.described_by((engine or shared_engine()).delta_session())

    def read(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """The rows of a query."""
        with file_errors(self.name):
            return self.look_up(query).run(engine.delta_session())

    def folder(self, name: TableName, prefix: str | None) -> Path:
        """Where a table is."""
        return self.store.target_folder(name, prefix, called="a Delta table's folder")

    def locate(self, name: TableName, prefix: str | None) -> str:
        """The table's folder."""
        return str(self.folder(name, prefix))

    def inspect(self, name: TableName, prefix: str | None = None) -> FoundTable | None:
        """The table as its log describes it."""
        folder = self.folder(name, prefix)
        with file_errors(self.name):
            if folder.is_file():
                raise Permanent(
                    f"{folder} is a file, not a folder",
                    connection=self.name,
                    fix="move it away, or correct path=",
                )
            snapshot = DeltaLog(folder).snapshot()
        return None if snapshot is None else found_table(snapshot)

    def inspect_side(self, side: Table, name: TableName, prefix: str | None) -> FoundTable | None:
        """The part of the side table that counts, as it exists now."""
        log = self._log(name, prefix)
        beside = DeltaLog(self._side_folder(side, name, prefix))
        with file_errors(self.name):
            version = side_version_of(beside, log.newest_record(log.snapshot()))
            snapshot = None if version is None else beside.snapshot(at=version)
        return None if snapshot is None else found_table(snapshot)

    def ddl(self, load: Load) -> list[str]:
        """What the commit creates or alters, as Delta would be told."""
        self._refuse_file_options(load)
        if not load.creates:
            return self.alter(load)
        columns = ",\n  ".join(f"{quote(n)} {spark_ddl(kind)}" for n, kind in load.columns)
        properties = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in PROPERTIES.items())
        where = table_path(self.folder(load.name, load.prefix))
        return [f"CREATE TABLE {where} (\n  {columns}\n) USING delta TBLPROPERTIES ({properties})"]

    def alter(self, load: Load) -> list[str]:
        """The load's alterations; what cannot be told apart from a commit is part of it."""
        table = self.folder(load.name, load.prefix)
        folders = {CURRENT: table, SIDE: self.side_folder(load)}
        return [alteration_sql(table_path(folders[a.relation]), a) for a in load.alterations]

    def _refuse_file_options(self, load: Load) -> None:
        for name in load.files.set_fields():
            raise ConfigError(
                f"{name} is an option of file targets, and {self.name!r} holds Delta tables",
                fix="remove it",
            )

    def steps_sql(self, load: Load, incoming: str) -> list[str]:
        """The change as Spark SQL."""
        where = table_path(self.folder(load.name, load.prefix))
        beside = table_path(self.side_folder(load))
        change = SparkText(load, {CURRENT: where, SIDE: beside})
        made = [f"-- {INCOMING} is {incoming}"]
        for name, query in load.change.derived.items():
            made.append(f"CREATE TEMPORARY VIEW {name} AS {change.text(query)}")
        for step in load.change.steps:
            rows = change.text(step.rows)
            if isinstance(step, Revise):
                target = where if step.relation == CURRENT else beside
                columns = [name for name, _ in load.columns_of(step.relation)]
                acts = {effect.act for effect in step.effects.values()}
                made.append(f"CREATE TEMPORARY VIEW {step.changes} AS {rows}")
                made.append(merge_sql(target, step, columns, acts, source=step.changes))
            elif isinstance(step, Rewrite):
                held = change.text(cast("exp.Query", step.where))
                made.append(f"INSERT INTO {where} REPLACE WHERE {held} {rows}")
            else:
                verb = "INSERT OVERWRITE" if isinstance(step, Replace) else "INSERT INTO"
                made.append(f"{verb} {where} {rows}")
        return made

    def side_folder(self, load: Load) -> Path:
        """Where the table is that is kept beside the load's."""
        return self._side_folder(load.side, load.name, load.prefix)

    def _side_folder(self, side: Table | None, name: TableName, prefix: str | None) -> Path:
        # Tables of one name may be in several places, each by its own prefix.
        if side is None or prefix is not None:
            return self.folder(name, prefix) / OWN_FOLDER / "side"
        return self.folder(side.name, None)

    def land(self, load: Load) -> Landing:
        """One run's way into the table's folder."""
        self._refuse_file_options(load)
        missing = load.change.verbs - self.capabilities.verbs
        if missing:
            raise Unsupported(f"{self.kind} cannot {', '.join(sorted(missing))} rows")
        folder = self.folder(load.name, load.prefix)
        return DeltaLanding(self.name, load, folder=folder, side_folder=self.side_folder(load))

    def _log(self, name: TableName, prefix: str | None) -> DeltaLog:
        return DeltaLog(self.folder(name, prefix))

    def committed(self, run_id: str, name: TableName, prefix: str | None = None) -> Counts | None:
        """What the commit of a run says it did."""
        with file_errors(self.name):
            record = self._log(name, prefix).of_run(run_id)
        return None if record is None else record.counts

    def settle(
        self, run_id: str, pipeline: str, name: TableName, prefix: str | None = None
    ) -> Counts | None:
        """Look a dead run up; if it never committed, take its epoch so that it never will."""
        log = self._log(name, prefix)
        with file_errors(self.name):
            if not log.own_folder.exists():
                return None
            with commit_lock(log):
                done = log.of_run(run_id)
                if done is not None:
                    return done.counts
                stage = log.stage_root / run_id
                if stage.is_dir():
                    (stage / SETTLED).touch()
                if log.snapshot() is not None:
                    self._note(log, lambda s, r: _fenced_off(pipeline, s, r), fence=pipeline)
        return None

    def _note(
        self, log: DeltaLog, change: Callable[[Snapshot, Record], Record], *, fence: str | None
    ) -> None:
        while True:
            snapshot = log.snapshot()
            if snapshot is None:
                return
            if log.note(snapshot, change(snapshot, log.newest_record(snapshot)), fence=fence):
                return

    def watermarks(
        self, pipeline: str, name: TableName, prefix: str | None = None
    ) -> dict[str, str]:
        """The watermarks that commits have left in the log."""
        log = self._log(name, prefix)
        with file_errors(self.name):
            return dict(log.newest_record(log.snapshot()).watermarks.get(pipeline, {}))

    def set_watermark(
        self,
        pipeline: str,
        name: TableName,
        column: str,
        value: str | None,
        prefix: str | None = None,
    ) -> None:
        """Write or forget a watermark, by a commit without data."""
        log = self._log(name, prefix)

        def moved(snapshot: Snapshot, record: Record) -> Record:
            own = dict(record.watermarks.get(pipeline, {}))
            own.pop(column, None)
            if value is not None:
                own[column] = value
            watermarks = {**record.watermarks, pipeline: own}
            return replace(record, run={}, counts=Counts(), watermarks=watermarks)

        with file_errors(self.name):
            if log.snapshot() is None:
                raise DataError(
                    f"there is no table {log.table_folder} yet that could keep a watermark",
                    fix="load it once",
                )
            with commit_lock(log):
                self._note(log, moved, fence=None)

    def applied(
        self, batches: Sequence[str], name: TableName, prefix: str | None = None
    ) -> set[str]:
        """Which batches the newest of our commits lists."""
        log = self._log(name, prefix)
        with file_errors(self.name):
            return set(batches) & set(log.newest_record(log.snapshot()).batches)

    def pipelines(self, name: TableName, prefix: str | None = None) -> set[str]:
        """The pipelines whose commits the newest of our commits counts."""
        log = self._log(name, prefix)
        with file_errors(self.name):
            return set(log.newest_record(log.snapshot()).fences)


def _fenced_off(pipeline: str, snapshot: Snapshot, record: Record) -> Record:
    epoch = epoch_of(pipeline, snapshot, record) + 1
    return replace(record, run={}, counts=Counts(), fences={**record.fences, pipeline: epoch})
