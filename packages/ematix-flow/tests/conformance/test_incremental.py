"""Incremental loads: nothing at the boundary is lost or doubled, and the watermark commits too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any

import duckdb
import pytest
from hypothesis import given

from conformance.conftest import Loader
from conformance.story import assert_same, stored_rows
from conformance.strategies import arrivals, examples, seeds
from ematix_flow import (
    BigInt,
    Date,
    DuckDBConnection,
    EmatixError,
    ManagedTable,
    Numeric,
    String,
    Text,
    Timestamp,
    TimestampTZ,
    ematix,
    natural_key,
    pk,
    register_connection,
)
from ematix_flow.backends.loading import load_backend
from ematix_flow.errors import DataError, DeclarationError
from ematix_flow.pipeline import Pipeline
from harness.base import Harness
from oracle.incremental import Increment, append_new
from oracle.merge import Merge
from oracle.state import RUN, Refused, Row, Run

# Whoever can do this keeps watermarks, too.
pytestmark = pytest.mark.needs("revise")


@ematix.table(schema="app")
class Readings:
    at: BigInt | None
    a: Text | None


@ematix.table(schema="app")
class Keyed:
    id: Annotated[BigInt, pk()]
    at: BigInt | None
    a: Text | None


PLAIN = "at BIGINT, a STRING"
WITH_ID = "id BIGINT, at BIGINT, a STRING"
BY_AT: dict[str, Any] = {"incremental": True, "watermark_column": "at"}


@dataclass
class Growing:
    """A source that only grows, read again and again, and what the oracle makes of it."""

    backend: Harness
    loader: Loader
    table: type[ManagedTable]
    schema: str
    rule: Increment
    options: dict[str, Any]
    key: Sequence[str] = ()
    source: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    mark: Any = None

    def pipeline(self) -> Any:
        given = [tuple(r.values()) for r in self.source]
        return self.loader(self.table, given, self.schema, **self.options)

    def run(self, gained: Sequence[Row]) -> int:
        """Append what the source has gained; how many rows the oracle added."""
        self.source = [*self.source, *gained]
        taken = self.rule.taken(self.source, self.mark)
        added = append_new(self.rows, taken, self.key)
        assert self.pipeline().sync().counts.inserted == len(added)
        self.rows = [*self.rows, *added]
        self.mark = self.rule.moved(self.source, self.mark)
        self.same()
        return len(added)

    def merge(self, gained: Sequence[Row]) -> int:
        """Merge what the source has gained; how many rows changed."""
        self.source = [*self.source, *gained]
        taken = self.rule.taken(self.source, self.mark)
        rule = Merge(key=self.key, columns=tuple(self.source[0]))
        result = self.pipeline().sync()
        outcome = rule.load(self.rows, taken, Run(result.finished_at))
        changed = result.counts.inserted + result.counts.updated
        assert changed == outcome.tally.inserted + outcome.tally.updated
        self.rows = [{k: v for k, v in r.items() if k != RUN} for r in outcome.rows]
        self.mark = self.rule.moved(self.source, self.mark)
        self.same()
        return changed

    def same(self) -> None:
        assert_same(stored_rows(self.backend, self.table.__table__), self.rows)


def test_rows_at_the_boundary_are_neither_lost_nor_doubled(
    backend: Harness, loader: Loader
) -> None:
    growing = Growing(backend, loader, Readings, PLAIN, Increment("at"), BY_AT)
    growing.run([{"at": 1, "a": "x"}, {"at": 2, "a": "x"}, {"at": 2, "a": "x"}])
    more = [
        {"at": 2, "a": "x"},  # the third copy of a row that is there twice
        {"at": 2, "a": "y"},
        {"at": 2, "a": None},
        {"at": 1, "a": "late: only lookback= would find it"},
        {"at": 3, "a": "x"},
    ]
    assert growing.run(more) == 4
    assert growing.run([]) == 0
    assert growing.run([{"at": 3, "a": None}]) == 1


def test_asking_does_not_move_the_watermark_and_neither_does_a_failure(
    backend: Harness, loader: Loader
) -> None:
    growing = Growing(backend, loader, Keyed, WITH_ID, Increment("at"), BY_AT, ("id",))
    growing.run([{"id": 1, "at": 1, "a": "x"}])
    gained = [{"id": 2, "at": 2, "a": "x"}, {"id": 3, "at": 3, "a": "x"}]
    growing.source += gained
    assert growing.pipeline().dry_run().counts.inserted == 2
    growing.source.append({"id": None, "at": 9, "a": "no key"})
    with pytest.raises(EmatixError, match="id"):
        growing.pipeline().sync()
    growing.same()
    growing.source.pop()
    assert growing.run([]) == 2


def test_without_a_key_another_pipeline_does_not_begin(backend: Harness, loader: Loader) -> None:
    """Its rows at the watermark, or under a new name all of them, would count as the other's."""
    first = loader(Readings, [(1, "x"), (2, "x")], PLAIN, **BY_AT)
    first.sync()
    second = loader(Readings, [(2, "x"), (3, "x")], PLAIN, **BY_AT)
    renamed = Pipeline(dataclasses.replace(second.spec, name="renamed"))
    before = stored_rows(backend, Readings.__table__)
    for attempt in (renamed.sync, renamed.dry_run, renamed.preview):
        with pytest.raises(DataError, match="'load_readings' loads too") as caught:
            attempt()
    assert "flow watermark set renamed" in str(caught.value)
    assert_same(stored_rows(backend, Readings.__table__), before, ignoring=())
    # Who says where it begins may.
    sink = load_backend(backend.connection("target"))
    sink.set_watermark("renamed", Readings.__table__.name, "at", "2")
    assert renamed.sync().counts.inserted == 1
    assert renamed.sync().counts.inserted == 0
    # With a key rows are known by it.
    for name in ("first", "second"):
        keyed = loader(Keyed, [(1, 1, name)], WITH_ID, mode="merge", **BY_AT)
        Pipeline(dataclasses.replace(keyed.spec, name=name)).sync()


UTC = timezone.utc


@ematix.table(schema="app")
class Zoned:
    at: TimestampTZ
    a: Text | None


@ematix.table(schema="app")
class Naive:
    at: Timestamp
    a: Text | None


@ematix.table(schema="app")
class Daily:
    at: Date
    a: Text | None


@ematix.table(schema="app")
class Exact:
    at: Numeric[20, 3]
    a: Text | None


@ematix.table(schema="app")
class Lettered:
    at: String[20]
    a: Text | None


KINDS: dict[str, tuple[type, str, list[Any]]] = {
    # Each list rises; the second is the boundary after the first run.
    "timestamp with zone": (
        Zoned,
        "TIMESTAMP",
        [
            datetime(1969, 12, 31, 23, 59, 58, 999999, tzinfo=UTC),
            datetime(2024, 10, 27, 0, 59, 59, 999999, tzinfo=UTC),
            datetime(2024, 10, 27, 1, tzinfo=UTC),
        ],
    ),
    "timestamp": (
        Naive,
        "TIMESTAMP_NTZ",
        [
            datetime(1900, 1, 1),
            datetime(2024, 3, 31, 2, 30, 0, 1),
            datetime(2024, 3, 31, 2, 30, 0, 2),
        ],
    ),
    "date": (Daily, "DATE", [date(1600, 1, 1), date(2024, 2, 29), date(2024, 3, 1)]),
    "decimal": (
        Exact,
        "DECIMAL(20, 3)",
        [Decimal(9), Decimal("12345678901234567.889"), Decimal("12345678901234567.890")],
    ),
    "text": (Lettered, "STRING", ["10", "9", "a'b"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_watermark_of_any_ordered_type(backend: Harness, loader: Loader, kind: str) -> None:
    table, spark_type, (low, edge, beyond) = KINDS[kind]
    growing = Growing(backend, loader, table, f"at {spark_type}, a STRING", Increment("at"), BY_AT)
    growing.run([{"at": edge, "a": "x"}, {"at": low, "a": "x"}])
    more = [{"at": edge, "a": "y"}, {"at": beyond, "a": "z"}, {"at": low, "a": "late"}]
    assert growing.run(more) == 2


def test_a_lookback_finds_late_rows_once(backend: Harness, loader: Loader) -> None:
    options = {**BY_AT, "lookback": 5}
    growing = Growing(
        backend, loader, Keyed, WITH_ID, Increment("at", lookback=5), options, ("id",)
    )
    growing.run([{"id": 1, "at": 100, "a": "x"}, {"id": 2, "at": 90, "a": "x"}])
    late = [
        {"id": 3, "at": 95, "a": "in time"},
        {"id": 4, "at": 94, "a": "too late"},
        {"id": 5, "at": 101, "a": "new"},
    ]
    assert growing.run(late) == 2


def test_a_missing_watermark_is_refused_or_loaded_as_declared(
    backend: Harness, loader: Loader
) -> None:
    rows = [{"at": 1, "a": "x"}, {"at": None, "a": "x"}, {"at": None, "a": "y"}]
    growing = Growing(backend, loader, Readings, PLAIN, Increment("at"), BY_AT, source=rows)
    with pytest.raises(Refused) as verdict:
        growing.rule.taken(rows, None)
    with pytest.raises(DataError, match="'at'") as caught:
        growing.pipeline().sync()
    assert f"NULL in {verdict.value.count} rows" in str(caught.value)
    assert "null_watermark=" in str(caught.value)
    growing.options = {**BY_AT, "null_watermark": "load"}
    growing.rule = Increment("at", null_watermark="load")
    assert growing.run([]) == 3
    assert growing.run([{"at": None, "a": "x"}, {"at": 2, "a": "z"}]) == 2


@ematix.table(schema="app")
class Changes:
    k: Annotated[BigInt, natural_key()]
    at: TimestampTZ
    a: Text | None


def test_events_at_the_boundary_belong_to_the_history(backend: Harness, loader: Loader) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    options = {"mode": "scd2", "event_timestamp_column": "at", **BY_AT}

    def load(rows: list[tuple[int, int, str]]) -> Any:
        given = [(k, start + timedelta(hours=h), a) for k, h, a in rows]
        schema = "k BIGINT, at TIMESTAMP, a STRING"
        return loader(Changes, given, schema, **options).sync()

    first = [(1, 1, "x"), (2, 2, "x"), (1, 2, "y")]
    load(first)
    result = load([*first, (3, 2, "x"), (2, 2, "x"), (1, 3, "x"), (3, 1, "too late")])
    assert (result.counts.inserted, result.counts.closed, result.counts.updated) == (2, 1, 0)
    found = stored_rows(backend, Changes.__table__)
    assert sorted((r["k"], r["a"], (r["valid_from"] - start).seconds // 3600) for r in found) == [
        (1, "x", 1),
        (1, "x", 3),
        (1, "y", 2),
        (2, "x", 2),
        (3, "x", 2),
    ]


@examples(1)
@given(seed=seeds)
def test_any_growth_of_the_source_gives_what_the_oracle_gives(
    backend: Harness, loader: Loader, seed: int
) -> None:
    options = {**BY_AT, "lookback": 4, "mode": "merge"}
    growing = Growing(
        backend, loader, Keyed, WITH_ID, Increment("at", lookback=4), options, ("id",)
    )
    for gained in arrivals(seed):
        # Rows change where they stand; within the lookback that is seen.
        for row in growing.source[::7]:
            row["a"] = "changed"
        growing.merge(gained)


def test_a_database_is_asked_only_for_what_is_new(backend: Harness, loader: Loader) -> None:
    """The condition goes into the source's own SQL, in its own dialect."""
    register_connection(backend.connection("target"))
    file = backend.folder / "source.duckdb"
    register_connection(DuckDBConnection(name="source", path=str(file)))

    def grow(*statements: str) -> None:
        with duckdb.connect(str(file)) as raw:
            for statement in statements:
                raw.execute(statement)

    @ematix.pipeline(
        target=Readings,
        source_connection="source",
        target_connection="target",
        incremental=True,
        watermark_column="at",
    )
    def load(conn: Any) -> str:
        return 'SELECT "at", a FROM readings'

    grow('CREATE TABLE readings ("at" BIGINT, a VARCHAR)', "INSERT INTO readings VALUES (1, 'x')")
    assert load.sync().counts.inserted == 1
    grow("INSERT INTO readings VALUES (1, 'y'), (2, 'x'), (0, 'late')")
    result = load.sync()
    assert result.counts.inserted == 2
    # The boundary row is read again, the late one is not.
    assert result.counts.read == 3


def declared(**options: Any) -> None:
    register_connection(DuckDBConnection(name="source", path="source.duckdb"))
    table = options.pop("table", Readings)

    @ematix.pipeline(target=table, source_connection="source", **options)
    def load(conn: Any) -> str:
        return "SELECT 1"


def test_a_part_of_the_source_is_no_snapshot_to_delete_by() -> None:
    with pytest.raises(DeclarationError, match="handle_deletes"):
        declared(table=Keyed, mode="merge", handle_deletes="hard", **BY_AT)


def test_a_lookback_needs_a_key_to_know_rows_by() -> None:
    with pytest.raises(DeclarationError, match="lookback"):
        declared(mode="append", lookback=5, **BY_AT)
