"""Everything that is decided before a row moves: source, columns, path, target, change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.backends.base import (
    Backend,
    FoundTable,
    LiveConnection,
    Load,
    RunRow,
    SourceColumn,
    SourceQuery,
)
from ematix_flow.backends.loading import load_backend
from ematix_flow.backends.spool import spooling
from ematix_flow.config import resolve_connection
from ematix_flow.connections import nearest
from ematix_flow.engine.session import shared_engine
from ematix_flow.errors import (
    DataError,
    DeclarationError,
    NotAvailableYet,
    SchemaDrift,
    SourceLocation,
    Unsupported,
)
from ematix_flow.model import (
    LOADED_AT_COLUMN,
    RUN_ID_COLUMN,
    Column,
    PipelineSpec,
    Table,
    TargetSpec,
)
from ematix_flow.modes.base import load_mode
from ematix_flow.normalize.expressions import Derive
from ematix_flow.run.function import OnlyAsking, RunInfo, call_function
from ematix_flow.sql.identifiers import column as column_reference
from ematix_flow.sql.identifiers import quoted, require_query
from ematix_flow.sql.normalizers import CannotMatch, compile_chain
from ematix_flow.sql.spark import as_form, assign, from_spark, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine

ADDED_TYPES: tuple[tuple[str, t.ColumnType], ...] = (
    (RUN_ID_COLUMN, t.UUID()),
    (LOADED_AT_COLUMN, t.TimestampTZ()),
)


@dataclass(frozen=True)
class PlannedColumn:
    """A declared column and how its value comes about on the Spark path.

    ``normalized_type`` is None where only Spark knows it.
    """

    column: Column
    source_type: t.ColumnType | None
    normalized: str
    normalized_type: t.ColumnType | None

    def assigned(self, rows: DataFrame) -> str:
        """Spark SQL for the column's final value, over the normalized rows."""
        known = self.normalized_type
        if known is None:
            known = from_spark(rows.schema[self.column.name].dataType) or t.Text()
            _check_assignable(self.column, known)
        return assign(self.column, quote(self.column.name), known)


@dataclass(frozen=True)
class Plan:
    """A load that is ready to run."""

    spec: PipelineSpec
    target: TargetSpec
    source: Backend
    sink: Backend
    query: SourceQuery | None
    frame: DataFrame | None
    columns: tuple[PlannedColumn, ...]
    path: str
    path_reason: str
    same_db_select: str | None
    found: FoundTable | None
    load: Load
    notes: tuple[str, ...]


@contextlib.contextmanager
def planned(
    spec: PipelineSpec,
    run: RunInfo,
    *,
    asking: bool = False,
    announce: Callable[[str], None] = lambda point: None,
    started_at: datetime | None = None,
) -> Iterator[Plan]:
    """The plan of a run; live connections and spooled rows stay as long as the block.

    With ``asking`` nothing will be written, so they refuse ``execute``.
    """
    if spec.not_yet:
        raise NotAvailableYet(" and ".join(spec.not_yet), where=spec.location)
    target = spec.targets[0]
    source = load_backend(resolve_connection(spec.source).connection)
    sink = load_backend(resolve_connection(target.connection).connection)
    if not source.capabilities.source:
        raise Unsupported(f"{source.kind} cannot be read by a batch pipeline")
    if not sink.capabilities.target:
        raise Unsupported(f"{sink.kind} cannot be written by a batch pipeline")
    sink.check_table(target.table)
    with contextlib.ExitStack() as stack:
        stack.enter_context(spooling())
        givers: dict[str, Callable[[], Any]] = {
            "source": lambda: _opened(stack, source, asking=asking),
            "target": lambda: _opened(stack, sink, asking=asking),
            "spark": lambda: shared_engine().spark,
            "run": lambda: run,
        }
        query, frame = _what_is_read(spec, target.table, source=source, givers=givers)
        described = _columns_of(frame) if frame is not None else source.describe(_required(query))
        columns = _plan_columns(spec, target.table, described)
        found = sink.inspect(target.table.name, target.prefix)
        refuse_drift(sink, target, found)
        path, reason, select = _choose_path(spec, source, sink, query, described)
        now = datetime.now(timezone.utc)
        added = [
            (name, kind)
            for name, kind in ADDED_TYPES
            if found is None or name in found.column_names
        ]
        landing = (*((c.name, c.type) for c in target.table.columns), *added)
        mode = load_mode(target.mode)
        change = mode.plan(target.table, [name for name, _ in landing], spec.options)
        if not change.verbs <= sink.capabilities.verbs:
            missing = ", ".join(sorted(change.verbs - sink.capabilities.verbs))
            raise Unsupported(f"{sink.kind} cannot do mode={target.mode!r}: no {missing}")
        load = Load(
            table=target.table,
            name=target.table.name,
            columns=landing,
            change=change,
            run=RunRow(run.id, spec.name, target.mode, path, started_at or now, now),
            creates=found is None,
            files=target.files,
            prefix=target.prefix,
            announce=announce,
        )
        notes = _notes(target.table, described, spec)
        yield Plan(
            spec,
            target,
            source,
            sink,
            query,
            frame,
            columns,
            path,
            reason,
            select,
            found,
            load,
            notes,
        )


def _opened(stack: contextlib.ExitStack, backend: Backend, *, asking: bool) -> LiveConnection:
    live = stack.enter_context(backend.open())
    return OnlyAsking(live) if asking else live


def _required(query: SourceQuery | None) -> SourceQuery:
    if query is None:
        raise DataError("the pipeline has no source")
    return query


def _what_is_read(
    spec: PipelineSpec,
    table: Table,
    *,
    source: Backend,
    givers: Mapping[str, Callable[[], Any]],
) -> tuple[SourceQuery | None, DataFrame | None]:
    returned = call_function(spec, givers)
    if isinstance(returned, str):
        require_query(returned, source.dialect)
        return SourceQuery(returned), None
    if returned is not None:
        return None, returned
    whole = any(_derived(c) for c in table.columns)
    names = {c.name: spec.column_map.get(c.name, c.name) for c in table.columns}
    return source.table_query(spec.source_table or "", None if whole else names), None


def _derived(column: Column) -> bool:
    return bool(column.normalizers) and isinstance(column.normalizers[0], Derive)


def _columns_of(frame: DataFrame) -> tuple[SourceColumn, ...]:
    found = []
    for field in frame.schema.fields:
        logical = from_spark(field.dataType)
        if logical is None:
            raise DataError(
                f"the DataFrame's column {field.name!r} has type {field.dataType.simpleString()}, "
                "which no target can hold",
                fix="cast or drop it",
            )
        found.append(SourceColumn(field.name, logical))
    return tuple(found)


def _plan_columns(
    spec: PipelineSpec, table: Table, described: Sequence[SourceColumn]
) -> tuple[PlannedColumn, ...]:
    types = _types_by_name(spec, described)
    return tuple(_plan_column(spec, column, types) for column in table.columns)


def _types_by_name(
    spec: PipelineSpec, described: Sequence[SourceColumn]
) -> dict[str, t.ColumnType]:
    names = [c.name for c in described]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise DataError(
            f"the source of pipeline {spec.name!r} has two columns named {twice[0]!r}",
            fix="give one of them another name with AS",
            where=spec.location,
        )
    return {c.name: c.type for c in described}


def _plan_column(
    spec: PipelineSpec, column: Column, types: Mapping[str, t.ColumnType]
) -> PlannedColumn:
    if column.name not in types and not _derived(column):
        raise DataError(
            f"the source of pipeline {spec.name!r} has no column {column.name!r}",
            fix=f"select it, or alias one AS {column.name}; {nearest(column.name, types)}",
            where=spec.location,
        )
    source_type = types.get(column.name, t.Text())
    reference = column_reference(column.name)
    try:
        compiled = compile_chain(column.normalizers, reference, source_type, dialect="spark")
    except DeclarationError as error:
        error.where = error.where or spec.location
        raise
    result = compiled.type
    if result is not None:
        _check_assignable(column, result, spec.location)
    local = any(n.name == "to_timezone" for n in column.normalizers)
    if local and isinstance(column.type, t.TimestampTZ):
        raise DataError(
            f"column {column.name!r}: to_timezone() gives local time without a zone, which a "
            "TimestampTZ column would take for UTC",
            fix="declare the column Timestamp, or remove to_timezone()",
            where=spec.location,
        )
    if column.normalizers:
        text = _naming(column, compiled.expression).sql(dialect="spark")
    else:
        text = quote(column.name)
    return PlannedColumn(column, types.get(column.name), text, result)


def _naming(column: Column, expression: exp.Expression) -> exp.Expression:
    """Let what the normalizers refuse say which column it is about."""
    named = expression.copy()
    for call in named.find_all(exp.Anonymous):
        if call.name.upper() == "RAISE_ERROR" and call.expressions:
            place = exp.Literal.string(f"column {column.name!r}: ")
            said = exp.Anonymous(this="CONCAT", expressions=[place, call.expressions[0].copy()])
            call.set("expressions", [said])
    return named


def _check_assignable(
    column: Column, source: t.ColumnType, where: SourceLocation | None = None
) -> None:
    if not t.assignable(source, column.type):
        raise DataError(
            f"column {column.name!r} is declared {column.type}, but its source is {source}",
            fix="cast it in the source SQL, or change the declaration",
            where=where,
        )


def _choose_path(
    spec: PipelineSpec,
    source: Backend,
    sink: Backend,
    query: SourceQuery | None,
    described: Sequence[SourceColumn],
) -> tuple[str, str, str | None]:
    forced = spec.options.force_path
    if forced == "spark":
        return "spark", "force_path='spark'", None
    try:
        select = _same_db_select(spec, source, sink, query, described)
    except CannotMatch as reason:
        if forced == "same_db":
            raise DataError(
                f"pipeline {spec.name!r} cannot take force_path='same_db': {reason.reason}",
                fix="remove force_path",
                where=spec.location,
            ) from reason
        return "spark", reason.reason, None
    return "same_db", "source and target are the same database", select


def _same_db_select(
    spec: PipelineSpec,
    source: Backend,
    sink: Backend,
    query: SourceQuery | None,
    described: Sequence[SourceColumn],
) -> str:
    if query is None:
        raise CannotMatch("the source is a Spark DataFrame")
    if not (source.capabilities.same_database and source.same_database(sink)):
        raise CannotMatch("source and target are not the same database")
    known = {c.name: c for c in described}
    items = []
    for column in spec.targets[0].table.columns:
        given = known.get(column.name)
        if given is None or not given.stated:
            raise CannotMatch(f"the source does not state the type of column {column.name!r}")
        try:
            compiled = compile_chain(
                column.normalizers,
                column_reference(column.name),
                given.type,
                dialect=sink.dialect,
            )
            if compiled.type is None:
                raise CannotMatch("its type is known to Spark only")
            value = sink.assign(compiled.expression, compiled.type, column.type)
        except CannotMatch as error:
            raise CannotMatch(f"column {column.name!r}: {error.reason}") from error
        items.append(f"{value.sql(dialect=sink.dialect)} AS {quoted(column.name, sink.dialect)}")
    return f"SELECT {', '.join(items)} FROM {source.subquery(query)}"


def _notes(table: Table, described: Sequence[SourceColumn], spec: PipelineSpec) -> tuple[str, ...]:
    used = set(table.column_names)
    extra = [c.name for c in described if c.name not in used]
    notes = [f"columns of the source that are not loaded: {', '.join(extra)}"] if extra else []
    if spec.retry is not None:
        notes.append("retry= applies to scheduled runs; a run by hand is tried once")
    return tuple(notes)


def refuse_drift(sink: Backend, target: TargetSpec, found: FoundTable | None) -> None:
    """Refuse a table that exists and is not the one that was declared."""
    if found is None:
        return
    differences = drift(sink, target.table, found)
    if differences:
        raise SchemaDrift(
            sink.locate(target.table.name, target.prefix),
            differences,
            fix="change the declaration or the table until they agree",
        )


def drift(sink: Backend, table: Table, found: FoundTable) -> list[str]:
    """How a table differs from its declaration, column by column."""
    held = {c.name: c for c in found.columns}
    added = {name for name, _ in ADDED_TYPES}
    differences = []
    for column in table.columns:
        existing = held.get(column.name)
        if existing is None:
            differences.append(f"column {column.name!r} is declared but does not exist")
            continue
        wanted = sink.stored_type(column.type)
        if existing.declared.upper() != wanted.upper():
            differences.append(f"column {column.name!r} is {existing.declared}, declared {wanted}")
        if sink.capabilities.constraints and existing.nullable != column.nullable:
            was = "allows NULL" if existing.nullable else "is NOT NULL"
            wanted = "NULL" if column.nullable else "NOT NULL"
            differences.append(f"column {column.name!r} {was}, declared {wanted}")
    for name in held:
        if name not in table.column_names and name not in added:
            differences.append(f"column {name!r} exists but is not declared")
    if sink.capabilities.constraints and found.primary_key != table.primary_key:
        was = ", ".join(found.primary_key) or "none"
        differences.append(
            f"its primary key is {was}, declared {', '.join(table.primary_key) or 'none'}"
        )
    return differences


def incoming_frame(plan: Plan, engine: Engine) -> DataFrame:
    """The rows as they land: read, normalized, assigned, with the columns this system adds."""
    if plan.frame is not None:
        forms = [
            f"{as_form(f.name, f.dataType)} AS {quote(f.name)}" for f in plan.frame.schema.fields
        ]
        rows = plan.frame.selectExpr(*forms)
    else:
        rows = plan.source.read(engine, _required(plan.query))
    rows = rows.selectExpr(*(f"{c.normalized} AS {quote(c.column.name)}" for c in plan.columns))
    items = [f"{c.assigned(rows)} AS {quote(c.column.name)}" for c in plan.columns]
    constants = {
        RUN_ID_COLUMN: f"'{plan.load.run.run_id}'",
        LOADED_AT_COLUMN: f"TIMESTAMP '{plan.load.run.loaded_at:%Y-%m-%d %H:%M:%S.%f}+00:00'",
    }
    items += [
        f"{constants[name]} AS {quote(name)}" for name, _ in plan.load.columns if name in constants
    ]
    return rows.selectExpr(*items)
