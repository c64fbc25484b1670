"""The canonical text of a row and its SHA-256, equal on every backend and path.

The text lists the columns that are not NULL, sorted by name, as ``name=value;``. In names and
values ``~`` is written ``~~`` and ``;`` is written ``~;``; in names ``=`` is written ``~=``. Whole
numbers are digits, booleans ``true`` and ``false``, decimals have the digits of their scale,
instants are UTC with six digits after the second, bytes are lower-case hex, floats the shortest
text that reads back the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow import types as t
from ematix_flow.sql.identifiers import quoted
from ematix_flow.sql.normalizers import CannotMatch

_PLAIN = ("small_int", "integer", "big_int", "text", "string", "uuid")


def row_hash(columns: Mapping[str, t.ColumnType], dialect: str = "spark") -> str:
    """SQL for the hash of a row with these columns, as lower-case hex."""
    parts = []
    for name in sorted(columns):
        text = canonical(quoted(name, dialect), columns[name], dialect)
        escaped = f"replace(replace({text}, '~', '~~'), ';', '~;')"
        escaped_name = name.replace("~", "~~").replace(";", "~;").replace("=", "~=")
        head = _literal(f"{escaped_name}=", dialect)
        parts.append(f"coalesce({_concat((head, escaped, _literal(';', dialect)), dialect)}, '')")
    return _digest(_concat(parts, dialect), dialect)


def canonical(value: str, kind: t.ColumnType, dialect: str = "spark") -> str:
    """SQL for the canonical text of a value in its stored form; NULL stays NULL."""
    if dialect == "spark":
        return _spark_text(value, kind)
    if kind.kind in ("text", "string"):
        return value
    if dialect in ("postgres", "duckdb"):
        return _database_text(value, kind, dialect)
    if kind.kind in ("small_int", "integer", "big_int"):
        return f"CAST({value} AS {'CHAR' if dialect == 'mysql' else 'TEXT'})"
    raise CannotMatch(f"the row hash of a {kind} is computed by Spark only")


def _spark_text(value: str, kind: t.ColumnType) -> str:
    if isinstance(kind, t.Timestamp | t.TimestampTZ):
        return f"date_format({value}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
    if isinstance(kind, t.Bytes):
        return f"lower(hex({value}))"
    if isinstance(kind, t.Float | t.Double):
        # Minus zero equals zero, so it must not have another hash.
        return f"CAST(CASE WHEN {value} = 0 THEN abs({value}) ELSE {value} END AS STRING)"
    if isinstance(kind, t.Array):
        return f"to_json(CAST({value} AS ARRAY<STRING>))"
    return f"CAST({value} AS STRING)"


def _database_text(value: str, kind: t.ColumnType, dialect: str) -> str:
    text = "text" if dialect == "postgres" else "VARCHAR"
    if kind.kind in (*_PLAIN, "numeric", "date", "boolean"):
        return f"CAST({value} AS {text})"
    if isinstance(kind, t.Timestamp | t.TimestampTZ):
        if dialect == "postgres":
            return f"to_char({value}, 'YYYY-MM-DD HH24:MI:SS.US')"
        return f"strftime({value}, '%Y-%m-%d %H:%M:%S.%f')"
    raise CannotMatch(f"the row hash of a {kind} is computed by Spark only")


def _concat(parts: tuple[str, ...] | list[str], dialect: str) -> str:
    if dialect in ("spark", "mysql"):
        return f"concat({', '.join(parts)})"
    return "(" + " || ".join(parts) + ")"


def _literal(text: str, dialect: str) -> str:
    escaped = text.replace("'", "''")
    if dialect in ("spark", "mysql"):
        escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _digest(text: str, dialect: str) -> str:
    if dialect == "postgres":
        return f"encode(sha256(convert_to({text}, 'UTF8')), 'hex')"
    if dialect == "duckdb":
        return f"sha256({text})"
    if dialect == "sqlite":
        return f"ematix_sha256({text})"
    return f"sha2({text}, 256)"
