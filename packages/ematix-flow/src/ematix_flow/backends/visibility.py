"""Whether the machines of a cluster see what a pipeline reads and writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from ematix_flow.backends.base import Backend
from ematix_flow.connections.stores import DeltaLocalConnection, ObjectStoreLocalConnection
from ematix_flow.engine.placing import current_place
from ematix_flow.engine.session import EngineBarred, shared_engine
from ematix_flow.errors import Unsupported


def is_elsewhere() -> bool | None:
    """Whether machines do the work that do not see the files of this one; None if not known."""
    place = current_place()
    if place is None or not place.is_distributed:
        return False
    if not place.is_server:
        return True
    try:
        # It may be on this machine, and has tried.
        return bool(getattr(shared_engine(), "distributed", False))
    except EngineBarred:
        return None


def check_visible(backends: Iterable[Backend]) -> None:
    """Refuse folders that are only this machine's, where other machines do the work.

    Databases in a file are not refused: their rows go over the wire.
    """
    for backend in backends:
        connection = backend.connection
        if not isinstance(connection, ObjectStoreLocalConnection | DeltaLocalConnection):
            continue
        if cast(bool, getattr(connection, "shared", False)) or not is_elsewhere():
            continue
        raise Unsupported(
            f"connection {backend.name!r} is the local path {connection.path}, which the "
            "other machines cannot see",
            fix="if every machine has the same storage there, set shared = true on the "
            "connection; otherwise run it with engine='local'",
        )
