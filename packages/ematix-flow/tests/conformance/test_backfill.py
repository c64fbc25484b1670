"""A range loaded again: what is in it is what the source has, what is not in it stays as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import pytest
from hypothesis import given

from conformance.conftest import Loader
from conformance.story import assert_same, stored_rows
from conformance.strategies import KEYS, START, dice, event_batches, examples, seeds
from ematix_flow import BigInt, ManagedTable, Text, TimestampTZ, ematix, natural_key, pk
from ematix_flow.errors import UnknownName, Unsupported
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.backfill import Request, plan_backfill, run_slices
from ematix_flow.run.result import RunResult
from harness.base import Harness
from oracle.events import EventHistory
from oracle.hashing import row_hash
from oracle.state import Row


@ematix.table(schema="app")
class Lines:
    at: BigInt | None
    a: Text | None


@ematix.table(schema="app")
class Entries:
    id: Annotated[BigInt, pk()]
    at: BigInt | None
    a: Text | None


@ematix.table(schema="app")
class Moves:
    k: Annotated[BigInt, natural_key()]
    at: TimestampTZ
    a: Text | None
    b: BigInt | None


def refill(pipeline: Pipeline, start: str, end: str, **details: Any) -> list[RunResult]:
    """Load a range again; the runs of its slices."""
    dry_run, again = details.pop("dry_run", False), details.pop("again", True)
    replacing = details.pop("replacing", ())
    planned = plan_backfill(pipeline.spec, Request(start, end, **details), again=again)
    found = [one.result for one in run_slices(planned, replacing=replacing, dry_run=dry_run)]
    return [result for result in found if result is not None]


def total(results: Sequence[RunResult], name: str) -> int:
    return sum(getattr(r.counts, name) for r in results)


def outside(rows: Sequence[Row], low: int, high: int) -> list[Row]:
    return [r for r in rows if r["at"] is None or not low <= r["at"] < high]


def inside(rows: Sequence[Row], low: int, high: int) -> list[Row]:
    return [r for r in rows if r["at"] is not None and low <= r["at"] < high]


def lines(seed: int) -> list[Row]:
    chance = dice(seed)
    places = (None, *range(100))
    made = [{"at": chance.choice(places), "a": chance.choice((None, "x", "y"))} for _ in range(400)]
    return [*made, *made[:40]]


@pytest.mark.needs("rewrite")
@examples(1)
@given(seed=seeds)
def test_an_appended_range_is_replaced(backend: Harness, loader: Loader, seed: int) -> None:
    def pipeline(rows: Sequence[Row]) -> Pipeline:
        given_rows = [(r["at"], r["a"]) for r in rows]
        options = {"incremental": True, "watermark_column": "at", "null_watermark": "load"}
        return loader(Lines, given_rows, "at BIGINT, a STRING", **options)

    first, second = lines(seed), lines(seed + 1)
    pipeline(first).sync()
    before = stored_rows(backend, Lines.__table__)
    mark = load_mark(backend, Lines)
    counted = refill(pipeline(second), "20", "60", slice="20", dry_run=True)
    assert stored_rows(backend, Lines.__table__) == before
    done = refill(pipeline(second), "20", "60", slice="20", again=False)
    assert [r.counts for r in done] == [r.counts for r in counted]
    assert (total(done, "deleted"), total(done, "inserted")) == (
        len(inside(first, 20, 60)),
        len(inside(second, 20, 60)),
    )
    after = stored_rows(backend, Lines.__table__)
    assert_same(outside(after, 20, 60), outside(before, 20, 60), ignoring=())
    assert_same(inside(after, 20, 60), inside(second, 20, 60))
    assert {r["_run_id"] for r in inside(after, 20, 60)} == {r.run_id for r in done}
    assert load_mark(backend, Lines) == mark
    assert refill(pipeline(second), "20", "60", slice="20", again=False) == []
    assert_same(stored_rows(backend, Lines.__table__), after, ignoring=())
    assert backend.litter(backend.connection("target")) == []


def load_mark(backend: Harness, table: type[ManagedTable]) -> dict[str, str]:
    from ematix_flow.backends.loading import load_backend

    name = f"load_{table.__name__.lower()}"
    return load_backend(backend.connection("target")).watermarks(name, table.__table__.name)


@pytest.mark.needs("revise")
@examples(1)
@given(seed=seeds)
def test_a_merged_range_is_replaced(backend: Harness, loader: Loader, seed: int) -> None:
    """Rows move from slice to slice, into the range and out of it."""
    chance = dice(seed)

    def entries() -> list[Row]:
        present = chance.sample(range(KEYS), KEYS * 3 // 4)
        return [
            {"id": n, "at": chance.choice((None, *range(40))), "a": chance.choice("xy")}
            for n in present
        ]

    def pipeline(rows: Sequence[Row]) -> Pipeline:
        given_rows = [tuple(r.values()) for r in rows]
        return loader(Entries, given_rows, "id BIGINT, at BIGINT, a STRING", mode="merge")

    first, second = entries(), entries()
    pipeline(first).sync()
    before = stored_rows(backend, Entries.__table__)
    done = refill(pipeline(second), "10", "30", slice="10", column="at")
    expected = {r["id"]: r for r in first}
    for low in (10, 20):
        came = {r["id"]: r for r in inside(second, low, low + 10)}
        held = inside(list(expected.values()), low, low + 10)
        gone = {r["id"] for r in held} - set(came)
        expected = {n: r for n, r in {**expected, **came}.items() if n not in gone}
    after = stored_rows(backend, Entries.__table__)
    assert_same(after, list(expected.values()))
    came_back = {r["id"] for r in inside(second, 10, 30)}
    untouched = [r for r in outside(before, 10, 30) if r["id"] not in came_back]
    kept = {r["id"] for r in untouched}
    assert_same([r for r in after if r["id"] in kept], untouched, ignoring=())
    assert total(done, "inserted") - total(done, "deleted") == len(expected) - len(first)
    assert backend.litter(backend.connection("target")) == []


def called(pipeline: Pipeline, name: str) -> Pipeline:
    """The same pipeline under another name."""
    return Pipeline(dataclasses.replace(pipeline.spec, name=name))


@pytest.mark.needs("rewrite", "revise")
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_rows_of_other_pipelines_are_not_replaced(
    backend: Harness, loader: Loader, mode: str
) -> None:
    schema = "id BIGINT, at BIGINT, a STRING"
    west = called(loader(Entries, [(1, 5, "w"), (2, 15, "w")], schema, mode=mode), "west")
    east = called(loader(Entries, [(3, 6, "e"), (4, 16, "e")], schema, mode=mode), "east")
    west.sync()
    refill(west, "10", "20", column="at")
    east.sync()
    before = stored_rows(backend, Entries.__table__)
    for dry_run in (True, False):
        with pytest.raises(Unsupported, match=r"'east' also loaded app\.entries") as caught:
            refill(west, "0", "10", column="at", dry_run=dry_run)
    assert "--replace-rows-of east" in str(caught.value)
    with pytest.raises(UnknownName, match="no pipeline 'esat' has loaded"):
        refill(west, "0", "10", column="at", replacing=["esat"])
    assert_same(stored_rows(backend, Entries.__table__), before, ignoring=())
    # What was once another name of this pipeline may go.
    (done,) = refill(west, "0", "10", column="at", replacing=["east"])
    assert (done.counts.read, done.counts.deleted) == (1, 1 if mode == "merge" else 2)
    assert sorted(r["id"] for r in stored_rows(backend, Entries.__table__)) == [1, 2, 4]


COLUMNS = ("k", "at", "a", "b")
SCHEMA = "k BIGINT, at TIMESTAMP, a STRING, b BIGINT, op STRING"
RULE = EventHistory(
    key=("k",),
    columns=COLUMNS,
    at="at",
    row_hash=lambda row: row_hash({c: row[c] for c in COLUMNS}),
    delete_when=lambda r: r["op"] == "D",
)


@pytest.mark.needs("revise")
@pytest.mark.parametrize("ttl", [None, timedelta(minutes=45)], ids=["", "ttl"])
@examples(1)
@given(seed=seeds)
def test_a_history_is_rebuilt_from_the_start_of_the_range(
    backend: Harness, loader: Loader, seed: int, ttl: timedelta | None
) -> None:
    """Events before the range are remembered, events from its start on are those of the source."""
    rule = dataclasses.replace(RULE, ttl=ttl)
    options: dict[str, Any] = {"event_timestamp_column": "at", "delete_when": "op = 'D'"}
    if ttl is not None:
        options["ttl"] = ttl

    def pipeline(events: Sequence[Row]) -> Pipeline:
        given_rows = [tuple(e.values()) for e in events]
        return loader(Moves, given_rows, SCHEMA, mode="scd2", **options)

    old = event_batches(seed, batches=2)
    for batch in old:
        pipeline(batch).sync()
    known = [event for batch in old for event in batch]
    before = stored_rows(backend, Moves.__table__)
    at = START + timedelta(minutes=60)

    def text(moment: datetime) -> str:
        return moment.isoformat()

    # The same source changes nothing at all.
    (same,) = refill(pipeline(known), text(at), text(at + timedelta(hours=1)))
    assert (same.counts.inserted, same.counts.updated, same.counts.deleted) == (0, 0, 0)
    assert_same(stored_rows(backend, Moves.__table__), before, ignoring=())

    (new,) = event_batches(seed + 1, batches=1)
    source = [event for event in new if event["k"] % 3]
    (done,) = refill(pipeline(source), text(at), text(at + timedelta(hours=1)))
    assert done.counts.read == sum(e["at"] >= at for e in source)
    remembered = [e for e in known if e["at"] < at]
    events = [*remembered, *(e for e in source if e["at"] >= at)]
    after = stored_rows(backend, Moves.__table__)
    assert_same(after, rule.versions(events, done.finished_at), ignoring=("_loaded_at", "_run_id"))

    # A version that another had followed before the range is history; age alone ends none.
    ended = {
        (v["k"], v["valid_from"])
        for v in RULE.versions(remembered, at)
        if v["valid_to"] is not None
    }

    def finished(rows: Sequence[Row]) -> list[Row]:
        return [r for r in rows if (r["k"], r["valid_from"]) in ended]

    assert len(finished(before)) > KEYS // 10
    assert_same(finished(after), finished(before), ignoring=())
    # What is kept beside the versions fits them: late events find their place as ever.
    late = [e for e in new if e["k"] % 3 == 0]
    result = pipeline(late).sync()
    expected = rule.versions([*events, *late], result.finished_at)
    assert_same(stored_rows(backend, Moves.__table__), expected, ignoring=("_loaded_at", "_run_id"))
    assert backend.litter(backend.connection("target")) == []
