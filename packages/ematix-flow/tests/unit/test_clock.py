"""Slots of schedules, beside an oracle that looks at every minute of a clock on the wall."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ematix_flow.clock import Schedule, parsed_cron
from ematix_flow.errors import DeclarationError

_MINUTE = timedelta(minutes=1)
# Jumps of an hour and of half an hour, forth and back, at midnight, of a whole day; none.
_JUMPS = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),
    "America/Havana": ("2026-03-08", "2026-11-01"),
    "Pacific/Apia": ("2011-12-30",),
    "Africa/Casablanca": ("2026-02-15", "2026-03-22"),
    "Asia/Kolkata": ("2026-06-01",),
    "UTC": ("2026-02-28",),
}
_CRONS = (
    "30 2 * * *",
    "0 0 * * *",
    "15,45 1-3 * * *",
    "*/20 * * * *",
    "5 */3 * * *",
    "0 2 * * SUN",
    "10 0 29 feb,Mar *",
    "59 23 L * *",
    "@daily",
    "@hourly",
    "0 3 * * 7",
    "30 1 1-7 * MON",
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def meant(cron: str, begin: datetime, end: datetime) -> set[datetime]:
    """The times that croniter knows between two, on a clock without a place."""
    moments = croniter(cron, begin - timedelta(seconds=1))
    found: set[datetime] = set()
    while (moment := moments.get_next(datetime)) <= end:
        found.add(moment)
    return found


def slots_seen(cron: str, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    """What somebody would note who looks at the clock of a place every minute."""
    place = ZoneInfo(zone)
    aliases = {"@daily": "0 0 * * *", "@hourly": "0 * * * *"}
    by_passing = aliases.get(cron, cron).split()[1].startswith("*")
    seen: set[datetime] = set()
    noted = []
    naive = begin.replace(tzinfo=None), end.replace(tzinfo=None)
    times = meant(cron, naive[0] - timedelta(days=2), naive[1] + timedelta(days=2))
    before = (begin - _MINUTE).astimezone(place).replace(tzinfo=None)
    instant = begin
    while instant <= end:
        shown = instant.astimezone(place).replace(tzinfo=None)
        if by_passing:
            fires = shown in times
        else:
            # All that the hands went by since the last look, and have not shown before.
            missed = [before + _MINUTE * i for i in range(1, max(1, (shown - before) // _MINUTE))]
            fires = any(m in times for m in [*missed, shown] if m not in seen)
            seen |= {*missed, shown}
        if fires:
            noted.append(instant)
        before = shown
        instant += _MINUTE
    return noted


@st.composite
def places(draw: st.DrawFn) -> tuple[str, datetime]:
    zone = draw(st.sampled_from(sorted(_JUMPS)))
    day = at(draw(st.sampled_from(_JUMPS[zone])))
    return zone, day + timedelta(minutes=draw(st.integers(-2000, 1500)))


@settings(deadline=None)
@given(cron=st.sampled_from(_CRONS), place=places())
@example(cron="30 2 * * *", place=("Europe/Berlin", at("2026-03-28")))
@example(cron="0 0 * * *", place=("America/Havana", at("2026-03-07")))
@example(cron="0 0 * * *", place=("Pacific/Apia", at("2011-12-29")))
def test_slots_are_those_that_a_clock_on_the_wall_shows(
    cron: str, place: tuple[str, datetime]
) -> None:
    zone, begin = place
    # The oracle must know what has been shown already.
    end, warm = begin + timedelta(days=2), begin - timedelta(days=1)
    expected = [slot for slot in slots_seen(cron, zone, warm, end) if slot >= begin]
    schedule = Schedule(cron, zone)
    forth, slot = [], schedule.next_after(begin - timedelta(microseconds=1))
    while slot is not None and slot <= end:
        forth.append(slot)
        slot = schedule.next_after(slot)
    assert forth == expected
    assert schedule.between(begin - _MINUTE, end, most=10_000) == [
        slot for slot in slots_seen(cron, zone, warm, end) if slot > begin - _MINUTE
    ]
    for slot in forth:
        assert schedule.latest(slot) == slot
        assert schedule.latest(slot + timedelta(seconds=59, microseconds=5)) == slot


def test_seconds_stand_before_the_minutes() -> None:
    schedule = Schedule("*/20 30 2 * * *", "Europe/Berlin")
    assert schedule.between(at("2026-01-01"), at("2026-01-02"), most=9) == [
        at(f"2026-01-01T01:30:{second:02}") for second in (0, 20, 40)
    ]


def test_a_schedule_begins_and_ends_and_leaves_days_out() -> None:
    schedule = Schedule(
        "0 6 * * *",
        "Europe/Berlin",
        start=at("2026-12-23T12:00"),
        end=at("2026-12-28T05:00"),
        excluded=frozenset({date(2026, 12, 25), date(2026, 12, 26)}),
    )
    assert schedule.between(at("2026-01-01"), at("2027-01-01"), most=99) == [
        at(f"2026-12-{day}T05:00") for day in (24, 27, 28)
    ]
    assert schedule.next_after(at("2026-12-28T05:00")) is None
    assert schedule.latest(at("2026-12-24T04:59:59")) is None


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Havana", "Pacific/Apia"])
@pytest.mark.parametrize("month", [3, 11, 12])
def test_days_are_left_out_however_many_slots_they_have(zone: str, month: int) -> None:
    left_out = frozenset(date(2026, month, day) for day in range(5, 16))
    schedule = Schedule("* * * * * *", zone, excluded=left_out)
    place = ZoneInfo(zone)
    first = datetime(2026, month, 5, tzinfo=place).astimezone(timezone.utc)
    after = datetime(2026, month, 16, tzinfo=place).astimezone(timezone.utc)
    assert schedule.next_after(first - timedelta(seconds=1)) == after
    assert schedule.latest(after - timedelta(seconds=1)) == first - timedelta(seconds=1)


def test_of_many_slots_the_latest_are_told() -> None:
    schedule = Schedule("0 * * * *")
    assert schedule.between(at("2020-01-01"), at("2026-01-01T00:30"), most=2) == [
        at("2025-12-31T23:00"),
        at("2026-01-01T00:00"),
    ]


@given(st.integers(0, 10_000))
def test_a_delay_is_the_same_for_all_who_ask_and_stays_below_its_limit(hours: int) -> None:
    schedule = Schedule("0 * * * *", jitter=timedelta(seconds=90))
    slot = at("2026-01-01") + timedelta(hours=hours)
    due = schedule.due_at(slot, "load")
    assert slot <= due < slot + timedelta(seconds=90)
    assert due == schedule.due_at(slot.astimezone(ZoneInfo("Asia/Tokyo")), "load")


def test_delays_are_spread() -> None:
    schedule = Schedule("0 0 * * *", jitter=timedelta(seconds=100))
    slot = at("2026-01-01")
    delays = [(schedule.due_at(slot, f"load_{i}") - slot).total_seconds() for i in range(1000)]
    assert all(sum(low <= d < low + 10 for d in delays) > 50 for low in range(0, 100, 10))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("* * * *", "is not a cron expression"),
        ("61 * * * *", "is not a cron expression"),
        ("* * * * * * 2026", "is not a cron expression"),
        ("@fortnightly", "is not a cron expression"),
        ("", "is not a cron expression"),
        ("soon", "is not a cron expression"),
        ("* * 32 * *", "is not a cron expression"),
        ("60 * * * * *", "is not a cron expression"),
        ("0 0 31 2 *", "never fires"),
    ],
)
def test_what_is_no_schedule(wrong: str, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        parsed_cron(wrong)


HOURLY = "2026-01-01T00:00", "2026-01-01T01:00", "2026-01-01T02:00", "2026-01-01T03:00"


@pytest.mark.parametrize(
    ("options", "handled", "now", "fired"),
    [
        # Looked at in time, all policies fire what is due.
        ({"catchup": "none"}, 0, "2026-01-01T01:00:30", HOURLY[1:2]),
        ({"catchup": "last"}, 0, "2026-01-01T01:00:30", HOURLY[1:2]),
        ({"catchup": "all"}, 0, "2026-01-01T01:00:30", HOURLY[1:2]),
        # Nothing fires twice.
        ({"catchup": "all"}, 1, "2026-01-01T01:59:59", ()),
        # After a gap of three hours.
        ({"catchup": "none"}, 0, "2026-01-01T03:30", ()),
        ({"catchup": "none"}, 0, "2026-01-01T03:00:59", HOURLY[3:]),
        ({"catchup": "last"}, 0, "2026-01-01T03:30", HOURLY[3:]),
        ({"catchup": "all"}, 0, "2026-01-01T03:30", HOURLY[1:]),
        ({"catchup": "all", "catchup_limit": 2}, 0, "2026-01-01T03:30", HOURLY[2:]),
        # Seen for the first time.
        ({"catchup": "all"}, None, "2026-01-01T03:30", ()),
        ({"catchup": "all"}, None, "2026-01-01T03:00:30", HOURLY[3:]),
    ],
)
def test_what_is_made_up_for(
    options: dict[str, Any], handled: int | None, now: str, fired: tuple[str, ...]
) -> None:
    schedule = Schedule("0 * * * *", **options)
    before = None if handled is None else at(HOURLY[handled])
    due = schedule.due("load", handled=before, now=at(now), fresh=_MINUTE)
    assert due == [at(slot) for slot in fired]


@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=40),
    st.sampled_from(["*/7 * * * *", "0 * * * *", "30 2 * * *"]),
    st.integers(0, 600),
)
@settings(deadline=None)
def test_whoever_asks_however_often_every_slot_is_due_once(
    pauses: list[int], cron: str, jitter: int
) -> None:
    schedule = Schedule(
        cron, "Europe/Berlin", jitter=timedelta(seconds=jitter), catchup="all", catchup_limit=9999
    )
    begin = now = at("2026-10-24T20:00:01")
    handled, fired = begin, []
    for pause in pauses:
        now += timedelta(seconds=pause)
        for slot in schedule.due("load", handled=handled, now=now, fresh=_MINUTE):
            fired.append(slot)
            handled = slot
    expected = schedule.between(begin, now, most=9999)
    while expected and schedule.due_at(expected[-1], "load") > now:
        expected.pop()
    assert fired == expected[: len(fired)]
    assert all(schedule.due_at(slot, "load") > now for slot in expected[len(fired) :][:1])


def test_a_leap_day_is_waited_for() -> None:
    schedule = Schedule("0 0 29 2 *")
    assert schedule.next_after(at("2096-03-01")) == at("2104-02-29")
    assert schedule.latest(at("2104-02-28")) == at("2096-02-29")
