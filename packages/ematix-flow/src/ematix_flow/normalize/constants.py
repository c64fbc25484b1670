"""Constants that a user writes in a normalizer, converted to the column they meet."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from datetime import date, datetime, time, timezone
from decimal import Context, Decimal

from ematix_flow import types as t
from ematix_flow.errors import DeclarationError
from ematix_flow.normalize.base import FLOATS, TEXTS
from ematix_flow.normalize.formats import read_format

# Wide enough for every digit that a user writes; the default context would round to 28.
_EXACT = Context(prec=1000)
_CLOCKS = (
    "YYYY-MM-DD",
    "YYYY-MM-DD HH24:MI:SS",
    "YYYY-MM-DDTHH24:MI:SS",
    "YYYY-MM-DD HH24:MI:SS.US",
    "YYYY-MM-DDTHH24:MI:SS.US",
)
INTEGER_BITS = {"small_int": 16, "integer": 32, "big_int": 64}


def checked_constant(who: str, value: object, *, parameter: str = "value") -> object:
    """A value that can be compared or stored, or an error."""
    if value is None or not isinstance(value, str | int | float | Decimal | date):
        raise DeclarationError(
            f"{who}: {parameter} must be text, a number, a bool, a date or a datetime, "
            f"not {value!r}"
        )
    return value


def fitted(who: str, value: object, column: t.ColumnType) -> object:
    """``value`` as a column of this type holds it, or an error."""
    converted = _converted(value, column)
    if converted is None:
        raise DeclarationError(
            f"{who}: {value!r} does not suit a column of type {column}",
            fix=f"write {_EXAMPLES.get(column.kind, 'sql() instead')}",
        )
    return converted


_EXAMPLES = {
    "text": "text, such as 'unknown'",
    "string": "text, such as 'unknown'",
    "small_int": "a whole number in the range of the type",
    "integer": "a whole number in the range of the type",
    "big_int": "a whole number in the range of the type",
    "numeric": "a number that fits its precision and scale, such as Decimal('0.00')",
    "float": "a number, such as 0.0",
    "double": "a number, such as 0.0",
    "boolean": "True or False",
    "date": "a date, such as date(2024, 1, 31) or '2024-01-31'",
    "timestamp": "a datetime without zone, such as datetime(2024, 1, 31, 12, 0)",
    "timestamp_tz": "a datetime, such as datetime(2024, 1, 31, 12, 0, tzinfo=timezone.utc)",
}


def _converted(value: object, column: t.ColumnType) -> object:
    if column.kind in TEXTS:
        return value if isinstance(value, str) else None
    if column.kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if column.kind in INTEGER_BITS:
        return _integer(value, INTEGER_BITS[column.kind])
    if isinstance(column, t.Numeric):
        return _decimal(value, column)
    if column.kind in FLOATS:
        return _float(value, column)
    if column.kind == "date":
        return _date(value)
    if column.kind in ("timestamp", "timestamp_tz"):
        return _instant(value, zoned=column.kind == "timestamp_tz")
    return None


def _integer(value: object, bits: int) -> int | None:
    if isinstance(value, int) and -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        return value
    return None


def _decimal(value: object, column: t.Numeric) -> Decimal | None:
    if isinstance(value, float) and math.isfinite(value):
        value = repr(value)
    elif not isinstance(value, int | Decimal):
        return None
    number = Decimal(value)
    if not number.is_finite():
        return None
    _, digits, exponent = number.normalize(_EXACT).as_tuple()
    whole = len(digits) + int(exponent)
    if -int(exponent) > column.scale or whole > column.precision - column.scale:
        return Decimal(0) if number == 0 else None
    return number


def _float(value: object, column: t.ColumnType) -> float | None:
    if not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
        return single(number) if column.kind == "float" else number
    except OverflowError:
        return None


def single(number: float) -> float:
    """The nearest number that 32 bits hold; raises OverflowError when there is none."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _date(value: object) -> date | None:
    if isinstance(value, str):
        moment = _read(value, ("YYYY-MM-DD",))
        return None if moment is None else moment.date()
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    return None


def _instant(value: object, *, zoned: bool) -> datetime | None:
    if isinstance(value, str):
        moment = _read(value, (*_CLOCKS, *(f"{c}OF" for c in _CLOCKS[1:])) if zoned else _CLOCKS)
        return moment if zoned or moment is None else moment.replace(tzinfo=None)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        return None
    if not zoned:
        return value if value.tzinfo is None else None
    if value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        return None


def _read(text: str, formats: Sequence[str]) -> datetime | None:
    # Not fromisoformat(), which reads more with every version of Python.
    readings = (read_format(layout, who="a constant").read(text) for layout in formats)
    return next((moment for moment in readings if moment is not None), None)
