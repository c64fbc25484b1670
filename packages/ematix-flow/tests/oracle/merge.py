"""``merge``: one row per key, written only where it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oracle.state import (
    RUN,
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
class Merge:
    """The declared options; ``columns`` are those the source gives."""

    key: Sequence[str]
    columns: Sequence[str]
    compare: Sequence[str] | None = None
    update: Sequence[str] | None = None
    duplicate_keys: str = "error"
    order_by: str | None = None
    handle_deletes: str | None = None
    soft_delete_column: str = "deleted_at"
    max_delete_fraction: float = 0.5
    delete_when: Predicate | None = None
    allow_empty: bool = False

    @property
    def soft(self) -> bool:
        return self.handle_deletes == "soft"

    def updated_columns(self) -> list[str]:
        if self.update is not None:
            return [c for c in self.update if c not in self.key]
        return [c for c in self.columns if c not in self.key]

    def compared_columns(self) -> list[str]:
        return self.updated_columns() if self.compare is None else list(self.compare)

    def load(self, current: Sequence[Row], incoming: Sequence[Row], run: Run) -> Outcome:
        """The table after ``incoming`` was merged into ``current``."""
        rows = one_per_key(incoming, self.key, policy=self.duplicate_keys, order_by=self.order_by)
        if self.handle_deletes and not incoming and not self.allow_empty:
            raise Refused("empty source")
        marked = {
            k for k, r in rows.items() if self.delete_when is not None and self.delete_when(r)
        }
        held = {key_of(r, self.key): dict(r) for r in current}
        live = {k for k, r in held.items() if not self.soft or r[self.soft_delete_column] is None}
        absent = live - set(rows) if self.handle_deletes else set()
        if incoming:
            refuse_mass_delete(len(absent), len(live), self.max_delete_fraction)
        inserted = updated = unchanged = 0
        for key, row in rows.items():
            if key in marked:
                continue
            if key not in held:
                held[key] = self._fresh(row, run)
                inserted += 1
            elif key not in live or differ(held[key], row, self.compared_columns()):
                held[key] = self._rewritten(held[key], row, run)
                updated += 1
            else:
                unchanged += 1
        gone = (marked & live) | absent
        for key in gone:
            if self.soft:
                held[key] |= {self.soft_delete_column: run.moment, RUN: run.label}
            else:
                del held[key]
        tally = Tally(inserted=inserted, updated=updated, deleted=len(gone), unchanged=unchanged)
        return Outcome(list(held.values()), tally)

    def _fresh(self, row: Row, run: Run) -> Row:
        made = {c: row[c] for c in self.columns}
        if self.soft:
            made[self.soft_delete_column] = None
        return made | {RUN: run.label}

    def _rewritten(self, held: Row, row: Row, run: Run) -> Row:
        made = held | {c: row[c] for c in self.updated_columns()}
        if self.soft:
            made[self.soft_delete_column] = None
        return made | {RUN: run.label}
