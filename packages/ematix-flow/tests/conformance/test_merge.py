"""``merge`` keeps one row per key and writes only what has changed."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest

from conformance.conftest import Loader
from conformance.story import Story
from ematix_flow import (
    JSON,
    BigInt,
    Boolean,
    Bytes,
    Column,
    Date,
    Double,
    ManagedTable,
    Numeric,
    Text,
    Timestamp,
    TimestampTZ,
    ematix,
    natural_key,
    pk,
)
from ematix_flow.backends.loading import load_backend
from ematix_flow.errors import DataError, DuplicateKeys
from harness.base import Harness
from oracle.merge import Merge
from oracle.state import Row

pytestmark = pytest.mark.needs("revise")


@ematix.table(schema="app")
class Parts:
    k: Annotated[BigInt, pk()]
    a: Text | None
    b: BigInt | None


SCHEMA = "k BIGINT, a STRING, b BIGINT"
COLUMNS = ("k", "a", "b")


def part(k: Any, a: Any = None, b: Any = None) -> Row:
    return {"k": k, "a": a, "b": b}


def parts(**options: Any) -> Merge:
    return Merge(key=("k",), columns=COLUMNS, **options)


def test_only_what_changed_is_written(backend: Harness, loader: Loader) -> None:
    story = Story(backend, loader, Parts, SCHEMA)
    story.load(
        parts(), [part(k, "x", 1) for k in range(1, 5)] + [part(5), part(6), part(7, ""), part(9)]
    )
    changed = [
        part(1, "x", 1),
        part(2, "y", 1),
        part(3, None, 1),
        part(4, "x", None),
        part(5, "x", None),
        part(6, None, None),
        part(7, None),
        part(8, "new", -(2**63)),
    ]
    story.foretold(parts(), changed)
    result = story.load(parts(), changed)  # the row that is absent stays
    assert (result.counts.inserted, result.counts.updated, result.counts.unchanged) == (1, 5, 2)
    again = story.load(parts(), changed)
    assert (again.counts.inserted, again.counts.updated, again.counts.unchanged) == (0, 0, 8)
    story.untouched()


def test_only_the_named_columns_decide_and_only_the_named_columns_change(
    backend: Harness, loader: Loader
) -> None:
    story = Story(backend, loader, Parts, SCHEMA)
    story.load(parts(), [part(1, "x", 1), part(2, "x", 1), part(3, "x", 1)])
    by_a = [part(1, "x", 9), part(2, "y", 9), part(4, "z", 9)]
    story.load(parts(compare=("a",)), by_a, compare_columns=("a",))
    only_a = [part(1, "x", 5), part(2, "q", 5), part(5, "new", 5)]
    story.load(parts(update=("a",)), only_a, update_columns=("a",))
    split = [part(1, "q", 1), part(3, "q", 7)]
    result = story.load(
        parts(compare=("b",), update=("a",)),
        split,
        compare_columns=("b",),
        update_columns=("a",),
    )
    assert (result.counts.updated, result.counts.unchanged) == (1, 1)


def test_duplicate_keys_are_refused_and_named(backend: Harness, loader: Loader) -> None:
    story = Story(backend, loader, Parts, SCHEMA)
    twice = [part(41, "x"), part(42, "x"), part(42, "y"), part(43), part(43), part(43)]
    verdict, said = story.refused(parts(), twice, DuplicateKeys)
    assert verdict.keys == ((42,), (43,))
    assert "k=42 (2 rows)" in said
    assert "k=43 (3 rows)" in said
    assert "41" not in said
    assert "duplicate_keys=" in said


def test_a_policy_decides_which_of_several_rows_counts(backend: Harness, loader: Loader) -> None:
    rows = [
        part(1, "low", 1),
        part(1, "high", 3),
        part(1, "mid", 2),
        part(2, "none"),
        part(2, "some", 0),
    ]
    story = Story(backend, loader, Parts, SCHEMA, options={"order_by": "b"})
    story.load(parts(duplicate_keys="last", order_by="b"), rows, duplicate_keys="last")
    assert sorted(r["a"] for r in story.rows) == ["high", "some"]
    story.load(parts(duplicate_keys="first", order_by="b"), rows, duplicate_keys="first")
    assert sorted(r["a"] for r in story.rows) == ["low", "none"]


@ematix.table(schema="app")
class Loose:
    a: Text | None
    b: BigInt | None


def test_a_key_with_null_is_refused_with_its_count(backend: Harness, loader: Loader) -> None:
    story = Story(backend, loader, Loose, "a STRING, b BIGINT", options={"keys": ("a",)})
    rule = Merge(key=("a",), columns=("a", "b"))
    rows = [{"a": None, "b": 1}, {"a": "x", "b": 2}, {"a": None, "b": 3}]
    verdict, said = story.refused(rule, rows, DataError)
    assert f"NULL in {verdict.count} rows" in said
    assert "'a'" in said


class Nasty(ManagedTable):
    __schema__ = "group"
    __tablename__ = "table"
    __merge_keys__ = ("order", "日付")

    order = Column(Text(), nullable=False)
    day = Column(BigInt(), nullable=False, name="日付")
    spaced = Column(Text(), name="a b")
    quoted = Column(Text(), name='it\'s "so"')


NASTY = ("order", "日付", "a b", 'it\'s "so"')
NASTY_SCHEMA = '`order` STRING, `日付` BIGINT, `a b` STRING, `it\'s "so"` STRING'


def test_any_name_may_be_a_key_or_be_compared(backend: Harness, loader: Loader) -> None:
    def row(*values: Any) -> Row:
        return dict(zip(NASTY, values, strict=True))

    story = Story(backend, loader, Nasty, NASTY_SCHEMA, mode="scd1")
    rule = Merge(key=NASTY[:2], columns=NASTY)
    story.load(rule, [row("x", 1, "a", "b"), row("x", 2, "a", "b"), row("y", 1, "a", "b")])
    changed = [
        row("x", 1, "a", "b"),
        row("x", 2, None, "b"),
        row("y", 1, "a", "c"),
        row("y", 2, "", ""),
    ]
    story.load(replace(rule, compare=("a b",)), changed, compare_columns=("a b",))
    assert sorted(r["a b"] or "" for r in story.rows) == ["", "", "a", "a"]


@ematix.table(schema="app")
class Unkept:
    """Nothing keeps its key unique, or keeps NULL out of it."""

    k: BigInt | None
    a: Text | None


def test_a_key_that_is_stored_twice_is_refused(backend: Harness, loader: Loader) -> None:
    schema = "k BIGINT, a STRING"
    stored = [(1, "old"), (1, "new"), (1, "x"), (2, "x"), (None, "x"), (None, "x")]
    loader(Unkept, stored, schema).sync()

    def merged(*rows: tuple[int, str]) -> Any:
        return loader(Unkept, rows, schema, mode="merge", keys=["k"])

    def found() -> list[tuple[Any, Any]]:
        held = backend.rows(backend.connection("target"), Unkept.__table__)
        return sorted(((r["k"], r["a"]) for r in held), key=repr)

    for changed in ("other", "new"):  # the latter is what one of the rows holds already
        with pytest.raises(DuplicateKeys, match=r"k=1 stands in 3 rows of table app\.unkept"):
            merged((1, changed), (2, "y")).sync()
        assert found() == sorted(stored, key=repr)
    assert backend.litter(backend.connection("target")) == []
    # Keys that stand there once may still be merged.
    result = merged((2, "y"), (3, "z")).sync()
    assert (result.counts.updated, result.counts.inserted, result.counts.unchanged) == (1, 1, 0)
    assert found() == sorted([*stored[:3], (2, "y"), (3, "z"), *stored[4:]], key=repr)


@ematix.table(schema="app")
class Words:
    word: Annotated[Text, pk()]
    note: Text | None


WORDS = ("a", "A", "a ", " a", "ä", "a\u0308", "", " ", "ß", "ss", "a\t", "😀", "😁", "İ", "i", "I")


def test_keys_of_text_are_equal_only_if_every_character_is(
    backend: Harness, loader: Loader
) -> None:
    story = Story(backend, loader, Words, "word STRING, note STRING")
    rule = Merge(key=("word",), columns=("word", "note"))
    story.load(rule, [{"word": w, "note": w} for w in WORDS])
    # Half of the keys arrive again, with notes that differ in case or in blanks only.
    story.load(rule, [{"word": w, "note": w.upper() + " "} for w in WORDS[::2]])
    assert {r["word"] for r in story.found()} == set(WORDS)


@ematix.table(schema="app")
class Values:
    k: Annotated[BigInt, pk()]
    exact: Numeric[10, 2] | None
    double: Double | None
    flag: Boolean | None
    words: Text | None
    day: Date | None
    naive: Timestamp | None
    instant: TimestampTZ | None
    document: JSON | None
    raw: Bytes | None


VALUES = Values.__table__.column_names
VALUES_SCHEMA = (
    "k BIGINT, exact DECIMAL(12, 3), double DOUBLE, flag BOOLEAN, words STRING, day DATE, "
    "naive TIMESTAMP_NTZ, instant TIMESTAMP, document STRING, raw BINARY"
)
UTC = timezone.utc
# Column, a value, one that is equal to it, one that is not.
TELLING: list[tuple[str, Any, Any, Any]] = [
    ("exact", Decimal("1.000"), Decimal(1), Decimal("1.010")),
    ("exact", Decimal("-99999999.990"), Decimal("-99999999.99"), Decimal("99999999.99")),
    ("double", 0.0, -0.0, 5e-324),
    ("double", 0.1, 0.1, 0.1 + 2**-54),
    ("flag", False, False, True),
    ("words", "a", "a", "A"),
    ("words", "a", "a", "a "),
    ("words", "", "", " "),
    ("day", date(1600, 1, 1), date(1600, 1, 1), date(1600, 1, 2)),
    (
        "naive",
        datetime(2024, 3, 31, 2, 30),
        datetime(2024, 3, 31, 2, 30),
        datetime(2024, 3, 31, 2, 30, 0, 1),
    ),
    (
        "instant",
        datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
    ),
    ("document", '{"a": [1, 2.5, null]}', '{"a": [1, 2.5, null]}', '{"a": [1, 2.5, 0]}'),
    ("raw", b"\x00\xff", b"\x00\xff", b"\x00\xfe"),
    ("raw", b"", b"", b"\x00"),
]


def value_rows(backend: Harness, place: int) -> list[Row]:
    """For each telling value a key that stays equal, one that changes, and NULL both ways."""
    blank = dict.fromkeys(VALUES)
    rows: list[Row] = []
    telling = list(TELLING)
    declared = load_backend(backend.connection("target")).capabilities
    if declared.nan_in_floats:
        telling.append(("double", math.nan, math.nan, 0.0))
    if declared.infinity_in_floats:
        telling.append(("double", math.inf, math.inf, -math.inf))
    for column, value, equal, other in telling:
        lives = [(value, equal), (value, other), (value, None), (None, value), (None, None)]
        for life in lives:
            rows.append({**blank, "k": len(rows), column: life[place]})
    return rows


@pytest.mark.needs("every type")
def test_equal_is_what_the_values_say_not_how_they_are_written(
    backend: Harness, loader: Loader
) -> None:
    story = Story(backend, loader, Values, VALUES_SCHEMA)
    first, second = value_rows(backend, 0), value_rows(backend, 1)
    pipeline = story.pipeline(first)
    assert pipeline.sync().counts.inserted == len(first)
    result = story.pipeline(second).sync()
    changes = 3 * len(first) // 5
    assert (result.counts.updated, result.counts.unchanged) == (changes, len(first) - changes)
    by_run = [r["_run_id"] == result.run_id for r in sorted(story.found(), key=lambda r: r["k"])]
    assert by_run == [False, True, True, True, False] * (len(first) // 5)


@ematix.table(schema="app")
class Coded:
    id: Annotated[BigInt, pk()]
    code: Annotated[Text, natural_key()]
    label: Text | None


def test_the_natural_key_comes_before_the_primary_key_and_keys_before_both(
    backend: Harness, loader: Loader
) -> None:
    columns = ("id", "code", "label")
    story = Story(backend, loader, Coded, "id BIGINT, code STRING, label STRING")

    def row(*values: Any) -> Row:
        return dict(zip(columns, values, strict=True))

    with pytest.warns(UserWarning, match="merged on code"):
        story.load(Merge(key=("code",), columns=columns), [row(1, "x", "a"), row(2, "y", "b")])
    with pytest.warns(UserWarning, match="merged on code"):
        story.load(Merge(key=("code",), columns=columns), [row(7, "x", "a")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        story.load(
            Merge(key=("id",), columns=columns), [row(7, "z", "c"), row(2, "y", "b")], keys=("id",)
        )
    assert sorted((r["id"], r["code"]) for r in story.rows) == [(2, "y"), (7, "z")]
