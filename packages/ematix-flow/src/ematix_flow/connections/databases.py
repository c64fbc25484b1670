"""Databases: on a server, or in a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from ematix_flow.connections.base import Connection
from ematix_flow.errors import ConfigError
from ematix_flow.urls import split_url

_MAX_PORT = 65535


@dataclass(frozen=True, repr=False, kw_only=True)
class ServerConnection(Connection):
    """A database server, given by ``url`` or by its parts."""

    url: str | None = None
    host: str | None = None
    port: int | None = None
    database: str | None = None
    user: str | None = None
    password: str | None = None
    schemes: ClassVar[tuple[str, ...]] = ()

    def check(self) -> None:
        """Refuse an address that is given twice, not at all, or of another product."""
        if self.url is None and self.host is None:
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} needs url= or host=",
                fix=f"write for example url = "
                f'"{self.schemes[0]}://user:${{PASSWORD}}@host/database"',
            )
        if self.url is not None and self.host is not None:
            raise ConfigError(
                f"connection {self.name!r} has both url= and host=", fix="keep one of them"
            )
        if self.url is not None and not self.url.startswith("${"):
            self._check_scheme(self.url)

    def _check_scheme(self, url: str) -> None:
        scheme, separator, _ = url.partition("://")
        if separator and scheme not in self.schemes:
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} cannot use a URL that starts "
                f"with {scheme}://",
                fix=f"use {' or '.join(s + '://' for s in self.schemes)}",
            )
        if not separator and re.match(r"\s*\w+\s*=", url):
            raise ConfigError(
                f"connection {self.name!r}: its url is a list of key=value pairs, not a URL",
                fix=f"write {self.schemes[0]}://user:password@host/database, or one field each",
            )

    def address(self) -> dict[str, Any]:
        """Host, port, database, user, password and the URL's query options, resolved.

        Fields fill in what the URL leaves open, such as a password kept in a secret.
        """
        fields = {
            name: getattr(self, name)
            for name in ("host", "port", "database", "user", "password")
            if getattr(self, name) is not None
        }
        if self.url is None:
            return {**fields, "options": {}}
        self._check_scheme(self.url)
        parts = split_url(self.url if "://" in self.url else f"{self.schemes[0]}://{self.url}")
        found = {
            "host": parts.host or "localhost",
            "port": self._port(parts.port),
            "database": parts.path or None,
            "user": parts.user,
            "password": parts.password,
        }
        address = {name: value for name, value in found.items() if value is not None}
        for name in fields:
            if name in address:
                raise ConfigError(
                    f"connection {self.name!r} states its {name} in the URL and in {name}=",
                    fix="keep one of them",
                )
        return {**address, **fields, "options": parts.options}

    def _port(self, text: str | None) -> int | None:
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _MAX_PORT):
            raise ConfigError(
                f"connection {self.name!r}: the port in its URL is not a number from 1 to "
                f"{_MAX_PORT}",
                fix="correct the URL; in a password write @ as %40, / as %2F and : as %3A",
            )
        return int(text)


@dataclass(frozen=True, repr=False, kw_only=True)
class PostgresConnection(ServerConnection):
    """A PostgreSQL database."""

    kind: ClassVar[str] = "postgres"
    schemes: ClassVar[tuple[str, ...]] = ("postgres", "postgresql")


@dataclass(frozen=True, repr=False, kw_only=True)
class MySQLConnection(ServerConnection):
    """A MySQL or MariaDB database."""

    kind: ClassVar[str] = "mysql"
    schemes: ClassVar[tuple[str, ...]] = ("mysql", "mysql+pymysql", "mariadb")


@dataclass(frozen=True, repr=False, kw_only=True)
class FileDatabaseConnection(Connection):
    """A database that lives in one file."""

    path: str | None = None
    url: str | None = None

    def check(self) -> None:
        """Refuse a file that is given twice, not at all, or of another product."""
        if (not self.path) == (not self.url):
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} needs path= or url=, one of them",
                fix=f'write for example path = "warehouse.{self.kind}"',
            )
        if self.url and not self.url.startswith(("${", f"{self.kind}://")):
            raise ConfigError(
                f"connection {self.name!r} of kind {self.kind!r} needs a URL that starts with "
                f"{self.kind}://",
                fix=f'write for example path = "warehouse.{self.kind}"',
            )

    def file(self) -> str:
        """The database file, resolved; ``:memory:`` where there is none."""
        if self.path is not None:
            return self.path
        path = (self.url or "").partition("://")[2]
        return "/" + path.lstrip("/") if path.startswith("/") else path


@dataclass(frozen=True, repr=False, kw_only=True)
class SQLiteConnection(FileDatabaseConnection):
    """A SQLite file."""

    kind: ClassVar[str] = "sqlite"


@dataclass(frozen=True, repr=False, kw_only=True)
class DuckDBConnection(FileDatabaseConnection):
    """A DuckDB file."""

    kind: ClassVar[str] = "duckdb"
