"""The slices of a range: calendar days in a time zone, spans of time, or steps of a number."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from itertools import pairwise
from typing import Any

from ematix_flow import types as t
from ematix_flow.errors import ConfigError
from ematix_flow.watermark import canonical_value, read_value

MOST = 10_000
_STEP = re.compile(r"(?P<amount>[0-9]+(?:\.[0-9]+)?)(?P<unit>|s|m|h|d|w|mo)")
_SPANS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1)}
_MONTHS = 12


@dataclass(frozen=True)
class Step:
    """How far one slice reaches: ``unit`` is empty for a number."""

    amount: Decimal
    unit: str


def read_step(text: str) -> Step:
    """``1d``, ``6h``, ``1mo`` or ``1000``."""
    found = _STEP.fullmatch(text.strip())
    amount = Decimal(found["amount"]) if found else Decimal(0)
    if found is None or not amount or (found["unit"] and amount % 1):
        raise ConfigError(
            f"{text!r} is not a slice", fix="write 30m, 6h, 1d, 1w, 1mo, or a number such as 1000"
        )
    return Step(amount, found["unit"])


def read_bound(text: str, kind: t.ColumnType, zone: tzinfo) -> Any:
    """An end of a range as a user types it; a time without an offset is one of that zone."""
    value = read_value(text, kind)
    if isinstance(kind, t.TimestampTZ):
        typed = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        if typed.tzinfo is None:
            value = typed.replace(tzinfo=zone)
        return value.astimezone(timezone.utc)
    return value


def sliced(
    start: Any, end: Any, step: Step | None, kind: t.ColumnType, zone: tzinfo
) -> tuple[tuple[str, str], ...]:
    """The slices of ``[start, end)`` in order, as canonical text; together they are the range."""
    if not start < end:
        raise ConfigError(
            f"the range from {start} to {end} is empty", fix="--from must be less than --to"
        )
    bounds = [start]
    for bound in _bounds(start, step, kind, zone) if step else ():
        if bound >= end:
            break
        if len(bounds) == MOST:
            raise ConfigError(f"the range has more than {MOST:,} slices", fix="make --slice larger")
        bounds.append(bound)
    texts = [canonical_value(bound, kind) or "" for bound in (*bounds, end)]
    return tuple(pairwise(texts))


def _bounds(start: Any, step: Step, kind: t.ColumnType, zone: tzinfo) -> Iterator[Any]:
    """Where slices begin, after the first, without an end."""
    if isinstance(start, int | Decimal):
        if step.unit or (isinstance(start, int) and step.amount % 1):
            raise _unfit(step, kind, "1000")
        size = int(step.amount) if isinstance(start, int) else step.amount
        return (start + n * size for n in _numbers())
    if isinstance(start, str) or not step.unit:
        example = "" if isinstance(start, str) else "1d"
        raise _unfit(step, kind, example)
    if step.unit in _SPANS:
        if not isinstance(start, datetime):
            raise _unfit(step, kind, "1d")
        span = _SPANS[step.unit] * int(step.amount)
        return (start + n * span for n in _numbers())
    if isinstance(start, datetime) and start.tzinfo is not None:
        # By the clock on the wall there: a day in which the clocks change has 23 or 25 hours.
        wall = start.astimezone(zone).replace(tzinfo=None)
        return (
            _later(wall, step, n).replace(tzinfo=zone).astimezone(timezone.utc) for n in _numbers()
        )
    return (_later(start, step, n) for n in _numbers())


def _numbers() -> Iterator[int]:
    return iter(range(1, MOST + 2))


def _later(begin: Any, step: Step, times: int) -> Any:
    """A day on the calendar so many steps after another."""
    amount = int(step.amount) * times
    if step.unit != "mo":
        return begin + timedelta(days=amount * (7 if step.unit == "w" else 1))
    return _months_later(begin, amount)


def _months_later(begin: date, months: int) -> date:
    whole = begin.year * _MONTHS + begin.month - 1 + months
    year, month = whole // _MONTHS, whole % _MONTHS + 1
    return begin.replace(year=year, month=month, day=min(begin.day, monthrange(year, month)[1]))


def _unfit(step: Step, kind: t.ColumnType, example: str) -> ConfigError:
    fix = f"write one such as {example}" if example else "leave --slice out"
    return ConfigError(
        f"a slice of {step.amount:f}{step.unit} does not go with a column of type {kind}", fix=fix
    )
