"""The canonical text of a row and its SHA-256, equal on every backend and path.

The text lists the columns that are not NULL, sorted by name, as ``name=value;``. In names and
values ``~`` is written ``~~`` and ``;`` is written ``~;``; in names ``=`` is written ``~=``. Whole
numbers are digits, booleans ``true`` and ``false``, decimals have the digits of their scale,
instants are UTC with six digits after the second, bytes are lower-case hex, floats the 16 hex
digits of their double's bits, which are the same for every zero and for every NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow import types as t
from ematix_flow.sql.identifiers import quoted
from ematix_flow.sql.normalizers import CannotMatch

_WHOLE = ("small_int", "integer", "big_int")
_PLAIN = (*_WHOLE, "text", "string", "uuid", "numeric", "date", "boolean")
# No text of these holds a character that must be escaped.
_CLEAN = (*_WHOLE, "uuid", "numeric", "date", "boolean", "bytes", "float", "double")
_CLEAN_TIMES = ("timestamp", "timestamp_tz", "time")
_MIDNIGHT = "0000-00-00 00:00:00.000000"
_NAN, _ZERO = "7ff8000000000000", "0000000000000000"


def row_hash(columns: Mapping[str, t.ColumnType], dialect: str = "spark") -> str:
    """SQL for the hash of a row with these columns, as lower-case hex."""
    parts = []
    for name in sorted(columns):
        kind = columns[name]
        text = canonical(quoted(name, dialect), kind, dialect)
        clean = kind.kind in (*_CLEAN, *_CLEAN_TIMES)
        escaped = text if clean else f"replace(replace({text}, '~', '~~'), ';', '~;')"
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
    if kind.kind in _WHOLE:
        return f"CAST({value} AS {'CHAR' if dialect == 'mysql' else 'TEXT'})"
    raise CannotMatch(f"the row hash of a {kind} is computed by Spark only")


def _spark_text(value: str, kind: t.ColumnType) -> str:
    if isinstance(kind, t.Timestamp | t.TimestampTZ):
        return f"date_format({value}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
    if isinstance(kind, t.Bytes):
        return f"lower(hex({value}))"
    if isinstance(kind, t.Float | t.Double):
        return _spark_bits(f"CAST({value} AS DOUBLE)")
    if isinstance(kind, t.Array):
        return f"to_json(CAST({value} AS ARRAY<STRING>))"
    return f"CAST({value} AS STRING)"


def _spark_bits(value: str) -> str:
    """The bits of a double, by arithmetic that is exact: Spark has no function for them."""
    size = f"abs({value})"
    near = f"greatest(floor(log2({size})), -1022)"
    exponent = (
        f"(CASE WHEN {size} >= pow(2, {near} + 1) THEN {near} + 1 "
        f"WHEN {size} < pow(2, {near}) THEN greatest({near} - 1, -1022) ELSE {near} END)"
    )
    fraction = f"CAST({size} / pow(2, {exponent}) * {1 << 52} AS BIGINT)"
    tiny = f"CAST({size} * pow(2, 537) * pow(2, 537) AS BIGINT)"
    whole = f"({exponent} + 1022) * {1 << 52} + {fraction}"
    sign = f"if({value} < 0, -{(1 << 63) - 1} - 1, 0)"
    bits = f"CASE WHEN {size} < pow(2, -1022) THEN {tiny} ELSE {whole} END + {sign}"
    endless = f"if({value} > 0, '7ff0000000000000', 'fff0000000000000')"
    return (
        f"CASE WHEN isnan({value}) THEN '{_NAN}' WHEN {value} = 0 THEN '{_ZERO}' "
        f"WHEN {size} = double('Infinity') THEN {endless} "
        f"ELSE lower(lpad(hex({bits}), 16, '0')) END"
    )


def _database_text(value: str, kind: t.ColumnType, dialect: str) -> str:
    text = "text" if dialect == "postgres" else "VARCHAR"
    if kind.kind in _PLAIN:
        return f"CAST({value} AS {text})"
    if isinstance(kind, t.Timestamp | t.TimestampTZ):
        if dialect == "postgres":
            # Zeros stand where its text, which ends with the last digit that is none, has nothing.
            told = f"{value} AT TIME ZONE 'UTC'" if isinstance(kind, t.TimestampTZ) else value
            return f"overlay('{_MIDNIGHT}' PLACING CAST({told} AS text) FROM 1)"
        return f"strftime({value}, '%Y-%m-%d %H:%M:%S.%f')"
    if dialect == "postgres" and isinstance(kind, t.Bytes):
        return f"encode({value}, 'hex')"
    if dialect == "postgres" and isinstance(kind, t.Float | t.Double):
        return (
            f"CASE WHEN {value} = 'NaN' THEN '{_NAN}' WHEN {value} = 0 THEN '{_ZERO}' "
            f"ELSE encode(float8send(CAST({value} AS double precision)), 'hex') END"
        )
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
