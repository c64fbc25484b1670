"""What a name or path in a query over Delta tables stands for, and how Spark reads it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.base import FoundColumn, FoundTable, SourceColumn
from ematix_flow.backends.delta_log import LOG_FOLDER, DeltaLog, Snapshot
from ematix_flow.backends.file_queries import is_path
from ematix_flow.backends.file_sources import Relation, Store
from ematix_flow.errors import Permanent, Unsupported
from ematix_flow.sql.identifiers import bare, parse_query
from ematix_flow.sql.spark import quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VERSIONED = re.compile(r"(?P<path>.+)@v(?P<version>\d+)")
_AS_OF = re.compile(r"\s+(?:FOR\s+)?(?:SYSTEM_)?VERSION\s+AS\s+OF\s+(?P<version>\d+)", re.I)


@dataclass(frozen=True)
class DeltaStore(Store):
    """The folder behind a connection; every folder in it that has a log is a table."""

    def folder(self, folder: Path, *, format: str | None = None) -> Relation:
        """The table in a folder."""
        snapshot = DeltaLog(folder).snapshot() if format is None else None
        if snapshot is None:
            raise Permanent(
                f"the folder {folder} is no Delta table: it has no {LOG_FOLDER}",
                connection=self.name,
                fix=self._hint(folder.parent),
            )
        return relation(folder, snapshot)

    def path(self, text: str, *, format: str | None = None) -> Relation:
        """A table by its folder, absolute or below the root; ``@v3`` asks for its version 3."""
        named = _VERSIONED.fullmatch(text)
        if named is None:
            return super().path(text, format=format)
        folder, version = self.root / named["path"], int(named["version"])
        log = DeltaLog(folder)
        snapshot = log.snapshot(at=version) if version in log.versions() else None
        if snapshot is None:
            raise Permanent(
                f"table {folder} has no version {version} that can still be read",
                connection=self.name,
                fix="look at its history, or read it as it is now",
            )
        return relation(folder, snapshot)

    def plain(self, files: Sequence[Path], *, format: str | None = None) -> Relation:
        """Refused: a file of a table is not its rows."""
        raise Unsupported(
            f"{files[0]} is a file, and connection {self.name!r} reads Delta tables",
            fix="name a table's folder, or read files through an object_store_local connection",
        )


def with_versions(sql: str, store: DeltaStore) -> str:
    """A query in which ``table VERSION AS OF 3`` is written as the path of that version."""
    text = bare(sql, "spark")
    done, at = "", 0
    tables = [t for t in parse_query(text, "spark").find_all(exp.Table) if t.args.get("version")]
    for table in sorted(tables, key=lambda t: int(t.parts[0].meta["start"])):
        parts = [part.name for part in table.parts]
        found = _AS_OF.match(text, table.parts[-1].meta["end"] + 1)
        if found is None:
            raise Unsupported(
                f"{'.'.join(parts)} is asked for as it was at some time",
                fix="name a version: VERSION AS OF 3",
            )
        path = parts[0] if is_path(parts[0]) else str(store.table_folder(parts))
        alias = "" if table.alias else f" AS {quote(parts[-1])}"
        done += text[at : table.parts[0].meta["start"]]
        done += quote(f"{path}@v{found['version']}") + alias
        at = found.end()
    return done + text[at:]


def relation(folder: Path, snapshot: Snapshot) -> Relation:
    """A table as it is in a snapshot."""
    columns = []
    for column in snapshot.columns:
        if column.type is None:
            raise Unsupported(
                f"column {column.name!r} of {folder} has type {column.stored}, which no column "
                "type stands for",
                fix="leave it out by reading a view of the table made elsewhere",
            )
        columns.append(SourceColumn(column.name, column.type))

    def load(spark: SparkSession) -> DataFrame:
        return load_version(spark, folder, snapshot.version)

    return Relation(tuple(columns), load)


def found_table(snapshot: Snapshot) -> FoundTable:
    """A table as its log describes it."""
    columns = tuple(
        FoundColumn(
            c.name,
            c.type,
            c.stored if c.type is None or spark_ddl(c.type) != c.stored else str(c.type),
            c.nullable,
        )
        for c in snapshot.columns
    )
    return FoundTable(columns, snapshot.primary_key)


def load_version(spark: SparkSession, folder: Path, version: int) -> DataFrame:
    """The rows of a table as they were after a commit."""
    return spark.read.format("delta").option("versionAsOf", version).load(f"file:{folder}")


def table_path(folder: Path) -> str:
    """A table's folder as Spark SQL names it."""
    return f"delta.{quote(f'file:{folder}')}"
