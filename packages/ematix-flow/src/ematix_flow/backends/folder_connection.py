"""A folder of tables as pipeline functions get it: Spark SQL reads it, only loads change it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timezone
from pathlib import Path
from typing import Any

from ematix_flow.backends.base import Backend, LiveConnection, SourceQuery
from ematix_flow.backends.file_sources import file_errors
from ematix_flow.errors import Permanent, Unsupported


class FolderConnection(LiveConnection):
    """A folder; ``holding`` says of what, and ``shown`` is told beside its kind and path."""

    def __init__(
        self,
        backend: Backend,
        root: Path,
        *,
        holding: str,
        shown: Mapping[str, Any] | None = None,
    ) -> None:
        self.backend = backend
        self.root = root
        self.holding = holding
        self.shown = dict(shown or {})

    def query(self, sql: str, max_rows: int | None = None) -> list[dict[str, Any]]:
        """The rows of a Spark SQL query over the folder."""
        from ematix_flow.engine.failures import translate
        from ematix_flow.engine.session import shared_engine

        rows = self.backend.read(shared_engine(), SourceQuery(sql))
        limited = rows if max_rows is None else rows.limit(max_rows)
        try:
            instants = [f.name for f in limited.schema if f.dataType.typeName() == "timestamp"]
            return [_aware(row.asDict(), instants) for row in limited.collect()]
        except Exception as error:
            raise translate(error, connection=self.backend.name) from error

    def execute(self, sql: str) -> int:
        """Refused: tables in a folder change by loading them."""
        raise Unsupported(
            f"connection {self.backend.name!r} is a folder of {self.holding} and runs no "
            "statements",
            fix="read it with query(), change it with a pipeline",
        )

    def ping(self) -> None:
        """Return if the folder is there and can be listed."""
        with file_errors(self.backend.name):
            if not self.root.is_dir():
                raise Permanent(
                    f"the folder {self.root} does not exist",
                    connection=self.backend.name,
                    fix="create it, or correct path=",
                )
            os.listdir(self.root)

    def info(self) -> dict[str, Any]:
        """The folder and what is known of its files."""
        return {"kind": self.backend.kind, "path": str(self.root), **self.shown}

    def close(self) -> None:
        """Nothing is held."""


def _aware(row: dict[str, Any], instants: Sequence[str]) -> dict[str, Any]:
    """PySpark hands out instants as local time without a zone."""
    for name in instants:
        if row[name] is not None:
            row[name] = row[name].astimezone(timezone.utc)
    return row
