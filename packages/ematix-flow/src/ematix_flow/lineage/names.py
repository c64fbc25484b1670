"""What tables are called in lineage: ``connection.schema.table``, or a path.

Connections that lead to the same place count as one, under the name that is used first.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.loading import load_backend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.config import resolve_connection
from ematix_flow.connections import format_from_path
from ematix_flow.connections.databases import FileDatabaseConnection, ServerConnection
from ematix_flow.errors import EmatixError
from ematix_flow.model import TableName
from ematix_flow.sql.identifiers import split_name
from ematix_flow.urls import split_url

if TYPE_CHECKING:
    from ematix_flow.backends.base import Backend
    from ematix_flow.engine.plans import Leaf

_PORTS = {"postgres": 5432, "mysql": 3306}
_JDBC = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}
_HERE = ("localhost", "127.0.0.1", "::1")
_FORMATS = ("parquet", "csv", "orc", "json", "json_lines", "delta")
_WILD = "*?["
_MANIFESTS = "_ematix"
_TABLE_DEPTH = 2


class Names:
    """Gives tables their names; asks no database."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend | None] = {}
        self._places: dict[str, str] = {}
        self._datasets: dict[str, tuple[str, str]] = {}
        self._connections: dict[str, str] = {}

    def backend(self, connection: str) -> Backend | None:
        """The backend of a connection; None where it cannot be had, a secret missing perhaps."""
        if connection not in self._backends:
            self._backends[connection] = None
            with contextlib.suppress(EmatixError):
                self._backends[connection] = load_backend(resolve_connection(connection).connection)
        return self._backends[connection]

    def dialect(self, connection: str) -> str:
        """The SQL that a source understands."""
        backend = self.backend(connection)
        return "spark" if backend is None else backend.dialect

    def table(self, connection: str, name: TableName, prefix: str | None = None) -> str:
        """A table as its connection spells it, default schema included."""
        backend = self.backend(connection)
        if prefix is not None and backend is not None:
            return self.path(connection, backend.locate(name, prefix))
        parts = [part for part in (name.schema, name.name) if part]
        if isinstance(backend, SqlBackend):
            spelled = backend.table(name)
            parts = [part for part in (spelled.db, spelled.name) if part]
        return self._labelled(connection, parts)

    def source_table(self, connection: str, text: str) -> str:
        """What ``source_table=`` names."""
        if not isinstance(self.backend(connection), SqlBackend) and _is_path(text):
            return self.path(connection, text.strip("`"))
        dialect = self.dialect(connection)
        foreign = dialect == "mysql" and '"' in text and "`" not in text
        return self.table(connection, split_name(text, "postgres" if foreign else dialect))

    def in_query(self, connection: str, table: exp.Table) -> str | None:
        """What a query of a connection names; None where it is a function and no file."""
        if not isinstance(table.this, exp.Identifier):
            path = table.this.this if isinstance(table.this, exp.Func) else None
            named = isinstance(path, exp.Literal) and path.is_string and _is_path(path.name)
            return self.path(connection, path.name) if path is not None and named else None
        parts = [part.name for part in table.parts]
        if len(parts) == _TABLE_DEPTH and parts[0].lower() in _FORMATS and _is_path(parts[1]):
            return self.path(connection, parts[1])
        if len(parts) == 1 and table.this.args.get("quoted") and _is_path(parts[0]):
            return self.path(connection, parts[0])
        if len(parts) > _TABLE_DEPTH and not self.place(connection).endswith(f"/{parts[0]}"):
            return self._labelled(connection, parts)  # of another database that is attached
        return self.table(connection, TableName(parts[-2] if len(parts) > 1 else None, parts[-1]))

    def path(self, connection: str, text: str) -> str:
        """A file or folder; one of a connection's own folders goes by the name of its table."""
        backend = self.backend(connection)
        root = getattr(getattr(backend, "store", None), "root", None)
        whole = Path(root or ".", _plain_path(text)).resolve()
        while any(mark in whole.name for mark in _WILD):
            whole = whole.parent
        if whole.is_file() and (whole.parent / _MANIFESTS).is_dir():
            whole = whole.parent  # one of the files of a table of ours
        if root is not None and whole.is_relative_to(Path(root).resolve()):
            parts = whole.relative_to(Path(root).resolve()).parts
            if parts:
                short = len(parts) <= _TABLE_DEPTH
                return self._labelled(connection, parts if short else ["/".join(parts)])
        return str(whole)

    def leaf(self, leaf: Leaf, connections: tuple[str, ...]) -> str:
        """What a Spark plan reads, as one of these connections calls it."""
        place = leaf.places[0] if leaf.places else ""
        if leaf.kind == "files":
            found = [self.path(c, _plain_path(place)) for c in connections]
            return next((f for f in found if not f.startswith("/")), found[0] if found else place)
        if leaf.kind == "jdbc":
            for connection in connections:
                if self.place(connection) == _jdbc_place(leaf.url):
                    with contextlib.suppress(EmatixError):
                        return self.source_table(connection, place)
            return f"{_jdbc_place(leaf.url) or 'jdbc'}.{place}"
        return f"spark.{place.removeprefix('spark_catalog.')}"

    def place(self, connection: str) -> str:
        """Where a connection leads; the same for two that lead to the same place."""
        if connection not in self._places:
            self._places[connection] = self._place(connection)
        return self._places[connection]

    def _place(self, connection: str) -> str:
        backend = self.backend(connection)
        held = None if backend is None else backend.connection
        if isinstance(held, ServerConnection):
            address = held.address()
            port = address.get("port") or _PORTS.get(held.kind)
            host = "localhost" if address["host"] in _HERE else address["host"]
            # A table of MySQL names its database, so that is no part of the place.
            database = "" if held.kind == "mysql" else f"/{address.get('database') or ''}"
            return f"{held.kind}://{host}:{port}{database}"
        if isinstance(held, FileDatabaseConnection) and held.file() != ":memory:":
            return f"{held.kind}:{Path(held.file()).expanduser().resolve()}"
        root = getattr(getattr(backend, "store", None), "root", None)
        if root is not None:
            return f"file:{Path(root).resolve()}"
        return f"connection:{connection}"

    def key(self, label: str) -> str:
        """The same for all names of one table, whichever connection they begin with."""
        if label.startswith("/"):
            return label
        connection = self._connections.get(label) or label.partition(".")[0]
        # Databases differ in which letters they tell apart; few projects have tables that do.
        return f"{self.place(connection)} {label.removeprefix(f'{connection}.').lower()}"

    def dataset(self, label: str) -> tuple[str, str]:
        """The namespace and name by which OpenLineage knows a table."""
        if label.startswith("/"):
            return "file", label
        if label not in self._datasets:
            connection, _, rest = label.partition(".")
            self._labelled(connection, [rest] if "/" in rest else rest.split("."))
        return self._datasets[label]

    def _labelled(self, connection: str, parts: list[str] | tuple[str, ...]) -> str:
        label = ".".join((connection, *parts))
        self._connections[label] = connection
        if label not in self._datasets:
            place, name = self.place(connection), ".".join(parts)
            if place.startswith("postgres://"):
                server, _, database = place.rpartition("/")
                place, name = server, f"{database}.{name}"
            elif place.startswith("file:"):
                place, name = "file", f"{place.removeprefix('file:')}/{'/'.join(parts)}"
            self._datasets[label] = (place, name)
        return label


def _is_path(text: str) -> bool:
    """As ``backends.file_queries`` tells files from tables, without loading what it needs."""
    return "/" in text or "*" in text or format_from_path(text) is not None


def _plain_path(text: str) -> str:
    scheme, colon, rest = text.partition(":")
    return "/" + rest.lstrip("/") if colon and scheme == "file" else text


def _jdbc_place(url: str) -> str:
    """A JDBC address as ``Names.place`` spells it, without who connects."""
    parts = split_url(url.removeprefix("jdbc:"))
    kind = _JDBC.get(parts.scheme)
    if kind is None:
        return ""
    host = "localhost" if (parts.host or "localhost") in _HERE else parts.host
    database = "" if kind == "mysql" else f"/{parts.path}"
    return f"{kind}://{host}:{parts.port or _PORTS[kind]}{database}"
