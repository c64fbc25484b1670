"""What a run reads: the query or DataFrame a pipeline's function gives, and its columns."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlglot import tokenize

from ematix_flow.backends.base import Backend, SourceColumn, SourceQuery
from ematix_flow.connections import nearest
from ematix_flow.engine.failures import translate
from ematix_flow.engine.session import shared_engine
from ematix_flow.errors import DataError, EmatixError, Transient
from ematix_flow.model import Column, PipelineSpec, Table, TargetSpec
from ematix_flow.normalize.expressions import Derive
from ematix_flow.run.function import call_function
from ematix_flow.run.row_conditions import named_by_deletes
from ematix_flow.sql.identifiers import bare, column_list, quoted, require_query
from ematix_flow.sql.spark import as_form, from_spark, quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.session import Engine

logger = logging.getLogger(__name__)

_held: ContextVar[list[Callable[[], object]] | None] = ContextVar("held_rows", default=None)


@dataclass(frozen=True)
class Reading:
    """The source of a run: exactly one of ``query`` and ``frame`` is there.

    ``transform`` is the pipeline's ``transform_sql``; ``aliases`` name columns of the source as
    a target names them; ``described`` are the columns after both. ``mapped`` is set where the
    query itself names the columns as the only target does; ``whole`` is the query before a target
    left out what it does not load.
    """

    source: Backend
    query: SourceQuery | None
    frame: DataFrame | None
    described: tuple[SourceColumn, ...]
    transform: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    mapped: bool = False
    whole: SourceQuery | None = None
    shared: DataFrame | None = None

    def rows(self, engine: Engine) -> DataFrame:
        """The rows, each column in the Spark form of its type, under the target's names."""
        read = self.read(engine) if self.shared is None else self.shared
        if not self.aliases:
            return read
        given = {c.name: self.aliases.get(c.name, c.name) for c in self.described}
        return read.selectExpr(*(f"{quote(old)} AS {quote(new)}" for new, old in given.items()))

    def read(self, engine: Engine) -> DataFrame:
        """The rows that all targets have in common."""
        if self.frame is not None:
            rows = _in_forms(self.frame)
        else:
            rows = self.source.read(engine, required(self.query))
            if self.mapped:
                # DuckDB leaves out an alias that differs from its column in letters only.
                rows = rows.toDF(*(c.name for c in self.described))
        return rows if self.transform is None else _in_forms(transformed(rows, self.transform))

    def over(self, query: SourceQuery) -> Reading:
        """The same source, read by a query for a part of its rows."""
        return dataclasses.replace(self, query=query, whole=self.whole or self.query)

    def named_for(self, target: TargetSpec) -> Reading:
        """The same source under the names that a target's ``column_map`` gives."""
        if self.mapped:
            return self
        mapped = {new: old for new, old in target.column_map.items() if new != old}
        held = {c.name: c for c in self.described}
        for old in mapped.values():
            if old not in held:
                raise DataError(
                    f"column_map names {old!r}, which is not a column of the source",
                    fix=nearest(old, held),
                )
        renamed = {new: dataclasses.replace(held[old], name=new) for new, old in mapped.items()}
        columns = tuple((held | renamed).values())
        return dataclasses.replace(self, aliases=mapped, described=columns) if mapped else self

    def relation(self, dialect: str) -> str:
        """The source as something to select from inside its own database."""
        held = self.source.subquery(required(self.query))
        if not self.aliases:
            return held
        kept = [c.name for c in self.described if c.name not in self.aliases]
        items = [column_list(kept, dialect)] if kept else []
        items += [f"{quoted(o, dialect)} AS {quoted(n, dialect)}" for n, o in self.aliases.items()]
        return f"(SELECT {', '.join(items)} FROM {held}) AS {quoted('renamed', dialect)}"


@contextlib.contextmanager
def holding_rows() -> Iterator[None]:
    """Keep views and persisted rows that this thread makes until the block ends."""
    held: list[Callable[[], object]] = []
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)
        for release in reversed(held):
            try:
                release()
            except Exception as error:  # noqa: BLE001 - the run has ended, well or not
                logger.debug("rows kept by Spark could not be given back: %s", error)


def persisted(rows: DataFrame) -> DataFrame:
    """The same rows, computed once and kept on disk until the run ends."""
    from pyspark import StorageLevel

    if shared_engine().kind == "spark-connect":
        # There a plan is made anew for every use, and uuid() or rand() in it would differ.
        return rows.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    kept = rows.persist(StorageLevel.DISK_ONLY)
    held = _held.get()
    if held is not None:
        held.append(kept.unpersist)
    return kept


def transformed(rows: DataFrame, sql: str) -> DataFrame:
    """A query over the view ``source``, which only this query sees."""
    spark: SparkSession = rows.sparkSession
    view = f"ematix_source_{uuid4().hex}"
    rows.createTempView(view)
    held = _held.get()
    if held is not None:
        held.append(lambda: spark.catalog.dropTempView(view))
    try:
        result = spark.sql(_with_source(sql, view))
        result.schema  # noqa: B018 - over Connect only this finds what is wrong with the query
    except Exception as error:
        known = translate(error)
        known.what = f"transform_sql=: {known.what}"
        raise known from error
    return result


def _with_source(sql: str, view: str) -> str:
    """Let ``source`` be the view, in front of what the query itself defines."""
    query = bare(sql, "spark")
    source = f"source AS (SELECT * FROM {quote(view)})"
    words = tokenize(query, read="spark")
    if not words or words[0].text.upper() != "WITH":
        return f"WITH {source} {query}"
    last = words[1] if len(words) > 1 and words[1].text.upper() == "RECURSIVE" else words[0]
    return f"{query[: last.end + 1]} {source}, {query[last.end + 1 :]}"


def _in_forms(frame: DataFrame) -> DataFrame:
    forms = [f"{as_form(f.name, f.dataType)} AS {quote(f.name)}" for f in frame.schema.fields]
    return frame.selectExpr(*forms)


def read_plan(
    spec: PipelineSpec,
    tables: Sequence[Table],
    *,
    source: Backend,
    givers: Mapping[str, Callable[[], Any]],
) -> Reading:
    """Ask the pipeline's function what to read; its rows stay where they are."""
    reading = _asked(spec, tables, source, call_function(spec, givers))
    if spec.transform_sql is None:
        return reading
    require_query(spec.transform_sql, "spark")
    result = transformed(_without_rows(reading), spec.transform_sql)
    described = columns_of(result, "transform_sql=")
    return dataclasses.replace(reading, transform=spec.transform_sql, described=described)


def _asked(spec: PipelineSpec, tables: Sequence[Table], source: Backend, returned: Any) -> Reading:
    if isinstance(returned, str):
        require_query(returned, source.dialect)
        query = SourceQuery(returned)
        return Reading(source, query, None, source.describe(query))
    if returned is not None:
        return Reading(source, None, returned, columns_of(returned))
    columns = {c.name: c for table in tables for c in table.columns}
    first = spec.targets[0]
    deletes = named_by_deletes(first.options)
    whole = (
        len(tables) > 1
        or spec.transform_sql is not None
        or bool(spec.transforms_pre)
        or any(derived(c) for c in columns.values())
        or (first.options.delete_when is not None and not deletes)
    )
    table = spec.source_table or ""
    if whole:
        query = source.table_query(table, None)
        return Reading(source, query, None, source.describe(query))
    names = {name: first.column_map.get(name, name) for name in columns}
    names |= {name: name for name in deletes if name not in names}
    query = source.table_query(table, names)
    return Reading(source, query, None, _columns_of_table(spec, source, names), mapped=True)


def _columns_of_table(
    spec: PipelineSpec, source: Backend, names: Mapping[str, str]
) -> tuple[SourceColumn, ...]:
    """The columns of a table under the target's names.

    The table is asked for all it has: SQLite takes a quoted name that it does not know for a text,
    and what other databases say of one does not help.
    """
    table = spec.source_table or ""
    selected = source.table_query(table, names)
    try:
        held = {c.name: c for c in source.describe(source.table_query(table, None))}
    except Transient:
        raise
    except EmatixError:
        # It may have columns of no known type, or that this user may not read, beside these.
        return source.describe(selected)
    if all(theirs in held for theirs in names.values()):
        return tuple(dataclasses.replace(held[old], name=new) for new, old in names.items())
    alike = {name.lower() for name in held}
    _refuse_missing(spec, names, {old for old in names.values() if old.lower() not in alike}, held)
    try:
        found = source.describe(selected)  # the same name in other letters
    except EmatixError:
        _refuse_missing(spec, names, {old for old in names.values() if old not in held}, held)
        raise
    return tuple(dataclasses.replace(c, name=n) for c, n in zip(found, names, strict=True))


def _refuse_missing(
    spec: PipelineSpec, names: Mapping[str, str], missing: Collection[str], held: Collection[str]
) -> None:
    ours = next((new for new, old in names.items() if old in missing), None)
    if ours is None:
        return
    target = spec.targets[0]
    theirs, close = names[ours], nearest(names[ours], held)
    if ours in target.column_map:
        what = f"column_map= names {theirs!r} for {ours!r}, which is not a column of the source"
        raise DataError(f"{what} {spec.source_table}", fix=close, where=spec.location)
    if ours not in target.table.column_names:
        what = f"delete_when= names {theirs!r}, which is neither a column of {target.table.name}"
        known = nearest(theirs, {*held, *target.table.column_names})
        raise DataError(
            f"{what} nor of the source {spec.source_table}", fix=known, where=spec.location
        )
    raise no_such_column(spec, ours, held)


def no_such_column(spec: PipelineSpec, name: str, held: Collection[str]) -> DataError:
    """What is said where the source does not give a declared column."""
    table = f"the source {spec.source_table}" if spec.source_table else "the source"
    way = f"select it, or alias one AS {name}"
    if spec.source_table:
        way = f"name the column that holds it with column_map={{{name!r}: …}}"
    return DataError(
        f"{table} of pipeline {spec.name!r} has no column {name!r}",
        fix=f"{way}; {nearest(name, held)}",
        where=spec.location,
    )


def _without_rows(reading: Reading) -> DataFrame:
    """A DataFrame of the source's columns that nobody has to read for."""
    if reading.frame is not None:
        return _in_forms(reading.frame)
    columns = ", ".join(f"{quote(c.name)} {spark_ddl(c.type)}" for c in reading.described)
    return shared_engine().spark.createDataFrame([], columns)


def required(query: SourceQuery | None) -> SourceQuery:
    """The query of a source that is read by one."""
    if query is None:
        raise DataError("the pipeline has no source")
    return query


def derived(column: Column) -> bool:
    """Whether a column is computed from others."""
    return bool(column.normalizers) and isinstance(column.normalizers[0], Derive)


def columns_of(frame: DataFrame, what: str = "the DataFrame") -> tuple[SourceColumn, ...]:
    """The columns of a DataFrame, by their logical types."""
    found = []
    for held in frame.schema.fields:
        logical = from_spark(held.dataType)
        if logical is None:
            raise DataError(
                f"{what}: column {held.name!r} has type {held.dataType.simpleString()}, "
                "which no target can hold",
                fix="cast or drop it",
            )
        found.append(SourceColumn(held.name, logical))
    return tuple(found)
