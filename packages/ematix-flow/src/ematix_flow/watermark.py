"""The value of a watermark as canonical text, and which of two values is greater."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from math import ceil, floor
from typing import Any

from ematix_flow import types as t
from ematix_flow.errors import ConfigError, DeclarationError

KINDS = (
    *("small_int", "integer", "big_int", "numeric", "text", "string"),
    *("date", "timestamp", "timestamp_tz"),
)
_NUMBERS = ("small_int", "integer", "big_int", "numeric")
_TEXTS = ("text", "string")


def check_watermark(column: str, kind: t.ColumnType, lookback: object | None = None) -> None:
    """Refuse a column that cannot be one, and a ``lookback`` that cannot be taken from it."""
    if kind.kind not in KINDS:
        raise DeclarationError(
            f"watermark column {column!r} is a {kind}, which cannot be one",
            fix="use a whole number (SmallInt, Integer, BigInt), a Numeric, a Date, a Timestamp, "
            "a TimestampTZ or a text; Float and Double are not exact enough",
        )
    if lookback is None:
        return
    if kind.kind in _TEXTS:
        raise DeclarationError(
            f"lookback= does not go with watermark column {column!r}, which is a {kind}",
            fix="remove it, or use a column of numbers or times",
        )
    is_span = isinstance(lookback, timedelta)
    if is_span == (kind.kind in _NUMBERS):
        wrong, right = ("a time span", "a number") if is_span else ("a number", "a time span")
        example = "1000" if is_span else "timedelta(hours=1)"
        raise DeclarationError(
            f"lookback= is {wrong}, but watermark column {column!r} is a {kind}",
            fix=f"give it as {right}, for example lookback={example}",
        )


def canonical_value(value: Any, kind: t.ColumnType) -> str | None:
    """A driver's value as text that sorts and reads back without loss."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, datetime):
        if isinstance(kind, t.TimestampTZ):
            zoned = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
            return zoned.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f+00:00")
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def read_value(text: str, kind: t.ColumnType) -> Any:
    """The Python value behind canonical text, or behind what a user typed for it."""
    try:
        if kind.kind in ("small_int", "integer", "big_int"):
            return int(text)
        if isinstance(kind, t.Numeric):
            return Decimal(text)
        if isinstance(kind, t.Date):
            return date.fromisoformat(text)
        if isinstance(kind, t.Timestamp | t.TimestampTZ):
            return _instant(text, zoned=isinstance(kind, t.TimestampTZ))
    except (ValueError, ArithmeticError) as error:
        raise ConfigError(f"{text!r} is not a {kind}", fix="write it as in the source") from error
    return text


def _instant(text: str, *, zoned: bool) -> datetime:
    read = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if zoned:
        return read if read.tzinfo else read.replace(tzinfo=timezone.utc)
    if read.tzinfo:
        raise ValueError("a time zone where none belongs")
    return read


def greater_value(left: str | None, right: str | None, kind: t.ColumnType) -> str | None:
    """The greater of two canonical values."""
    if left is None or right is None:
        return right if left is None else left
    return max((left, right), key=lambda value: read_value(value, kind))


def lowered(value: str, by: object, kind: t.ColumnType) -> str:
    """A watermark moved back by ``lookback``: a time span, or a number of the column's unit."""
    read = read_value(value, kind)
    if not isinstance(by, timedelta):
        moved = Decimal(read) - Decimal(str(by))
        return canonical_value(floor(moved) if isinstance(read, int) else moved, kind) or ""
    # A date has no hours: what is not a whole day goes back one day more.
    span = by if isinstance(read, datetime) else timedelta(days=ceil(by / timedelta(days=1)))
    try:
        return canonical_value(read - span, kind) or ""
    except OverflowError:
        return canonical_value(read.min.replace(tzinfo=getattr(read, "tzinfo", None)), kind) or ""
