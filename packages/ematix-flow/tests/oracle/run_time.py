"""``scd2`` without event times: the source is the state at the run's moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from oracle.state import (
    RUN,
    Key,
    Outcome,
    Predicate,
    Refused,
    Row,
    Run,
    Tally,
    differ,
    key_of,
    one_per_key,
    refuse_mass_delete,
)


@dataclass(frozen=True)
class RunTimeHistory:
    """The declared options; ``columns`` are those the source gives."""

    key: Sequence[str]
    columns: Sequence[str]
    compare: Sequence[str] | None = None
    duplicate_keys: str = "error"
    order_by: str | None = None
    handle_deletes: str | None = None
    max_delete_fraction: float = 0.5
    delete_when: Predicate | None = None
    ttl: timedelta | None = None

    def compared_columns(self) -> list[str]:
        if self.compare is not None:
            return list(self.compare)
        return [c for c in self.columns if c not in self.key]

    def load(self, current: Sequence[Row], incoming: Sequence[Row], run: Run) -> Outcome:
        """The versions after ``incoming`` was seen at the run's moment."""
        rows = one_per_key(incoming, self.key, policy=self.duplicate_keys, order_by=self.order_by)
        if self.handle_deletes and not incoming:
            raise Refused("empty source")
        marked = {
            k for k, r in rows.items() if self.delete_when is not None and self.delete_when(r)
        }
        versions = [dict(r) for r in current]
        latest: dict[Key, Row] = {}
        for version in sorted(versions, key=lambda r: r["valid_from"]):
            latest[key_of(version, self.key)] = version
        live = {k for k, v in latest.items() if v["is_current"]}
        absent = live - set(rows) if self.handle_deletes else set()
        refuse_mass_delete(len(absent), len(live), self.max_delete_fraction)
        ended = {k for k in live if k in absent or k in marked}
        opened: list[Row] = []
        closed = unchanged = 0
        for key, row in rows.items():
            if key in marked:
                continue
            held = latest.get(key)
            if held is not None and self._says_the_same(held, row):
                unchanged += 1
                continue
            if held is not None and held["is_current"]:
                ended.add(key)
            opened.append(self._version(row, run))
        for key in live:
            expiry = self._expiry(latest[key])
            expired = expiry is not None and expiry <= run.moment
            if key not in ended and not expired:
                continue
            end = run.moment if expiry is None else min(expiry, run.moment)
            latest[key] |= {"valid_to": end, "is_current": False, RUN: run.label}
            closed += 1
        tally = Tally(inserted=len(opened), closed=closed, unchanged=unchanged)
        return Outcome([*versions, *opened], tally)

    def _says_the_same(self, held: Row, row: Row) -> bool:
        if differ(held, row, self.compared_columns()):
            return False
        return bool(held["is_current"]) or held["valid_to"] == self._expiry(held)

    def _expiry(self, version: Row) -> datetime | None:
        started: datetime = version["valid_from"]
        return None if self.ttl is None else started + self.ttl

    def _version(self, row: Row, run: Run) -> Row:
        return {
            **{c: row[c] for c in self.columns},
            "valid_from": run.moment,
            "valid_to": None,
            "is_current": True,
            RUN: run.label,
        }
