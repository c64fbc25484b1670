"""Loads of random rows inside one database and through Spark: both give what the oracle gives."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from hypothesis import given

from conformance.conftest import Loader
from conformance.story import EventStory, Story, assert_same
from conformance.strategies import event_batches, examples, seeds
from ematix_flow import BigInt, ManagedTable, Text, TimestampTZ, ematix, natural_key, pk
from ematix_flow.pipeline import Pipeline
from harness.base import Harness
from oracle.events import EventHistory
from oracle.hashing import row_hash
from oracle.merge import Merge
from oracle.state import Row

pytestmark = pytest.mark.needs("revise", "replace", "same_database", "source")

COLUMNS = ("k", "happened", "a", "b", "seq")
LISTED = ", ".join((*COLUMNS, "op"))
SCHEMA = "batch BIGINT, k BIGINT, happened TIMESTAMP, a STRING, b BIGINT, op STRING, seq BIGINT"
PATHS = {"same_db": None, "spark": "spark"}
_numbers = itertools.count()


@ematix.table(schema="app")
class Feed:
    batch: BigInt
    k: BigInt
    happened: TimestampTZ
    a: Text | None
    b: BigInt | None
    op: Text | None
    seq: BigInt


def fresh_rows() -> type[ManagedTable]:
    class Rows:
        k: Annotated[BigInt, pk()]
        a: Text | None
        b: BigInt | None
        seq: BigInt | None

    Rows.__name__ = f"Rows{next(_numbers)}"
    return ematix.table(schema="app")(Rows)


def fresh_history() -> type[ManagedTable]:
    class History:
        k: Annotated[BigInt, natural_key()]
        happened: TimestampTZ
        a: Text | None
        b: BigInt | None
        seq: BigInt | None

    History.__name__ = f"History{next(_numbers)}"
    return ematix.table(schema="app")(History)


def declare(story: Story, path: str, options: dict[str, Any]) -> Pipeline:
    """A pipeline over the batch of the feed that the story has come to."""
    feed = story.backend.spelled(Feed.__table__.name)
    batch = story.schema

    @ematix.pipeline(
        target=story.table,
        target_connection="target",
        mode=story.mode,
        name=f"load_{story.table.__name__.lower()}",
        force_path=PATHS[path],
        **options,
    )
    def load(conn: Any) -> str:
        return f"SELECT {LISTED} FROM {feed} WHERE batch = {batch}"

    return load


@dataclasses.dataclass
class FedStory(Story):
    """The rows come from the feed; ``schema`` says which batch of it."""

    path: str = "same_db"

    def pipeline(self, incoming: Sequence[Row], **options: Any) -> Pipeline:
        return declare(self, self.path, {**self.options, **options})


@dataclasses.dataclass
class FedEvents(EventStory):
    """The same for events."""

    path: str = "same_db"

    def pipeline(self, incoming: Sequence[Row], **options: Any) -> Pipeline:
        return declare(self, self.path, {**self.options, **options})


def fed(loader: Loader, seed: int) -> list[list[Row]]:
    """Fill the feed, and say what is in its batches."""
    number = itertools.count()
    batches = [
        [
            {"happened" if c == "at" else c: v for c, v in e.items()} | {"seq": next(number)}
            for e in b
        ]
        for b in event_batches(seed, batches=2)
    ]
    rows = [(n, *row.values()) for n, batch in enumerate(batches) for row in batch]
    loader(Feed, rows, SCHEMA, mode="truncate").sync()
    return batches


def is_delete(row: Row) -> bool:
    return bool(row["op"] == "D")


@examples(1)
@given(seed=seeds)
def test_both_paths_merge_alike(backend: Harness, loader: Loader, seed: int) -> None:
    batches = fed(loader, seed)
    chosen = {"duplicate_keys": "last", "order_by": "seq"}
    rule = Merge(key=("k",), columns=("k", "a", "b", "seq"), delete_when=is_delete, **chosen)
    options = {**chosen, "delete_when": "op = 'D'"}
    found = []
    for path in PATHS:
        story = FedStory(backend, loader, fresh_rows(), "", options=options, path=path)
        for number, batch in enumerate(batches):
            story.schema = str(number)
            # A database that cannot do all of it leaves it to Spark.
            assert story.load(rule, batch).path in (path, "spark")
        found.append(story.found())
    assert_same(*found, ignoring=("_run_id", "_loaded_at"))


@examples(1)
@given(seed=seeds)
def test_both_paths_tell_the_same_history(backend: Harness, loader: Loader, seed: int) -> None:
    batches = fed(loader, seed)
    rule = EventHistory(
        key=("k",),
        columns=COLUMNS,
        at="happened",
        row_hash=lambda r: row_hash({c: r[c] for c in COLUMNS}),
        compare=("a", "b"),
        delete_when=is_delete,
    )
    options = {
        "event_timestamp_column": "happened",
        "delete_when": "op = 'D'",
        "compare_columns": ("a", "b"),
    }
    table = fresh_history()
    story = FedEvents(backend, loader, table, "0", options=options, path="same_db")
    # Where a database cannot compute the hash, the first path is Spark's, too.
    story.arrive(rule, batches[0])
    # The other path goes on where the first has stopped, and repeats what it has done.
    story.path = "spark"
    again = story.arrive(rule, batches[0])
    assert (again.path, again.counts.inserted, again.counts.updated) == ("spark", 0, 0)
    story.schema = "1"
    story.arrive(rule, batches[1])
    story.path = "same_db"
    last = story.arrive(rule, batches[1])
    assert (last.counts.inserted, last.counts.updated, last.counts.closed) == (0, 0, 0)
