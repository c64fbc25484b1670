"""The commits that Delta makes for us, each with our record and, where there is one, a fence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.delta_alterations import HeldColumn
from ematix_flow.backends.delta_changes import EVERYTHING, Revision, Rows
from ematix_flow.backends.delta_log import PRIMARY_KEY, type_metadata
from ematix_flow.backends.delta_sources import table_path
from ematix_flow.change import OPERATION, Revise
from ematix_flow.model import Table
from ematix_flow.sql.spark import literal, quote
from ematix_flow.types import ColumnType

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession

_GOOD_BYTES = 128 << 20
_SETTINGS = "spark.databricks.delta"
_SOURCE = "ematix_changes"
# Any name may be a column's; columns can be renamed, dropped and widened without a rewrite. The
# bookkeeping is in the commits, so that these are kept for as long as anyone may need them.
PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.enableTypeWidening": "true",
    "delta.logRetentionDuration": "interval 3650 days",
}


@dataclass(frozen=True)
class Commit:
    """What a commit says besides its rows: an epoch that Delta takes only once, and our record."""

    fence: str | None
    epoch: int
    record: str


def create(
    rows: Rows,
    folder: Path,
    table: Table,
    columns: Sequence[tuple[str, ColumnType]],
    commit: Commit,
) -> None:
    """Create a table with its first rows."""
    typed = _noted(rows, {name: type_metadata(kind) for name, kind in columns})
    properties = {**PROPERTIES, PRIMARY_KEY: json.dumps(list(table.primary_key))}
    writer = _writer(typed, commit).mode("error").options(**properties)
    _save(writer, folder, rows)


def rewrite(
    rows: Rows, folder: Path, columns: Sequence[HeldColumn], commit: Commit, *, parts: Sequence[str]
) -> None:
    """Write a table anew, with other columns."""
    typed = _noted(rows, {c.name: c.metadata for c in columns})
    writer = _writer(typed, commit).mode("overwrite").option("overwriteSchema", True)
    _save(writer.partitionBy(*parts) if parts else writer, folder, rows)


def insert(
    rows: Rows, folder: Path, commit: Commit, *, added: Mapping[str, ColumnType] | None = None
) -> None:
    """Add rows, and with them the columns that the table does not have yet."""
    if added:
        notes = {n: type_metadata(added[n]) if n in added else {} for n in rows.frame.columns}
        rows = _noted(rows, notes)
    writer = _writer(rows, commit).mode("append").option("mergeSchema", bool(added))
    writer.save(f"file:{folder}")


def _noted(rows: Rows, notes: Mapping[str, Mapping[str, Any]]) -> Rows:
    from pyspark.sql import functions as F

    columns = [F.col(quote(n)).alias(n, metadata=dict(note)) for n, note in notes.items()]
    return replace(rows, frame=rows.frame.select(*columns))


def _save(writer: DataFrameWriter, folder: Path, rows: Rows) -> None:
    """Of no rows Spark still writes a file, which no commit mentions."""
    before = set() if rows.count else set(_data_files(folder))
    writer.save(f"file:{folder}")
    for file in _data_files(folder) if not rows.count else ():
        if file not in before:
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                file.parent.rmdir()


def _data_files(folder: Path) -> list[Path]:
    found = folder.rglob("*.parquet") if folder.is_dir() else ()
    return [file for file in found if not file.relative_to(folder).parts[0].startswith("_")]


def overwrite(
    spark: SparkSession, rows: Rows, folder: Path, commit: Commit, *, where: str = EVERYTHING
) -> None:
    """Put rows in the place of all others, or of those that a condition names."""
    writer = _writer(rows, commit).mode("overwrite")
    if where != EVERYTHING:
        spark.conf.set(f"{_SETTINGS}.replaceWhere.constraintCheck.enabled", "false")
        writer = writer.option("replaceWhere", where)
    writer.save(f"file:{folder}")


def _writer(rows: Rows, commit: Commit) -> DataFrameWriter:
    files = max(1, -(-rows.bytes // _GOOD_BYTES))
    writer = rows.frame.coalesce(files).write.format("delta").option("userMetadata", commit.record)
    if commit.fence is None:
        return writer
    return writer.option("txnAppId", commit.fence).option("txnVersion", commit.epoch)


def merge(
    spark: SparkSession,
    folder: Path,
    revision: Revision,
    columns: Sequence[tuple[str, ColumnType]],
    commit: Commit,
) -> None:
    """Apply a change set."""
    text = merge_sql(table_path(folder), revision.step, [n for n, _ in columns], revision.acts)
    before, after = text.replace("{", "{{").replace("}", "}}").split(_SOURCE)
    with _said(spark, commit):
        spark.sql(f"{before}{{changes}}{after}", changes=revision.changes)


def delete(spark: SparkSession, folder: Path, commit: Commit, *, where: str) -> None:
    """Take rows away."""
    with _said(spark, commit):
        spark.sql(f"DELETE FROM {table_path(folder)} WHERE {where}")


@contextlib.contextmanager
def _said(spark: SparkSession, commit: Commit) -> Iterator[None]:
    """Statements take no options; the session's settings are this commit's alone."""
    said = {"commitInfo.userMetadata": commit.record}
    if commit.fence is not None:
        said |= {"write.txnAppId": commit.fence, "write.txnVersion": str(commit.epoch)}
    for name, value in said.items():
        spark.conf.set(f"{_SETTINGS}.{name}", value)
    yield
    for name in said:
        spark.conf.unset(f"{_SETTINGS}.{name}")


def merge_sql(
    target: str,
    step: Revise,
    columns: Sequence[str],
    acts: Collection[str],
    *,
    source: str = _SOURCE,
) -> str:
    """``MERGE INTO`` for a change set that does these things."""
    same = " AND ".join(f"t.{quote(c)} = s.{quote(c)}" for c in step.identity)
    sets = ", ".join(f"{quote(c)} = s.{quote(c)}" for c in columns if c not in step.identity)
    listed, values = (", ".join(f"{of}{quote(c)}" for c in columns) for of in ("", "s."))
    clauses = {
        "delete": ("MATCHED", "DELETE"),
        "update": ("MATCHED", f"UPDATE SET {sets}"),
        "insert": ("NOT MATCHED", f"INSERT ({listed}) VALUES ({values})"),
    }
    made = []
    for act, (when, then) in clauses.items():
        names = ", ".join(literal(name) for name in step.operations(act))
        if names and act in acts:
            made.append(f"WHEN {when} AND s.{OPERATION} IN ({names}) THEN {then}")
    return f"MERGE INTO {target} AS t USING {source} AS s ON {same} {' '.join(made)}"


def restore(spark: SparkSession, folder: Path, version: int) -> None:
    """Take a table back to what it was after a commit."""
    spark.sql(f"RESTORE TABLE {table_path(folder)} TO VERSION AS OF {version}")
