"""``Target``: one of several places a pipeline's rows land, with its own mode and options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import Connection, StoredFiles, nearest
from ematix_flow.errors import DeclarationError, UnknownName
from ematix_flow.model import FileOptions
from ematix_flow.registry import caller_location
from ematix_flow.table import ManagedTable

if TYPE_CHECKING:
    from typing_extensions import Self


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

    def __new__(cls, **given: Any) -> Self:
        """Refuse misspelt options with a word of help; the generated ``__init__`` has none."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise UnknownName(
                    f"Target has no option {name!r}",
                    fix=nearest(name, known),
                    where=caller_location(),
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Refuse file options that the target's own connection cannot use."""
        if isinstance(self.connection, StoredFiles):
            self.connection.check_options(self.file_options())
        elif isinstance(self.connection, Connection):
            for name in self.file_options().set_fields():
                raise DeclarationError(
                    f"{name} is an option of files, and connection {self.connection.name!r} is "
                    f"of kind {self.connection.kind!r}",
                    fix="remove it",
                    where=caller_location(),
                )

    def file_options(self) -> FileOptions:
        """How files are written and read, where the target is made of files."""
        names = [f.name for f in dataclasses.fields(FileOptions)]
        return FileOptions(**{name: getattr(self, name) for name in names})
