"""Cases worked out by hand: the oracle itself must be right before anything is held to it."""

from __future__ import annotations

import hashlib
import itertools
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.events import EventHistory, as_of, tally
from oracle.hashing import canonical_text, row_hash
from oracle.incremental import Increment, append_new
from oracle.merge import Merge
from oracle.run_time import RunTimeHistory
from oracle.state import RUN, Refused, Row, Run, Tally, same


def at(hour: float) -> datetime:
    return datetime(2024, 1, 1, tzinfo=timezone.utc) + timedelta(hours=hour)


def row(k: Any, a: Any = None, b: Any = None) -> Row:
    return {"k": k, "a": a, "b": b}


def seen(rows: list[Row]) -> list[tuple[Any, ...]]:
    return sorted((tuple(r.values()) for r in rows), key=repr)


FIRST, SECOND, THIRD = Run(at(1), 1), Run(at(2), 2), Run(at(3), 3)
COLUMNS = ("k", "a", "b")


def merge(**options: Any) -> Merge:
    return Merge(key=("k",), columns=COLUMNS, **options)


# Equality


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (None, None, True),
        (None, 0, False),
        ("", None, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (0.0, -0.0, True),
        (Decimal("1.0"), Decimal("1.00"), True),
        ("a", "A", False),
        ("a", "a ", False),
        ({"x": 1}, {"x": 1}, True),
        ([1, None], [1, 2], False),
    ],
)
def test_equality_is_null_safe(left: Any, right: Any, *, equal: bool) -> None:
    assert same(left, right) is equal
    assert same(right, left) is equal


# merge


def test_merge_inserts_updates_and_leaves_alone() -> None:
    first = merge().load([], [row(1, "x"), row(2, "y"), row(3)], FIRST)
    assert first.tally == Tally(inserted=3)
    second = merge().load(first.rows, [row(1, "x"), row(2, None), row(3, "z"), row(4)], SECOND)
    assert second.tally == Tally(inserted=1, updated=2, unchanged=1)
    assert seen(second.rows) == [
        (1, "x", None, 1),
        (2, None, None, 2),
        (3, "z", None, 2),
        (4, None, None, 2),
    ]


def test_merge_compares_only_what_it_is_told_and_updates_only_what_it_is_told() -> None:
    start = merge().load([], [row(1, "x", "y"), row(2, "x", "y")], FIRST).rows
    compared = merge(compare=("a",)).load(start, [row(1, "x", "new"), row(2, "n", "w")], SECOND)
    assert seen(compared.rows) == [(1, "x", "y", 1), (2, "n", "w", 2)]
    updated = merge(update=("a",)).load(start, [row(1, "x", "new"), row(2, "n", "w")], SECOND)
    assert seen(updated.rows) == [(1, "x", "y", 1), (2, "n", "y", 2)]
    both = merge(compare=("b",), update=("a",)).load(start, [row(1, "n", "y")], SECOND)
    assert both.tally == Tally(unchanged=1)


def test_merge_duplicates_are_named_or_decided() -> None:
    twice = [row(1, "x", 1), row(1, "y", 3), row(1, "z", 2), row(2, "q", None)]
    with pytest.raises(Refused, match="duplicate keys") as caught:
        merge().load([], twice, FIRST)
    assert caught.value.keys == ((1,),)
    last = merge(duplicate_keys="last", order_by="b").load([], twice, FIRST)
    assert seen(last.rows) == [(1, "y", 3, 1), (2, "q", None, 1)]
    first = merge(duplicate_keys="first", order_by="b").load([], twice, FIRST)
    assert seen(first.rows) == [(1, "x", 1, 1), (2, "q", None, 1)]


def test_merge_refuses_null_keys_with_their_count() -> None:
    with pytest.raises(Refused, match="null key") as caught:
        merge().load([], [row(None), row(1), row(None, "x")], FIRST)
    assert caught.value.count == 2


def test_merge_hard_deletes_are_guarded_and_counted() -> None:
    start = merge().load([], [row(n) for n in range(4)], FIRST).rows
    hard = merge(handle_deletes="hard")
    half = hard.load(start, [row(0), row(1)], SECOND)
    assert half.tally == Tally(deleted=2, unchanged=2)
    assert [r["k"] for r in half.rows] == [0, 1]
    with pytest.raises(Refused, match="too many deletes") as caught:
        hard.load(start, [row(0)], SECOND)
    assert caught.value.count == 3
    with pytest.raises(Refused, match="empty source"):
        hard.load(start, [], SECOND)
    all_but_one = merge(handle_deletes="hard", max_delete_fraction=1)
    assert all_but_one.load(start, [row(9)], SECOND).tally == Tally(inserted=1, deleted=4)


def test_merge_soft_deletes_stamp_once_and_a_returning_key_clears_the_stamp() -> None:
    soft = merge(handle_deletes="soft")
    start = soft.load([], [row(n) for n in range(4)], FIRST).rows
    gone = soft.load(start, [row(0), row(1), row(2)], SECOND)
    assert gone.tally == Tally(deleted=1, unchanged=3)
    assert [r["deleted_at"] for r in gone.rows] == [None, None, None, at(2)]
    still = soft.load(gone.rows, [row(0), row(1)], THIRD)
    assert still.tally == Tally(deleted=1, unchanged=2)
    assert [r["deleted_at"] for r in still.rows] == [None, None, at(3), at(2)]
    back = soft.load(still.rows, [row(0), row(1), row(3)], Run(at(4), 4))
    assert back.tally == Tally(updated=1, unchanged=2)
    assert [(r["deleted_at"], r[RUN]) for r in back.rows] == [
        (None, 1),
        (None, 1),
        (at(3), 3),
        (None, 4),
    ]


def test_merge_deletes_what_the_rows_say() -> None:
    told = merge(delete_when=lambda r: r["a"] == "D")
    start = told.load([], [row(1, "x"), row(2, "x"), row(3, "D")], FIRST)
    assert start.tally == Tally(inserted=2)
    after = told.load(start.rows, [row(1, "D"), row(9, "D")], SECOND)
    assert after.tally == Tally(deleted=1)
    assert [r["k"] for r in after.rows] == [2]
    soft = merge(delete_when=lambda r: r["a"] == "D", handle_deletes="soft")
    held = soft.load([], [row(1, "x"), row(2, "x")], FIRST).rows
    marked = soft.load(held, [row(1, "D"), row(2, "x")], SECOND)
    assert marked.tally == Tally(deleted=1, unchanged=1)
    assert [(r["a"], r["deleted_at"]) for r in marked.rows] == [("x", at(2)), ("x", None)]
    again = soft.load(marked.rows, [row(1, "D"), row(2, "x")], THIRD)
    assert again.tally == Tally(unchanged=1)


# scd2 at run time


def run_time(**options: Any) -> RunTimeHistory:
    return RunTimeHistory(key=("k",), columns=COLUMNS, **options)


def spans(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Key, value and validity in hours."""

    def hours(moment: datetime | None) -> float | None:
        return None if moment is None else (moment - at(0)).total_seconds() / 3600

    return sorted(
        ((r["k"], r["a"], hours(r["valid_from"]), hours(r["valid_to"])) for r in rows), key=repr
    )


def test_run_time_versions_follow_each_other_without_a_gap() -> None:
    one = run_time().load([], [row(1, "x"), row(2, "y")], FIRST)
    two = run_time().load(one.rows, [row(1, "x"), row(2, None)], SECOND)
    three = run_time().load(two.rows, [row(2, "y")], THIRD)
    assert (one.tally, two.tally) == (
        Tally(inserted=2),
        Tally(inserted=1, closed=1, unchanged=1),
    )
    assert spans(three.rows) == [
        (1, "x", 1, None),
        (2, "y", 1, 2),
        (2, "y", 3, None),
        (2, None, 2, 3),
    ]
    assert [r["is_current"] for r in three.rows].count(True) == 2


def test_run_time_deletes_close_and_a_returning_key_opens_again() -> None:
    soft = run_time(handle_deletes="soft")
    one = soft.load([], [row(1, "x"), row(2, "y")], FIRST)
    two = soft.load(one.rows, [row(1, "x")], SECOND)
    assert two.tally == Tally(closed=1, unchanged=1)
    three = soft.load(two.rows, [row(1, "x"), row(2, "y")], THIRD)
    assert three.tally == Tally(inserted=1, unchanged=1)
    assert spans(three.rows) == [(1, "x", 1, None), (2, "y", 1, 2), (2, "y", 3, None)]
    with pytest.raises(Refused, match="empty source"):
        soft.load(three.rows, [], Run(at(4), 4))
    with pytest.raises(Refused, match="too many deletes"):
        run_time(handle_deletes="soft", max_delete_fraction=0.4).load(
            three.rows, [row(1, "x")], Run(at(4), 4)
        )


def test_run_time_deletes_by_what_the_rows_say() -> None:
    told = run_time(delete_when=lambda r: r["a"] == "D")
    one = told.load([], [row(1, "x"), row(2, "y")], FIRST)
    two = told.load(one.rows, [row(1, "D"), row(3, "D")], SECOND)
    assert two.tally == Tally(closed=1)
    assert spans(two.rows) == [(1, "x", 1, 2), (2, "y", 1, None)]


def test_run_time_ttl_closes_once_and_only_a_change_opens_again() -> None:
    short = run_time(ttl=timedelta(hours=1.5))
    one = short.load([], [row(1, "x"), row(2, "y")], FIRST)
    two = short.load(one.rows, [row(1, "x"), row(2, "y")], SECOND)
    assert two.tally == Tally(unchanged=2)
    three = short.load(two.rows, [row(1, "x"), row(2, "z")], THIRD)
    assert three.tally == Tally(inserted=1, closed=2, unchanged=1)
    assert spans(three.rows) == [(1, "x", 1, 2.5), (2, "y", 1, 2.5), (2, "z", 3, None)]
    four = short.load(three.rows, [row(1, "x"), row(2, "z")], Run(at(4), 4))
    assert four.tally == Tally(unchanged=2)
    assert spans(four.rows) == spans(three.rows)


# The hash that breaks ties


def test_the_row_hash_is_that_of_the_canonical_text() -> None:
    given = {
        "b": "x;y~z",
        "a": 5,
        "none": None,
        "yes": True,
        "d": Decimal("1.50"),
        "at": at(1.5) + timedelta(microseconds=7),
        "day": date(2024, 2, 29),
        "raw": b"\xff\x00",
    }
    text = "a=5;at=2024-01-01 01:30:00.000007;b=x~;y~~z;d=1.50;day=2024-02-29;raw=ff00;yes=true;"
    assert canonical_text(given) == text
    assert row_hash(given) == hashlib.sha256(text.encode()).hexdigest()
    assert row_hash({**given, "later": None}) == row_hash(given)


# scd2 by event time


def event(k: Any, hour: float, a: Any, b: Any = None) -> Row:
    return {"k": k, "at": at(hour), "a": a, "b": b}


def events(**options: Any) -> EventHistory:
    return EventHistory(
        key=("k",),
        columns=("k", "at", "a", "b"),
        at="at",
        row_hash=lambda r: repr((r["a"], r["b"])),
        delete_when=lambda r: r["a"] == "D",
        **options,
    )


LATER = at(1000)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([event(1, 1, "x")], [(1, "x", 1, None)], id="one"),
        pytest.param(
            [event(1, 1, "x"), event(1, 2, "x"), event(1, 3, "y")],
            [(1, "x", 1, 3), (1, "y", 3, None)],
            id="equal states collapse",
        ),
        pytest.param(
            [event(1, 1, "x"), event(1, 3, "x"), event(1, 2, "y")],
            [(1, "x", 1, 2), (1, "x", 3, None), (1, "y", 2, 3)],
            id="a late event splits",
        ),
        pytest.param(
            [event(1, 5, "x"), event(1, 1, "x")], [(1, "x", 1, None)], id="late but equal"
        ),
        pytest.param(
            [event(1, 1, "x"), event(1, 2, "D"), event(1, 4, "x")],
            [(1, "x", 1, 2), (1, "x", 4, None)],
            id="a delete opens a gap",
        ),
        pytest.param([event(1, 1, "D"), event(1, 2, "D")], [], id="only deletes"),
        pytest.param(
            [event(1, 1, "x"), event(1, 2, "y"), event(1, 2, "D")],
            [(1, "x", 1, 2)],
            id="a delete beats an upsert of the same instant",
        ),
        pytest.param(
            [event(1, 1, "x"), event(1, 1, "y")], [(1, "y", 1, None)], id="greater hash wins"
        ),
        pytest.param(
            [event(1, 1, None), event(1, 2, None), event(1, 3, "x"), event(1, 4, None)],
            [(1, "x", 3, 4), (1, None, 1, 3), (1, None, 4, None)],
            id="NULL is a state",
        ),
        pytest.param(
            [event(1, 1, "x"), event(1, 2, "D"), event(1, 3, "D"), event(1, 4, "y")],
            [(1, "x", 1, 2), (1, "y", 4, None)],
            id="a second delete says nothing",
        ),
    ],
)
def test_event_histories(given: list[Row], expected: list[tuple[Any, ...]]) -> None:
    for order in itertools.permutations([*given, given[0]]):
        assert spans(events().versions(order, LATER)) == expected


def test_other_columns_hold_the_latest_event_of_their_version() -> None:
    compared = events(compare=("a",))
    found = compared.versions([event(1, 2, "x", "late"), event(1, 1, "x", "early")], LATER)
    assert [(v["valid_from"], v["at"], v["b"]) for v in found] == [(at(1), at(2), "late")]


def test_event_ttl_bounds_every_version_and_closes_the_last_by_the_clock() -> None:
    short = events(ttl=timedelta(hours=2))
    given = [
        event(1, 1, "x"),
        event(1, 2, "y"),
        event(1, 9, "z"),
        event(2, 8, "x"),
        event(2, 8.5, "x"),
    ]
    assert spans(short.versions(given, at(10))) == [
        (1, "x", 1, 2),
        (1, "y", 2, 4),
        (1, "z", 9, None),
        (2, "x", 8, 10),
    ]
    assert spans(short.versions(given, at(11)))[2] == (1, "z", 9, 11)
    assert spans(short.versions([*given, event(2, 20, "x")], at(30)))[3] == (2, "x", 8, 10)


def test_what_a_load_of_events_counts_is_the_difference_it_makes() -> None:
    before = events().versions([event(1, 1, "x"), event(1, 5, "y"), event(2, 1, "x")], LATER)
    late = [
        event(1, 1, "x"),
        event(1, 5, "y"),
        event(1, 3, "y"),
        event(2, 1, "x"),
        event(2, 2, "D"),
    ]
    after = events().versions(late, LATER)
    assert spans(after) == [(1, "x", 1, 3), (1, "y", 3, None), (2, "x", 1, 2)]
    # The first version ends earlier, the second begins earlier: another one takes its place.
    assert tally(before, after, ("k",)) == Tally(inserted=1, updated=1, deleted=1, closed=1)
    assert tally(after, after, ("k",)) == Tally()


def test_an_instant_has_at_most_one_version() -> None:
    given = [event(1, 1, "x"), event(1, 3, "y"), event(1, 5, "D"), event(1, 7, "x")]
    found = events().versions(given, LATER)
    assert [[v["a"] for v in as_of(found, at(h))] for h in (0, 1, 2, 3, 5, 6, 7, 99)] == [
        [],
        ["x"],
        ["x"],
        ["y"],
        [],
        [],
        ["x"],
        ["x"],
    ]


def test_an_event_without_a_time_is_refused() -> None:
    with pytest.raises(Refused, match="null event time"):
        events().versions([{"k": 1, "at": None, "a": "x", "b": None}], LATER)


# incremental


def test_the_boundary_is_read_again_and_neither_lost_nor_doubled() -> None:
    by = Increment("n")
    source = [{"n": 1, "v": "a"}, {"n": 2, "v": "b"}]
    target = append_new([], by.taken(source, None), ())
    mark = by.moved(source, None)
    assert (target, mark) == (source, 2)
    source = [
        *source,
        {"n": 2, "v": "c"},
        {"n": 2, "v": "b"},
        {"n": 3, "v": "d"},
        {"n": 1, "v": "e"},
    ]
    added = append_new(target, by.taken(source, mark), ())
    assert sorted(r["v"] for r in added) == ["b", "c", "d"]
    assert by.moved(source, mark) == 3
    assert append_new([*target, *added], by.taken(source, 3), ()) == []


def test_a_lookback_takes_late_rows_once() -> None:
    by = Increment("n", lookback=2)
    target = [{"n": 5, "v": "a"}]
    source = [*target, {"n": 3, "v": "late"}, {"n": 2, "v": "too late"}]
    assert append_new(target, by.taken(source, 5), ("v",)) == [{"n": 3, "v": "late"}]


def test_the_watermark_never_goes_back_and_null_is_refused() -> None:
    by = Increment("n")
    assert by.moved([{"n": 1}], 5) == 5
    assert by.moved([], None) is None
    with pytest.raises(Refused, match="null watermark") as caught:
        by.taken([{"n": None}, {"n": 1}], None)
    assert caught.value.count == 1
    loads = Increment("n", null_watermark="load")
    assert loads.taken([{"n": None}, {"n": 1}], 2) == [{"n": None}]


# Two ways to the same answer: a history, and a look at the latest word before an instant


moments = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from(["x", "y", "D"]), st.sampled_from([None, 1])),
    max_size=8,
)


@settings(derandomize=True)
@given(moments)
def test_a_history_says_at_every_instant_what_the_latest_event_said(
    given_events: list[tuple[int, str, int | None]],
) -> None:
    happened = [event(1, h, a, b) for h, a, b in given_events]
    rule = events()
    versions = rule.versions(happened, LATER)
    for half_hours in range(-1, 14):
        moment = at(half_hours / 2)
        known = [e for e in happened if e["at"] <= moment]
        valid = [(v["a"], v["b"]) for v in as_of(versions, moment)]
        if not known:
            assert valid == []
            continue
        latest = max(known, key=lambda e: (e["at"], e["a"] == "D", rule.row_hash(e)))
        assert valid == ([] if latest["a"] == "D" else [(latest["a"], latest["b"])])
    for one, two in itertools.pairwise(versions):
        assert (one["a"], one["b"]) != (two["a"], two["b"]) or one["valid_to"] < two["valid_from"]
