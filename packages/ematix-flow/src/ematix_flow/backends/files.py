"""Files in a local folder: immutable data files, and manifests that say which of them count.

Reading lives in ``file_sources`` and ``file_queries``, landing in ``file_landing``, the formats
in ``file_options`` and ``file_formats``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from ematix_flow.backends.base import (
    Alteration,
    Backend,
    Capabilities,
    FoundColumn,
    FoundTable,
    Landing,
    LiveConnection,
    Load,
    SourceColumn,
    SourceQuery,
)
from ematix_flow.backends.file_landing import FilesLanding
from ematix_flow.backends.file_options import (
    FileFormat,
    check_file_options,
    merged_options,
    writing_format,
)
from ematix_flow.backends.file_queries import FileQuery, is_path, look_up
from ematix_flow.backends.file_sources import Store, data_files, file_errors
from ematix_flow.backends.folder_connection import FolderConnection
from ematix_flow.backends.manifest import (
    ManifestLog,
)
from ematix_flow.backends.spark_changes import SparkText
from ematix_flow.change import CURRENT, INCOMING, Counts, Replace, Revise
from ematix_flow.connections import ObjectStoreLocalConnection
from ematix_flow.errors import (
    DataError,
    EmatixError,
    Permanent,
    Unsupported,
)
from ematix_flow.model import Table, TableName
from ematix_flow.sql.spark import quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.connections import Connection
    from ematix_flow.engine.session import Engine
    from ematix_flow.model import PipelineSpec

_GOOD_BYTES = 128 << 20
_POOR_BYTES = 32 << 20


class Files(Backend):
    """A folder of tables, one subfolder each, in one file format."""

    kind: ClassVar[str] = "object_store_local"
    dialect: ClassVar[str] = "spark"
    capabilities: ClassVar[Capabilities] = Capabilities(
        verbs=frozenset({"insert", "replace", "rewrite", "revise"}),
        statements=False,
        alterations=frozenset({"rename", "drop", "retype", "relax", "add", "require"}),
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        resolved = cast(ObjectStoreLocalConnection, self.connection)
        self.format = resolved.format
        self.options = resolved.file_options()
        check_file_options(self.format, self.options)
        root = Path(os.path.abspath(Path(resolved.path or "").expanduser()))
        self.store = Store(self.name, root, self.format, self.options)

    def open(self) -> LiveConnection:
        """The folder, with Spark SQL over it."""
        return FolderConnection(
            self, self.store.root, holding="files", shown={"format": self.format}
        )

    def table_query(self, table: str, columns: Mapping[str, str] | None) -> SourceQuery:
        """``SELECT source AS target, …`` from ``schema.name``, a file, a folder or a glob."""
        name = quote(table) if is_path(table) and "`" not in table else table
        if columns is None:
            return SourceQuery(f"SELECT * FROM {name}")
        listed = ", ".join(f"{quote(theirs)} AS {quote(ours)}" for ours, theirs in columns.items())
        return SourceQuery(f"SELECT {listed} FROM {name}")

    def look_up(self, query: SourceQuery) -> FileQuery:
        """A query with its names looked up in the folder."""
        with file_errors(self.name):
            return look_up(query.sql, self.store)

    def describe(self, query: SourceQuery) -> tuple[SourceColumn, ...]:
        """The columns of a query; Spark is asked only where the files alone cannot tell."""
        from ematix_flow.engine.session import current_engine, shared_engine

        found = self.look_up(query)
        engine = current_engine()
        if engine is None or found.is_exact:
            described = found.described()
            if described is not None:
                return described
        return found.described_by((engine or shared_engine()).spark)

    def read(self, engine: Engine, query: SourceQuery) -> DataFrame:
        """The rows of a query."""
        with file_errors(self.name):
            return self.look_up(query).run(engine.spark)

    def needs_spark_to_read(self, spec: PipelineSpec) -> str | None:
        """A query is Spark SQL; a table or file that is named is read as it stands."""
        if spec.source_table is None:
            return f"its query of {self.name!r} is Spark SQL"
        try:
            found = self.look_up(self.table_query(spec.source_table, None))
        except EmatixError:
            return None  # the run says what is wrong
        return next(filter(None, (r.needs_spark() for r in found.relations.values())), None)

    def has_plain_numbers(self, spec: PipelineSpec) -> bool:
        """Only CSV files have been looked through."""
        found = self.look_up(self.table_query(spec.source_table or "", None))
        return all(relation.has_plain_numbers for relation in found.relations.values())

    def check_table(self, table: Table) -> None:
        """Refuse a declared table that these files cannot hold."""
        super().check_table(table)
        for name in table.column_names:
            if self.format == "orc" and "`" in name:
                raise Unsupported(
                    f"ORC files cannot hold a column with a backtick in its name: {name!r}",
                    fix="rename it, or use another format",
                )

    def folder(self, name: TableName, prefix: str | None) -> Path:
        """Where a table's files are."""
        return self.store.target_folder(name, prefix, called="a folder of files")

    def locate(self, name: TableName, prefix: str | None) -> str:
        """The table's folder."""
        return str(self.folder(name, prefix))

    def inspect(self, name: TableName, prefix: str | None = None) -> FoundTable | None:
        """The table as its newest manifest, or else its files, describe it."""
        folder = self.folder(name, prefix)
        with file_errors(self.name):
            manifest = ManifestLog(folder).newest()
            if manifest is not None:
                stored = manifest.columns
                return FoundTable(
                    tuple(FoundColumn(c.name, c.type, str(c.type), c.nullable) for c in stored),
                    manifest.primary_key,
                )
            if folder.is_file():
                raise Permanent(
                    f"{folder} is a file, not a folder",
                    connection=self.name,
                    fix="move it away, or correct path=",
                )
            if not folder.is_dir() or not data_files(folder):
                return None
            plain = self.store.folder(folder).columns
        return FoundTable(tuple(FoundColumn(c.name, c.type, str(c.type), True) for c in plain))

    def written_as(self, load: Load) -> FileFormat:
        """How a load's files are written."""
        options = merged_options(self.options, load.files)
        return writing_format(self.format, options, load.column_names)

    def ddl(self, load: Load) -> list[str]:
        """A folder needs no statement; the comment says what will appear."""
        form = self.written_as(load)
        where = self.locate(load.name, load.prefix)
        if not load.creates:
            return self.alter(load)
        return [f"-- creates the folder {where} of {form.format} files"]

    def alter(self, load: Load) -> list[str]:
        """What becomes of the folder's columns, as Spark would be told."""
        where = f"`{self.locate(load.name, load.prefix)}`"
        return [f"ALTER TABLE {where} {_alteration(a)}" for a in load.alterations]

    def steps_sql(self, load: Load, incoming: str) -> list[str]:
        """The change as Spark SQL, and which files it rewrites."""
        where = f"`{self.locate(load.name, load.prefix)}`"
        change = SparkText(load, {INCOMING: INCOMING, CURRENT: where})
        made = [f"-- {INCOMING} is {incoming}"]
        for name, query in load.change.derived.items():
            made.append(f"CREATE TEMPORARY VIEW {name} AS {change.text(query)}")
        for step in load.change.steps:
            if isinstance(step, Revise):
                made.append(f"CREATE TEMPORARY VIEW {step.changes} AS {change.text(step.rows)}")
                made.append(f"-- files of {step.relation} with changed rows are written anew")
            else:
                verb = "INSERT OVERWRITE" if isinstance(step, Replace) else "INSERT INTO"
                made.append(f"{verb} {where} {change.text(step.rows)}")
        return made

    def land(self, load: Load) -> Landing:
        """One run's way into the table's folder."""
        missing = load.change.verbs - self.capabilities.verbs
        if missing:
            raise Unsupported(
                f"{self.kind} cannot {', '.join(sorted(missing))} rows",
                fix="use mode='append' or mode='truncate'",
            )
        folder = self.folder(load.name, load.prefix)
        return FilesLanding(self.store, load, folder=folder, form=self.written_as(load))

    def committed(self, run_id: str, name: TableName, prefix: str | None = None) -> Counts | None:
        """What the manifest of a run says it did."""
        with file_errors(self.name):
            manifest = ManifestLog(self.folder(name, prefix)).of_run(run_id)
        return None if manifest is None else manifest.counts

    def settle(
        self, run_id: str, pipeline: str, name: TableName, prefix: str | None = None
    ) -> Counts | None:
        """Look a dead run up; if it never committed, take its stage away so that it never will."""
        with file_errors(self.name):
            log = ManifestLog(self.folder(name, prefix))
            manifest = log.of_run(run_id) or log.fence_off(run_id)
            return None if manifest is None else manifest.counts

    def watermarks(
        self, pipeline: str, name: TableName, prefix: str | None = None
    ) -> dict[str, str]:
        """The watermarks in the newest manifest."""
        with file_errors(self.name):
            newest = ManifestLog(self.folder(name, prefix)).newest()
        return dict(newest.watermarks.get(pipeline, {})) if newest else {}

    def set_watermark(
        self,
        pipeline: str,
        name: TableName,
        column: str,
        value: str | None,
        prefix: str | None = None,
    ) -> None:
        """A manifest with the same files and another watermark."""
        with file_errors(self.name):
            log = ManifestLog(self.folder(name, prefix))
            if log.newest() is None:
                raise DataError(
                    f"there is no table {name} to keep a watermark for", fix="load it first"
                )
            log.set_watermark(pipeline, column, value)

    def applied(
        self, batches: Sequence[str], name: TableName, prefix: str | None = None
    ) -> set[str]:
        """Which batches the newest manifest lists."""
        with file_errors(self.name):
            newest = ManifestLog(self.folder(name, prefix)).newest()
        return set(batches) & set(newest.batches) if newest else set()

    def pipelines(self, name: TableName, prefix: str | None = None) -> set[str]:
        """The pipelines whose commits the newest manifest counts."""
        with file_errors(self.name):
            newest = ManifestLog(self.folder(name, prefix)).newest()
        return set(newest.fences) if newest else set()


def _alteration(alteration: Alteration) -> str:
    column, kind = quote(alteration.column), alteration.type
    acts = {
        "rename": f"RENAME COLUMN {quote(alteration.before)} TO {column}",
        "drop": f"DROP COLUMN {column}",
        "retype": f"ALTER COLUMN {column} TYPE {spark_ddl(kind) if kind else ''}",
        "relax": f"ALTER COLUMN {column} DROP NOT NULL",
        "add": f"ADD COLUMN {column} {spark_ddl(kind) if kind else ''}",
        "require": f"ALTER COLUMN {column} SET NOT NULL",
    }
    return acts[alteration.act]
