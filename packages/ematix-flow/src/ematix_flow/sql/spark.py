"""The Spark form of every logical type, and how a value is assigned to a declared column.

A value that its column cannot hold stops the load with the column, the value and the type; it is
never cut, rounded to another kind, or turned into NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow import types as t

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from ematix_flow.model import Column

_PLAIN = {
    "small_int": "SMALLINT",
    "integer": "INT",
    "big_int": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "text": "STRING",
    "string": "STRING",
    "any_numeric": "STRING",
    "date": "DATE",
    "time": "STRING",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamp_tz": "TIMESTAMP",
    "json": "STRING",
    "jsonb": "STRING",
    "uuid": "STRING",
    "bytes": "BINARY",
}
_TEXTS = ("text", "string", "any_numeric")
_HELD_AS_TEXT = ("time", "uuid")
_SHOWN_CHARACTERS = 80
_TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,6})?)?$"
_DAY = "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_CLOCK = "[T ][0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}([.][0-9]{1,6}0*)?)?"
_ZONE = "( *(Z|UTC|GMT|[+-][0-9]{1,2}(:?[0-9]{2})?|[A-Za-z_]+/[A-Za-z_/]+))?"
# Spark's casts read more than this, and drop what the type cannot hold: a time, a zone.
_WRITTEN = {
    "date": f"^ *{_DAY} *$",
    "timestamp": f"^ *{_DAY}({_CLOCK})? *$",
    "timestamp_tz": f"^ *{_DAY}({_CLOCK}{_ZONE})? *$",
}
_UUID = "^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"


def quote(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A Spark SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def spark_ddl(column_type: t.ColumnType) -> str:
    """The Spark type that carries a logical type."""
    if isinstance(column_type, t.Numeric):
        return f"DECIMAL({column_type.precision}, {column_type.scale})"
    if isinstance(column_type, t.Array):
        return f"ARRAY<{spark_ddl(column_type.element)}>"
    return _PLAIN[column_type.kind]


def from_spark(data_type: DataType) -> t.ColumnType | None:
    """The logical type of a Spark type; structures and maps become JSON."""
    from pyspark.sql import types as s

    if isinstance(data_type, s.DecimalType):
        return t.Numeric(data_type.precision, data_type.scale)
    if isinstance(data_type, s.ArrayType):
        element = from_spark(data_type.elementType)
        return t.JSON() if element is None or element.kind == "json" else t.Array(element)
    known: dict[type[DataType], t.ColumnType] = {
        s.ByteType: t.SmallInt(),
        s.ShortType: t.SmallInt(),
        s.IntegerType: t.Integer(),
        s.LongType: t.BigInt(),
        s.FloatType: t.Float(),
        s.DoubleType: t.Double(),
        s.BooleanType: t.Boolean(),
        s.StringType: t.Text(),
        s.VarcharType: t.Text(),
        s.CharType: t.Text(),
        s.NullType: t.Text(),
        s.DateType: t.Date(),
        s.TimestampNTZType: t.Timestamp(),
        s.TimestampType: t.TimestampTZ(),
        s.BinaryType: t.Bytes(),
        s.StructType: t.JSON(),
        s.MapType: t.JSON(),
        s.VariantType: t.JSON(),
    }
    return known.get(type(data_type))


def as_form(name: str, data_type: DataType) -> str:
    """A DataFrame's column in the Spark form of its logical type."""
    from pyspark.sql import types as s

    if isinstance(data_type, s.StructType | s.MapType | s.VariantType):
        return f"to_json({quote(name)})"
    if isinstance(data_type, s.ArrayType) and from_spark(data_type) == t.JSON():
        return f"to_json({quote(name)})"
    if isinstance(data_type, s.NullType | s.ByteType):
        logical = from_spark(data_type) or t.Text()
        return f"CAST({quote(name)} AS {spark_ddl(logical)})"
    return quote(name)


def assign(column: Column, value: str, source: t.ColumnType) -> str:
    """Spark SQL that puts ``value``, in the form of ``source``, into a declared column."""
    assigned = _converted(column, value, source)
    if isinstance(column.type, t.String):
        limit = column.type.length
        assigned = (
            f"CASE WHEN char_length({assigned}) > {limit} THEN "
            f"{_refusal(column, assigned, f'is longer than {limit} characters')} "
            f"ELSE {assigned} END"
        )
    if not column.nullable:
        missing = literal(f"column {column.name!r} is NULL in the source but declared NOT NULL")
        assigned = f"coalesce({assigned}, raise_error({missing}))"
    return f"CAST({assigned} AS {spark_ddl(column.type)})"


def _converted(column: Column, value: str, source: t.ColumnType) -> str:
    target = column.type
    # Some databases let columns of these types hold any text.
    if source.kind in _TEXTS or source.kind == target.kind in _HELD_AS_TEXT:
        return _parsed(column, value, target)
    if source == target or source.kind == target.kind == "array":
        return f"CAST({value} AS {spark_ddl(target)})"
    if target.kind in ("text", "string"):
        return value if spark_ddl(source) == "STRING" else f"CAST({value} AS STRING)"
    if target.kind in ("json", "jsonb"):
        return f"to_json({value})" if isinstance(source, t.Array) else value
    if spark_ddl(source) == spark_ddl(target):
        return value
    cast = f"try_cast({value} AS {spark_ddl(target)})"
    if isinstance(source, t.Numeric) and isinstance(target, t.Numeric):
        cast = _unrounded(value, f"CAST({value} AS STRING)", target)
    return _tried(column, value, cast)


def _parsed(column: Column, value: str, target: t.ColumnType) -> str:
    """Text read as another type."""
    if target.kind in ("text", "string"):
        return value
    if target.kind == "time":
        stamped = f"CAST(concat('1970-01-01 ', {value}) AS TIMESTAMP_NTZ)"
        read = f"CASE WHEN {value} RLIKE {literal(_TIME)} THEN " + (
            f"date_format({stamped}, 'HH:mm:ss.SSSSSS') END"
        )
    elif target.kind == "uuid":
        plain = f"replace(lower({value}), '-', '')"
        groups = "^(.{8})(.{4})(.{4})(.{4})(.{12})$"
        dashed = f"regexp_replace({plain}, '{groups}', '$1-$2-$3-$4-$5')"
        read = f"CASE WHEN {value} RLIKE {literal(_UUID)} THEN {dashed} END"
    elif target.kind in ("json", "jsonb"):
        read = f"CASE WHEN try_parse_json({value}) IS NOT NULL THEN {value} END"
    elif isinstance(target, t.Array):
        texts = f"from_json({value}, 'ARRAY<STRING>')"
        read = f"try_cast({texts} AS {spark_ddl(target)})"
    elif target.kind == "bytes":
        return f"CAST({value} AS BINARY)"
    elif isinstance(target, t.Numeric):
        read = _exact_number(value, target)
    elif target.kind in _WRITTEN:
        cast = f"try_cast({value} AS {spark_ddl(target)})"
        read = f"CASE WHEN {value} RLIKE {literal(_WRITTEN[target.kind])} THEN {cast} END"
    else:
        read = f"try_cast({value} AS {spark_ddl(target)})"
    return _tried(column, value, read)


def _exact_number(value: str, target: t.Numeric) -> str:
    """Text as a decimal, or NULL where it has more digits than the column can hold."""
    most = t.Numeric.max_precision
    small = f"CAST(try_cast({value} AS DECIMAL({most}, {most - 1})) AS STRING)"
    digits = most - (target.precision - target.scale)
    large = f"CAST(try_cast({value} AS DECIMAL({most}, {digits})) AS STRING)"
    plain = f"CASE WHEN {value} RLIKE '[eE]' THEN coalesce({small}, {large}) ELSE {value} END"
    return _unrounded(value, plain, target)


def _unrounded(value: str, plain: str, target: t.Numeric) -> str:
    """The cast, where the number written out in ``plain`` has no digit that it would drop."""
    dropped = literal(f"[.][0-9]{{{target.scale}}}[0-9]*[1-9]")
    cast = f"try_cast({value} AS {spark_ddl(target)})"
    return f"CASE WHEN NOT ({plain}) RLIKE {dropped} THEN {cast} END"


def _tried(column: Column, value: str, read: str) -> str:
    exact = "an exact" if isinstance(column.type, t.Numeric) else "a valid"
    refusal = _refusal(column, value, f"is not {exact} {column.type}")
    return f"CASE WHEN {value} IS NULL THEN NULL ELSE coalesce({read}, {refusal}) END"


def _refusal(column: Column, value: str, why: str) -> str:
    shown = f"substr(CAST({value} AS STRING), 1, {_SHOWN_CHARACTERS})"
    head, tail = literal(f"column {column.name!r}: the value '"), literal(f"' {why}")
    return f"raise_error(concat({head}, {shown}, {tail}))"
