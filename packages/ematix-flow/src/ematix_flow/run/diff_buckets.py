"""How keys are put into buckets: by ranges a database can be asked for, or by hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ematix_flow.sql.digests import hash_of, part, range_of

if TYPE_CHECKING:
    from ematix_flow.types import ColumnType

_MOST_RANGES = 100


@dataclass(frozen=True)
class Buckets:
    """Which bucket a key is in: an equal range of whole numbers, or a hash of any key.

    ``keys`` are the key's columns, k0 and so on, with the types they are compared as. With
    ``shared`` the hash is one that databases compute too; the other is Spark's own, and quicker.
    """

    count: int
    keys: Mapping[str, ColumnType]
    low: int | None = None
    high: int | None = None
    shared: bool = False

    @property
    def width(self) -> int:
        """How many whole numbers a range has."""
        if self.low is None or self.high is None:
            return 1
        return -(-(self.high - self.low + 1) // self.count)

    def expression(self, dialect: str = "spark") -> str:
        """SQL for the bucket of a row; keys that are NULL have one of their own."""
        if self.low is not None:
            return range_of("k0", self.low, self.width, dialect)
        if self.shared:
            return f"mod({part(hash_of(self.keys, dialect), 0, dialect)}, {self.count})"
        return f"pmod(xxhash64({hashed(self.keys)}), {self.count})"

    def condition(self, differing: Sequence[int], column: str) -> str:
        """SQL that every database reads, true for all rows of these buckets; empty if none is.

        ``differing`` is in order.
        """
        if self.low is None or self.high is None:
            return ""
        parts = []
        for first, last in _merged([number for number in differing if number >= 0]):
            start = self.low + first * self.width
            end = min(self.low + (last + 1) * self.width - 1, self.high)
            parts.append(f"{column} BETWEEN {start} AND {end}")
        if differing[0] < 0:
            parts.append(f"{column} IS NULL")
        return " OR ".join(parts)


def _merged(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers as ranges; where that gives too many, over the narrowest gaps too."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    if len(ranges) <= _MOST_RANGES:
        return ranges
    gaps = [after[0] - before[1] for before, after in pairwise(ranges)]
    kept = sorted(sorted(range(len(gaps)), key=lambda i: gaps[i])[-(_MOST_RANGES - 1) :])
    starts = [0, *(i + 1 for i in kept)]
    ends = [*kept, len(ranges) - 1]
    return [(ranges[s][0], ranges[e][1]) for s, e in zip(starts, ends, strict=True)]


def hashed(columns: Mapping[str, ColumnType]) -> str:
    """Columns for Spark's own hash; with their being NULL, which it passes over."""
    return ", ".join(f"{name}, {name} IS NULL" for name in columns)
