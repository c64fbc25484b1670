"""``scd2`` without event times: every state a key was seen in is a version."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import pytest

from conformance.conftest import Loader
from conformance.story import Story
from ematix_flow import BigInt, Text, ematix, natural_key
from ematix_flow.errors import DataError, DuplicateKeys, EmptySource, TooManyDeletes
from harness.base import Harness
from oracle.run_time import RunTimeHistory
from oracle.state import Row

pytestmark = pytest.mark.needs("revise")


@ematix.table(schema="app")
class States:
    order: Annotated[Text, natural_key()]
    line: Annotated[BigInt, natural_key()]
    a: Text | None
    b: BigInt | None


SCHEMA = "`order` STRING, line BIGINT, a STRING, b BIGINT"
KEY = ("order", "line")
COLUMNS = (*KEY, "a", "b")


def state(line: int | None, a: Any = None, b: Any = None, *, order: str | None = "o") -> Row:
    return {"order": order, "line": line, "a": a, "b": b}


def states(**options: Any) -> RunTimeHistory:
    return RunTimeHistory(key=KEY, columns=COLUMNS, **options)


def shown(story: Story) -> list[tuple[Any, ...]]:
    """Line, value and whether it is the current one, in order of time."""
    found = sorted(story.found(), key=lambda r: (r["order"], r["line"], r["valid_from"]))
    return [(r["line"], r["a"], r["is_current"]) for r in found]


def test_a_natural_key_gathers_version_after_version(backend: Harness, loader: Loader) -> None:
    story = Story(backend, loader, States, SCHEMA, mode="scd2")
    first = [state(1, "x"), state(1, "x", order="O"), state(2, "x"), state(3), state(4, "x", 1)]
    story.load(states(), first)
    second = [state(1, "x"), state(2, "y"), state(3, "x"), state(4, None, 1), state(5, "new")]
    result = story.load(states(), second)
    assert (result.counts.inserted, result.counts.closed, result.counts.unchanged) == (4, 3, 1)
    story.load(states(), [state(2, "x"), state(3), state(4, None, 1)])
    third = [state(2, "x"), state(3), state(4, None, 1), state(1, "x", order="O")]
    again = story.load(states(), third)
    assert (again.counts.inserted, again.counts.closed, again.counts.unchanged) == (0, 0, 4)
    assert [s for s in shown(story) if s[0] in (2, 3)] == [
        (2, "x", False),
        (2, "y", False),
        (2, "x", True),
        (3, None, False),
        (3, "x", False),
        (3, None, True),
    ]
    story.untouched()


def test_only_the_compared_columns_open_a_version(backend: Harness, loader: Loader) -> None:
    story = Story(backend, loader, States, SCHEMA, mode="scd2", options={"compare_columns": ("a",)})
    rule = states(compare=("a",))
    story.load(rule, [state(1, "x", 1), state(2, "x", 1), state(3, None, 1)])
    result = story.load(rule, [state(1, "x", 2), state(2, "y", 2), state(3, None, None)])
    assert (result.counts.inserted, result.counts.closed, result.counts.unchanged) == (1, 1, 2)


def test_absent_keys_are_closed_and_a_returning_key_opens_a_new_version(
    backend: Harness, loader: Loader
) -> None:
    story = Story(backend, loader, States, SCHEMA, mode="scd2", options={"handle_deletes": "soft"})
    soft = states(handle_deletes="soft")
    story.load(soft, [state(1, "x"), state(2, "x"), state(3, "x"), state(4, "x")])
    result = story.load(soft, [state(1, "x"), state(2, "y")])
    assert (result.counts.closed, result.counts.inserted, result.counts.unchanged) == (3, 1, 1)
    story.load(soft, [state(1, "x"), state(2, "y"), state(3, "x"), state(4, None)])
    assert shown(story) == [
        (1, "x", True),
        (2, "x", False),
        (2, "y", True),
        (3, "x", False),
        (3, "x", True),
        (4, "x", False),
        (4, None, True),
    ]
    story.refused(soft, [], EmptySource)
    verdict, said = story.refused(soft, [state(1, "x")], TooManyDeletes)
    assert f"{verdict.count} of the 4 rows" in said
    assert "max_delete_fraction=" in said


def test_rows_that_say_so_close_their_key(backend: Harness, loader: Loader) -> None:
    story = Story(
        backend,
        loader,
        States,
        f"{SCHEMA}, op STRING",
        mode="scd2",
        options={"delete_when": "op = 'D'"},
    )
    rule = states(delete_when=lambda r: r["op"] == "D")
    story.load(rule, [{**state(n, "x"), "op": None} for n in range(3)])
    feed = [{**state(0, "x"), "op": "D"}, {**state(1, "y"), "op": "U"}, {**state(9), "op": "D"}]
    result = story.load(rule, feed)
    assert (result.counts.closed, result.counts.inserted) == (2, 1)
    story.load(rule, [{**state(0, "x"), "op": "I"}, {**state(2, "x"), "op": "U"}])
    assert [s for s in shown(story) if s[0] == 0] == [(0, "x", False), (0, "x", True)]


def test_an_old_version_is_closed_once_and_stays_closed_until_the_source_changes(
    backend: Harness, loader: Loader
) -> None:
    story = Story(backend, loader, States, SCHEMA, mode="scd2")
    never, at_once = timedelta(days=365), timedelta(microseconds=1)
    first = [state(1, "x"), state(2, "x")]
    story.load(states(ttl=never), first, ttl=never)
    short = states(ttl=at_once)
    closed = story.load(short, [state(1, "x"), state(2, "y")], ttl_seconds=0.000001)
    assert (closed.counts.closed, closed.counts.inserted) == (2, 1)
    found = [r for r in story.found() if r["a"] == "x"]
    assert all(r["valid_to"] - r["valid_from"] == at_once for r in found)
    # The version that was opened last is old by now, too; the others stay as they are.
    last = story.load(short, [state(1, "x"), state(2, "y")], ttl_seconds=0.000001)
    assert (last.counts.closed, last.counts.inserted, last.counts.unchanged) == (1, 0, 2)
    changed = story.load(short, [state(1, "z"), state(2, "y")], ttl_seconds=0.000001)
    assert (changed.counts.closed, changed.counts.inserted) == (0, 1)
    assert changed.counts.unchanged == 1


def test_what_has_no_key_or_one_key_twice_is_refused(backend: Harness, loader: Loader) -> None:
    story = Story(backend, loader, States, SCHEMA, mode="scd2")
    _, said = story.refused(states(), [state(7, "x"), state(7, "y"), state(8)], DuplicateKeys)
    assert "order=o, line=7 (2 rows)" in said
    verdict, said = story.refused(states(), [state(1), state(None)], DataError)
    assert verdict.count == 1
    assert "line" in said
    assert "NULL" in said
