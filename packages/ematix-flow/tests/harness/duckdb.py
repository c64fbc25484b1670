"""DuckDB, reached by its own driver."""

from __future__ import annotations

from typing import Any

import duckdb

from ematix_flow.connections import Connection, DuckDBConnection
from ematix_flow.model import Table, TableName
from harness.base import Harness, decoded
from harness.values import from_text


class DuckDBHarness(Harness):
    """A file per connection."""

    name = "duckdb"
    kind = "duckdb"

    def connection(self, name: str) -> Connection:
        return DuckDBConnection(name=name, path=str(self.folder / f"{name}.duckdb"))

    def _run(self, connection: Connection, sql: str, *parameters: Any) -> Any:
        assert isinstance(connection, DuckDBConnection)
        with duckdb.connect(connection.file()) as raw:
            raw.execute("SET TimeZone = 'UTC'")
            result = raw.execute(sql, list(parameters))
            return [d[0] for d in result.description or ()], result.fetchall()

    def rows(self, connection: Connection, table: Table) -> list[dict[str, Any]]:
        names, rows = self._run(
            connection, f'SELECT * FROM "{table.name.schema}"."{table.name.name}"'
        )
        return decoded(table, rows, names, from_text)

    def exists(self, connection: Connection, name: TableName) -> bool:
        _, rows = self._run(
            connection,
            "SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
            name.schema,
            name.name,
        )
        return bool(rows)

    def litter(self, connection: Connection) -> list[str]:
        return [p.name for p in self.folder.glob(".*")]


HARNESSES = (DuckDBHarness,)
