"""Incremental loads: which rows of the source a run takes, and where the watermark moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oracle.state import Refused, Row, key_of


@dataclass(frozen=True)
class Increment:
    """The declared options. Without ``lookback`` the boundary itself is still read again."""

    column: str
    lookback: Any = None
    null_watermark: str = "error"

    def taken(self, source: Sequence[Row], watermark: Any) -> list[Row]:
        """The rows of the source that a run has to look at."""
        nulls = [r for r in source if r[self.column] is None]
        if nulls and self.null_watermark == "error":
            raise Refused("null watermark", count=len(nulls))
        valued = [r for r in source if r[self.column] is not None]
        if watermark is None:
            return [*valued, *nulls]
        lowest = watermark if self.lookback is None else watermark - self.lookback
        return [*(r for r in valued if r[self.column] >= lowest), *nulls]

    def moved(self, source: Sequence[Row], watermark: Any) -> Any:
        """The watermark after the run: it never goes back."""
        values = [r[self.column] for r in source if r[self.column] is not None]
        return max([*values, *([] if watermark is None else [watermark])], default=None)


def append_new(target: Sequence[Row], taken: Sequence[Row], key: Sequence[str]) -> list[Row]:
    """What an incremental append adds: rows whose key, or who themselves, are not there yet.

    Without a key the rows are their own identity, counted: two equal rows of the source are two
    rows of the target, however many runs it took to see both.
    """
    if key:
        held = {key_of(r, key) for r in target}
        fresh = [r for r in taken if key_of(r, key) not in held]
        return list({key_of(r, key): r for r in fresh}.values())
    present = Counter(_whole(r, taken) for r in target)
    added = []
    for row in taken:
        own = _whole(row, taken)
        if present[own]:
            present[own] -= 1
        else:
            added.append(row)
    return added


def _whole(row: Row, like: Sequence[Row]) -> tuple[Any, ...]:
    names = like[0] if like else row
    return tuple(row[c] for c in names)
