"""``scd2`` over events: the same events in any order and any batching give the same table."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Annotated, Any

import pytest

from conformance.conftest import Loader
from conformance.story import EventStory
from ematix_flow import (
    BigInt,
    Date,
    DuckDBConnection,
    Text,
    Timestamp,
    TimestampTZ,
    ematix,
    natural_key,
    pk,
    register_connection,
)
from ematix_flow.errors import DataError, DeclarationError
from harness.base import Harness
from oracle.events import EventHistory
from oracle.hashing import row_hash
from oracle.state import Refused, Row

pytestmark = pytest.mark.needs("revise")


@ematix.table(schema="app")
class Happenings:
    k: Annotated[BigInt, natural_key()]
    at: TimestampTZ
    a: Text | None
    b: BigInt | None


SCHEMA = "k BIGINT, at TIMESTAMP, a STRING, b BIGINT, op STRING"
COLUMNS = ("k", "at", "a", "b")
OPTIONS = {"event_timestamp_column": "at", "delete_when": "op = 'D'"}
START = datetime(2024, 3, 31, tzinfo=timezone.utc)


def event(k: int, hour: float, a: Any = None, b: Any = None, *, op: str | None = None) -> Row:
    return {"k": k, "at": START + timedelta(hours=hour), "a": a, "b": b, "op": op}


def gone(k: int, hour: float) -> Row:
    return event(k, hour, op="D")


def hashed(row: Row) -> str:
    return row_hash({c: row[c] for c in COLUMNS})


def history(**options: Any) -> EventHistory:
    return EventHistory(
        key=("k",),
        columns=COLUMNS,
        at="at",
        row_hash=hashed,
        delete_when=lambda r: r["op"] == "D",
        **options,
    )


def spans(story: EventStory, k: int) -> list[tuple[Any, ...]]:
    """Value, begin and end of each version of a key, in hours."""

    def hours(moment: datetime | None) -> float | None:
        return None if moment is None else (moment - START).total_seconds() / 3600

    found = sorted((r for r in story.found() if r["k"] == k), key=lambda r: r["valid_from"])
    return [(r["a"], hours(r["valid_from"]), hours(r["valid_to"])) for r in found]


# Each key is a case of its own: what arrives first, second and third.
ARRIVALS: list[tuple[list[Row], list[Row], list[Row]]] = [
    # Several versions of a key in one batch, then more.
    ([event(1, 1, "x"), event(1, 2, "y"), event(1, 3, "z")], [event(1, 4, "x")], []),
    # A late event splits an interval.
    ([event(2, 1, "x"), event(2, 9, "y")], [event(2, 5, "late")], []),
    # A late event that equals what comes next moves its begin.
    ([event(3, 1, "x"), event(3, 9, "y")], [event(3, 5, "y")], []),
    # A late event before everything.
    ([event(4, 5, "x")], [event(4, 1, "y")], [event(4, 0, "x")]),
    # A repeated state collapses; a later arrival in between needs the one that said nothing.
    ([event(5, 1, "x"), event(5, 9, "x")], [event(5, 5, "y")], []),
    # The split heals when the delete of the same instant arrives, and opens a gap.
    ([event(6, 1, "x"), event(6, 5, "y")], [gone(6, 5)], [event(6, 9, "x")]),
    # A delete that arrives before what it deletes.
    ([gone(7, 5)], [event(7, 1, "x")], [event(7, 7, "x")]),
    # Only deletes leave nothing.
    ([gone(8, 5), gone(8, 6)], [gone(8, 4)], []),
    # A delete and an upsert of one instant, both orders.
    ([event(9, 5, "x"), gone(9, 5)], [event(9, 5, "y")], [event(9, 6, "z")]),
    # Ties go to the greater hash, whichever comes first.
    ([event(10, 1, "x")], [event(10, 1, "y")], [event(10, 1, "z"), event(10, 1, "x")]),
    ([event(11, 1, "z")], [event(11, 1, "y"), event(11, 1, "x")], []),
    # NULL is a state like any other.
    ([event(12, 1), event(12, 2), event(12, 3, "x")], [event(12, 4)], [event(12, 2, "x")]),
    # A delete inside a version that holds several events.
    (
        [event(13, 1, "x"), event(13, 2, "x"), event(13, 3, "x")],
        [gone(13, 2)],
        [event(13, 2.5, "x")],
    ),
    # The tie's loser must not come back when the winner's version is joined with another.
    ([event(14, 2, "x"), event(14, 2, "y")], [event(14, 1, "x")], [event(14, 1, "y")]),
    # Two deletes in a row, then a life between them.
    ([event(15, 1, "x"), gone(15, 3), gone(15, 7)], [event(15, 5, "y")], [event(15, 8, "x")]),
    # Microseconds apart, around the hour that summer time takes away.
    ([event(16, 1, "x"), event(16, 1 + 1 / 3.6e9, "y")], [event(16, 1 - 1 / 3.6e9, "z")], []),
    # Nothing but the value that is not compared by default differs: the event time.
    ([event(17, 1, "x", 1)], [event(17, 2, "x", 1)], [event(17, 3, "x", 2)]),
]


def test_a_history_follows_from_its_events_whenever_they_arrive(
    backend: Harness, loader: Loader
) -> None:
    story = EventStory(backend, loader, Happenings, SCHEMA, options=OPTIONS)
    for place in range(3):
        story.arrive(history(), [e for case in ARRIVALS for e in case[place]])
    assert spans(story, 2) == [("x", 1, 5), ("late", 5, 9), ("y", 9, None)]
    assert spans(story, 3) == [("x", 1, 5), ("y", 5, None)]
    assert spans(story, 5) == [("x", 1, 5), ("y", 5, 9), ("x", 9, None)]
    assert spans(story, 6) == [("x", 1, 5), ("x", 9, None)]
    assert spans(story, 7) == [("x", 1, 5), ("x", 7, None)]
    assert spans(story, 8) == []
    everything = [e for case in ARRIVALS for part in reversed(case) for e in reversed(part)]
    again = story.arrive(history(), everything)
    assert (again.counts.inserted, again.counts.updated, again.counts.closed) == (0, 0, 0)
    assert again.counts.deleted == 0
    runs = {r["_run_id"] for r in story.found()}
    assert again.run_id not in runs
    assert story.backend.litter(backend.connection("target")) == []


def test_other_columns_hold_the_latest_event_of_their_version(
    backend: Harness, loader: Loader
) -> None:
    options = {**OPTIONS, "compare_columns": ("a",)}
    story = EventStory(backend, loader, Happenings, SCHEMA, options=options)
    rule = history(compare=("a",))
    story.arrive(rule, [event(1, 2, "x", 2), event(2, 1, "x", 1), event(2, 5, "y", 5)])
    story.arrive(rule, [event(1, 1, "x", 1), event(2, 3, "x", 3), event(2, 4, "y", 4)])
    held = sorted((r["k"], r["a"], r["b"], r["at"] - START) for r in story.found())
    hour = timedelta(hours=1)
    assert held == [(1, "x", 2, 2 * hour), (2, "x", 3, 3 * hour), (2, "y", 5, 5 * hour)]


def test_a_version_ends_by_its_age_whatever_arrives_later(backend: Harness, loader: Loader) -> None:
    ttl = timedelta(hours=2)
    options = {**OPTIONS, "ttl": ttl}
    story = EventStory(backend, loader, Happenings, SCHEMA, options=options)
    rule = history(ttl=ttl)
    now = (datetime.now(timezone.utc) - START).total_seconds() // 3600
    first = [
        event(1, 1, "x"),
        event(1, 2, "y"),
        event(2, now, "x"),
        event(3, 1, "x"),
        event(4, 1, "x"),
    ]
    story.arrive(rule, first)
    assert spans(story, 1) == [("x", 1, 2), ("y", 2, 4)]
    assert spans(story, 2) == [("x", now, None)]
    story.arrive(rule, [event(1, 9, "z"), event(3, 7, "x"), gone(4, 9), event(1, 2.5, "q")])
    assert spans(story, 1) == [("x", 1, 2), ("y", 2, 2.5), ("q", 2.5, 4.5), ("z", 9, 11)]
    assert spans(story, 3) == [("x", 1, 3)]
    again = story.arrive(rule, [event(3, 7, "x")])
    assert (again.counts.inserted, again.counts.updated, again.counts.closed) == (0, 0, 0)


@ematix.table(schema="app", name="daily")
class Daily:
    k: Annotated[BigInt, pk()]
    day: Date
    naive: Timestamp | None
    a: Text | None


@pytest.mark.parametrize("column", ["day", "naive"])
def test_days_and_times_without_zone_are_in_utc(
    backend: Harness, loader: Loader, column: str
) -> None:
    schema = "k BIGINT, day DATE, naive TIMESTAMP_NTZ, a STRING"
    story = EventStory(backend, loader, Daily, schema, options={"event_timestamp_column": column})
    days = [(date(2024, 3, 30), "x"), (date(2024, 3, 31), "y"), (date(2024, 10, 27), "x")]
    rows = [(1, d, datetime(d.year, d.month, d.day, 2, 30), a) for d, a in days]
    story.pipeline([dict(enumerate(r)) for r in (rows[2], rows[0], rows[1])]).sync()
    found = sorted(story.found(), key=lambda r: r["valid_from"])
    shift = timedelta() if column == "day" else timedelta(hours=2, minutes=30)
    starts = [datetime(d.year, d.month, d.day, tzinfo=timezone.utc) + shift for d, _ in days]
    assert [(r["a"], r["valid_from"], r["valid_to"]) for r in found] == [
        ("x", starts[0], starts[1]),
        ("y", starts[1], starts[2]),
        ("x", starts[2], None),
    ]


def test_an_event_without_a_time_is_refused_with_its_count(
    backend: Harness, loader: Loader
) -> None:
    story = EventStory(
        backend,
        loader,
        Daily,
        "k BIGINT, day DATE, naive TIMESTAMP_NTZ, a STRING",
        options={"event_timestamp_column": "naive"},
    )
    day = date(2024, 1, 1)
    rows = [{"k": n, "day": day, "naive": None, "a": "x"} for n in range(3)]
    with pytest.raises(Refused, match="null event time"):
        EventHistory(key=("k",), columns=tuple(rows[0]), at="naive", row_hash=row_hash).versions(
            rows, START
        )
    with pytest.raises(DataError, match="naive") as caught:
        story.pipeline(rows).sync()
    assert "NULL in 3 rows" in str(caught.value)
    story.untouched()


@pytest.mark.parametrize(
    "option",
    [
        {"handle_deletes": "soft"},
        {"duplicate_keys": "last", "order_by": "b"},
        {"update_columns": ("a",)},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_means_nothing_for_events_is_refused(option: dict[str, Any]) -> None:
    register_connection(DuckDBConnection(name="source", path="source.duckdb"))
    with pytest.raises(DeclarationError, match=next(iter(option))):

        @ematix.pipeline(
            target=Happenings,
            source_connection="source",
            mode="scd2",
            event_timestamp_column="at",
            **option,
        )
        def load(conn: Any) -> str:
            return "SELECT 1"
