"""What the oracles speak of: rows, the run that loads them, what it counts, what it refuses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Row = dict[str, Any]
Key = tuple[Any, ...]
Predicate = Callable[[Row], bool | None]

RUN = "_run"


@dataclass(frozen=True)
class Run:
    """One load: its moment, and the label that the rows it writes carry."""

    moment: datetime
    label: Any = None


@dataclass(frozen=True)
class Tally:
    """What one load did, in rows."""

    inserted: int = 0
    updated: int = 0
    closed: int = 0
    deleted: int = 0
    unchanged: int = 0


@dataclass(frozen=True)
class Outcome:
    """The table after a load, and what the load did."""

    rows: list[Row] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


class Refused(Exception):
    """The load must not take place: why, and the keys or the count to be named."""

    def __init__(self, why: str, *, keys: Sequence[Key] = (), count: int = 0) -> None:
        super().__init__(why, keys, count)
        self.why = why
        self.keys = tuple(keys)
        self.count = count


def same(left: Any, right: Any) -> bool:
    """NULL-safe equality: NULL is NULL, NaN is NaN, 0.0 is -0.0, 1.0 is 1.00."""
    if left is None or right is None:
        return left is right
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def differ(left: Row, right: Row, columns: Iterable[str]) -> bool:
    """Whether two rows differ in any of these columns."""
    return any(not same(left[c], right[c]) for c in columns)


def key_of(row: Row, key: Sequence[str]) -> Key:
    """The values that tell one entity from another."""
    return tuple(row[c] for c in key)


def refuse_null_keys(rows: Iterable[Row], key: Sequence[str]) -> None:
    """A row without a whole key belongs to nothing."""
    count = sum(any(v is None for v in key_of(r, key)) for r in rows)
    if count:
        raise Refused("null key", count=count)


def one_per_key(
    rows: Sequence[Row], key: Sequence[str], *, policy: str = "error", order_by: str | None = None
) -> dict[Key, Row]:
    """The row that speaks for each key.

    ``order_by`` ranks the rows of a key; NULL ranks lowest. Rows that tie must be told apart by
    nothing, or the result would be left to chance: callers give each key distinct ranks.
    """
    refuse_null_keys(rows, key)
    times = Counter(key_of(r, key) for r in rows)
    repeated = sorted((k for k, n in times.items() if n > 1), key=repr)
    if policy == "error":
        if repeated:
            raise Refused("duplicate keys", keys=repeated, count=len(repeated))
        return {key_of(r, key): r for r in rows}
    assert order_by is not None
    chosen: dict[Key, Row] = {}
    for row in rows:
        own = key_of(row, key)
        held = chosen.get(own)
        if held is None:
            chosen[own] = row
            continue
        later = _rank(row[order_by]) > _rank(held[order_by])
        if later == (policy == "last"):
            chosen[own] = row
    return chosen


def _rank(value: Any) -> tuple[bool, Any]:
    return (value is not None, value if value is not None else 0)


def refuse_mass_delete(going: int, present: int, limit: float) -> None:
    """More than ``limit`` of the rows present may not go."""
    if going > limit * present:
        raise Refused("too many deletes", count=going)
