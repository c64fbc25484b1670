"""PostgreSQL, reached by psycopg: a database per connection."""

from __future__ import annotations

from typing import Any

import psycopg

from ematix_flow.connections import Connection, PostgresConnection
from ematix_flow.model import Table, TableName
from harness.base import Harness, decoded


class PostgresHarness(Harness):
    """A real server."""

    name = "postgres"
    kind = "postgres"
    service = "postgres"

    def __init__(self, folder: Any, server: Any = None) -> None:
        super().__init__(folder, server)
        self._urls: dict[str, str] = {}

    def connection(self, name: str) -> Connection:
        if name not in self._urls:
            self._urls[name] = self.server.create_database()
        return PostgresConnection(name=name, url=self._urls[name])

    def _run(self, connection: Connection, sql: str, *parameters: Any) -> Any:
        with psycopg.connect(self._urls[connection.name], options="-c TimeZone=UTC") as raw:
            cursor = raw.execute(sql, parameters or None)
            return [d.name for d in cursor.description or ()], cursor.fetchall()

    def rows(self, connection: Connection, table: Table) -> list[dict[str, Any]]:
        names, rows = self._run(
            connection, f'SELECT * FROM "{table.name.schema}"."{table.name.name}"'
        )
        return decoded(table, rows, names, lambda kind, value: value)

    def exists(self, connection: Connection, name: TableName) -> bool:
        _, rows = self._run(
            connection,
            "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = %s",
            name.schema,
            name.name,
        )
        return bool(rows)

    def litter(self, connection: Connection) -> list[str]:
        _, rows = self._run(
            connection,
            "SELECT tablename FROM pg_tables WHERE schemaname = 'ematix_flow' "
            "AND tablename LIKE 'stage%'",
        )
        return [name for (name,) in rows]

    def close(self) -> None:
        for url in self._urls.values():
            self.server.drop_database(url.rsplit("/", 1)[1])


HARNESSES = (PostgresHarness,)
