"""``on_drift="evolve"``: the table follows its declaration in the commit, and loses nothing.

Values are read by the harness's own driver; what they must be is said by Python.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest

from conformance.conftest import Loader
from conformance.story import plain
from ematix_flow import (
    Array,
    BigInt,
    Double,
    Float,
    Integer,
    ManagedTable,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    ematix,
    pk,
    renamed_from,
)
from ematix_flow.backends.loading import load_backend
from ematix_flow.errors import DuplicateKeys, SchemaDrift
from ematix_flow.model import Column
from ematix_flow.types import Boolean, ColumnType, TimestampTZ, parse_annotation
from harness.base import Harness

pytestmark = pytest.mark.needs("add column", "retype column", "rename column", "drop column")

KEY = Annotated[Integer, pk()]
_HELD = {
    "deleted_at": TimestampTZ(),
    "valid_from": TimestampTZ(),
    "valid_to": TimestampTZ(),
    "is_current": Boolean(),
}


def items(**columns: Any) -> type[ManagedTable]:
    """A declaration of the one table of these tests."""
    body = {"__annotations__": {"id": KEY, **columns}, "__module__": __name__}
    return ematix.table(schema="app", name="items")(type("Items", (), body))


def stored(backend: Harness, table: type[ManagedTable], *names: str) -> list[tuple[Any, ...]]:
    """The rows of the table, some columns of them, as the product's own driver reads them."""
    declared = table.__table__
    found = backend.rows(backend.connection("target"), declared)
    wanted = names or declared.column_names
    return sorted((tuple(plain(r.get(n)) for n in wanted) for r in found), key=repr)


def columns_of(backend: Harness) -> list[str]:
    found = load_backend(backend.connection("target")).inspect(items().__table__.name)
    assert found is not None
    return [c.name for c in found.columns if not c.name.startswith("_")]


def type_of(backend: Harness, column: str) -> str:
    found = load_backend(backend.connection("target")).inspect(items().__table__.name)
    assert found is not None
    return next(c.declared for c in found.columns if c.name == column)


def spelled(backend: Harness, kind: ColumnType) -> str:
    return load_backend(backend.connection("target")).stored_type(kind)


def single(value: float) -> float:
    """The value as 32 bits hold it."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


FIRST = [(1, "a"), (2, None)]
NAMED = "id INT, name STRING"


def start(loader: Loader) -> None:
    loader(items(name=Text | None), FIRST, NAMED).sync()


def test_a_new_column_is_added_and_old_rows_have_null_in_it(
    backend: Harness, loader: Loader
) -> None:
    start(loader)
    wider = items(name=Text | None, note=String[20] | None)
    pipeline = loader(wider, [(3, "c", "new")], NAMED + ", note STRING", on_drift="evolve")
    assert any("note" in statement for statement in pipeline.preview().ddl)
    assert columns_of(backend) == ["id", "name"]
    assert pipeline.sync().counts.inserted == 1
    assert stored(backend, wider) == [(1, "a", None), (2, None, None), (3, "c", "new")]
    assert columns_of(backend) == ["id", "name", "note"]
    assert pipeline.preview().ddl == []
    assert backend.litter(backend.connection("target")) == []


def test_a_dry_run_alters_nothing(backend: Harness, loader: Loader) -> None:
    start(loader)
    wider = items(name=Text | None, note=Text | None)
    pipeline = loader(wider, [(3, "c", "x")], NAMED + ", note STRING", on_drift="evolve")
    assert pipeline.dry_run().counts.inserted == 1
    assert columns_of(backend) == ["id", "name"]
    assert stored(backend, items(name=Text | None)) == FIRST
    assert backend.litter(backend.connection("target")) == []


NARROW: dict[str, Any] = {
    "small": SmallInt,
    "whole": Integer | None,
    "exact": Integer,
    "money": Numeric[8, 2] | None,
    "real": Float | None,
    "code": String[3] | None,
    "label": String[3],
}
WIDE: dict[str, Any] = {
    "small": Integer,
    "whole": BigInt | None,
    "exact": Numeric[14, 2],
    "money": Numeric[12, 4] | None,
    "real": Double | None,
    "code": String[5] | None,
    "label": Text,
}
OLD = [
    (1, 7, 2**31 - 1, 12, Decimal("123456.78"), 0.1, "abc", "x"),
    (2, -7, None, -3, None, None, None, "é"),
]
NEW = [(3, 70000, 2**40, Decimal("99.25"), Decimal("1.0001"), 0.1, "abcde", "longer")]
NARROW_SCHEMA = (
    "id INT, small SMALLINT, whole INT, exact INT, money DECIMAL(8,2), real FLOAT, code STRING, "
    "label STRING"
)
WIDE_SCHEMA = (
    "id INT, small INT, whole BIGINT, exact DECIMAL(14,2), money DECIMAL(12,4), real DOUBLE, "
    "code STRING, label STRING"
)


def kept(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """An old row as it must read after the widening."""
    real = None if row[5] is None else single(row[5])
    return tuple(plain(v) for v in (*row[:3], Decimal(row[3]), row[4], real, *row[6:]))


def test_columns_are_widened_and_every_value_stays(backend: Harness, loader: Loader) -> None:
    loader(items(**NARROW), OLD, NARROW_SCHEMA).sync()
    table = items(**WIDE)
    loader(table, NEW, WIDE_SCHEMA, on_drift="evolve").sync()
    new = [tuple(plain(v) for v in row) for row in NEW]
    assert stored(backend, table) == sorted([*map(kept, OLD), *new], key=repr)
    for name, kind in WIDE.items():
        wanted, _ = parse_annotation(kind)
        assert type_of(backend, name).upper() == spelled(backend, wanted).upper()


@pytest.mark.needs("revise")
def test_a_widened_row_that_has_not_changed_is_not_written(
    backend: Harness, loader: Loader
) -> None:
    loader(items(**NARROW), OLD, NARROW_SCHEMA, mode="merge").sync()
    table = items(**WIDE)
    same = [(*r[:3], Decimal(r[3]), r[4], r[5] and single(r[5]), *r[6:]) for r in OLD]
    changed = [(*same[0][:4], Decimal("0.0001"), *same[0][5:]), same[1], *NEW]
    result = loader(table, changed, WIDE_SCHEMA, mode="merge", on_drift="evolve").sync()
    counts = result.counts
    assert (counts.inserted, counts.updated, counts.unchanged) == (1, 1, 1)
    expected = [tuple(plain(v) for v in row) for row in changed]
    assert stored(backend, table) == sorted(expected, key=repr)


@ematix.table(schema="app", name="items")
class NarrowKey:
    id: Annotated[SmallInt, pk()]
    part: Annotated[Numeric[4, 1], pk()]
    name: Text | None


@ematix.table(schema="app", name="items")
class WideKey:
    id: Annotated[BigInt, pk()]
    part: Annotated[Numeric[8, 3], pk()]
    name: Text | None


@pytest.mark.needs("revise")
def test_a_key_is_widened_and_still_finds_its_rows(backend: Harness, loader: Loader) -> None:
    old = [(1, Decimal("1.5"), "a"), (2, Decimal("2.5"), "b")]
    loader(NarrowKey, old, "id SMALLINT, part DECIMAL(4,1), name STRING", mode="merge").sync()
    new = [(1, Decimal("1.500"), "A"), (2**40, Decimal("1.5"), "c")]
    schema = "id BIGINT, part DECIMAL(8,3), name STRING"
    counts = loader(WideKey, new, schema, mode="merge", on_drift="evolve").sync().counts
    assert (counts.inserted, counts.updated) == (1, 1)
    expected = [(1, Decimal("1.5"), "A"), (2, Decimal("2.5"), "b"), (2**40, Decimal("1.5"), "c")]
    assert stored(backend, WideKey) == sorted(
        (tuple(plain(v) for v in row) for row in expected), key=repr
    )
    again = loader(WideKey, new, schema, mode="merge", on_drift="evolve").sync().counts
    assert (again.inserted, again.updated, again.unchanged) == (0, 0, 2)


def test_the_elements_of_arrays_are_widened(backend: Harness, loader: Loader) -> None:
    loader(items(tags=Array[Integer] | None), [(1, [1, None])], "id INT, tags ARRAY<INT>").sync()
    table = items(tags=Array[BigInt] | None)
    wide = loader(table, [(2, [2**40])], "id INT, tags ARRAY<BIGINT>", on_drift="evolve")
    wide.sync()
    assert stored(backend, table) == [(1, plain([1, None])), (2, plain([2**40]))]


def test_a_column_may_come_to_allow_null(backend: Harness, loader: Loader) -> None:
    loader(items(name=Text), [(1, "a")], NAMED).sync()
    table = items(name=Text | None)
    loader(table, [(2, None)], NAMED, on_drift="evolve").sync()
    assert stored(backend, table) == [(1, "a"), (2, None)]


def test_not_null_is_put_on_a_column_only_where_it_is_allowed_and_true(
    backend: Harness, loader: Loader
) -> None:
    start(loader)
    table = items(name=Text)
    if load_backend(backend.connection("target")).capabilities.constraints:
        with pytest.raises(SchemaDrift, match=r'allow=\("not_null:name",\)'):
            loader(table, [(3, "c")], NAMED, on_drift="evolve").sync()
        allowed = loader(table, [(3, "c")], NAMED, on_drift="evolve", allow=["not_null:name"])
        with pytest.raises(SchemaDrift, match="'name' is declared NOT NULL but would be NULL in 1"):
            allowed.sync()
        assert stored(backend, items(name=Text | None)) == FIRST


def test_a_column_that_must_have_a_value_is_added_to_an_empty_table_only(
    backend: Harness, loader: Loader
) -> None:
    loader(items(name=Text | None), [], NAMED).sync()
    table = items(name=Text | None, note=Text)
    rows = [(1, "a", "n")]
    loader(table, rows, NAMED + ", note STRING", on_drift="evolve").sync()
    assert stored(backend, table) == rows
    more = items(name=Text | None, note=Text, other=Text)
    schema = NAMED + ", note STRING, other STRING"
    with pytest.raises(SchemaDrift, match="'other' is declared NOT NULL but would be NULL in 1"):
        loader(more, [(2, "b", "n", "o")], schema, on_drift="evolve").sync()
    assert stored(backend, table) == rows
    assert columns_of(backend) == ["id", "name", "note"]
    assert backend.litter(backend.connection("target")) == []


def test_a_column_that_is_not_declared_is_kept_until_it_may_be_dropped(
    backend: Harness, loader: Loader
) -> None:
    start(loader)
    fewer = items()
    pipeline = loader(fewer, [(3,)], "id INT", on_drift="evolve")
    assert any("'name' exists but is not declared" in n for n in pipeline.preview().notes)
    pipeline.sync()
    whole = items(name=Text | None)
    assert stored(backend, whole) == [*FIRST, (3, None)]
    loader(fewer, [(4,)], "id INT", on_drift="evolve", allow=["drop:name"]).sync()
    assert stored(backend, fewer) == [(1,), (2,), (3,), (4,)]
    assert columns_of(backend) == ["id"]


def test_a_dropped_column_that_comes_back_is_empty(backend: Harness, loader: Loader) -> None:
    start(loader)
    loader(items(), [(3,)], "id INT", on_drift="evolve", allow=["drop:name"]).sync()
    whole = items(name=Text | None)
    loader(whole, [(4, "d")], NAMED, on_drift="evolve").sync()
    assert stored(backend, whole) == [(1, None), (2, None), (3, None), (4, "d")]


def test_an_undeclared_column_that_must_have_a_value_is_in_the_way(
    backend: Harness, loader: Loader
) -> None:
    if not load_backend(backend.connection("target")).capabilities.constraints:
        return
    loader(items(name=Text), [(1, "a")], NAMED).sync()
    with pytest.raises(SchemaDrift, match="'name' exists but is not declared, and it is NOT NULL"):
        loader(items(), [(2,)], "id INT", on_drift="evolve").sync()


RENAMED = {
    "named in allow=": (items(title=Text | None), {"allow": ["rename:name->title"]}),
    "told by the declaration": (
        items(title=Annotated[Text | None, renamed_from("name")]),
        {},
    ),
}


@pytest.mark.parametrize("how", RENAMED)
def test_a_column_is_renamed_with_its_values(how: str, backend: Harness, loader: Loader) -> None:
    start(loader)
    table, options = RENAMED[how]
    schema = "id INT, title STRING"
    loader(table, [(3, "c")], schema, on_drift="evolve", **options).sync()
    assert stored(backend, table) == [(1, "a"), (2, None), (3, "c")]
    assert columns_of(backend) == ["id", "title"]
    loader(table, [(4, "d")], schema, on_drift="evolve", **options).sync()
    assert len(stored(backend, table)) == 4


def test_a_column_is_renamed_and_widened_at_once(backend: Harness, loader: Loader) -> None:
    loader(items(code=String[3] | None), [(1, "abc")], "id INT, code STRING").sync()
    table = items(long_code=Text | None, note=Text | None)
    rows = [(2, "abcdef", "n")]
    schema = "id INT, long_code STRING, note STRING"
    allow = ["rename:code->long_code"]
    loader(table, rows, schema, on_drift="evolve", allow=allow).sync()
    assert stored(backend, table) == [(1, "abc", None), *rows]


def test_what_could_lose_something_is_refused_with_its_name(
    backend: Harness, loader: Loader
) -> None:
    loader(items(amount=BigInt), [(1, 5)], "id INT, amount BIGINT").sync()
    smaller = items(amount=SmallInt)
    with pytest.raises(SchemaDrift, match=r'allow=\("narrow:amount",\)'):
        loader(smaller, [(2, 1)], "id INT, amount SMALLINT", on_drift="evolve").sync()
    with pytest.raises(SchemaDrift, match=r'allow=\("retype:amount",\)'):
        loader(items(amount=Text), [(2, "b")], "id INT, amount STRING", on_drift="evolve").sync()
    assert stored(backend, items(amount=BigInt)) == [(1, 5)]


@dataclass(frozen=True)
class Conversion:
    """A change of type that needs a word, with a value that survives it and one that does not."""

    kind: str
    old: Any
    new: Any
    schemas: tuple[str, str]
    fits: Any
    after: Any
    unfit: Any

    @property
    def name(self) -> str:
        return " to ".join(str(parse_annotation(kind)[0]) for kind in (self.old, self.new))


CONVERSIONS = [
    Conversion("narrow", BigInt, SmallInt, ("BIGINT", "SMALLINT"), 5, 5, 2**15),
    Conversion(
        "narrow",
        Numeric[10, 4],
        Numeric[6, 2],
        ("DECIMAL(10,4)", "DECIMAL(6,2)"),
        Decimal("1.2500"),
        Decimal("1.25"),
        Decimal("1.2345"),
    ),
    Conversion(
        "narrow", Numeric[10, 2], Integer, ("DECIMAL(10,2)", "INT"), Decimal(7), 7, Decimal("7.5")
    ),
    Conversion("narrow", Double, Float, ("DOUBLE", "FLOAT"), 0.5, 0.5, 0.1),
    Conversion("narrow", Text, String[3], ("STRING", "STRING"), "abc", "abc", "日付 x"),
    Conversion("retype", Text, BigInt, ("STRING", "BIGINT"), "12", 12, "twelve"),
    Conversion("retype", BigInt, String[3], ("BIGINT", "STRING"), 123, "123", 1234),
    Conversion(
        "retype", Text, Numeric[8, 2], ("STRING", "DECIMAL(8,2)"), "1.25", Decimal("1.25"), "x"
    ),
]


@pytest.mark.parametrize("case", CONVERSIONS, ids=lambda c: c.name)
def test_a_column_changes_its_type_if_all_its_values_fit(
    case: Conversion, backend: Harness, loader: Loader
) -> None:
    old, table = items(v=case.old), items(v=case.new)
    types = [spelled(backend, parse_annotation(kind)[0]) for kind in (case.old, case.new)]
    if types[0] == types[1]:
        # Where a product knows no length of texts, there is nothing to change.
        return
    loader(old, [(1, case.fits), (2, case.unfit)], f"id INT, v {case.schemas[0]}").sync()
    change = loader(
        table,
        [(3, case.after)],
        f"id INT, v {case.schemas[1]}",
        on_drift="evolve",
        allow=[f"{case.kind}:v"],
    )
    with pytest.raises(SchemaDrift) as caught:
        change.sync()
    place = load_backend(backend.connection("target")).locate(old.__table__.name, None)
    assert caught.value.table == place
    assert "because of its value in 1 row" in str(caught.value) or "stored rows" in str(
        caught.value
    )
    assert "correct those values first" in caught.value.fix
    assert stored(backend, old) == sorted([(1, plain(case.fits)), (2, plain(case.unfit))], key=repr)
    assert backend.litter(backend.connection("target")) == []
    loader(old, [(1, case.fits)], f"id INT, v {case.schemas[0]}", mode="truncate").sync()
    change.sync()
    assert stored(backend, table) == [(1, plain(case.after)), (3, plain(case.after))]


def test_what_has_no_conversion_is_refused_even_if_allowed(
    backend: Harness, loader: Loader
) -> None:
    loader(items(v=Double), [(1, 0.5)], "id INT, v DOUBLE").sync()
    table = items(v=Timestamp)
    rows = [(2, datetime(2024, 1, 1))]
    options = {"on_drift": "evolve", "allow": ["retype:v"]}
    with pytest.raises(SchemaDrift, match="its values cannot be converted"):
        loader(table, rows, "id INT, v TIMESTAMP_NTZ", **options).sync()


def test_warn_loads_what_both_have_and_says_what_it_leaves(
    backend: Harness, loader: Loader
) -> None:
    loader(items(name=Text | None, size=BigInt), [(1, "a", 1)], NAMED + ", size BIGINT").sync()
    table = items(size=Integer, note=Text | None)
    pipeline = loader(table, [(2, 5, "n")], "id INT, size INT, note STRING", on_drift="warn")
    notes = " | ".join(pipeline.preview().notes)
    assert "'note' is declared but does not exist; it is not loaded" in notes
    assert "'name' exists but is not declared; it is kept" in notes
    assert "'size' is" in notes
    assert pipeline.sync().counts.inserted == 1
    before = items(name=Text | None, size=BigInt)
    assert stored(backend, before) == [(1, "a", 1), (2, None, 5)]


def test_warn_refuses_what_would_not_be_safe(backend: Harness, loader: Loader) -> None:
    loader(items(size=Integer), [(1, 1)], "id INT, size INT").sync()
    with pytest.raises(SchemaDrift, match="'size' is"):
        loader(items(size=BigInt), [(2, 2)], "id INT, size BIGINT", on_drift="warn").sync()
    with pytest.raises(SchemaDrift, match="'size' is"):
        loader(items(size=Text), [(2, "b")], "id INT, size STRING", on_drift="warn").sync()


def test_every_kind_of_change_has_its_own_policy(backend: Harness, loader: Loader) -> None:
    start(loader)
    policy = {"add": "evolve", "drop": "warn"}
    table = items(note=Text | None)
    loader(table, [(3, "n")], "id INT, note STRING", on_drift=policy).sync()
    assert columns_of(backend) == ["id", "name", "note"]
    wide = items(note=String[5] | None)
    with pytest.raises(SchemaDrift, match="note"):
        # What is not named stays an error.
        loader(items(note=BigInt | None), [(4, 1)], "id INT, note BIGINT", on_drift=policy).sync()
    assert stored(backend, wide, "id") == [(1,), (2,), (3,)]


@pytest.mark.needs("revise")
def test_a_load_that_fails_after_the_alteration_leaves_the_old_table(
    backend: Harness, loader: Loader
) -> None:
    loader(items(name=String[3] | None), FIRST, NAMED, mode="merge").sync()
    table = items(name=Text | None, note=Text | None)
    twice = [(3, "c", "n"), (3, "d", "n")]
    pipeline = loader(table, twice, NAMED + ", note STRING", mode="merge", on_drift="evolve")
    with pytest.raises(DuplicateKeys):
        pipeline.sync()
    assert columns_of(backend) == ["id", "name"]
    assert type_of(backend, "name").upper() == spelled(backend, String(3)).upper()
    assert stored(backend, items(name=String[3] | None)) == FIRST
    assert backend.litter(backend.connection("target")) == []


@pytest.mark.needs("revise")
def test_merge_fills_a_new_column_of_rows_that_stay(backend: Harness, loader: Loader) -> None:
    loader(items(name=Text | None), FIRST, NAMED, mode="merge").sync()
    table = items(name=Text | None, note=Text | None)
    rows = [(1, "a", "n"), (2, None, None)]
    pipeline = loader(table, rows, NAMED + ", note STRING", mode="merge", on_drift="evolve")
    counts = pipeline.sync().counts
    assert (counts.inserted, counts.updated, counts.unchanged) == (0, 1, 1)
    assert stored(backend, table) == rows


@pytest.mark.needs("revise")
def test_merge_leaves_an_undeclared_column_of_a_changed_row_alone(
    backend: Harness, loader: Loader
) -> None:
    whole = items(name=Text | None, note=Text | None)
    loader(whole, [(1, "a", "n")], NAMED + ", note STRING", mode="merge").sync()
    fewer = items(name=Text | None)
    loader(fewer, [(1, "b"), (2, "c")], NAMED, mode="merge", on_drift="evolve").sync()
    assert stored(backend, whole) == [(1, "b", "n"), (2, "c", None)]


def versions(backend: Harness, table: type[ManagedTable]) -> list[tuple[Any, ...]]:
    """All versions: the declared columns, and whether it is the current one."""
    held = table.__table__
    own = tuple(Column(kind, name=name) for name, kind in _HELD.items())
    whole = dataclasses.replace(held, columns=(*held.columns, *own))
    found = backend.rows(backend.connection("target"), whole)
    names = (*held.column_names, "is_current")
    return sorted((tuple(plain(r.get(n)) for n in names) for r in found), key=repr)


@pytest.mark.needs("revise")
def test_a_compare_column_added_later_closes_only_what_it_changes(
    backend: Harness, loader: Loader
) -> None:
    loader(items(name=Text | None), FIRST, NAMED, mode="scd2").sync()
    table = items(name=Text | None, note=Text | None)
    schema = NAMED + ", note STRING"
    rows = [(1, "a", None), (2, None, "n")]
    counts = loader(table, rows, schema, mode="scd2", on_drift="evolve").sync().counts
    assert (counts.inserted, counts.closed, counts.unchanged) == (1, 1, 1)
    assert versions(backend, table) == [
        (1, "a", None, True),
        (2, None, "n", True),
        (2, None, None, False),
    ]


def day(number: int) -> datetime:
    return datetime(2024, 1, number, tzinfo=timezone.utc)


@pytest.mark.needs("revise")
def test_what_is_kept_beside_a_history_evolves_with_it(backend: Harness, loader: Loader) -> None:
    options = {"mode": "scd2", "event_timestamp_column": "at"}
    table = items(at=TimestampTZ, name=String[5] | None)
    # Two equal states: the second is known to the side table alone.
    events = [(1, day(1), "a"), (1, day(5), "a")]
    loader(table, events, "id INT, at TIMESTAMP, name STRING", **options).sync()
    wider = items(at=TimestampTZ, name=Text | None, note=Text | None)
    late = [(1, day(3), "another", "n")]
    schema = "id INT, at TIMESTAMP, name STRING, note STRING"
    loader(wider, late, schema, on_drift="evolve", **options).sync()
    found = [(name, note, current) for _, _, name, note, current in versions(backend, wider)]
    assert sorted(found, key=repr) == [
        ("a", None, False),
        ("a", None, True),
        ("another", "n", False),
    ]
