"""Which way the rows go: through Spark, or by a query of the source database.

Such a query is run inside the target's database where that is the source's, and its rows are copied
over where the two are databases of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ematix_flow import types as t
from ematix_flow.backends.base import Backend
from ematix_flow.errors import DataError
from ematix_flow.model import (
    DELETED_COLUMN,
    EVENT_AT_COLUMN,
    ROW_HASH_COLUMN,
    Column,
    LoadOptions,
    PipelineSpec,
)
from ematix_flow.run.incoming import COMPUTED
from ematix_flow.run.reading import Reading
from ematix_flow.run.row_transforms import in_dialect, inside_database
from ematix_flow.sql.hashing import row_hash
from ematix_flow.sql.identifiers import column as column_reference
from ematix_flow.sql.identifiers import quoted
from ematix_flow.sql.normalizers import CannotMatch, Compiled, compile_chain
from ematix_flow.transforms import FilterWhere


def choose_path(
    spec: PipelineSpec,
    options: LoadOptions,
    reading: Reading,
    sink: Backend,
    incoming: Sequence[Column],
    *,
    whole: bool = True,
) -> tuple[str, str, str | None]:
    """The path, the reason for it, and the query of the source if it is not Spark that reads.

    ``whole`` is False where the run loads only a part of what the source gives.
    """
    forced = options.force_path
    if forced == "spark":
        return "spark", "force_path='spark'", None
    try:
        if not whole and not all(isinstance(e, FilterWhere) for e in spec.transforms_pre):
            raise CannotMatch("transforms_pre= of a load of a part of the rows is run by Spark")
        path, why = direct_path(spec, reading.source, sink)
        select = _select(spec, options, reading, sink, incoming)
        if forced not in (None, path):
            raise CannotMatch("source and target are not the same database")
    except CannotMatch as reason:
        if forced is not None:
            raise DataError(
                f"pipeline {spec.name!r} cannot take force_path={forced!r}: {reason.reason}",
                fix="remove force_path",
                where=spec.location,
            ) from reason
        return "spark", reason.reason, None
    return path, why, select


def direct_path(spec: PipelineSpec, source: Backend, sink: Backend) -> tuple[str, str]:
    """The path between two connections that needs no Spark, if nothing else does, and why."""
    if spec.transform_sql is not None:
        raise CannotMatch("transform_sql= is run by Spark")
    if source.capabilities.same_database and source.same_database(sink):
        return "same_db", "source and target are the same database"
    source.require_copy(sink)
    if len(spec.targets) > 1:
        raise CannotMatch("one read of the source serves several targets")
    return "copy", f"source and target are both {sink.kind} databases, and nothing needs Spark"


def _select(
    spec: PipelineSpec,
    options: LoadOptions,
    reading: Reading,
    sink: Backend,
    incoming: Sequence[Column],
) -> str:
    dialect = sink.dialect
    if reading.query is None:
        raise CannotMatch("the source is a Spark DataFrame")
    declared = [c for c in incoming if c.name not in COMPUTED]
    values = {c.name: _normalized(reading, sink, c) for c in declared}
    told = ""
    if any(c.name == DELETED_COLUMN for c in incoming):
        told = "FALSE"
        if options.delete_when:
            told = in_dialect(options.delete_when, _types(reading, values), dialect)
    rows = reading.relation(dialect)
    if spec.transforms_pre or options.delete_when:
        rows = _before_assignment(spec, reading, values, dialect)
        values = {
            name: Compiled(column_reference(name), held.type) for name, held in values.items()
        }
    items = [_assigned(sink, column, values[column.name]) for column in declared]
    if told:
        items.append(f"coalesce({told}, FALSE) AS {quoted(DELETED_COLUMN, dialect)}")
    select = f"SELECT {', '.join(items)} FROM {rows}"
    if not {c.name for c in incoming} & {ROW_HASH_COLUMN, EVENT_AT_COLUMN}:
        return select
    return _with_computed(select, declared, options, sink, incoming)


def _before_assignment(
    spec: PipelineSpec,
    reading: Reading,
    values: Mapping[str, Compiled],
    dialect: str,
) -> str:
    """Normalized rows beside what else the source gives, with ``transforms_pre`` applied."""
    types = _types(reading, values)
    items = [
        values[name].expression.sql(dialect=dialect) if name in values else quoted(name, dialect)
        for name in types
    ]
    listed = ", ".join(
        f"{item} AS {quoted(name, dialect)}" for item, name in zip(items, types, strict=True)
    )
    select = f"SELECT {listed} FROM {reading.relation(dialect)}"
    changed = inside_database(select, spec.transforms_pre, types, dialect)
    return f"({changed}) AS {quoted('normalized', dialect)}"


def _types(reading: Reading, values: Mapping[str, Compiled]) -> dict[str, t.ColumnType | None]:
    """What is known of every column once the normalizers are done."""
    types = {c.name: c.type if c.stated else None for c in reading.described}
    return types | {name: value.type for name, value in values.items()}


def _normalized(reading: Reading, sink: Backend, column: Column) -> Compiled:
    given = {c.name: c for c in reading.described}.get(column.name)
    if given is None or not given.stated:
        raise CannotMatch(f"the source does not state the type of column {column.name!r}")
    reference = column_reference(column.name)
    try:
        compiled = compile_chain(column.normalizers, reference, given.type, dialect=sink.dialect)
        if compiled.type is None:
            raise CannotMatch("its type is known to Spark only")
    except CannotMatch as error:
        raise CannotMatch(f"column {column.name!r}: {error.reason}") from error
    return compiled


def _assigned(sink: Backend, column: Column, value: Compiled) -> str:
    try:
        assigned = sink.assign(value.expression, value.type or column.type, column.type)
    except CannotMatch as error:
        raise CannotMatch(f"column {column.name!r}: {error.reason}") from error
    return f"{assigned.sql(dialect=sink.dialect)} AS {quoted(column.name, sink.dialect)}"


def _with_computed(
    select: str,
    declared: Sequence[Column],
    options: LoadOptions,
    sink: Backend,
    incoming: Sequence[Column],
) -> str:
    """The query with what is computed from its final values."""
    dialect = sink.dialect
    types = {c.name: c.type for c in declared}
    values = {c.name: quoted(c.name, dialect) for c in incoming}
    if ROW_HASH_COLUMN in values:
        values[ROW_HASH_COLUMN] = row_hash(types, dialect)
    if EVENT_AT_COLUMN in values:
        event = options.event_timestamp_column or ""
        at = sink.assign(column_reference(event), types[event], t.TimestampTZ())
        values[EVENT_AT_COLUMN] = at.sql(dialect=dialect)
    items = ", ".join(f"{values[c.name]} AS {quoted(c.name, dialect)}" for c in incoming)
    return f"SELECT {items} FROM ({select}) AS {quoted('valued', dialect)}"
