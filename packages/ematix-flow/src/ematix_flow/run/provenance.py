"""Which run wrote a row, and from which source: ``flow why``.

Rows of tables that this system created carry the id of the run that wrote them; the run log
says what that run was, and the target's own history where the log does not know it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal, InvalidOperation
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlglot import exp
from sqlglot.errors import SqlglotError

from ematix_flow import types as t
from ematix_flow.backends.base import Backend, SourceQuery
from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError, DataError, EmatixError, UnknownName
from ematix_flow.model import (
    BOOKKEEPING_SCHEMA,
    LOADED_AT_COLUMN,
    RUN_ID_COLUMN,
    VALID_FROM_COLUMN,
    VALID_TO_COLUMN,
    TableName,
)
from ematix_flow.run.reference import NamedTable, named_table
from ematix_flow.sql.comparing import family
from ematix_flow.sql.identifiers import parse_query
from ematix_flow.sql.spark import spark_ddl

if TYPE_CHECKING:
    from ematix_flow.backends.sql import SqlBackend
    from ematix_flow.run.log import RunLog
    from ematix_flow.run.records import RunRecord

_MOST_VERSIONS = 1000
_MOST_RUNS = 20
_SEARCHED_RUNS = 1000
_MOST_FILES = 20
_LONGEST_SOURCE = 4000
_LOAD = "load"
_OWN = (RUN_ID_COLUMN, LOADED_AT_COLUMN)


@dataclass(frozen=True)
class WritingRun:
    """A run that wrote to a table; what nobody recorded is None."""

    run_id: str
    pipeline: str | None = None
    mode: str | None = None
    trigger: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    source: str | None = None
    declared_in: str | None = None
    recorded_in: str = "nowhere"


@dataclass(frozen=True)
class RowVersion:
    """A row with the key that was asked for, and the run that wrote it last.

    Closing a version writes it, so ``opened_by`` may be another run; None where nobody knows.
    """

    values: Mapping[str, Any]
    run: WritingRun | None
    loaded_at: datetime | str | None = None
    opened_by: WritingRun | None = None

    @property
    def period(self) -> tuple[Any, Any] | None:
        """From when to when it is valid, where the table keeps history."""
        if VALID_FROM_COLUMN not in self.values or VALID_TO_COLUMN not in self.values:
            return None
        return self.values[VALID_FROM_COLUMN], self.values[VALID_TO_COLUMN]


@dataclass(frozen=True)
class Provenance:
    """Where the rows of a key come from, oldest version first.

    ``runs`` is filled only where the rows themselves do not say who wrote them.
    """

    table: str
    key: Mapping[str, str]
    versions: tuple[RowVersion, ...]
    runs: tuple[WritingRun, ...] = ()
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)


def row_provenance(reference: str, key: Sequence[str], *, run_log: RunLog) -> Provenance:
    """Which runs wrote the rows with this key; ``key`` is ``column=value`` for each column.

    The value alone is enough where the key is one column.
    """
    table = named_table(reference)
    types = {c.name: c.type for c in table.backend.describe(table.query())}
    asked = _asked_key(table, types, key)
    rows = _rows(table, types, asked)
    if not rows:
        shown = ", ".join(f"{name}={value}" for name, value in asked.items())
        raise DataError(f"{table.label} has no row with {shown}")
    if RUN_ID_COLUMN not in types:
        return Provenance(
            table.label,
            asked,
            tuple(RowVersion(row, None) for row in rows),
            _runs_of(table, run_log),
            f"{table.label} was not created by ematix-flow: its rows do not say which run wrote "
            "them",
        )
    known: dict[str, WritingRun] = {}
    versions = []
    for row in rows:
        run_id = row[RUN_ID_COLUMN]
        if run_id is not None and str(run_id) not in known:
            known[str(run_id)] = _run(table, str(run_id), run_log)
        values = {name: value for name, value in row.items() if name not in _OWN}
        run = None if run_id is None else known[str(run_id)]
        versions.append(RowVersion(values, run, row.get(LOADED_AT_COLUMN)))
    return Provenance(table.label, asked, _with_openers(table, versions, run_log))


def _with_openers(
    table: NamedTable, versions: Sequence[RowVersion], run_log: RunLog
) -> tuple[RowVersion, ...]:
    """Where a version begins at the moment of a run, that run has opened it."""
    periods = [v.period for v in versions]
    moments = [None if v.loaded_at is None else _instant(v.loaded_at) for v in versions]
    starts = [None if p is None or p[0] is None else _instant(p[0]) for p in periods]
    ends = [None if p is None or p[1] is None else _instant(p[1]) for p in periods]
    # Where versions begin at the time of an event, no run's moment is ever the same.
    by_run = any(
        moment is not None and moment in (start, end)
        for moment, start, end in zip(moments, starts, ends, strict=True)
    )
    if not by_run:
        return tuple(versions)
    found = []
    for version, moment, start in zip(versions, moments, starts, strict=True):
        opener = version.run
        if moment != start and version.run is not None and start is not None:
            opener = _run_at(table, version.run.pipeline, start, run_log)
        found.append(dataclasses.replace(version, opened_by=opener))
    return tuple(found)


def _run_at(
    table: NamedTable, pipeline: str | None, moment: datetime, run_log: RunLog
) -> WritingRun | None:
    """The one run of a pipeline that was under way at a moment."""
    if pipeline is None:
        return None
    under_way = [
        r
        for r in run_log.list(pipeline=pipeline, status="succeeded", limit=_SEARCHED_RUNS)
        if table.is_named(r.target)
        and r.step == _LOAD
        and r.started_at <= moment <= (r.finished_at or moment)
    ]
    return _recorded(under_way[0]) if len(under_way) == 1 else None


def _asked_key(
    table: NamedTable, types: Mapping[str, t.ColumnType], given: Sequence[str]
) -> dict[str, str]:
    asked: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if equals and name in types:
            asked[name] = value
            continue
        if len(given) > 1 and not equals:
            raise ConfigError(f"{text!r} names no column", fix="write column=value for each")
        column = None if len(given) > 1 else _only_key(table)
        # A text may hold an equals sign of its own.
        if column is None or (equals and family(types[column]) != "text"):
            raise UnknownName(f"{table.label} has no column {name!r}", fix=nearest(name, types))
        asked[column] = text
    return asked


def _only_key(table: NamedTable) -> str:
    """The one column of the key, the start of a version aside."""
    columns = [name for name in table.key() if name != VALID_FROM_COLUMN]
    if len(columns) != 1:
        what = f"is ({', '.join(columns)})" if columns else "is not known"
        raise ConfigError(
            f"the key of {table.label} {what}", fix="write column=value for each column"
        )
    return columns[0]


def _rows(
    table: NamedTable, types: Mapping[str, t.ColumnType], asked: Mapping[str, str]
) -> list[dict[str, Any]]:
    condition = " AND ".join(
        f"{table.quoted(name)} = {_literal(table, name, types[name], value)}"
        for name, value in asked.items()
    )
    order = [n for n in (VALID_FROM_COLUMN, LOADED_AT_COLUMN) if n in types]
    query = table.query(list(types), condition).sql
    if order:
        query += f" ORDER BY {', '.join(table.quoted(n) for n in order)}"
    with table.backend.open() as live:
        rows = live.query(query, max_rows=_MOST_VERSIONS)
    # Some databases take "a" and "A" for the same text.
    texts = {n: v for n, v in asked.items() if family(types[n]) == "text"}
    return [row for row in rows if all(row[n] == v for n, v in texts.items())]


def _literal(table: NamedTable, name: str, column_type: t.ColumnType, value: str) -> str:
    """A value as the table's own SQL writes it."""
    backend = table.backend
    try:
        canonical = _canonical(column_type, value)
    except (ValueError, InvalidOperation) as error:
        raise ConfigError(
            f"{name}={value} is not a {column_type}, as column {name!r} of {table.label} is",
            fix="correct the value",
        ) from error
    if column_type.kind in ("small_int", "integer", "big_int"):
        return canonical
    if column_type.kind == "boolean":
        return exp.Boolean(this=canonical == "true").sql(dialect=backend.dialect)
    constant = getattr(backend, "constant", None)
    if constant is not None:
        return str(constant(canonical, column_type))
    text = exp.Literal.string(canonical).sql(dialect=backend.dialect)
    return f"CAST({text} AS {spark_ddl(column_type)})"


def _canonical(column_type: t.ColumnType, value: str) -> str:
    """A typed value's text, as every backend reads it."""
    if isinstance(column_type, t.Numeric):
        exact = Decimal(value).quantize(Decimal(1).scaleb(-column_type.scale))
        return f"{exact:f}"
    match column_type.kind:
        case "small_int" | "integer" | "big_int":
            return str(int(value))
        case "boolean":
            if value.lower() not in ("true", "false"):
                raise ValueError(value)
            return value.lower()
        case "date":
            return date.fromisoformat(value).isoformat()
        case "time":
            return time.fromisoformat(value).strftime("%H:%M:%S.%f")
        case "timestamp":
            return _moment(value).strftime("%Y-%m-%d %H:%M:%S.%f")
        case "timestamp_tz":
            moment = _moment(value)
            aware = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            return aware.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f+00:00")
        case "uuid":
            return str(UUID(value))
    return value


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _run(table: NamedTable, run_id: str, run_log: RunLog) -> WritingRun:
    records = [r for r in run_log.get(run_id) if r.step == _LOAD]
    here = [r for r in records if table.is_named(r.target)] or records
    return _recorded(here[0]) if here else _told_by_target(table, run_id)


def _recorded(record: RunRecord) -> WritingRun:
    return WritingRun(
        run_id=record.run_id,
        pipeline=record.pipeline,
        mode=record.mode or None,
        trigger=record.trigger,
        started_at=record.started_at,
        finished_at=record.finished_at,
        source=record.source or None,
        declared_in=record.declared_in or None,
        recorded_in="run log",
    )


def _told_by_target(table: NamedTable, run_id: str) -> WritingRun:
    """What the target's own history says: enough to know the pipeline, never the source."""
    from ematix_flow.backends.files import Files
    from ematix_flow.backends.manifest import ManifestLog
    from ematix_flow.backends.sql import SqlBackend

    backend = table.backend
    with contextlib.suppress(EmatixError):
        if isinstance(backend, SqlBackend):
            return _told_by_history(backend, run_id)
        if isinstance(backend, Files):
            manifest = ManifestLog(backend.folder(table.name, table.prefix)).of_run(run_id)
            if manifest is not None:
                run = manifest.run
                started, loaded = _instant(run["started_at"]), _instant(run["loaded_at"])
                return _told(run_id, run["pipeline"], run["mode"], started, loaded)
        elif backend.committed(run_id, table.name, table.prefix) is not None:
            return WritingRun(run_id, recorded_in="target")
    return WritingRun(run_id)


def _told_by_history(backend: SqlBackend, run_id: str) -> WritingRun:
    history = backend.locate(TableName(BOOKKEEPING_SCHEMA, "run_history"))
    wanted = exp.Literal.string(run_id).sql(dialect=backend.dialect)
    with backend.open() as live:
        rows = live.query(
            f"SELECT pipeline_name, mode, started_at, finished_at FROM {history} "
            f"WHERE run_id = {wanted}"
        )
    if not rows:
        return WritingRun(run_id)
    pipeline, mode, started, finished = rows[0].values()
    return _told(run_id, pipeline, mode, _instant(started), _instant(finished))


def _told(
    run_id: str, pipeline: str, mode: str, started: datetime, finished: datetime
) -> WritingRun:
    return WritingRun(
        run_id,
        pipeline,
        mode,
        started_at=started,
        finished_at=finished,
        recorded_in="target",
    )


def _instant(value: Any) -> datetime:
    found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _runs_of(table: NamedTable, run_log: RunLog) -> tuple[WritingRun, ...]:
    """The latest runs that wrote to a table, newest first."""
    pipeline = table.pipeline.name if table.pipeline else None
    records = run_log.list(pipeline=pipeline, status="succeeded", limit=_SEARCHED_RUNS)
    here = [r for r in records if r.step == _LOAD and table.is_named(r.target)]
    return tuple(_recorded(record) for record in here[:_MOST_RUNS])


def source_text(
    source: Backend, *, query: SourceQuery | None, table: str | None = None, function: str = ""
) -> str:
    """What a run reads, for its record: a table, a query, files by name, or a DataFrame."""
    if query is None:
        return f"DataFrame of {function}" if function else "DataFrame"
    sql = dedent(query.sql).strip()
    text = f"{source.name}: {table or sql}"
    files = _files_of(source, sql)
    if files:
        more = len(files) - _MOST_FILES
        listed = ", ".join(files[:_MOST_FILES]) + (f", and {more} more" if more > 0 else "")
        text = f"{text}\nfiles: {listed}"
    return text if len(text) <= _LONGEST_SOURCE else text[: _LONGEST_SOURCE - 1] + "…"


def _files_of(source: Backend, sql: str) -> list[str]:
    """The files that paths and globs in a query stand for now."""
    from ematix_flow.backends.file_queries import is_path
    from ematix_flow.backends.files import Files

    if not isinstance(source, Files):
        return []
    try:
        names = [table.name for table in parse_query(sql, source.dialect).find_all(exp.Table)]
    except (EmatixError, SqlglotError):
        return []
    root = source.store.root
    found = [
        path
        for name in names
        if is_path(name)
        for path in sorted(glob.glob(str(root / name), recursive=True))
    ]
    return [
        str(Path(path).relative_to(root)) if path.startswith(f"{root}/") else path for path in found
    ]
