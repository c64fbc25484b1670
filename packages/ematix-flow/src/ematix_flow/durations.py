"""Lengths of time as people write them: ``90d``, ``12h``."""

from __future__ import annotations

import re
from datetime import timedelta

from ematix_flow.errors import ConfigError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_FORM = re.compile(r"(\d+(?:\.\d+)?) ?([smhdw])")


def duration(given: object, what: str) -> timedelta:
    """A length of time, longer than none; ``what`` it is for is told if it is not one."""
    found = _FORM.fullmatch(given.strip()) if isinstance(given, str) else None
    try:
        made = timedelta(**{_UNITS[found[2]]: float(found[1])}) if found else timedelta()
    except OverflowError:
        made = timedelta()
    if not made:
        raise ConfigError(
            f"{what} must be a length of time, not {given!r}",
            fix="write a number and one of s, m, h, d, w: 90d are ninety days",
        )
    return made
