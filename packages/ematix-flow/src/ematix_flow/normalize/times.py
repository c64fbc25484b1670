"""Normalizers of dates and timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from ematix_flow import types as t
from ematix_flow.errors import DeclarationError
from ematix_flow.normalize.base import INSTANTS, TEXTS, Normalizer, Step, checked_text
from ematix_flow.normalize.formats import Format, read_format
from ematix_flow.normalize.parsing import Parser

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

DEFAULT_TIMESTAMP_FORMATS = (
    "YYYY-MM-DD HH24:MI:SS.MS",
    "YYYY-MM-DDTHH24:MI:SSOF",
    "YYYY-MM-DDTHH24:MI:SS",
    "YYYY-MM-DD HH24:MI:SS",
    "YYYY-MM-DD",
    "MM/DD/YYYY",
    "YYYY-MM-DD HH24:MI:SS.US",
    "YYYY-MM-DDTHH24:MI:SS.US",
    "YYYY-MM-DDTHH24:MI:SS.USOF",
    "YYYY-MM-DD HH24:MI:SSOF",
    "YYYY-MM-DD HH24:MI:SS.USOF",
)
DEFAULT_DATE_FORMATS = ("YYYY-MM-DD", "YYYYMMDD", "MM/DD/YYYY")
# Each with the unit in which PostgreSQL, DuckDB and Spark spell it.
PRECISIONS = (
    "microsecond",
    "millisecond",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "quarter",
    "year",
)
WITHIN_A_DAY = PRECISIONS[:5]


@dataclass(frozen=True, repr=False)
class _ParseMoment(Parser):
    formats: tuple[str, ...]
    zone_allowed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.read_formats()
        super().__post_init__()

    def read_formats(self) -> tuple[Format, ...]:
        """The formats, in the order in which they are tried."""
        who = f"{self.name}()"
        return tuple(
            read_format(text, who=who, zone_allowed=self.zone_allowed) for text in self.formats
        )

    def _moment(self, text: str) -> datetime | None:
        readings = (format.read(text) for format in self.read_formats())
        return next((moment for moment in readings if moment is not None), None)


@dataclass(frozen=True, repr=False)
class ParseTimestamp(_ParseMoment):
    """An instant; a text without zone is in UTC."""

    name: ClassVar[str] = "parse_timestamp"
    formats: tuple[str, ...] = DEFAULT_TIMESTAMP_FORMATS

    @property
    def parsed_type(self) -> t.ColumnType:
        """The type that text becomes."""
        return t.TimestampTZ()

    def _passed(self, source: t.ColumnType) -> t.ColumnType:
        if source.kind in INSTANTS:
            return source
        if source.kind == "date":
            return t.TimestampTZ()
        raise self.refusal(source, "text, dates and timestamps")

    def _read(self, text: str) -> datetime | None:
        return self._moment(text)

    def _convert(self, value: object) -> object:
        if isinstance(value, date) and not isinstance(value, datetime):
            return datetime.combine(value, time(), timezone.utc)
        return value


@dataclass(frozen=True, repr=False)
class ParseDate(_ParseMoment):
    """A calendar day; a time of day in the format is checked and dropped."""

    name: ClassVar[str] = "parse_date"
    zone_allowed: ClassVar[bool] = False
    formats: tuple[str, ...] = DEFAULT_DATE_FORMATS

    @property
    def parsed_type(self) -> t.ColumnType:
        """The type that text becomes."""
        return t.Date()

    def _passed(self, source: t.ColumnType) -> t.ColumnType:
        if source.kind == "date" or source.kind in INSTANTS:
            return t.Date()
        raise self.refusal(source, "text, dates and timestamps")

    def _read(self, text: str) -> date | None:
        moment = self._moment(text)
        return None if moment is None else moment.date()

    def _convert(self, value: object) -> object:
        return utc_clock(value).date() if isinstance(value, datetime) else value


@dataclass(frozen=True, repr=False)
class ToTimezone(Normalizer):
    """The wall clock of a time zone; a timestamp without zone is taken as UTC."""

    name: ClassVar[str] = "to_timezone"
    tz: str

    def __post_init__(self) -> None:
        zone(checked_text("to_timezone()", "tz", self.tz))

    def resolve(self, source: t.ColumnType) -> Step:
        """This step on a column of type ``source``, or the reason why it cannot be."""
        if source.kind not in INSTANTS:
            fix = "put parse_timestamp() before it" if source.kind in TEXTS else ""
            raise self.refusal(source, "timestamps", fix)
        return Step(self, source, t.Timestamp())

    def _meaning(self, value: object) -> object:
        if not isinstance(value, datetime):
            return value
        instant = utc_clock(value).replace(tzinfo=timezone.utc)
        return instant.astimezone(zone(self.tz)).replace(tzinfo=None)


@dataclass(frozen=True, repr=False)
class DateTrunc(Normalizer):
    """The start of the second, hour, day, week (Monday), month … in UTC."""

    name: ClassVar[str] = "date_trunc"
    precision: str

    def __post_init__(self) -> None:
        text = checked_text("date_trunc()", "precision", self.precision).lower()
        unit = text.removesuffix("s")
        if unit not in PRECISIONS:
            import difflib

            close = difflib.get_close_matches(unit, PRECISIONS, n=1)
            raise DeclarationError(
                f"date_trunc(): unknown precision {self.precision!r}",
                fix=f"did you mean {close[0]!r}?" if close else f"use {', '.join(PRECISIONS)}",
            )
        object.__setattr__(self, "precision", unit)

    def resolve(self, source: t.ColumnType) -> Step:
        """This step on a column of type ``source``, or the reason why it cannot be."""
        if source.kind != "date" and source.kind not in INSTANTS:
            fix = "put parse_timestamp() before it" if source.kind in TEXTS else ""
            raise self.refusal(source, "dates and timestamps", fix)
        return Step(self, source, source)

    def _meaning(self, value: object) -> object:
        if isinstance(value, datetime):
            return self._moment(value)
        if isinstance(value, date) and self.precision not in WITHIN_A_DAY:
            return self._day(value)
        return value

    def _moment(self, value: datetime) -> datetime:
        clock = utc_clock(value)
        cuts: dict[str, dict[str, int]] = {
            "microsecond": {},
            "millisecond": {"microsecond": clock.microsecond // 1000 * 1000},
            "second": {"microsecond": 0},
            "minute": {"second": 0, "microsecond": 0},
            "hour": {"minute": 0, "second": 0, "microsecond": 0},
        }
        if self.precision in cuts:
            cut = clock.replace(**cuts[self.precision])  # type: ignore[arg-type]
        else:
            cut = datetime.combine(self._day(clock.date()), time())
        return cut if value.tzinfo is None else cut.replace(tzinfo=timezone.utc)

    def _day(self, value: date) -> date:
        if self.precision == "week":
            return value - timedelta(days=value.weekday())
        if self.precision == "month":
            return value.replace(day=1)
        if self.precision == "quarter":
            return value.replace(month=(value.month - 1) // 3 * 3 + 1, day=1)
        return value.replace(month=1, day=1) if self.precision == "year" else value


def utc_clock(value: datetime) -> datetime:
    """The wall clock of UTC; a value without zone shows it already."""
    return value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)


@lru_cache(maxsize=64)
def zone(name: str) -> ZoneInfo:
    """A time zone by its name, or an error that suggests the nearest."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        import difflib

        close = difflib.get_close_matches(name, available_timezones(), n=1)
        raise DeclarationError(
            f"to_timezone(): unknown time zone {name!r}",
            fix=f"did you mean {close[0]!r}?" if close else "use a name such as 'Europe/Berlin'",
        ) from error


def _chosen(
    who: str, format: str | None, formats: Sequence[str] | None, defaults: tuple[str, ...]
) -> tuple[str, ...]:
    if format is not None and formats is not None:
        raise DeclarationError(f"{who}: format and formats are both given", fix="keep one of them")
    if format is not None:
        return (checked_text(who, "format", format),)
    if formats is None:
        return defaults
    if isinstance(formats, str) or not formats:
        raise DeclarationError(f"{who}: formats must be a list of formats, not {formats!r}")
    return tuple(checked_text(who, "formats", one) for one in formats)


def parse_timestamp(
    format: str | None = None,
    *,
    formats: Sequence[str] | None = None,
    on_failure: str = "null",
    default: object = None,
) -> ParseTimestamp:
    """Read an instant; formats are tried in order, a text without zone is in UTC."""
    chosen = _chosen("parse_timestamp()", format, formats, DEFAULT_TIMESTAMP_FORMATS)
    return ParseTimestamp(chosen, on_failure=on_failure, default=default)


def parse_date(
    format: str | None = None,
    *,
    formats: Sequence[str] | None = None,
    on_failure: str = "null",
    default: object = None,
) -> ParseDate:
    """Read a calendar day; formats are tried in order."""
    chosen = _chosen("parse_date()", format, formats, DEFAULT_DATE_FORMATS)
    return ParseDate(chosen, on_failure=on_failure, default=default)


def to_timezone(tz: str) -> ToTimezone:
    """Turn an instant into the wall clock of a time zone, a ``Timestamp`` without zone."""
    return ToTimezone(tz)


def date_trunc(precision: str) -> DateTrunc:
    """Cut a date or timestamp to the start of its unit, in UTC."""
    return DateTrunc(precision)
