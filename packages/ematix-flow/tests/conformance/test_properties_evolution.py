"""Random lives of a declaration: columns come, widen, change names, are forgotten and go.

The oracle is a dictionary of rows that is told of every change and knows nothing of types.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given

from conformance.conftest import Loader
from conformance.story import plain
from conformance.strategies import dice, examples, seeds
from ematix_flow import (
    BigInt,
    Integer,
    ManagedTable,
    Numeric,
    SmallInt,
    String,
    Text,
    ematix,
    pk,
)
from harness.base import Harness

pytestmark = pytest.mark.needs(
    "revise", "add column", "retype column", "rename column", "drop column", "relax column"
)

LOADS = 4
KEYS = 60
_numbers = itertools.count()

# Each column's types, from the narrowest on: declared, for Spark, and a value that only it holds.
CHAINS: dict[str, list[tuple[Any, str, Any]]] = {
    "n": [
        (SmallInt, "SMALLINT", 2**15 - 1),
        (Integer, "INT", -(2**31)),
        (BigInt, "BIGINT", 2**63 - 1),
        (Numeric[24, 2], "DECIMAL(24,2)", Decimal("123456789012345678901.25")),
    ],
    "d": [
        (Numeric[6, 2], "DECIMAL(6,2)", Decimal("-9999.99")),
        (Numeric[6, 2], "DECIMAL(6,2)", Decimal("0.01")),
        (Numeric[12, 4], "DECIMAL(12,4)", Decimal("99999999.0001")),
    ],
    "t": [
        (String[3], "STRING", "日付x"),
        (String[5], "STRING", "12345"),
        (Text, "STRING", "longer than that"),
    ],
}


@dataclass
class Life:
    """What is declared at the moment, and the rows that the table must hold."""

    chance: random.Random
    stages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHAINS, 0))
    notes: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def evolve(self) -> list[str]:
        """Change the declaration; what ``allow=`` must name."""
        for column, stage in self.stages.items():
            most = len(CHAINS[column]) - 1
            self.stages[column] = min(most, stage + self.chance.choice((0, 1, 1, 2)))
        fresh = f"note_{next(_numbers)}"
        act = self.chance.choice(("add", "rename", "drop", "forget")) if self.notes else "add"
        if act == "add":
            self.notes.append(fresh)
            self._each(lambda row: row.__setitem__(fresh, None))
            return []
        old = self.notes.pop(self.chance.randrange(len(self.notes)))
        if act == "rename":
            self.notes.append(fresh)
            self._each(lambda row: row.__setitem__(fresh, row.pop(old)))
            return [f"rename:{old}->{fresh}"]
        if act == "drop":
            self._each(lambda row: row.pop(old))
            return [f"drop:{old}"]
        self.forgotten.append(old)
        return []

    def _each(self, change: Any) -> None:
        for row in self.rows.values():
            change(row)

    def declared(self, name: str, *, whole: bool = False) -> type[ManagedTable]:
        """The table as it is declared now; with all that it holds for the reader."""
        columns = {c: CHAINS[c][stage][0] | None for c, stage in self.stages.items()}
        texts = [*self.notes, *(self.forgotten if whole else ())]
        kinds = {"k": Annotated[BigInt, pk()], **columns, **dict.fromkeys(texts, Text | None)}
        body = {"__annotations__": kinds, "__module__": __name__}
        return ematix.table(schema="app", name=name)(type("Evolving", (), body))

    def schema(self) -> str:
        columns = [f"{c} {CHAINS[c][stage][1]}" for c, stage in self.stages.items()]
        return ", ".join(["k BIGINT", *columns, *(f"{note} STRING" for note in self.notes)])

    def batch(self) -> list[dict[str, Any]]:
        """Rows for some keys: many as they are, some changed, some new."""
        keys = self.chance.sample(range(KEYS), KEYS * 2 // 3)
        return [self._row(k) for k in keys]

    def _row(self, k: int) -> dict[str, Any]:
        known = self.rows.get(k)
        if known is not None and self.chance.random() < 0.5:
            return {c: known[c] for c in ("k", *CHAINS, *self.notes)}
        values = {}
        for column, stage in self.stages.items():
            reached = CHAINS[column][: stage + 1]
            values[column] = self.chance.choice((None, *(value for _, _, value in reached)))
        notes = {note: self.chance.choice((None, "", "x")) for note in self.notes}
        return {"k": k, **values, **notes}

    def merge(self, batch: list[dict[str, Any]]) -> tuple[int, int, int]:
        """Take the rows; how many are new, changed, unchanged."""
        inserted = updated = unchanged = 0
        for row in batch:
            known = self.rows.get(row["k"])
            if known is None:
                self.rows[row["k"]] = {**dict.fromkeys(self.forgotten), **row}
                inserted += 1
            elif any(known[c] != row[c] for c in row):
                known.update(row)
                updated += 1
            else:
                unchanged += 1
        return inserted, updated, unchanged


def check(backend: Harness, loader: Loader, seed: int) -> None:
    life, name = Life(dice(seed)), f"evolving_{next(_numbers)}"
    for number in range(LOADS):
        allow = life.evolve() if number else []
        batch = life.batch()
        table = life.declared(name)
        result = loader(
            table,
            [_assigned(life, row) for row in batch],
            life.schema(),
            mode="merge",
            on_drift="evolve",
            allow=allow,
        ).sync()
        counts = result.counts
        assert (counts.inserted, counts.updated, counts.unchanged) == life.merge(batch)
        whole = life.declared(name, whole=True).__table__
        found = backend.rows(backend.connection("target"), whole)
        columns = whole.column_names
        stored = Counter(tuple(plain(row.get(c)) for c in columns) for row in found)
        meant = Counter(tuple(plain(row[c]) for c in columns) for row in life.rows.values())
        assert (stored - meant, meant - stored) == (Counter(), Counter())
        assert backend.litter(backend.connection("target")) == []


def _assigned(life: Life, row: dict[str, Any]) -> tuple[Any, ...]:
    """A row as Spark takes it: a whole number in a decimal column is a decimal."""
    is_decimal = life.stages["n"] == len(CHAINS["n"]) - 1
    n = row["n"]
    return tuple({**row, "n": Decimal(n) if is_decimal and n is not None else n}.values())


@examples(1)
@given(seed=seeds)
def test_a_table_follows_its_declaration(backend: Harness, loader: Loader, seed: int) -> None:
    check(backend, loader, seed)


@pytest.mark.soak
@examples(15)
@given(seed=seeds)
def test_a_table_follows_its_declaration_through_many_lives(
    backend: Harness, loader: Loader, seed: int
) -> None:
    check(backend, loader, seed)
