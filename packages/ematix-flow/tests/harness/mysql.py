"""MySQL and MariaDB, reached by PyMySQL: servers on which every schema is a database."""

from __future__ import annotations

import atexit
import functools
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pymysql

from ematix_flow.connections import Connection, MySQLConnection
from ematix_flow.model import Table, TableName
from harness.base import Harness, decoded
from harness.values import from_text
from services.harness import STATE
from services.harness import Harness as ServiceHarness
from services.mysql_family import MySQLServer
from services.pytest_services import SERVICES

PATIENCE = 600
_SYSTEM = ("information_schema", "mysql", "performance_schema", "pipeline", "sys")


class Place:
    """A whole server, for one test at a time: a schema is not below the connection's database."""

    def __init__(self, server: MySQLServer) -> None:
        self.server = server
        self._guard = self.connect()
        # Another process of this checkout may be testing against the same server.
        with self._guard.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK('conformance', %s)", (PATIENCE,))
            assert cursor.fetchone() == (1,)
        self._empty()
        self.url = server.create_database()

    def connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host=self.server.host,
            port=self.server.port,
            user=self.server.user,
            password=self.server.password,
            init_command="SET time_zone = '+00:00'",
            autocommit=True,
        )

    def run(self, sql: str, *parameters: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        with self.connect() as raw, raw.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return [d[0] for d in cursor.description or ()], list(cursor.fetchall())

    def _empty(self) -> None:
        _, found = self.run("SELECT schema_name FROM information_schema.schemata")
        for (name,) in found:
            if name not in _SYSTEM and not name.startswith("db_"):
                self.server.drop_database(name)

    def close(self) -> None:
        self._empty()
        self.server.drop_database(self.url.rsplit("/", 1)[1])
        self._guard.close()


@functools.cache
def further_server(service: str, number: int) -> MySQLServer:
    """Another server of a kind, which stays until this process ends."""
    harness = ServiceHarness(SERVICES[service], root=STATE / f"place-{number}")
    endpoint = harness.acquire()
    atexit.register(harness.release)
    client: MySQLServer = harness.service.client(endpoint)
    return client


class MySQLHarness(Harness):
    """A real server; further ones of its kind for further places."""

    name = "mysql"
    kind = "mysql"
    service: str = "mysql"

    def __init__(self, folder: Path, server: Any = None) -> None:
        super().__init__(folder, server)
        self._places: dict[str, Place] = {}

    def place(self, name: str) -> Place:
        if name not in self._places:
            number = len(self._places) + 1
            first = number == 1
            server = self.server if first else further_server(self.service, number)
            self._places[name] = Place(server)
        return self._places[name]

    def connection(self, name: str) -> Connection:
        return MySQLConnection(name=name, url=self.place(name).url)

    def rows(self, connection: Connection, table: Table) -> list[dict[str, Any]]:
        names, rows = self.place(connection.name).run(
            f"SELECT * FROM `{table.name.schema}`.`{table.name.name}`"
        )
        elements = {c.name: c.type.element.kind for c in table.columns if c.type.kind == "array"}
        found = decoded(table, rows, names, _decode)
        for row in found:
            for name, kind in elements.items():
                if row[name] is not None:
                    row[name] = [from_text(kind, v) for v in json.loads(row[name])]
        return found

    def exists(self, connection: Connection, name: TableName) -> bool:
        _, rows = self.place(connection.name).run(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            name.schema,
            name.name,
        )
        return bool(rows)

    def litter(self, connection: Connection) -> list[str]:
        _, rows = self.place(connection.name).run(
            "SELECT table_name FROM information_schema.tables "
            "WHERE table_schema = 'ematix_flow' AND table_name LIKE 'stage%'"
        )
        return [name for (name,) in rows]

    def close(self) -> None:
        for place in self._places.values():
            place.close()


class MariaDBHarness(MySQLHarness):
    """The other product that the same backend serves."""

    name = "mariadb"
    service = "mariadb"


def _decode(kind: str, value: Any) -> Any:
    if kind == "boolean":
        return bool(value)
    if kind == "time" and isinstance(value, timedelta):
        return (datetime.min + value).time()
    if kind == "timestamp_tz":
        return value.replace(tzinfo=timezone.utc)
    return from_text(kind, value)


HARNESSES = (MySQLHarness, MariaDBHarness)
