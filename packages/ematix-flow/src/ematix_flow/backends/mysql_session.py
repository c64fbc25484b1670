"""Opens connections to MySQL and MariaDB that behave the same whatever the server's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError

# How quotes and backslashes are read must not depend on the server; the rest is its owner's.
_UNWANTED_MODES = frozenset(
    {
        *("ANSI", "ANSI_QUOTES", "DB2", "MAXDB", "MSSQL", "MYSQL323", "MYSQL40", "ORACLE"),
        *("IGNORE_SPACE", "NO_BACKSLASH_ESCAPES", "PAD_CHAR_TO_FULL_LENGTH", "PIPES_AS_CONCAT"),
        *("POSTGRESQL", "EMPTY_STRING_IS_NULL", "NO_UNSIGNED_SUBTRACTION"),
    }
)
_STRICT = ("STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "ERROR_FOR_DIVISION_BY_ZERO")
_OPTIONS: dict[str, type] = {
    "connect_timeout": int,
    "ssl_ca": str,
    "ssl_cert": str,
    "ssl_disabled": bool,
    "ssl_key": str,
    "ssl_verify_cert": bool,
    "ssl_verify_identity": bool,
}
_LOCK_SECONDS = 60
_IDLE_SECONDS = 28_800


@dataclass(frozen=True)
class Server:
    """Which of the two products answers, and what it can do."""

    mariadb: bool
    version: tuple[int, ...]

    @property
    def collation(self) -> str:
        """The one that tells any two texts apart, blanks at their end included."""
        if self.mariadb:
            return "utf8mb4_nopad_bin"
        return "utf8mb4_0900_bin" if self.version >= (8, 0, 17) else "utf8mb4_bin"


def server_of(raw: Any) -> Server:
    """What a server says of itself when a connection opens."""
    told = str(raw.get_server_info()).removeprefix("5.5.5-")
    numbers = re.match(r"\d+(?:\.\d+)*", told)
    version = tuple(int(n) for n in numbers.group().split(".")) if numbers else ()
    return Server("mariadb" in told.lower(), version)


def arguments(address: Mapping[str, Any], connection: str) -> dict[str, Any]:
    """What the driver connects with, from a connection's address."""
    known = {name: _read(address["options"], name, kind) for name, kind in _OPTIONS.items()}
    for name in address["options"]:
        if name not in (*_OPTIONS, "charset"):
            raise ConfigError(
                f"connection {connection!r}: its URL has an unknown option {name!r}",
                fix=nearest(name, _OPTIONS),
            )
    return {
        "connect_timeout": 10,
        **{k: v for k, v in address.items() if k != "options"},
        **{name: value for name, value in known.items() if value is not None},
    }


def _read(options: Mapping[str, str], name: str, kind: type) -> Any:
    text = options.get(name)
    if text is None or kind is str:
        return text
    if kind is int:
        return int(text) if text.isdecimal() else None
    return text.lower() in ("1", "true", "yes", "on")


def connected(
    given: Mapping[str, Any], *, read_only: bool = False, sends_files: bool = False
) -> Any:
    """A connection in autocommit mode, in UTC, that refuses what it would have to change."""
    import pymysql
    from pymysql.constants import CLIENT

    raw = pymysql.connect(
        **given,
        charset="utf8mb4",
        autocommit=True,
        # A server may ask for any file of a client that sends files.
        local_infile=sends_files,
        # A row that is set to what it was is counted, as everywhere else.
        client_flag=CLIENT.FOUND_ROWS,
        program_name="ematix-flow",
    )
    try:
        with raw.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.sql_mode")
            mode = sql_mode(cursor.fetchone()[0])
            cursor.execute(
                "SET SESSION time_zone = '+00:00', sql_mode = %s, lock_wait_timeout = %s, "
                "innodb_lock_wait_timeout = %s, wait_timeout = %s",
                (mode, _LOCK_SECONDS, _LOCK_SECONDS, _IDLE_SECONDS),
            )
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if read_only:
                cursor.execute("SET SESSION TRANSACTION READ ONLY")
    except BaseException:
        raw.close()
        raise
    return raw


def sql_mode(server: str) -> str:
    """The server's own mode, made strict, with the usual meaning of quotes."""
    kept = [m for m in server.split(",") if m and m not in _UNWANTED_MODES and m not in _STRICT]
    return ",".join((*kept, *_STRICT))
