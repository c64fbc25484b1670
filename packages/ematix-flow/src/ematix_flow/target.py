"""``Target``: one of several places a pipeline's rows land, with its own mode and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.connections import Connection
from ematix_flow.table import ManagedTable


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where rows land: a declared table, or a ``(schema, name)`` pair, on a connection."""

    connection: str | Connection
    table: type[ManagedTable] | tuple[str, str] | None = None
    mode: str | None = None
    keys: Sequence[str] | None = None
    update_columns: Sequence[str] | None = None
    compare_columns: Sequence[str] | None = None
    event_timestamp_column: str | None = None
    handle_deletes: str | None = None
    column_map: Mapping[str, str] | None = None
    prefix: str | None = None
    parquet_compression: str | None = None
    csv_delimiter: str | None = None
    csv_header: bool | None = None
    csv_quote: str | None = None
    csv_escape: str | None = None
    csv_null_value: str | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None
