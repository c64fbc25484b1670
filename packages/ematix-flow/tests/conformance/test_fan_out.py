"""One source, several targets: read once, each committed on its own, none loaded twice."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import duckdb
import pytest

from ematix_flow import (
    BigInt,
    DuckDBConnection,
    String,
    Target,
    Text,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.errors import DataError, DeclarationError, TargetsFailed
from ematix_flow.normalize import trim, upper
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.log import open_run_log
from ematix_flow.transforms import filter_where
from harness.base import Harness

pytestmark = pytest.mark.needs("replace")


@ematix.table(schema="fan")
class Wide:
    id: Annotated[BigInt, pk()]
    word: Annotated[Text | None, trim()]
    token: Text


@ematix.table(schema="fan")
class Narrow:
    id: Annotated[BigInt, pk()]
    word: Annotated[String[3] | None, trim(), upper()]
    token: Text


@ematix.table(schema="fan")
class Last:
    id: Annotated[BigInt, pk()]
    token: Text


def stored(backend: Harness, place: str, table: Any) -> list[tuple[Any, ...]]:
    connection = backend.connection(place)
    if not backend.exists(connection, table.__table__.name):
        return []
    names = table.__table__.column_names
    found = backend.rows(connection, table.__table__)
    return sorted(tuple(row[n] for n in names) for row in found)


class Source:
    """Rows whose tokens are drawn anew each time they are read, unless ``token`` says otherwise."""

    def __init__(self, backend: Harness) -> None:
        self.token = "uuid()"
        self.rows: list[tuple[int, str | None]] = [(1, " ab "), (2, "c"), (3, None)]
        for place in ("one", "two", "three"):
            register_connection(backend.connection(place))
        path = str(backend.folder / "rows.duckdb")
        register_connection(DuckDBConnection(name="rows", path=path))

    def pipeline(self, *targets: Target, **options: Any) -> Pipeline:
        @ematix.pipeline(targets=list(targets), source_connection="rows", name="fan", **options)
        def fan(spark: Any) -> Any:
            frame = spark.createDataFrame(self.rows, "id LONG, word STRING")
            return frame.selectExpr("*", f"{self.token} AS token")

        return fan


@pytest.fixture
def source(backend: Harness, engine: object) -> Source:
    return Source(backend)


WIDE = Target(table=Wide, connection="one")
NARROW = Target(table=Narrow, connection="two", mode="truncate")
LAST = Target(table=Last, connection="three")


def test_the_source_is_read_once(backend: Harness, source: Source) -> None:
    held = source.pipeline(WIDE, NARROW, transforms_pre=[filter_where("word IS NOT NULL")])
    counted = held.dry_run()
    assert {n: r.counts.inserted for n, r in counted.targets.items()} == {
        "fan.wide": 2,
        "fan.narrow": 2,
    }
    assert stored(backend, "one", Wide) == stored(backend, "two", Narrow) == []
    result = held.sync()
    wide, narrow = stored(backend, "one", Wide), stored(backend, "two", Narrow)
    assert [row[:2] for row in wide] == [(1, "ab"), (2, "c")]
    assert [row[:2] for row in narrow] == [(1, "AB"), (2, "C")]
    assert [row[2] for row in wide] == [row[2] for row in narrow]
    assert result.counts.inserted == 4
    assert {n: (r.status, r.mode) for n, r in result.targets.items()} == {
        "fan.wide": ("succeeded", "append"),
        "fan.narrow": ("succeeded", "truncate"),
    }
    log = open_run_log()
    records = log.get(result.run_id)
    log.close()
    assert {(r.target, r.status, r.rows_inserted) for r in records} == {
        ("fan.wide", "succeeded", 2),
        ("fan.narrow", "succeeded", 2),
    }
    assert {r.source for r in records} == {"DataFrame of fan"}


def test_a_rerun_loads_only_what_is_missing(backend: Harness, source: Source) -> None:
    source.token = "'t'"
    source.rows = [(1, "abc"), (2, "much too long")]
    held = source.pipeline(WIDE, NARROW, LAST)
    with pytest.raises(TargetsFailed) as caught:
        held.sync()
    said = str(caught.value)
    assert "1 of 3 targets failed (fan.narrow: " in said
    assert "committed: fan.wide, not tried: fan.last" in said
    assert caught.value.exit_code == 1
    assert {n: r.status for n, r in caught.value.results.items()} == {
        "fan.wide": "succeeded",
        "fan.narrow": "failed",
        "fan.last": "not tried",
    }
    with contextlib.closing(open_run_log()) as log:
        ends = {r.target: (r.status, r.error_text) for r in log.list()}
    assert ends["fan.wide"] == ("succeeded", None)
    assert ends["fan.last"] == ("failed", "not tried, because fan.narrow failed")
    assert len(stored(backend, "one", Wide)) == 2
    assert stored(backend, "two", Narrow) == stored(backend, "three", Last) == []

    with pytest.raises(TargetsFailed, match=r"committed: fan.wide, not tried"):
        held.sync()
    source.rows = [(1, "abc"), (2, "ok")]
    for _ in range(2):  # asked once more, it has not forgotten
        with pytest.raises(DataError, match="other rows than those that run") as refused:
            held.sync()
    assert "--all-targets" in str(refused.value)
    assert [len(stored(backend, *at)) for at in PLACES] == [2, 0, 0]
    again = held.sync(all_targets=False)
    assert {n: r.status for n, r in again.targets.items()} == {
        "fan.wide": "skipped",
        "fan.narrow": "succeeded",
        "fan.last": "succeeded",
    }
    assert again.targets["fan.wide"].note.startswith("already loaded by run ")
    assert [len(stored(backend, *at)) for at in PLACES] == [2, 2, 2]
    for place in ("one", "two", "three"):
        assert backend.litter(backend.connection(place)) == []

    source.rows = [(7, "new")]
    assert {r.status for r in held.sync().targets.values()} == {"succeeded"}
    assert [len(stored(backend, *at)) for at in PLACES] == [3, 1, 3]


PLACES = (("one", Wide), ("two", Narrow), ("three", Last))


def test_a_rerun_loads_rows_that_are_new_by_now(backend: Harness, source: Source) -> None:
    source.rows = [(1, "abc"), (2, "much too long")]
    merged = Target(table=Wide, connection="one", mode="merge")
    held = source.pipeline(merged, NARROW)
    with pytest.raises(TargetsFailed, match=r"committed: fan.wide"):
        held.sync()
    source.rows = [(3, "new")]
    again = held.sync()
    assert {n: r.status for n, r in again.targets.items()} == {
        "fan.wide": "succeeded",
        "fan.narrow": "succeeded",
    }
    assert [row[0] for row in stored(backend, "one", Wide)] == [1, 2, 3]
    assert [row[0] for row in stored(backend, "two", Narrow)] == [3]


@pytest.mark.needs("same_database")
def test_a_rerun_inside_the_database_compares_rows_too(backend: Harness, source: Source) -> None:
    source.rows = [(1, None), (2, "much too long"), (3, "")]
    source.pipeline(Target(table=Wide, connection="one", mode="truncate")).sync()

    @ematix.pipeline(
        targets=[
            Target(table=Last, connection="one"),
            Target(table=Narrow, connection="one", mode="truncate"),
        ],
        source_connection="one",
        source_table=backend.spelled(Wide.__table__.name),
    )
    def inside() -> None: ...

    for status, path in (("succeeded", "same_db"), ("skipped", "")):
        with pytest.raises(TargetsFailed) as caught:
            inside.sync()
        last = caught.value.results["fan.last"]
        assert (last.status, last.path) == (status, path)
    source.rows = [(1, None), (2, "ok"), (3, "")]
    source.pipeline(Target(table=Wide, connection="one", mode="truncate")).sync()
    # The tokens have been drawn anew.
    with pytest.raises(DataError, match="other rows than those that run"):
        inside.sync()
    inside.sync(all_targets=False)
    assert [len(stored(backend, "one", table)) for table in (Last, Narrow)] == [3, 3]


def test_all_targets_may_be_tried_and_all_loaded_again(backend: Harness, source: Source) -> None:
    source.rows = [(1, "abc"), (2, "much too long")]
    held = source.pipeline(NARROW, WIDE, LAST, continue_on_target_failure=True)
    with pytest.raises(TargetsFailed, match=r"committed: fan.wide, fan.last") as caught:
        held.sync()
    assert "not tried" not in str(caught.value)
    assert caught.value.results["fan.narrow"].error is not None
    assert [len(stored(backend, *at)) for at in PLACES] == [2, 0, 2]
    log = open_run_log()
    status = {r.target: r.status for r in log.list()}
    log.close()
    assert status == {"fan.narrow": "failed", "fan.wide": "succeeded", "fan.last": "succeeded"}
    source.rows = [(8, "abc")]
    parameters = {"day": "another"}
    assert {r.status for r in held.sync(parameters=parameters).targets.values()} == {"succeeded"}
    assert [len(stored(backend, *at)) for at in PLACES] == [3, 1, 3]


def test_everything_may_be_loaded_anyway(backend: Harness, source: Source) -> None:
    source.rows = [(1, "much too long")]
    held = source.pipeline(WIDE, NARROW)
    with pytest.raises(TargetsFailed):
        held.sync()
    source.rows = [(2, "ok")]
    again = held.sync(all_targets=True)
    assert {r.status for r in again.targets.values()} == {"succeeded"}
    assert [row[0] for row in stored(backend, "one", Wide)] == [1, 2]


def test_one_table_in_two_places(backend: Harness, source: Source) -> None:
    held = source.pipeline(WIDE, Target(table=Wide, connection="two", mode="truncate"))
    result = held.sync()
    assert list(result.targets) == ["one:fan.wide", "two:fan.wide"]
    assert stored(backend, "one", Wide) == stored(backend, "two", Wide)
    with pytest.raises(DeclarationError, match=r"names fan.wide in 'one' twice"):
        source.pipeline(WIDE, WIDE)


def test_each_target_has_its_own_watermark(backend: Harness, source: Source) -> None:
    options = {"incremental": True, "watermark_column": "id"}
    source.pipeline(WIDE, **options).sync()
    source.rows += [(4, "d"), (5, "e")]
    result = source.pipeline(WIDE, LAST, **options).sync()
    assert {n: r.counts.inserted for n, r in result.targets.items()} == {
        "fan.wide": 2,
        "fan.last": 5,
    }
    assert [row[0] for row in stored(backend, "one", Wide)] == [1, 2, 3, 4, 5]
    tokens = {row[0]: row[-1] for row in stored(backend, "three", Last)}
    assert {row[0]: row[-1] for row in stored(backend, "one", Wide)}[5] == tokens[5]


def test_a_query_is_read_once_from_the_lowest_watermark(backend: Harness, source: Source) -> None:
    path = str(backend.folder / "rows.duckdb")
    with duckdb.connect(path) as raw:
        raw.execute("CREATE SEQUENCE reads")
        raw.execute("CREATE TABLE raw AS SELECT i AS id, 'w' || i AS word FROM range(1, 4) r(i)")

    def fan(*targets: Target) -> Pipeline:
        @ematix.pipeline(
            targets=list(targets),
            source_connection="rows",
            name="fan",
            incremental=True,
            watermark_column="id",
        )
        def read(conn: Any) -> str:
            return "SELECT id, word, 't' || nextval('reads') AS token FROM raw"

        return read

    fan(WIDE).sync()
    with duckdb.connect(path) as raw:
        raw.execute("INSERT INTO raw VALUES (4, 'w4'), (5, 'w5')")
    fan(Target(table=Last, connection="three")).sync()
    with duckdb.connect(path) as raw:
        raw.execute("INSERT INTO raw VALUES (6, 'w6')")
        (before,) = raw.execute("SELECT nextval('reads')").fetchall()[0]
    result = fan(WIDE, LAST).sync()
    assert {n: r.counts.inserted for n, r in result.targets.items()} == {
        "fan.wide": 3,
        "fan.last": 1,
    }
    wide = {row[0]: row[2] for row in stored(backend, "one", Wide)}
    last = {row[0]: row[1] for row in stored(backend, "three", Last)}
    assert (sorted(wide), sorted(last)) == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    assert wide[6] == last[6]
    with duckdb.connect(path) as raw:
        (after,) = raw.execute("SELECT nextval('reads')").fetchall()[0]
    # Rows 3 to 6 were read, once: the watermark of the first target is 3.
    assert after - before - 1 == 4


def test_each_target_names_columns_in_its_own_way(backend: Harness, source: Source) -> None:
    with duckdb.connect(str(backend.folder / "rows.duckdb")) as raw:
        raw.execute("CREATE TABLE raw AS SELECT 1::BIGINT AS id, ' x ' AS word, 't' AS token")

    @ematix.pipeline(
        targets=[
            WIDE,
            Target(table=Narrow, connection="two", column_map={"word": "token", "token": "word"}),
        ],
        source_connection="rows",
        source_table="raw",
    )
    def load() -> None: ...

    load.sync()
    assert stored(backend, "one", Wide) == [(1, "x", "t")]
    assert stored(backend, "two", Narrow) == [(1, "T", " x ")]
