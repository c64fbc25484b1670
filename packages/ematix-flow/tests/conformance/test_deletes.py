"""Keys that leave the source: deleted or marked, counted, and never by accident."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from conformance.conftest import Loader
from conformance.story import Story
from conformance.test_merge import COLUMNS, SCHEMA, Parts, part, parts
from ematix_flow import BigInt, Text, TimestampTZ, ematix, pk
from ematix_flow.errors import EmptySource, TooManyDeletes
from harness.base import Harness
from oracle.merge import Merge
from oracle.state import Row

pytestmark = pytest.mark.needs("revise")


def test_absent_keys_are_deleted_within_bounds_and_counted(
    backend: Harness, loader: Loader
) -> None:
    story = Story(backend, loader, Parts, SCHEMA, options={"handle_deletes": "hard"})
    hard = parts(handle_deletes="hard")
    story.load(hard, [part(k) for k in range(10)])
    _, said = story.refused(hard, [], EmptySource)
    assert "0 rows" in said
    assert "allow_empty=" in said
    half = [part(k) for k in range(4)] + [part(4, "changed"), part(99)]
    story.foretold(hard, half)
    result = story.load(hard, half)
    assert (result.counts.deleted, result.counts.updated, result.counts.inserted) == (5, 1, 1)
    verdict, said = story.refused(hard, [part(0), part(1)], TooManyDeletes)
    assert f"{verdict.count} of the 6 rows" in said
    assert "max_delete_fraction=" in said
    everything = parts(handle_deletes="hard", max_delete_fraction=1)
    story.load(everything, [part(7)], max_delete_fraction=1)
    assert [r["k"] for r in story.found()] == [7]


def test_an_empty_source_that_is_allowed_needs_no_other_leave(
    backend: Harness, loader: Loader
) -> None:
    options = {"handle_deletes": "hard", "allow_empty": True}
    story = Story(backend, loader, Parts, SCHEMA, options=options)
    story.load(parts(**options), [part(k) for k in range(6)])
    # One row is not none: there the limit holds.
    story.refused(parts(**options), [part(1)], TooManyDeletes)
    assert story.load(parts(**options), []).counts.deleted == 6
    assert story.found() == []


@pytest.mark.parametrize("how", ["hard", "soft"])
def test_stored_rows_without_a_key_stay(backend: Harness, loader: Loader, how: str) -> None:
    schema = "k BIGINT, deleted_at TIMESTAMP"
    loader(Keyless, [(1, None), (2, None), (3, None), (4, None), (None, None)], schema).sync()

    def merged(*keys: int) -> Any:
        rows = [(k, None) for k in keys]
        return loader(Keyless, rows, schema, mode="merge", keys=["k"], handle_deletes=how)

    def live() -> list[Any]:
        held = backend.rows(backend.connection("target"), Keyless.__table__)
        return sorted((r["k"] for r in held if r["deleted_at"] is None), key=repr)

    with pytest.raises(TooManyDeletes, match="3 of the 4 rows"):
        merged(1).sync()
    assert live() == [1, 2, 3, 4, None]
    assert merged(1, 2).sync().counts.deleted == 2
    assert live() == [1, 2, None]


@ematix.table(schema="app")
class Keyless:
    k: BigInt | None
    deleted_at: TimestampTZ | None


def test_soft_deletes_are_stamped_once_and_a_returning_key_is_cleared(
    backend: Harness, loader: Loader
) -> None:
    options = {"handle_deletes": "soft", "soft_delete_column": "gone at"}
    story = Story(backend, loader, Parts, SCHEMA, options=options)
    soft = parts(**options)
    story.load(soft, [part(k, "x") for k in range(6)])
    story.load(soft, [part(k, "x") for k in range(4)])
    story.load(soft, [part(k, "x") for k in range(3)])
    stamps = {r["k"]: r["gone at"] for r in story.found()}
    assert stamps[0] is None
    assert stamps[3] > stamps[4] == stamps[5]
    back = [part(0, "x"), part(1, "x"), part(2, "x"), part(4, "x"), part(5, "y")]
    result = story.load(soft, back)
    assert (result.counts.updated, result.counts.unchanged, result.counts.deleted) == (2, 3, 0)
    # Rows that are marked already do not count among those that could go.
    verdict, _ = story.refused(soft, [part(0, "x"), part(3, "x")], TooManyDeletes)
    assert verdict.count == 4
    story.refused(soft, [], EmptySource)


FEED = f"{SCHEMA}, op STRING, seq BIGINT"


def message(k: Any, a: Any, op: str | None, seq: int = 0) -> Row:
    return {**part(k, a), "op": op, "seq": seq}


def deletes(row: Row) -> bool:
    return row["op"] == "D"


def test_rows_that_say_so_are_deletes(backend: Harness, loader: Loader) -> None:
    story = Story(backend, loader, Parts, FEED, options={"delete_when": "op = 'D'"})
    told = parts(delete_when=deletes)
    story.load(told, [message(1, "x", "I"), message(2, "x", None), message(3, "x", "D")])
    feed = [message(1, None, "D"), message(2, "y", "U"), message(4, "x", "I"), message(9, "x", "D")]
    result = story.load(told, feed)
    assert (result.counts.deleted, result.counts.updated, result.counts.inserted) == (1, 1, 1)
    story.load(told, [message(1, "back", "I"), message(2, "y", "U"), message(4, "x", "D")])
    assert sorted((r["k"], r["a"]) for r in story.found()) == [(1, "back"), (2, "y")]


def test_the_last_word_on_a_key_may_be_a_delete(backend: Harness, loader: Loader) -> None:
    options = {"duplicate_keys": "last", "order_by": "seq"}
    story = Story(backend, loader, Sequenced, FEED, options={"delete_when": "op = 'D'", **options})
    rule = Merge(key=("k",), columns=(*COLUMNS, "seq"), delete_when=deletes, **options)
    story.load(rule, [message(1, "x", "I", 1), message(2, "x", "I", 1), message(3, "x", "I", 1)])
    story.load(
        rule,
        [
            message(1, "y", "U", 2),
            message(1, None, "D", 3),
            message(2, None, "D", 2),
            message(2, "z", "I", 3),
            message(4, "x", "I", 2),
            message(4, None, "D", 3),
        ],
    )
    assert sorted((r["k"], r["a"]) for r in story.found()) == [(2, "z"), (3, "x")]


@ematix.table(schema="app")
class Sequenced:
    k: Annotated[BigInt, pk()]
    a: Text | None
    b: BigInt | None
    seq: BigInt | None


def test_rows_that_say_so_are_marked_where_deletes_are_soft(
    backend: Harness, loader: Loader
) -> None:
    options = {"delete_when": "op = 'D'", "handle_deletes": "soft"}
    story = Story(backend, loader, Parts, FEED, options=options)
    rule = parts(handle_deletes="soft", delete_when=deletes)
    story.load(rule, [message(k, "x", "I") for k in range(4)])
    feed = [message(0, "x", "U"), message(1, "y", "D"), message(2, "x", "U"), message(3, "z", "U")]
    story.load(rule, feed)
    assert sorted((r["k"], r["a"], r["deleted_at"] is None) for r in story.found()) == [
        (0, "x", True),
        (1, "x", False),
        (2, "x", True),
        (3, "z", True),
    ]
    again = story.load(rule, feed)
    assert (again.counts.deleted, again.counts.updated) == (0, 0)
