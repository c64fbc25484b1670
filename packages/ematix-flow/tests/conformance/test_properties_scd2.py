"""``scd2`` against the oracle, over random lives of hundreds of keys in each load."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Annotated, Any

import pytest
from hypothesis import given

from conformance.conftest import Loader
from conformance.story import EventStory, Story, assert_same
from conformance.strategies import dice, event_batches, examples, seeds, snapshots
from ematix_flow import BigInt, ManagedTable, Text, TimestampTZ, ematix, natural_key
from harness.base import Harness
from oracle.events import EventHistory
from oracle.hashing import row_hash
from oracle.run_time import RunTimeHistory
from oracle.state import Row

pytestmark = pytest.mark.needs("revise")

_numbers = itertools.count()


def fresh_states() -> type[ManagedTable]:
    class States:
        k: Annotated[BigInt, natural_key()]
        a: Text | None
        b: BigInt | None
        seq: BigInt | None

    States.__name__ = f"States{next(_numbers)}"
    return ematix.table(schema="app")(States)


def fresh_events() -> type[ManagedTable]:
    class Events:
        k: Annotated[BigInt, natural_key()]
        at: TimestampTZ
        a: Text | None
        b: BigInt | None

    Events.__name__ = f"Events{next(_numbers)}"
    return ematix.table(schema="app")(Events)


def is_delete(row: Row) -> bool:
    return bool(row["op"] == "D")


STATE_SCHEMA = "k BIGINT, a STRING, b BIGINT, op STRING, seq BIGINT"
STATE_OPTIONS = {
    "handle_deletes": "soft",
    "max_delete_fraction": 1,
    "delete_when": "op = 'D'",
    "duplicate_keys": "last",
    "order_by": "seq",
    "compare_columns": ("a", "b"),
}


def check_states(backend: Harness, loader: Loader, seed: int) -> None:
    story = Story(backend, loader, fresh_states(), STATE_SCHEMA, mode="scd2", options=STATE_OPTIONS)
    rule = RunTimeHistory(
        key=("k",),
        columns=("k", "a", "b", "seq"),
        compare=("a", "b"),
        handle_deletes="soft",
        max_delete_fraction=1,
        delete_when=is_delete,
        duplicate_keys="last",
        order_by="seq",
    )
    batches = snapshots(seed, copies=3)
    for batch in batches:
        story.load(rule, batch)
    story.foretold(rule, batches[0])


EVENT_SCHEMA = "k BIGINT, at TIMESTAMP, a STRING, b BIGINT, op STRING"
EVENT_COLUMNS = ("k", "at", "a", "b")
EVENT_WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all compared": ({}, {}),
    "some compared, with an age": (
        {"compare_columns": ("a",), "ttl_seconds": 2700},
        {"compare": ("a",), "ttl": timedelta(minutes=45)},
    ),
}


def check_events(backend: Harness, loader: Loader, way: str, seed: int) -> None:
    declared, told = EVENT_WAYS[way]
    options = {"event_timestamp_column": "at", "delete_when": "op = 'D'", **declared}
    rule = EventHistory(
        key=("k",),
        columns=EVENT_COLUMNS,
        at="at",
        row_hash=lambda r: row_hash({c: r[c] for c in EVENT_COLUMNS}),
        delete_when=is_delete,
        **told,
    )
    spread = EventStory(backend, loader, fresh_events(), EVENT_SCHEMA, options=options)
    for batch in event_batches(seed):
        spread.arrive(rule, batch)
    shuffled = dice(seed).sample(spread.seen, len(spread.seen))
    at_once = EventStory(backend, loader, fresh_events(), EVENT_SCHEMA, options=options)
    at_once.arrive(rule, shuffled)
    assert_same(at_once.found(), spread.found(), ignoring=("_run_id", "_loaded_at"))


@examples(1)
@given(seed=seeds)
def test_any_states_give_what_the_oracle_gives(backend: Harness, loader: Loader, seed: int) -> None:
    check_states(backend, loader, seed)


@pytest.mark.parametrize("way", EVENT_WAYS)
@examples(1)
@given(seed=seeds)
def test_any_order_batching_and_repeats_of_events_give_the_same_history(
    backend: Harness, loader: Loader, way: str, seed: int
) -> None:
    check_events(backend, loader, way, seed)


@pytest.mark.soak
@examples(15)
@given(seed=seeds)
def test_many_states_give_what_the_oracle_gives(
    backend: Harness, loader: Loader, seed: int
) -> None:
    check_states(backend, loader, seed)


@pytest.mark.soak
@pytest.mark.parametrize("way", EVENT_WAYS)
@examples(15)
@given(seed=seeds)
def test_many_orders_batchings_and_repeats_of_events_give_the_same_history(
    backend: Harness, loader: Loader, way: str, seed: int
) -> None:
    check_events(backend, loader, way, seed)
