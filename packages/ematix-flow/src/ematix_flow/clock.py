"""When a schedule fires: cron in a time zone, as a function of nothing but the time.

A slot is an instant for which a run is meant. The hands of a local clock jump twice a year in most
places: a time of day that is skipped fires once, at the jump, and one that comes twice fires the
first time. A schedule of every hour, or of every few, knows no hands: it goes by the time that
passes.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

# What becomes of slots that nobody has looked at in time.
CATCHUPS = ("none", "last", "all")
_PARTS = {5: "minute hour day month weekday", 6: "second minute hour day month weekday"}
_HINT = f'write five fields such as "*/5 * * * *" ({_PARTS[5]}), six with seconds before them'
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * SUN",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
# A day that does not come within these does not come: leap years can be eight years apart.
_LONGEST_WAIT = timedelta(days=366 * 9)


@dataclass(frozen=True)
class Cron:
    """The times and days of a cron text, on a clock that never jumps."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: str
    passes: bool

    def after(self, moment: datetime) -> datetime | None:
        """The first time at or after a moment."""
        for day in self._days_from(moment.date(), _DAY):
            earliest = moment.time() if day == moment.date() else time.min
            if (found := self._first(earliest)) is not None:
                return datetime.combine(day, found)
        return None

    def before(self, moment: datetime) -> datetime | None:
        """The last time before a moment."""
        for day in self._days_from(moment.date(), -_DAY):
            end = moment.time() if day == moment.date() else None
            if (found := self._last(end)) is not None:
                return datetime.combine(day, found)
        return None

    def _days_from(self, day: date, step: timedelta) -> Iterator[date]:
        end = _LONGEST_WAIT // _DAY
        for _ in range(end):
            if day.day in _days_of_month(self.days, day.year, day.month):
                yield day
            try:
                day += step
            except OverflowError:
                return

    def _first(self, earliest: time) -> time | None:
        for hour in self.hours:
            if hour < earliest.hour:
                continue
            for minute in self.minutes:
                if (hour, minute) < (earliest.hour, earliest.minute):
                    continue
                for second in self.seconds:
                    found = time(hour, minute, second)
                    if found >= earliest:
                        return found
        return None

    def _last(self, end: time | None) -> time | None:
        for hour in reversed(self.hours):
            if end is not None and hour > end.hour:
                continue
            for minute in reversed(self.minutes):
                if end is not None and (hour, minute) > (end.hour, end.minute):
                    continue
                for second in reversed(self.seconds):
                    found = time(hour, minute, second)
                    if end is None or found < end:
                        return found
        return None


@functools.lru_cache(maxsize=4096)
def parsed_cron(text: str) -> Cron:
    """A cron text as its times and days; ``@daily`` and its like, names of months and days."""
    from croniter import CroniterError, croniter

    fields = _NAMED.get(text.strip().lower(), text).split()
    if len(fields) not in _PARTS:
        raise DeclarationError(f"schedule={text!r} is not a cron expression", fix=_HINT)
    second, (minute, hour, *days) = fields[:-5], fields[-5:]
    try:
        # Where there are seconds, croniter has them last.
        expanded, _ = croniter.expand(" ".join((minute, hour, *days, *second)))
    except (CroniterError, ValueError, KeyError) as error:
        raise DeclarationError(f"schedule={text!r} is not a cron expression", fix=_HINT) from error
    cron = Cron(
        seconds=_times(expanded[5], 60) if second else (0,),
        minutes=_times(expanded[0], 60),
        hours=_times(expanded[1], 24),
        days=" ".join(days),
        passes=hour.startswith("*"),
    )
    if cron.after(datetime(2024, 1, 1)) is None:
        raise DeclarationError(f"schedule={text!r} never fires", fix="choose a day that exists")
    return cron


def _times(expanded: Sequence[int | str], end: int) -> tuple[int, ...]:
    return tuple(range(end)) if list(expanded) == ["*"] else tuple(sorted(int(n) for n in expanded))


@functools.lru_cache(maxsize=4096)
def _days_of_month(days: str, year: int, month: int) -> frozenset[int]:
    """Which days of a month are meant: what croniter knows of weekdays and last days."""
    from croniter import CroniterError, croniter

    first = datetime(year, month, 1)
    found = set()
    try:
        moments = croniter(f"0 0 {days}", first - _SECOND)
        while (moment := moments.get_next(datetime)).month == month and moment.year == year:
            found.add(moment.day)
    except (CroniterError, ValueError, OverflowError):
        # There is no such day for as long as it looks.
        pass
    return frozenset(found)


@functools.lru_cache(maxsize=256)
def zone_named(name: str) -> ZoneInfo:
    """A time zone, by its IANA name."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError, AttributeError) as error:
        raise DeclarationError(
            f"timezone={name!r} does not exist", fix='use an IANA name such as "Europe/Berlin"'
        ) from error


@functools.lru_cache(maxsize=4096)
def _jumps(zone: str, year: int) -> tuple[datetime, ...]:
    """The instants of a year at which the hands of a zone's clocks jump."""
    held = zone_named(zone)

    def offset(moment: datetime) -> timedelta:
        return moment.astimezone(held).utcoffset() or timedelta()

    found = []
    day = datetime(year, 1, 1, tzinfo=timezone.utc)
    while day.year == year:
        low, high = day, day + _DAY
        if offset(low) != offset(high):
            while high - low > _SECOND:
                middle = (low + (high - low) / 2).replace(microsecond=0)
                low, high = (middle, high) if offset(middle) == offset(low) else (low, middle)
            found.append(high)
        day += _DAY
    return tuple(found)


@dataclass(frozen=True)
class _Stretch:
    """A time between two jumps of a clock: when it begins and ends, and what the hands add."""

    begin: datetime
    end: datetime
    offset: timedelta
    offset_before: timedelta


def _stretch_of(zone: str, moment: datetime) -> _Stretch:
    """The stretch in which a moment is; at its end the hands may go on without a jump."""
    jumps = [j for year in (-1, 0, 1) for j in _jumps(zone, moment.year + year)]
    begin = max((j for j in jumps if j <= moment), default=moment - _DAY * 365)
    end = min((j for j in jumps if j > moment), default=moment + _DAY * 365)
    held = zone_named(zone)
    offset = begin.astimezone(held).utcoffset() or timedelta()
    before = (begin - _SECOND).astimezone(held).utcoffset() or timedelta()
    return _Stretch(begin, end, offset, before)


@dataclass(frozen=True)
class Schedule:
    """A cron text in a zone, from a first to a last instant, without some days."""

    cron: str
    zone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    excluded: frozenset[date] = field(default_factory=frozenset)
    jitter: timedelta = timedelta()
    catchup: str = "last"
    catchup_limit: int = 100

    def next_after(self, moment: datetime) -> datetime | None:
        """The first slot after a moment; None if there is none any more."""
        if self.start is not None and moment < self.start:
            moment = self.start - _SECOND / 2
        while True:
            found = self._next(moment)
            if found is None or (self.end is not None and found > self.end):
                return None
            day = self._day_of(found)
            if day not in self.excluded:
                return found
            moment = max(found, self._midnight(day + _DAY) - _SECOND / 2)

    def latest(self, moment: datetime) -> datetime | None:
        """The last slot at or before a moment; None if there was none yet."""
        if self.end is not None and moment > self.end:
            moment = self.end
        while True:
            found = self._latest(moment)
            if found is None or (self.start is not None and found < self.start):
                return None
            day = self._day_of(found)
            if day not in self.excluded:
                return found
            moment = min(found, self._midnight(day)) - _SECOND

    def between(self, after: datetime, until: datetime, *, most: int) -> list[datetime]:
        """The slots after one moment and up to another, in order: the latest of them, if many."""
        found: list[datetime] = []
        slot = self.latest(until)
        while slot is not None and slot > after and len(found) < most:
            found.append(slot)
            slot = self.latest(slot - _SECOND)
        return found[::-1]

    def due(
        self, name: str, *, handled: datetime | None, now: datetime, fresh: timedelta
    ) -> list[datetime]:
        """The slots to fire now, in order; all others up to the last of them are passed over.

        ``handled`` is the last slot that was fired or passed over. Where there is none yet, the
        schedule is as old as what counts as ``fresh``.
        """
        since = now - fresh if handled is None else handled
        every = self.catchup == "all" or self.jitter
        slots = self.between(since, now, most=self.catchup_limit if every else 1)
        # A slot that still waits for its delay keeps those after it waiting.
        ready = list(itertools.takewhile(lambda slot: self.due_at(slot, name) <= now, slots))
        if self.catchup == "all":
            return ready
        if self.catchup == "none":
            ready = [slot for slot in ready if self.due_at(slot, name) > now - fresh]
        return ready[-1:]

    def due_at(self, slot: datetime, name: str) -> datetime:
        """When the run of a slot begins: the same delay for all who ask."""
        if not self.jitter:
            return slot
        seed = hashlib.sha256(f"{name} {slot.astimezone(timezone.utc).isoformat()}".encode())
        return slot + self.jitter * (int.from_bytes(seed.digest()[:6], "big") / (1 << 48))

    def _day_of(self, slot: datetime) -> date:
        return slot.astimezone(zone_named(self.zone)).date()

    def _midnight(self, day: date) -> datetime:
        midnight = datetime.combine(day, time.min, zone_named(self.zone))
        return midnight.astimezone(timezone.utc)

    def _next(self, moment: datetime) -> datetime | None:
        cron, limit = parsed_cron(self.cron), moment + _LONGEST_WAIT
        at = (moment + _SECOND).replace(microsecond=0)
        while at < limit:
            stretch = _stretch_of(self.zone, at)
            if at == stretch.begin and self._skipped(cron, stretch):
                return at
            found = cron.after(self._hands(at, stretch, cron))
            slot = None if found is None else _instant(found, stretch)
            if slot is not None and slot < stretch.end:
                return slot
            at = stretch.end
        return None

    def _latest(self, moment: datetime) -> datetime | None:
        cron, limit = parsed_cron(self.cron), moment - _LONGEST_WAIT
        at = moment.replace(microsecond=0)
        while at > limit:
            stretch = _stretch_of(self.zone, at)
            found = cron.before((at + _SECOND + stretch.offset).replace(tzinfo=None))
            if found is not None and found >= self._hands(stretch.begin, stretch, cron):
                return _instant(found, stretch)
            if self._skipped(cron, stretch):
                return stretch.begin
            at = stretch.begin - _SECOND
        return None

    @staticmethod
    def _hands(at: datetime, stretch: _Stretch, cron: Cron) -> datetime:
        """Where the hands are, or must be before they show what they have not shown yet."""
        shown = stretch.begin + max(stretch.offset_before, stretch.offset)
        hands = at + stretch.offset
        return (hands if cron.passes else max(hands, shown)).replace(tzinfo=None)

    @staticmethod
    def _skipped(cron: Cron, stretch: _Stretch) -> bool:
        """Whether the jump at the beginning of a stretch passes over a time that is meant."""
        if cron.passes or stretch.offset <= stretch.offset_before:
            return False
        first = (stretch.begin + stretch.offset_before).replace(tzinfo=None)
        found = cron.after(first)
        return found is not None and found < first + (stretch.offset - stretch.offset_before)


def _instant(hands: datetime, stretch: _Stretch) -> datetime:
    return (hands - stretch.offset).replace(tzinfo=timezone.utc)
