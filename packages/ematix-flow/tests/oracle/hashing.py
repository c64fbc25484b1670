"""The hash that breaks ties between events: SHA-256 of a row's one canonical text."""

from __future__ import annotations

import hashlib
import struct
from datetime import datetime, timezone
from math import isnan
from typing import Any

from oracle.state import Row


def row_hash(row: Row) -> str:
    """The hash of a row; a column that is NULL might as well not be there."""
    return hashlib.sha256(canonical_text(row).encode()).hexdigest()


def canonical_text(row: Row) -> str:
    """``name=value;`` for every column that is not NULL, by name."""
    return "".join(
        f"{_escaped(name).replace('=', '~=')}={_escaped(_text(row[name]))};"
        for name in sorted(row)
        if row[name] is not None
    )


def _escaped(text: str) -> str:
    return text.replace("~", "~~").replace(";", "~;")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        shown = value if value.tzinfo is None else value.astimezone(timezone.utc)
        return shown.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return "7ff8000000000000" if isnan(value) else struct.pack(">d", value or 0.0).hex()
    return str(value)
