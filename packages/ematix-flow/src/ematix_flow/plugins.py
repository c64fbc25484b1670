"""What installed packages offer to this one, by their entry points."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points


def plugins(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, by name."""
    return _found(group, tuple(sys.path))


@cache
def _found(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Looked up once for each search path: every installed package has to be opened for it."""
    return {point.name: point for point in entry_points(group=group)}
