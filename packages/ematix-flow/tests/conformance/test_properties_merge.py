"""``merge`` against the oracle, over random lives of hundreds of keys in each load."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import pytest
from hypothesis import given

from conformance.conftest import Loader
from conformance.story import Story
from conformance.strategies import examples, seeds, snapshots
from ematix_flow import BigInt, ManagedTable, Text, ematix, pk
from harness.base import Harness
from oracle.merge import Merge

pytestmark = pytest.mark.needs("revise")

SCHEMA = "k BIGINT, a STRING, b BIGINT, op STRING, seq BIGINT"
COLUMNS = ("k", "a", "b", "seq")
_numbers = itertools.count()

# What is declared, and what the oracle is told: the names differ where the oracle has its own.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "several rows for a key": (
        {
            "duplicate_keys": "last",
            "order_by": "seq",
            "compare_columns": ("a",),
            "update_columns": ("a", "seq"),
        },
        {"duplicate_keys": "last", "order_by": "seq", "compare": ("a",), "update": ("a", "seq")},
    ),
    "hard deletes": (
        {"handle_deletes": "hard", "max_delete_fraction": 1, "compare_columns": ("a", "b")},
        {"handle_deletes": "hard", "max_delete_fraction": 1, "compare": ("a", "b")},
    ),
    "soft deletes that the rows tell": (
        {
            "handle_deletes": "soft",
            "max_delete_fraction": 1,
            "delete_when": "op = 'D'",
            "duplicate_keys": "first",
            "order_by": "seq",
            "update_columns": ("a", "b"),
        },
        {
            "handle_deletes": "soft",
            "max_delete_fraction": 1,
            "delete_when": lambda r: r["op"] == "D",
            "duplicate_keys": "first",
            "order_by": "seq",
            "update": ("a", "b"),
        },
    ),
}


def fresh_table() -> type[ManagedTable]:
    """A table that no other example has touched."""

    class Lives:
        k: Annotated[BigInt, pk()]
        a: Text | None
        b: BigInt | None
        seq: BigInt | None

    Lives.__name__ = f"Lives{next(_numbers)}"
    return ematix.table(schema="app")(Lives)


def check(backend: Harness, loader: Loader, way: str, seed: int) -> None:
    declared, told = WAYS[way]
    story = Story(backend, loader, fresh_table(), SCHEMA, options=declared)
    rule = Merge(key=("k",), columns=COLUMNS, **told)
    copies = 1 if told.get("duplicate_keys", "error") == "error" else 3
    batches = snapshots(seed, copies=copies)
    story.load(rule, batches[0])
    story.load(rule, batches[1])
    story.foretold(rule, batches[2])
    story.load(rule, batches[2])


@pytest.mark.parametrize("way", WAYS)
@examples(1)
@given(seed=seeds)
def test_any_batches_give_what_the_oracle_gives(
    backend: Harness, loader: Loader, way: str, seed: int
) -> None:
    check(backend, loader, way, seed)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
@examples(15)
@given(seed=seeds)
def test_many_batches_give_what_the_oracle_gives(
    backend: Harness, loader: Loader, way: str, seed: int
) -> None:
    check(backend, loader, way, seed)
