"""The checks behind ``schedule=`` and what goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

from ematix_flow import config
from ematix_flow.clock import CATCHUPS, Schedule, parsed_cron, zone_named
from ematix_flow.connections import nearest
from ematix_flow.errors import DeclarationError, UnknownName

# What says nothing without a schedule, and what each is if nobody has set it.
_BESIDE = {
    **dict.fromkeys(("timezone", "jitter", "start_date", "end_date", "excluded_days")),
    "catchup": Schedule.catchup,
    "catchup_limit": Schedule.catchup_limit,
}
_MOMENT = 'write a date, a datetime or a text such as "2026-12-31" or "2026-12-31T06:00"'


def schedule_of(given: Mapping[str, Any]) -> Schedule | None:
    """When a pipeline or a workflow is due; None where nothing says so."""
    cron, zone = given["schedule"], given["timezone"]
    check_catchup(given["catchup"], given["catchup_limit"])
    if cron is None:
        for name, unset in _BESIDE.items():
            if given[name] != unset:
                raise DeclarationError(
                    f"{name}={given[name]!r} goes with schedule=",
                    fix="add a schedule, or remove it",
                )
        return None
    if not isinstance(cron, str):
        raise DeclarationError(f"schedule={cron!r} is not a cron expression", fix="write a text")
    parsed_cron(cron)
    if zone is not None:
        zone_named(zone)
    made = Schedule(
        cron=cron,
        zone=zone or "UTC",
        start=_moment(given["start_date"], "start_date", zone or "UTC", time.min),
        end=_moment(given["end_date"], "end_date", zone or "UTC", time.max),
        excluded=_days(given["excluded_days"]),
        jitter=_jitter(given["jitter"]),
        catchup=given["catchup"],
        catchup_limit=given["catchup_limit"],
    )
    if made.start is not None and made.end is not None and made.start > made.end:
        raise DeclarationError(
            f"end_date={given['end_date']!r} is before start_date={given['start_date']!r}",
            fix="correct one of them",
        )
    return made


def check_catchup(policy: object, limit: object) -> None:
    """Refuse a policy for missed slots that there is not."""
    if policy not in CATCHUPS:
        raise UnknownName(f"catchup={policy!r} is no policy", fix=nearest(str(policy), CATCHUPS))
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise DeclarationError(
            f"catchup_limit must be a whole number from 1 upwards, not {limit!r}", fix="correct it"
        )
    if policy != "all" and limit != Schedule.catchup_limit:
        raise DeclarationError(
            f"catchup_limit={limit} goes with catchup='all'", fix="add it, or remove the limit"
        )


def _jitter(given: object) -> timedelta:
    made = timedelta() if given is None else given
    try:
        if isinstance(made, int | float) and not isinstance(made, bool):
            made = timedelta(seconds=made)
    except (OverflowError, ValueError):
        made = None
    if not isinstance(made, timedelta) or made < timedelta():
        raise DeclarationError(
            f"jitter={given!r} must be a timedelta or a number of seconds, from 0 upwards",
            fix="write for example jitter=30",
        )
    return made


def _moment(given: object, name: str, zone: str, within: time) -> datetime | None:
    """An instant; of a day the first or the last, in the schedule's zone."""
    if given is None:
        return None
    try:
        read = _read(given)
    except ValueError as error:
        raise DeclarationError(f"{name}={given!r} is no moment", fix=_MOMENT) from error
    if not isinstance(read, datetime):
        read = datetime.combine(read, within)
    return read if read.tzinfo is not None else read.replace(tzinfo=zone_named(zone))


def _read(given: object) -> date:
    if isinstance(given, date):
        return given
    if not isinstance(given, str):
        raise ValueError(given)
    try:
        return date.fromisoformat(given)
    except ValueError:
        return datetime.fromisoformat(given)


def _days(given: object) -> frozenset[date]:
    """Days, and those of the project's calendars that are named."""
    if given is None:
        return frozenset()
    entries = [given] if isinstance(given, str | date) else given
    if not isinstance(entries, Sequence):
        raise DeclarationError(
            f"excluded_days={given!r} must be a list", fix="list days and names of calendars"
        )
    found: set[date] = set()
    for entry in entries:
        if isinstance(entry, datetime) or not isinstance(entry, str | date):
            raise DeclarationError(
                f"excluded_days holds {entry!r}, which is no day",
                fix='write a date, a text such as "2026-12-25", or the name of a calendar',
            )
        try:
            found.add(date.fromisoformat(entry) if isinstance(entry, str) else entry)
        except ValueError:
            found |= config.calendar_named(str(entry))
    return frozenset(found)
