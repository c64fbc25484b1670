"""Small loads into a folder of files, for the tests of that backend."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import Load, RunRow, SourceQuery
from ematix_flow.backends.files import Files
from ematix_flow.change import Change, Counts
from ematix_flow.connections import ObjectStoreLocalConnection
from ematix_flow.model import Column, FileOptions, LoadOptions, Table, TableName
from ematix_flow.modes.base import load_mode
from ematix_flow.sql.spark import quote, spark_ddl
from ematix_flow.types import BigInt, ColumnType, Text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine

NAME = TableName("shop", "orders")
COLUMNS: tuple[tuple[str, ColumnType], ...] = (("id", BigInt()), ("note", Text()))
_run_numbers = itertools.count(1)


def store(root: Path, format: str = "parquet", **options: Any) -> Files:
    return Files(ObjectStoreLocalConnection(name="lake", path=str(root), format=format, **options))


def load(
    mode: str = "append",
    *,
    columns: Sequence[tuple[str, ColumnType]] = COLUMNS,
    name: TableName = NAME,
    change: Change | None = None,
    pipeline: str = "copy",
    announce: Callable[[str], None] = lambda point: None,
    prefix: str | None = None,
    allow_empty: bool = False,
    **files: Any,
) -> Load:
    table = Table(name, tuple(Column(type=kind, name=column) for column, kind in columns))
    names = [column for column, _ in columns]
    options = LoadOptions(allow_empty=allow_empty)
    chosen = load_mode(mode)
    shape = chosen.shape(table, options)
    now = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)
    return Load(
        table=table,
        name=name,
        columns=tuple(columns),
        incoming=shape.incoming,
        change=change or chosen.plan(shape, names, options, None),
        run=RunRow(f"run-{os.getpid()}-{next(_run_numbers)}", pipeline, mode, "spark", now, now),
        creates=True,
        files=FileOptions(**files),
        prefix=prefix,
        announce=announce,
    )


def frame(
    engine: Engine,
    rows: Iterable[Sequence[Any]],
    columns: Sequence[tuple[str, ColumnType]] = COLUMNS,
) -> DataFrame:
    ddl = ", ".join(f"{quote(name)} {spark_ddl(kind)}" for name, kind in columns)
    return engine.spark.createDataFrame([tuple(row) for row in rows], ddl)


def land(
    files: Files, engine: Engine, asked: Load, rows: Iterable[Sequence[Any]], *, keep: bool = True
) -> Counts:
    with files.land(asked) as landing:
        staged = landing.stage(engine, frame(engine, rows, asked.columns))
        return landing.commit(staged, keep=keep)


def rows_of(files: Files, engine: Engine, sql: str = "SELECT * FROM shop.orders") -> list[Any]:
    return [tuple(row) for row in files.read(engine, SourceQuery(sql)).collect()]


def everything_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def data_names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file())
