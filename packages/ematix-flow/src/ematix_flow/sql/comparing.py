"""Spark SQL that brings two columns to one form, in which equal values are equal.

Types are compared by what they say: 5, 5.0 and 5.00 are one number, a JSON document is the same
with other blanks in it, an instant is the same in every zone. The result is never cut or rounded.
"""

from __future__ import annotations

from ematix_flow import types as t
from ematix_flow.sql.spark import literal

_DIGITS = {"small_int": 5, "integer": 10, "big_int": 19}
_FAMILIES = {
    **dict.fromkeys(_DIGITS, "whole number"),
    **dict.fromkeys(("numeric", "any_numeric"), "decimal"),
    **dict.fromkeys(("float", "double"), "float"),
    **dict.fromkeys(("text", "string"), "text"),
    **dict.fromkeys(("json", "jsonb"), "json"),
}
_EXACT = ("whole number", "decimal")
_MOMENTS = ("date", "timestamp", "timestamp_tz")
_ENDING_IN_ZEROS = r"^([-+]?[0-9]+)[.]0*$|^([-+]?[0-9]+[.][0-9]*[1-9])0+$"
_NATIVE = (*_DIGITS, "boolean")


def family(column_type: t.ColumnType) -> str:
    """What a type's values are, whatever their width."""
    return _FAMILIES.get(column_type.kind, column_type.kind)


def common_type(a: t.ColumnType, b: t.ColumnType) -> t.ColumnType:
    """The type as which values of both are compared; text where they have no other in common."""
    if isinstance(a, t.Array) and isinstance(b, t.Array):
        return t.Array(common_type(a.element, b.element))
    families = {family(a), family(b)}
    if families == {"whole number"}:
        return t.BigInt()
    if families <= set(_EXACT):
        return _common_decimal(a, b)
    if families <= {*_EXACT, "float"}:
        return t.Float() if a.kind == b.kind == "float" else t.Double()
    if families <= set(_MOMENTS):
        return _common_moment(families)
    if len(families) == 1:
        return {"text": t.Text(), "json": t.JSON()}.get(families.pop(), a)
    return t.Text()


def _common_decimal(a: t.ColumnType, b: t.ColumnType) -> t.ColumnType:
    sizes = [_size(a), _size(b)]
    whole = max(digits for digits, _ in sizes)
    scale = max(scale for _, scale in sizes)
    fits = whole + scale <= t.Numeric.max_precision
    return t.Numeric(whole + scale, scale) if fits else t.AnyNumeric()


def _size(column_type: t.ColumnType) -> tuple[int, int]:
    """Digits before and after the point; too many where they are not known."""
    if isinstance(column_type, t.Numeric):
        return column_type.precision - column_type.scale, column_type.scale
    return _DIGITS.get(column_type.kind, t.Numeric.max_precision + 1), 0


def _common_moment(families: set[str]) -> t.ColumnType:
    if "timestamp_tz" in families:
        return t.TimestampTZ()
    return t.Timestamp() if "timestamp" in families else t.Date()


def comparable(value: str, given: t.ColumnType, other: t.ColumnType) -> str:
    """Spark SQL for a value of type ``given`` as it is compared with one of type ``other``."""
    common = common_type(given, other)
    if common.kind != "text" or family(given) == family(other):
        return _converted(value, given, common)
    if family(given) != "text":
        return as_text(_converted(value, given, given), given)
    # Text that reads as the other's type is compared as that; any other text stands for itself.
    read = _read(value, other)
    return value if read is None else f"coalesce({as_text(read, other)}, {value})"


def _converted(value: str, given: t.ColumnType, common: t.ColumnType) -> str:
    if isinstance(common, t.Array) and isinstance(given, t.Array):
        element = as_text(_converted("e", given.element, common.element), common.element)
        if common.element.kind == "text" and family(given.element) != "text":
            element = as_text("e", given.element)
        return f"to_json(transform({value}, e -> {element}))"
    if isinstance(common, t.Numeric):
        return f"CAST({value} AS DECIMAL({common.precision}, {common.scale}))"
    match common.kind:
        case "small_int" | "integer" | "big_int":
            return f"CAST({value} AS BIGINT)"
        case "any_numeric":
            return _plain_number(f"CAST({value} AS STRING)")
        case "float" | "double":
            # Adding zero makes one of the two zeros.
            return f"(CAST({value} AS {common.kind}) + CAST(0 AS {common.kind}))"
        case "date":
            return f"CAST({value} AS DATE)"
        case "timestamp":
            return f"CAST({value} AS TIMESTAMP_NTZ)"
        case "timestamp_tz":
            return f"CAST({value} AS TIMESTAMP)"
        case "time":
            return f"coalesce({_time(value)}, {value})"
        case "json" | "jsonb":
            return f"coalesce(to_json(try_parse_json({value})), {value})"
        case "uuid":
            return f"lower({value})"
    return value


def _read(value: str, wanted: t.ColumnType) -> str | None:
    """Text read as another type, NULL where it is none; None where no text is one."""
    match wanted.kind:
        case "small_int" | "integer" | "big_int":
            return f"try_cast({value} AS BIGINT)"
        case "numeric" | "any_numeric":
            return value  # a cast would round; the text of a number is enough
        case "float" | "double":
            return f"(try_cast({value} AS {wanted.kind}) + CAST(0 AS {wanted.kind}))"
        case "boolean" | "date":
            return f"try_cast({value} AS {wanted.kind})"
        case "timestamp":
            return f"try_cast({value} AS TIMESTAMP_NTZ)"
        case "timestamp_tz":
            return f"try_cast({value} AS TIMESTAMP)"
        case "time":
            return _time(value)
        case "json" | "jsonb":
            return f"to_json(try_parse_json({value}))"
        case "uuid":
            return f"lower({value})"
    return None


def as_text(value: str, column_type: t.ColumnType) -> str:
    """Spark SQL for the one text of a value that is in comparable form."""
    match column_type.kind:
        case "numeric" | "any_numeric":
            return _plain_number(f"CAST({value} AS STRING)")
        case "timestamp":
            return f"date_format({value}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
        case "timestamp_tz":
            return f"date_format({value}, \"yyyy-MM-dd HH:mm:ss.SSSSSS'+00:00'\")"
        case "bytes":
            return f"lower(hex({value}))"
        case "small_int" | "integer" | "big_int" | "float" | "double" | "boolean" | "date":
            return f"CAST({value} AS STRING)"
    return value


def as_shown(value: str, column_type: t.ColumnType) -> str:
    """The same for people and JSON: whole numbers and booleans stay what they are."""
    return value if column_type.kind in _NATIVE else as_text(value, column_type)


def _plain_number(text: str) -> str:
    """A number's text without zeros that say nothing; other text, such as NaN, as it is."""
    most = t.Numeric.max_precision
    # Some databases write small numbers with an exponent.
    written_out = f"CAST(try_cast({text} AS DECIMAL({most}, {most // 2})) AS STRING)"
    return (
        f"CASE WHEN {text} RLIKE '[eE]' THEN coalesce({_without_zeros(written_out)}, {text}) "
        f"ELSE {_without_zeros(text)} END"
    )


def _without_zeros(text: str) -> str:
    return f"regexp_replace({text}, {literal(_ENDING_IN_ZEROS)}, '$1$2')"


def _time(text: str) -> str:
    stamped = f"try_cast(concat('1970-01-01 ', {text}) AS TIMESTAMP_NTZ)"
    return f"date_format({stamped}, 'HH:mm:ss.SSSSSS')"
