"""Postgres errors, by SQLSTATE, as one sentence each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ematix_flow.errors import BadValue, EmatixError, Permanent, Transient
from ematix_flow.redaction import redact_text


def translate(error: Exception, connection: str, info: Mapping[str, Any]) -> EmatixError | None:
    """The error as one of ours; None where it is no driver's."""
    state, detail = _told(error)
    if state is None:
        return None
    text = redact_text((str(error).strip().splitlines() or [type(error).__name__])[0])
    # A refused connection names the server before it says why.
    text = text.rpartition("FATAL:")[2].strip()
    if not state:
        return _unconnected(text, connection, info)
    if state.startswith("28"):
        return Permanent(text, connection=connection, fix="check user and password")
    if state == "3D000":
        return Permanent(text, connection=connection, fix="check the database name in its URL")
    if state == "22021":
        return BadValue(
            f"connection {connection!r}: text with a NUL character cannot be stored in Postgres",
            fix="remove it in the source, for example with regex_replace",
        )
    if state.startswith(("22", "23")):
        told = f"{text} ({redact_text(detail)})" if detail else text
        return BadValue(
            f"connection {connection!r}: {told}",
            fix="correct the rows in the source, or change the declaration",
        )
    if state == "42501":
        return Permanent(text, connection=connection, fix="grant the privilege to this user")
    if state in ("42P01", "42703", "3F000"):
        return Permanent(text, connection=connection, fix="check the names in the SQL")
    if state.startswith("42"):
        return Permanent(text, connection=connection, fix="correct the SQL")
    if state == "53100":
        return Permanent(text, connection=connection, fix="free space on the server's disk")
    if state == "25006":
        return Permanent(
            text,
            connection=connection,
            fix="use a role that may write, on a server that is no replica",
        )
    if state.startswith(("40", "53", "55", "57", "58", "08")):
        return Transient(text, connection=connection, fix="run again")
    return Permanent(text, connection=connection)


def _told(error: Exception) -> tuple[str | None, str | None]:
    """The SQLSTATE, empty where there is none, and the detail; no state if it is no driver's."""
    import psycopg

    if isinstance(error, psycopg.Error):
        return error.sqlstate or "", getattr(error.diag, "message_detail", None)
    import asyncpg

    if isinstance(error, asyncpg.PostgresError):
        return error.sqlstate or "", error.detail
    lost = isinstance(error, asyncpg.InterfaceError | OSError | asyncio.TimeoutError)
    return ("" if lost else None), None


def _unconnected(text: str, connection: str, info: Mapping[str, Any]) -> EmatixError:
    lowered = text.lower()
    if "password authentication failed" in lowered or "no password supplied" in lowered:
        return Permanent(
            "the server refused the user or password",
            connection=connection,
            fix="check user and password",
        )
    if "does not exist" in lowered and "database" in lowered:
        return Permanent(text, connection=connection, fix="check the database name in its URL")
    if "invalid connection option" in lowered or "invalid uri" in lowered:
        return Permanent(text, connection=connection, fix="correct the connection's URL")
    where = f"{info.get('host', 'localhost')}:{info.get('port', 5432)}"
    if "refused" in lowered:
        return Transient(
            f"nothing answers at {where}",
            connection=connection,
            fix="start the server, or correct host and port",
        )
    if "resolve" in lowered or "name or service" in lowered:
        return Transient(
            f"the host of {where} cannot be found", connection=connection, fix="correct host"
        )
    return Transient(text, connection=connection, fix="check that the server is up, then run again")
