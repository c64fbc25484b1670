"""Formats of dates and timestamps in the manner of PostgreSQL's to_timestamp, read strictly.

``YYYY-MM-DD HH24:MI:SS.US`` and so on: every field has its digits, every other character stands
for itself, and a day that the calendar does not have is not accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from ematix_flow.errors import DeclarationError

MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)


def _any_case(word: str) -> str:
    return "".join(f"[{letter.upper()}{letter}]" for letter in word)


_YEAR = "[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9]"
_OFFSET = "[+-](?:0[0-9]|1[0-5])"
_JAVA_SPECIAL = re.compile(r"[A-Za-z'\[\]{}#]+")


@dataclass(frozen=True)
class Field:
    """One field of a format: what it fills, its exact text, and its name elsewhere.

    ``regex`` uses nothing that Python, Java, RE2 and PostgreSQL read differently. ``java`` is
    the pattern of Java's DateTimeFormatter, ``strptime`` that of DuckDB.
    """

    part: str
    regex: str
    java: str
    strptime: str


FIELDS = {
    "YYYY": Field("year", _YEAR, "yyyy", "%Y"),
    "MONTH": Field("month_name", "|".join(map(_any_case, MONTHS)), "MMMM", "%B"),
    "MON": Field("month_name", "|".join(_any_case(m[:3]) for m in MONTHS), "MMM", "%b"),
    "MM": Field("month", "0[1-9]|1[0-2]", "MM", "%m"),
    "DD": Field("day", "0[1-9]|[12][0-9]|3[01]", "dd", "%d"),
    "HH24": Field("hour", "[01][0-9]|2[0-3]", "HH", "%H"),
    "HH12": Field("half_hour", "0[1-9]|1[0-2]", "hh", "%I"),
    "HH": Field("half_hour", "0[1-9]|1[0-2]", "hh", "%I"),
    "MI": Field("minute", "[0-5][0-9]", "mm", "%M"),
    "SS": Field("second", "[0-5][0-9]", "ss", "%S"),
    "MS": Field("fraction", "[0-9]{1,3}", "SSS", "%f"),
    "US": Field("fraction", "[0-9]{1,6}", "SSSSSS", "%f"),
    "AM": Field("meridiem", "[AaPp][Mm]", "a", "%p"),
    "PM": Field("meridiem", "[AaPp][Mm]", "a", "%p"),
    "OF": Field("zone", f"Z|{_OFFSET}(?::?[0-5][0-9])?", "[XXX][XX][X]", "%z"),
    "TZH:TZM": Field("zone", f"{_OFFSET}:[0-5][0-9]", "XXX", "%z"),
    "TZHTZM": Field("zone", f"{_OFFSET}[0-5][0-9]", "XX", "%z"),
    "TZH": Field("zone", _OFFSET, "X", "%z"),
    "TZ": Field(
        "zone", f"Z|UTC|GMT|{_OFFSET}(?::?[0-5][0-9])?", "[XXX][XX][X]['UTC']['GMT']", "%z"
    ),
}
# Longest first, so that HH24 is not read as HH and TZH not as TZ.
_NAMES = sorted(FIELDS, key=len, reverse=True)
_NEEDS = {
    "minute": ("hour", "half_hour"),
    "second": ("minute",),
    "fraction": ("second",),
    "half_hour": ("meridiem",),
    "meridiem": ("half_hour",),
}
_SPELLED = {
    "month": "MM or MON",
    "hour": "HH24 or HH12",
    "half_hour": "HH12",
    "minute": "MI",
    "second": "SS",
    "meridiem": "AM or PM",
    "fraction": "MS or US",
    "zone": "OF or TZ",
}


@dataclass(frozen=True)
class Format:
    """A format, read: fields and the text between them."""

    text: str
    parts: tuple[Field | str, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, in order."""
        return tuple(part for part in self.parts if isinstance(part, Field))

    @property
    def zoned(self) -> bool:
        """Whether it has a time zone."""
        return any(field.part == "zone" for field in self.fields)

    def has(self, part: str) -> bool:
        """Whether it has a field that fills ``part``."""
        return any(field.part == part for field in self.fields)

    def group(self, part: str) -> int:
        """The number of the group of ``regex`` that holds ``part``."""
        return [field.part for field in self.fields].index(part) + 1

    @property
    def regex(self) -> str:
        """The texts it accepts, one group for each field; not anchored."""
        return "".join(
            f"({part.regex})" if isinstance(part, Field) else _plain(part) for part in self.parts
        )

    @property
    def java(self) -> str:
        """The pattern of Java's DateTimeFormatter for a text that ``regex`` accepts."""
        return "".join(
            part.java if isinstance(part, Field) else _JAVA_SPECIAL.sub(_java_quoted, part)
            for part in self.parts
        )

    @property
    def strptime(self) -> str:
        """The pattern of strptime for a text that ``regex`` accepts."""
        return "".join(
            part.strptime if isinstance(part, Field) else part.replace("%", "%%")
            for part in self.parts
        )

    @property
    def fraction_adjoins(self) -> bool:
        """Whether digits come right before MS or US, where Java's formatter loses its way."""
        pairs = zip(self.parts, self.parts[1:], strict=False)
        return any(
            isinstance(before, Field) and isinstance(part, Field) and part.part == "fraction"
            for before, part in pairs
        )

    def with_point(self) -> Format:
        """The same format with a point before the fraction."""
        parts: list[Field | str] = []
        for part in self.parts:
            if isinstance(part, Field) and part.part == "fraction":
                parts.append(".")
            parts.append(part)
        return Format(self.text, tuple(parts))

    @property
    def literals(self) -> str:
        """All text between the fields."""
        return "".join(part for part in self.parts if isinstance(part, str))

    def read(self, text: str) -> datetime | None:
        """The instant that a text names, in UTC; None when it names none."""
        match = re.fullmatch(self.regex, text)
        if match is None:
            return None
        found = {field.part: match[i + 1] for i, field in enumerate(self.fields)}
        try:
            return _instant(found) - _offset(found.get("zone", "Z"))
        except (ValueError, OverflowError):
            return None


def _instant(found: dict[str, str]) -> datetime:
    if "month" in found:
        month = int(found["month"])
    else:
        month = [name[:3] for name in MONTHS].index(found["month_name"][:3].lower()) + 1
    hour = int(found.get("hour", "0"))
    if "half_hour" in found:
        hour = int(found["half_hour"]) % 12 + (12 if found["meridiem"].lower() == "pm" else 0)
    return datetime(
        int(found["year"]),
        month,
        int(found["day"]),
        hour,
        int(found.get("minute", "0")),
        int(found.get("second", "0")),
        int(found.get("fraction", "0").ljust(6, "0")),
        tzinfo=timezone.utc,
    )


def _offset(zone: str) -> timedelta:
    if zone[0] not in "+-":
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -size if zone[0] == "-" else size


def _plain(text: str) -> str:
    return re.sub(r"[.*+?(){}|$]", r"[\g<0>]", re.sub(r"[\\^\[\]]", r"\\\g<0>", text))


def _java_quoted(match: re.Match[str]) -> str:
    return "'" + match[0].replace("'", "''") + "'"


@lru_cache(maxsize=256)
def read_format(text: str, *, who: str, zone_allowed: bool = True) -> Format:
    """A user's format, or an error that says what is wrong with it."""
    if not isinstance(text, str) or not text:
        raise DeclarationError(f"{who}: a format must be text, not {text!r}")
    read = Format(text, tuple(_merged(_split(text, who))))
    _check(read, who, zone_allowed)
    return read


def _split(text: str, who: str) -> list[Field | str]:
    parts: list[Field | str] = []
    position = 0
    while position < len(text):
        rest = text[position:]
        name = next((n for n in _NAMES if rest.upper().startswith(n)), None)
        if name is not None:
            parts.append(FIELDS[name])
            position += len(name)
        elif rest[0] == '"':
            quoted, closed, _ = rest[1:].partition('"')
            if not closed:
                raise DeclarationError(f"{who}: the format {text!r} has a quote without its end")
            parts.append(quoted)
            position += len(quoted) + 2
        elif rest[0].isalpha() and rest[0] != "T":
            raise DeclarationError(
                f"{who}: the format {text!r} has {rest[0]!r}, which is no field",
                fix=f"use {', '.join(FIELDS)}; put other text in double quotes",
            )
        else:
            parts.append(rest[0])
            position += 1
    return parts


def _merged(parts: list[Field | str]) -> list[Field | str]:
    merged: list[Field | str] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return merged


def _check(read: Format, who: str, zone_allowed: bool) -> None:
    filled = [field.part for field in read.fields]
    months = [part for part in filled if part in ("month", "month_name")]
    problem = ""
    if "year" not in filled or not months or "day" not in filled:
        problem = "lacks a year (YYYY), a month (MM or MON) or a day (DD)"
    elif len(set(filled)) < len(filled) or len(months) > 1:
        problem = "names one part twice"
    elif "hour" in filled and "half_hour" in filled:
        problem = "has both HH24 and HH12"
    elif "zone" in filled and not zone_allowed:
        problem = "has a time zone, which a date cannot have"
    elif "zone" in filled and not {"hour", "half_hour"} & set(filled):
        problem = "has a time zone but no hour"
    else:
        for part in filled:
            if part in _NEEDS and not set(_NEEDS[part]) & set(filled):
                missing = _SPELLED[_NEEDS[part][0]]
                problem = f"has {_SPELLED[part]} without {missing}"
                break
    if not problem and _digits_follow_fraction(read):
        problem = "has digits right after MS or US, whose length varies"
    if problem:
        raise DeclarationError(f"{who}: the format {read.text!r} {problem}")


def _digits_follow_fraction(read: Format) -> bool:
    for part, following in zip(read.parts, read.parts[1:], strict=False):
        if isinstance(part, Field) and part.part == "fraction":
            if isinstance(following, str):
                return following[0].isdigit()
            return following.part not in ("zone", "meridiem", "month_name")
    return False
