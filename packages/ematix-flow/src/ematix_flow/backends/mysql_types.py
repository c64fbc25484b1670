"""The types of MySQL and MariaDB: how they are declared, found, sent and read.

``DATETIME(6)`` holds local times and instants alike, instants in UTC: the products' own
``TIMESTAMP`` ends in 2038. Arrays are kept as JSON text.
"""

from __future__ import annotations

import re
from typing import Any

from ematix_flow import types as t
from ematix_flow.sql.spark import literal, quote, spark_ddl

_STORED = {
    "small_int": "smallint",
    "integer": "int",
    "big_int": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "tinyint(1)",
    "text": "longtext",
    "date": "date",
    "time": "time(6)",
    "timestamp": "datetime(6)",
    "timestamp_tz": "datetime(6)",
    "json": "json",
    "jsonb": "json",
    "uuid": "char(36)",
    "bytes": "longblob",
    "array": "longtext",
}
_FOUND: dict[str, t.ColumnType] = {
    "tinyint": t.SmallInt(),
    "smallint": t.SmallInt(),
    "mediumint": t.Integer(),
    "int": t.Integer(),
    "bigint": t.BigInt(),
    "tinyint unsigned": t.SmallInt(),
    "smallint unsigned": t.Integer(),
    "mediumint unsigned": t.Integer(),
    "int unsigned": t.BigInt(),
    "bigint unsigned": t.Numeric(20, 0),
    "year": t.SmallInt(),
    "float": t.Float(),
    "double": t.Double(),
    "date": t.Date(),
    "time": t.Time(),
    "datetime": t.Timestamp(),
    "timestamp": t.TimestampTZ(),
    "json": t.JSON(),
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext", "char"), t.Text()),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), t.Bytes()),
    **dict.fromkeys(("binary", "varbinary"), t.Bytes()),
}
# The numbers by which the protocol names a column's type.
_WIRE = {
    1: "tinyint",
    2: "smallint",
    3: "int",
    4: "float",
    5: "double",
    7: "timestamp",
    8: "bigint",
    9: "mediumint",
    10: "date",
    11: "time",
    12: "datetime",
    13: "year",
    245: "json",
}
_DECIMALS = (0, 246)
_BIT = 16
_TEXTS = (249, 250, 251, 252, 253, 254, 15)
_BINARY_CHARACTERS = 63
_UNSIGNED = 32
_LISTED = 256 | 2048  # ENUM and SET
_PLAIN_ELEMENTS = ("small_int", "integer", "big_int", "text", "string", "boolean")


def stored_type(column_type: t.ColumnType) -> str:
    """As ``information_schema`` spells it, the display width of integers aside."""
    if isinstance(column_type, t.Numeric):
        return f"decimal({column_type.precision},{column_type.scale})"
    if isinstance(column_type, t.String):
        return f"varchar({column_type.length})"
    return _STORED[column_type.kind]


def plain_spelling(declared: str) -> str:
    """A declared type without the display width that only MariaDB still shows."""
    lowered = declared.lower()
    if lowered.startswith("tinyint(1)"):
        return lowered
    return re.sub(r"^((?:tiny|small|medium|big)?int|year)\(\d+\)", r"\1", lowered)


def found_type(declared: str) -> t.ColumnType | None:
    """The logical type behind a declared type; None for what only text carries."""
    spelled = plain_spelling(declared)
    if spelled == "tinyint(1)":
        return t.Boolean()
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)( unsigned)?", spelled):
        return _decimal(int(found[1]), int(found[2]))
    if found := re.fullmatch(r"varchar\((\d+)\)", spelled):
        return t.String(int(found[1]))
    return _FOUND.get(re.sub(r"\(\d+\)", "", spelled))


def described_type(field: Any) -> t.ColumnType | None:
    """The logical type of a column of a result, from what the protocol tells about it."""
    code, unsigned = field.type_code, bool(field.flags & _UNSIGNED)
    if code in _DECIMALS:
        # The width counts the sign, unless there is none, and the point.
        width = field.length - (0 if unsigned else 1) - (1 if field.scale else 0)
        return _decimal(width, field.scale)
    if code == 1 and field.length == 1:
        return t.Boolean()
    if code == _BIT:
        return t.Boolean() if field.length == 1 else t.Numeric(20, 0)
    if code in _TEXTS:
        binary = field.charsetnr == _BINARY_CHARACTERS and not field.flags & _LISTED
        return t.Bytes() if binary and field.length else t.Text()
    name = _WIRE.get(code)
    if name is None:
        return None
    return _FOUND[f"{name} unsigned" if unsigned and f"{name} unsigned" in _FOUND else name]


def _decimal(precision: int, scale: int) -> t.ColumnType:
    fits = 0 < precision <= t.Numeric.max_precision and scale <= precision
    return t.Numeric(precision, scale) if fits else t.AnyNumeric()


def on_the_wire(column: str, field: Any) -> str:
    """A column as a query sends it to JDBC: a type that JDBC and Spark agree about."""
    logical = described_type(field)
    match logical:
        case t.Boolean() | t.SmallInt() | t.Integer() | t.BigInt():
            return f"CAST({column} AS SIGNED)"
        case t.Float() | t.Double():
            # A FLOAT is sent with six digits; as a DOUBLE it keeps them all.
            return f"({column} + 0e0)"
        case t.Numeric():
            return f"CAST({column} AS DECIMAL({logical.precision}, {logical.scale}))"
        case t.Bytes():
            return column
        case _:
            return f"CAST({column} AS CHAR)"


def in_form(name: str, field: Any) -> str:
    """The Spark form of a column as it came over the wire."""
    logical, column = described_type(field) or t.Text(), quote(name)
    if isinstance(logical, t.Boolean):
        refusal = literal(f"column {name!r}: a TINYINT(1) that is neither 0 nor 1 is no Boolean: ")
        told = f"raise_error(concat({refusal}, CAST({column} AS STRING)))"
        return f"CASE WHEN {column} NOT IN (0, 1) THEN {told} ELSE {column} = 1 END"
    return f"CAST({column} AS {spark_ddl(logical)})"


def loaded_text(name: str, kind: t.ColumnType) -> str:
    r"""Spark SQL for a value as ``LOAD DATA`` reads it; NULL is ``\N``."""
    return f"coalesce({_text(name, kind)}, '\\\\N')"


def _text(name: str, kind: t.ColumnType) -> str:
    column = quote(name)
    match kind:
        case t.Float() | t.Double():
            refusal = literal(f"column {name!r}: MySQL cannot hold NaN or Infinity")
            double = f"CAST({column} AS DOUBLE)"
            held = f"isnan({column}) OR abs({double}) = double('Infinity')"
            return f"CASE WHEN {held} THEN raise_error({refusal}) ELSE CAST({double} AS STRING) END"
        case t.Boolean():
            return f"CAST(CAST({column} AS INT) AS STRING)"
        case t.Timestamp() | t.TimestampTZ():
            return f"date_format({column}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
        case t.Bytes():
            return f"hex({column})"
        case t.Array():
            plain = kind.element.kind in _PLAIN_ELEMENTS
            return _escaped(f"to_json({column if plain else f'CAST({column} AS ARRAY<STRING>)'})")
        case _ if spark_ddl(kind) == "STRING":
            return _escaped(column)
        case _:
            return f"CAST({column} AS STRING)"


def _escaped(text: str) -> str:
    """With an escape for what ends a value or a line, as Spark's own literals spell it."""
    for raw, escaped in ((r"\\", r"\\\\"), (r"\t", r"\\t"), (r"\n", r"\\n"), (r"\0", r"\\0")):
        text = f"replace({text}, '{raw}', '{escaped}')"
    return text


def castable_type(kind: t.ColumnType) -> str:
    """A type as ``CAST`` spells it."""
    match kind:
        case t.SmallInt() | t.Integer() | t.BigInt() | t.Boolean():
            return "SIGNED"
        case t.Numeric():
            return f"DECIMAL({kind.precision}, {kind.scale})"
        case t.Float() | t.Double():
            return "DOUBLE"
        case t.Date():
            return "DATE"
        case t.Time():
            return "TIME(6)"
        case t.Timestamp() | t.TimestampTZ():
            return "DATETIME(6)"
        case t.Bytes():
            return "BINARY"
        case _:
            return "CHAR"


def constant(value: str, kind: t.ColumnType) -> str:
    """A typed literal, from canonical text."""
    text = "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    match kind:
        case t.Date():
            return f"DATE{text}"
        case t.Time():
            return f"TIME{text}"
        case t.Timestamp() | t.TimestampTZ():
            return f"TIMESTAMP'{value.removesuffix('+00:00')}'"
        case t.Text() | t.String() | t.UUID() | t.JSON() | t.JSONB() | t.Array():
            return text
        case _:
            return f"CAST({text} AS {castable_type(kind)})"
