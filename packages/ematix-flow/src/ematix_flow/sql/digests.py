"""Digests of rows as SQL that databases compute themselves, each to the same numbers as Spark.

A column is brought to one text, the texts to the row hash, its digits to two whole numbers that
can be summed in any order. A database that spelled a value otherwise would cost a second look at
its rows; it could never make two rows equal that are not.
"""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow import types as t
from ematix_flow.sql.comparing import family
from ematix_flow.sql.hashing import row_hash

DIALECTS = ("postgres", "duckdb", "mysql")
_TEXT_TYPES = {"postgres": "text", "duckdb": "VARCHAR", "mysql": "CHAR"}
_DECIMAL_TYPES = {"postgres": "numeric", "duckdb": "DECIMAL", "mysql": "DECIMAL"}
_WHOLE_TYPES = {
    "postgres": "numeric",
    "duckdb": "HUGEINT",
    "mysql": "DECIMAL(20, 0)",
    "spark": "DECIMAL(20, 0)",
}
_DAY = {"postgres": "YYYY-MM-DD", "duckdb": "%Y-%m-%d", "mysql": "%Y-%m-%d"}
_CLOCK = {
    "postgres": "YYYY-MM-DD HH24:MI:SS.US",
    "duckdb": "%Y-%m-%d %H:%M:%S.%f",
    "mysql": "%Y-%m-%d %H:%i:%s.%f",
}
# As many hexadecimal digits as a signed 64-bit number always holds.
_PART_DIGITS = 15


def database_text(
    value: str, given: t.ColumnType, common: t.ColumnType, dialect: str
) -> str | None:
    """A database's SQL for the text of a value that is compared as ``common``.

    None where it cannot be trusted to spell the value as Spark does.
    """
    text = _TEXT_TYPES[dialect]
    if isinstance(common, t.Numeric) and given.kind != "any_numeric":
        size = f"{common.precision}, {common.scale}"
        return f"CAST(CAST({value} AS {_DECIMAL_TYPES[dialect]}({size})) AS {text})"
    if family(given) != family(common):
        return None
    match common.kind:
        case "big_int":
            return f"CAST({value} AS {text})"
        case "text":
            # MySQL's cast stops at no length, but its text may be in any character set.
            return (
                f"CONVERT({value} USING utf8mb4)"
                if dialect == "mysql"
                else f"CAST({value} AS {text})"
            )
        case "uuid":
            return f"lower(CAST({value} AS {text}))"
        case "boolean":
            return f"CASE WHEN {value} THEN 'true' WHEN NOT {value} THEN 'false' END"
        case "date":
            return _moment(value, _DAY[dialect], "date", dialect)
        case "timestamp":
            return _moment(value, _CLOCK[dialect], "timestamp", dialect)
        case "timestamp_tz":
            return _moment(value, _CLOCK[dialect], "timestamptz", dialect)
    return None


def _moment(value: str, pattern: str, kind: str, dialect: str) -> str:
    if dialect == "mysql":
        return f"DATE_FORMAT({value}, '{pattern}')"
    function = "to_char" if dialect == "postgres" else "strftime"
    typed = f"CAST({value} AS {kind})"
    # Years before the first, and infinity, have no pattern that tells them apart.
    plain = f"{typed} >= '0001-01-01' AND {typed} < '9999-12-31'"
    return (
        f"CASE WHEN {plain} THEN {function}({typed}, '{pattern}') "
        f"ELSE CAST({value} AS {_TEXT_TYPES[dialect]}) END"
    )


def hash_of(columns: Mapping[str, t.ColumnType], dialect: str) -> str:
    """The hash of columns in comparable form; in a database, of their texts."""
    kinds = columns if dialect == "spark" else dict.fromkeys(columns, t.Text())
    return row_hash(kinds, dialect)


def part(digest: str, number: int, dialect: str) -> str:
    """The first or second whole number that a hash holds."""
    digits = f"substr({digest}, {1 + number * _PART_DIGITS}, {_PART_DIGITS})"
    match dialect:
        case "postgres":
            return f"CAST(CAST('x' || lpad({digits}, 16, '0') AS bit(64)) AS bigint)"
        case "duckdb":
            return f"CAST('0x' || {digits} AS BIGINT)"
        case "mysql":
            return f"CAST(conv({digits}, 16, 10) AS SIGNED)"
    return f"CAST(conv({digits}, 16, 10) AS BIGINT)"


def range_of(value: str, low: int, width: int, dialect: str) -> str:
    """Which range of ``width`` whole numbers from ``low`` on a value is in; -1 for NULL."""
    # Wider than the key: the distance of two 64-bit numbers may not fit in 64 bits.
    wide = _WHOLE_TYPES[dialect]
    offset = f"(CAST({value} AS {wide}) - CAST('{low}' AS {wide}))"
    size = f"CAST('{width}' AS {wide})"
    quotient = {
        "postgres": f"CAST(div({offset}, {size}) AS bigint)",
        "duckdb": f"({offset} // {size})",
    }.get(dialect, f"({offset} div {size})")
    return f"coalesce({quotient}, -1)"
