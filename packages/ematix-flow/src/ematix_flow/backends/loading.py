"""From a connection to its backend, through the entry points of all installed packages."""

from __future__ import annotations

from ematix_flow.backends.base import Backend, LiveConnection
from ematix_flow.connections import CONNECTION_CLASSES, Connection
from ematix_flow.errors import NotAvailableYet, Unsupported
from ematix_flow.plugins import plugins

ENTRY_POINTS = "ematix_flow.backends"


def backend_names() -> list[str]:
    """The kinds of connections that have a backend."""
    return sorted(plugins(ENTRY_POINTS))


def backend_class(kind: str) -> type[Backend]:
    """The class behind a kind of connection."""
    found = plugins(ENTRY_POINTS)
    if kind in found:
        cls: type[Backend] = found[kind].load()
        return cls
    if kind in CONNECTION_CLASSES:
        raise NotAvailableYet(
            f"a batch pipeline over a {kind!r} connection",
            fix=f"use one of {', '.join(sorted(found))} meanwhile",
        )
    raise Unsupported(
        f"no backend is installed for {kind!r} connections",
        fix=f"use one of {', '.join(sorted(found))}",
    )


def load_backend(connection: Connection) -> Backend:
    """The backend of a connection, its ``${…}`` references resolved."""
    return backend_class(connection.kind)(connection)


def open_connection(connection: Connection) -> LiveConnection:
    """A live connection."""
    return load_backend(connection).open()
