"""A table as a user names it: ``connection:schema.table``, a path, or a pipeline's name."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ematix_flow.backends.base import Backend, FoundTable, SourceQuery
from ematix_flow.backends.loading import load_backend
from ematix_flow.config import resolve_connection
from ematix_flow.errors import ConfigError, EmatixError, UnknownName, Unsupported
from ematix_flow.model import VALID_FROM_COLUMN, PipelineSpec, TableName, merge_key
from ematix_flow.registry import active_registry
from ematix_flow.sql.identifiers import quoted, split_name

_PATH_MARKS = "/*?["


@dataclass(frozen=True)
class NamedTable:
    """A table, wherever it is, and what the user calls it."""

    label: str
    backend: Backend
    text: str
    name: TableName
    prefix: str | None = None
    pipeline: PipelineSpec | None = None

    def found(self) -> FoundTable | None:
        """The table as its backend describes it; None for plain files, and for no table."""
        if not _is_path(self.text):
            return self.backend.inspect(self.name, self.prefix)
        # A path may lead to a table of ours all the same, which knows its key.
        with contextlib.suppress(EmatixError):
            return self.backend.inspect(self.name, self.prefix)
        return None

    def key(self) -> tuple[str, ...]:
        """The columns that tell one row from another, as far as it is known."""
        found = self.found()
        if found is not None and found.primary_key:
            return found.primary_key
        if self.pipeline is None:
            return ()
        (target,) = self.pipeline.targets
        declared = merge_key(target.table, target.options.keys)
        versions = found is not None and VALID_FROM_COLUMN in found.column_names
        return (*declared, VALID_FROM_COLUMN) if declared and versions else declared

    def is_named(self, target: str) -> bool:
        """Whether a run's record means this table by its target."""
        placed = f"{self.backend.name}:{self.name}"
        return target in (str(self.name), placed) or target.startswith(f"{placed} at ")

    def query(self, columns: Sequence[str] | None = None, condition: str = "") -> SourceQuery:
        """These columns of all rows, or of those that meet a condition in its own dialect."""
        names: Mapping[str, str] | None = None if columns is None else {c: c for c in columns}
        query = self.backend.table_query(self.text, names)
        return SourceQuery(f"{query.sql} WHERE {condition}") if condition else query

    def quoted(self, column: str) -> str:
        """A column as its own dialect spells it."""
        return quoted(column, self.backend.dialect)


def named_table(reference: str) -> NamedTable:
    """The table behind what a user wrote."""
    connection, colon, text = reference.partition(":")
    if not colon:
        return table_of(_pipeline(reference), label=reference)
    if not connection or not text:
        raise ConfigError(
            f"{reference!r} names no table",
            fix="write connection:schema.table or a pipeline's name",
        )
    backend = _readable(connection)
    if _is_path(text):
        return NamedTable(reference, backend, text, TableName(None, text), prefix=text)
    return NamedTable(reference, backend, text, split_name(text, backend.dialect))


def _is_path(text: str) -> bool:
    return any(mark in text for mark in _PATH_MARKS)


def table_of(spec: PipelineSpec, *, label: str) -> NamedTable:
    """The table that a pipeline loads."""
    if len(spec.targets) > 1:
        shown = ", ".join(f"{t.connection}:{t.table.name}" for t in spec.targets)
        raise ConfigError(
            f"pipeline {spec.name!r} loads {len(spec.targets)} tables: {shown}",
            fix="name one of them as connection:schema.table",
        )
    (target,) = spec.targets
    backend = _readable(target.connection)
    name = target.table.name
    parts = [part for part in (name.schema, name.name) if part]
    text = ".".join(quoted(part, backend.dialect) for part in parts)
    if target.prefix is not None:
        text = f"./{target.prefix.strip('/')}"
    return NamedTable(label, backend, text, name, target.prefix, spec)


def _pipeline(name: str) -> PipelineSpec:
    try:
        return active_registry().pipeline(name).spec
    except UnknownName as error:
        error.fix = f"a table is written connection:schema.table; {error.fix}"
        raise


def _readable(connection: str) -> Backend:
    backend = load_backend(resolve_connection(connection).connection)
    if not backend.capabilities.source:
        raise Unsupported(
            f"connection {connection!r} leads to {backend.kind}, which cannot be read"
        )
    return backend
