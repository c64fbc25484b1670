"""SQLite, reached by the standard library."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import Any

from ematix_flow.connections import Connection, SQLiteConnection
from ematix_flow.model import Table, TableName
from harness.base import Harness, decoded
from harness.values import from_text


class SQLiteHarness(Harness):
    """A file per connection."""

    name = "sqlite"
    kind = "sqlite"

    def connection(self, name: str) -> Connection:
        return SQLiteConnection(name=name, path=str(self.folder / f"{name}.db"))

    def _run(self, connection: Connection, sql: str, *parameters: Any) -> Any:
        assert isinstance(connection, SQLiteConnection)
        with contextlib.closing(sqlite3.connect(connection.file())) as raw:
            cursor = raw.execute(sql, parameters)
            return [d[0] for d in cursor.description or ()], cursor.fetchall()

    def rows(self, connection: Connection, table: Table) -> list[dict[str, Any]]:
        names, rows = self._run(
            connection, f'SELECT * FROM "{table.name.schema}__{table.name.name}"'
        )
        elements = {c.name: c.type.element.kind for c in table.columns if c.type.kind == "array"}

        def decode(kind: str, value: Any) -> Any:
            return bool(value) if kind == "boolean" else from_text(kind, value)

        found = decoded(table, rows, names, decode)
        for row in found:
            for name, kind in elements.items():
                if row[name] is not None:
                    row[name] = [from_text(kind, v) for v in json.loads(row[name])]
        return found

    def exists(self, connection: Connection, name: TableName) -> bool:
        _, rows = self._run(
            connection,
            "SELECT 1 FROM sqlite_master WHERE name = ?",
            f"{name.schema}__{name.name}",
        )
        return bool(rows)

    def spelled(self, name: TableName) -> str:
        return f"{name.schema}__{name.name}"

    def litter(self, connection: Connection) -> list[str]:
        return [p.name for p in self.folder.glob(".*")]


HARNESSES = (SQLiteHarness,)
