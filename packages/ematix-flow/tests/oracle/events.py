"""``scd2`` with event times: the history of a key is a function of the set of its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from oracle.state import (
    Key,
    Predicate,
    Refused,
    Row,
    Tally,
    differ,
    key_of,
    refuse_null_keys,
)


@dataclass(frozen=True)
class EventHistory:
    """The declared options; ``columns`` are those the source gives, the event time among them.

    ``row_hash`` breaks ties and nothing else.
    """

    key: Sequence[str]
    columns: Sequence[str]
    at: str
    row_hash: Callable[[Row], str]
    compare: Sequence[str] | None = None
    delete_when: Predicate | None = None
    ttl: timedelta | None = None

    def compared_columns(self) -> list[str]:
        if self.compare is not None:
            return list(self.compare)
        return [c for c in self.columns if c not in (*self.key, self.at)]

    def versions(self, events: Iterable[Row], moment: datetime) -> list[Row]:
        """All versions of all keys, given every event there ever was."""
        seen = list(events)
        refuse_null_keys(seen, self.key)
        timeless = sum(e[self.at] is None for e in seen)
        if timeless:
            raise Refused("null event time", count=timeless)
        by_key: dict[Key, list[Row]] = {}
        for event in seen:
            by_key.setdefault(key_of(event, self.key), []).append(event)
        return [v for own in by_key.values() for v in self._history(own, moment)]

    def _deletes(self, event: Row) -> bool:
        return self.delete_when is not None and bool(self.delete_when(event))

    def _history(self, events: Sequence[Row], moment: datetime) -> list[Row]:
        winners: dict[datetime, Row] = {}
        for event in sorted(events, key=lambda e: (self._deletes(e), self.row_hash(e))):
            winners[event[self.at]] = event
        versions: list[Row] = []
        alive = False
        for at in sorted(winners):
            event = winners[at]
            if self._deletes(event):
                if alive:
                    versions[-1]["valid_to"] = at
                alive = False
                continue
            values = {**{c: event[c] for c in self.columns}, "row_hash": self.row_hash(event)}
            if alive and not differ(versions[-1], event, self.compared_columns()):
                versions[-1] |= values
                continue
            if alive:
                versions[-1]["valid_to"] = at
            versions.append({**values, "valid_from": at, "valid_to": None})
            alive = True
        for version in versions:
            self._expire(version, moment)
            version["is_current"] = version["valid_to"] is None
        return versions

    def _expire(self, version: Row, moment: datetime) -> None:
        if self.ttl is None:
            return
        expiry = version["valid_from"] + self.ttl
        if version["valid_to"] is not None:
            version["valid_to"] = min(version["valid_to"], expiry)
        elif expiry <= moment:
            version["valid_to"] = expiry


def as_of(versions: Iterable[Row], moment: datetime) -> list[Row]:
    """The versions that were valid at an instant."""
    return [
        v
        for v in versions
        if v["valid_from"] <= moment and (v["valid_to"] is None or moment < v["valid_to"])
    ]


def tally(before: Iterable[Row], after: Iterable[Row], key: Sequence[str]) -> Tally:
    """What a load did: a version that only got its end is closed, any other change an update."""

    def by_start(versions: Iterable[Row]) -> dict[tuple[Key, datetime], Row]:
        return {(key_of(v, key), v["valid_from"]): v for v in versions}

    old, new = by_start(before), by_start(after)
    shared = [place for place in old if place in new]
    changed = [p for p in shared if differ(old[p], new[p], new[p])]
    closed = [p for p in changed if _only_ended(old[p], new[p])]
    return Tally(
        inserted=len(new) - len(shared),
        updated=len(changed) - len(closed),
        closed=len(closed),
        deleted=len(old) - len(shared),
    )


def _only_ended(old: Row, new: Row) -> bool:
    if old["valid_to"] is not None or new["valid_to"] is None:
        return False
    return not differ(old, new, [c for c in new if c not in ("valid_to", "is_current")])
