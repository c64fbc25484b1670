"""What is peculiar to Delta tables: their log decides, Delta's other writers are welcome."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import types as t
from ematix_flow.backends.base import Load, RunRow, SourceQuery
from ematix_flow.backends.delta import Delta
from ematix_flow.backends.delta_log import DeltaLog
from ematix_flow.change import CURRENT, SIDE, Change, Counts, Effect, Insert, Revise
from ematix_flow.connections import DeltaLocalConnection
from ematix_flow.errors import (
    ConfigError,
    DataError,
    Fenced,
    Permanent,
    RunError,
    Transient,
    Unsupported,
)
from ematix_flow.model import Column, FileOptions, Table, TableName
from ematix_flow.modes.base import select_incoming
from ematix_flow.modes.sql import parsed
from harness.delta import read_table

if TYPE_CHECKING:
    from ematix_flow.engine.session import Engine

NAME = TableName("shop", "orders")
COLUMNS: tuple[tuple[str, t.ColumnType], ...] = (("id", t.BigInt()), ("note", t.Text()))
SIDE_TABLE = Table(
    TableName("ematix_flow", "scd2_side__shop__orders"),
    tuple(Column(kind, name=name) for name, kind in COLUMNS),
)
EFFECTS = {
    "insert": Effect("insert", "inserted"),
    "update": Effect("update", "updated"),
    "delete": Effect("delete", "deleted"),
}
_numbers = itertools.count(1)


@pytest.fixture
def lake(tmp_path: Path) -> Delta:
    root = tmp_path / "a lake"
    root.mkdir()
    return Delta(DeltaLocalConnection(name="lake", path=str(root)))


def folder(lake: Delta) -> Path:
    return lake.folder(NAME, None)


def log_of(lake: Delta) -> DeltaLog:
    return DeltaLog(folder(lake))


def revision(relation: str = CURRENT, *, where: str = "TRUE") -> Revise:
    known = f"SELECT * FROM {relation}"
    rows = (
        "SELECT CASE WHEN c.id IS NULL THEN 'insert' WHEN i.note IS NULL THEN 'delete' "
        f"ELSE 'update' END AS _op, i.id, i.note FROM incoming AS i LEFT JOIN ({known}) AS c "
        f"ON c.id = i.id WHERE {where}"
    )
    return Revise(parsed(rows), ("id",), EFFECTS, relation)


def load_for(lake: Delta, change: Change | None = None, **details: Any) -> Load:
    now = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)
    columns = tuple(Column(kind, name=name) for name, kind in COLUMNS)
    pipeline = details.pop("pipeline", "copy")
    run = RunRow(f"run-{next(_numbers)}", pipeline, "append", "spark", now, now)
    given: dict[str, Any] = {
        "table": Table(NAME, columns),
        "name": NAME,
        "columns": COLUMNS,
        "incoming": columns,
        "change": change or Change((Insert(select_incoming(["id", "note"])),)),
        "run": run,
        "creates": lake.inspect(NAME) is None,
        "files": FileOptions(),
        **details,
    }
    return Load(**given)


def land(lake: Delta, engine: Engine, rows: Sequence[tuple[Any, ...]], load: Load) -> Counts:
    with lake.land(load) as landing:
        frame = engine.spark.createDataFrame(list(rows), "id BIGINT, note STRING")
        return landing.commit(landing.stage(engine, frame), keep=True)


def stored(place: Path) -> list[tuple[Any, ...]]:
    return sorted((r["id"], r["note"]) for r in read_table(place))


def test_a_commit_is_one_version_that_says_what_it_was(lake: Delta, engine: Engine) -> None:
    load = load_for(lake, batch="q/1")
    land(lake, engine, [(1, "a"), (2, "b")], load)
    log = log_of(lake)
    assert log.versions() == [0]
    actions = {kind: value for action in log.actions(0) for kind, value in action.items()}
    said = json.loads(actions["commitInfo"]["userMetadata"])["ematix_flow"]
    assert (said["run"]["run_id"], said["counts"]["inserted"]) == (load.run.run_id, 2)
    assert (actions["txn"]["appId"], actions["txn"]["version"]) == ("ematix_flow/copy", 1)
    assert actions["metaData"]["configuration"]["delta.columnMapping.mode"] == "name"
    assert lake.applied(["q/1", "q/2"], NAME) == {"q/1"}
    assert land(lake, engine, [(3, "c")], load_for(lake, batch="q/1")) == Counts()
    assert stored(folder(lake)) == [(1, "a"), (2, "b")]


def test_a_run_that_began_before_another_committed_is_fenced(lake: Delta, engine: Engine) -> None:
    land(lake, engine, [(1, "a")], load_for(lake))
    slow = load_for(lake)
    with lake.land(slow) as landing:
        frame = engine.spark.createDataFrame([(2, "slow")], "id BIGINT, note STRING")
        staged = landing.stage(engine, frame)
        land(lake, engine, [(3, "quick")], load_for(lake))
        land(lake, engine, [(4, "other")], load_for(lake, pipeline="other"))
        with pytest.raises(Fenced, match="wrote nothing"):
            landing.commit(staged, keep=True)
    assert stored(folder(lake)) == [(1, "a"), (3, "quick"), (4, "other")]


def test_a_run_declared_dead_never_commits(lake: Delta, engine: Engine) -> None:
    """Before there is a table its stage says so, afterwards the log."""
    for expected in ([], [(9, "z")]):
        zombie = load_for(lake)
        with lake.land(zombie) as landing:
            frame = engine.spark.createDataFrame([(1, "late")], "id BIGINT, note STRING")
            staged = landing.stage(engine, frame)
            assert lake.settle(zombie.run.run_id, "copy", NAME) is None
            with pytest.raises(Fenced):
                landing.commit(staged, keep=True)
        assert folder(lake).exists() == bool(expected)
        if not expected:
            done = load_for(lake)
            counts = land(lake, engine, [(9, "z")], done)
            assert lake.settle(done.run.run_id, "copy", NAME) == counts
        else:
            assert stored(folder(lake)) == expected


def test_delta_itself_refuses_an_epoch_that_is_gone(
    lake: Delta, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What our own look at the log may have missed."""
    land(lake, engine, [(1, "a")], load_for(lake))
    with lake.land(load_for(lake)) as landing:
        frame = engine.spark.createDataFrame([(2, "late")], "id BIGINT, note STRING")
        staged = landing.stage(engine, frame)
        land(lake, engine, [(3, "c")], load_for(lake))
        stale = "ematix_flow.backends.delta_landing.epoch_of"
        monkeypatch.setattr(stale, lambda *_: landing.epoch)  # type: ignore[attr-defined]
        with pytest.raises(Fenced):
            landing.commit(staged, keep=True)
    assert stored(folder(lake)) == [(1, "a"), (3, "c")]


def test_commits_of_others_are_kept_and_pass_our_bookkeeping_on(
    lake: Delta, engine: Engine
) -> None:
    land(lake, engine, [(1, "a")], load_for(lake))
    lake.set_watermark("copy", NAME, "id", "1")
    spark = engine.delta_session()
    theirs = spark.createDataFrame([(2, "theirs")], "id BIGINT, note STRING")
    theirs.write.format("delta").mode("append").save(f"file:{folder(lake)}")
    spark.sql(f"OPTIMIZE delta.`file:{folder(lake)}`")
    assert lake.watermarks("copy", NAME) == {"id": "1"}
    land(lake, engine, [(3, "c")], load_for(lake))
    assert stored(folder(lake)) == [(1, "a"), (2, "theirs"), (3, "c")]
    assert lake.watermarks("copy", NAME) == {"id": "1"}
    lake.set_watermark("copy", NAME, "id", None)
    assert lake.watermarks("copy", NAME) == {}


def test_a_merge_is_one_commit_and_a_key_that_is_none_stops_it(lake: Delta, engine: Engine) -> None:
    land(lake, engine, [(1, "a"), (2, "b"), (3, "c")], load_for(lake))
    counts = land(
        lake, engine, [(1, "A"), (2, None), (4, "d")], load_for(lake, Change((revision(),)))
    )
    assert counts == Counts(read=3, inserted=1, updated=1, deleted=1)
    assert stored(folder(lake)) == [(1, "A"), (3, "c"), (4, "d")]
    assert log_of(lake).versions() == [1, 0]
    land(lake, engine, [(3, "again")], load_for(lake))
    with pytest.raises(RunError, match="several rows for one key"):
        land(lake, engine, [(3, "x")], load_for(lake, Change((revision(),))))
    assert stored(folder(lake)) == [(1, "A"), (3, "again"), (3, "c"), (4, "d")]


def test_what_is_kept_beside_counts_only_with_its_commit(
    lake: Delta, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Change((revision(), revision(SIDE)))
    land(lake, engine, [(1, "a")], load_for(lake, both, side=SIDE_TABLE))
    beside = lake.folder(SIDE_TABLE.name, None)
    assert stored(beside) == [(1, "a")]

    class PowerCut(Exception):
        pass

    def cut(*_: object) -> None:
        raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr("ematix_flow.backends.delta_landing.DeltaLanding._apply", cut)
        with pytest.raises(Exception, match="PowerCut"):
            land(lake, engine, [(1, "lost"), (2, "lost")], load_for(lake, both, side=SIDE_TABLE))
    assert stored(beside) == [(1, "lost"), (2, "lost")]
    counts = land(lake, engine, [(2, "b")], load_for(lake, both, side=SIDE_TABLE))
    assert counts.inserted == 2
    assert stored(beside) == [(1, "a"), (2, "b")]
    assert stored(folder(lake)) == [(1, "a"), (2, "b")]


def test_a_log_with_checkpoints_tells_the_same(lake: Delta, engine: Engine) -> None:
    land(lake, engine, [(0, "x")], load_for(lake))
    for n in range(1, 12):
        lake.set_watermark("copy", NAME, "id", str(n))
    land(lake, engine, [(1, "y")], load_for(lake))
    spark = engine.delta_session()
    before = lake.inspect(NAME)
    rows = spark.read.format("delta").load(f"file:{folder(lake)}")
    assert rows.count() == 2
    assert lake.inspect(NAME) == before
    assert lake.watermarks("copy", NAME) == {"id": "11"}


def test_a_table_is_read_by_name_by_path_and_never_by_file(lake: Delta, engine: Engine) -> None:
    land(lake, engine, [(1, "a")], load_for(lake))
    for name in ("shop.orders", f"`{folder(lake)}`", "`shop/orders`"):
        rows = lake.read(engine, SourceQuery(f"SELECT note FROM {name} WHERE id = 1"))
        assert [tuple(r) for r in rows.collect()] == [("a",)]
    with pytest.raises(Permanent, match=r"there is no table shop\.nothing"):
        lake.look_up(SourceQuery("SELECT * FROM shop.nothing"))
    with pytest.raises(Permanent, match="no Delta table"):
        lake.look_up(SourceQuery(f"SELECT * FROM `{folder(lake).parent}`"))


def test_an_older_version_is_read_by_its_number(lake: Delta, engine: Engine) -> None:
    land(lake, engine, [(1, "a")], load_for(lake))
    land(lake, engine, [(2, "b")], load_for(lake))
    older = "SELECT orders.id FROM shop.orders VERSION AS OF 0"
    sql = f"{older} UNION ALL SELECT id FROM `shop/orders@v1`"
    described = lake.describe(SourceQuery(sql))
    assert [(c.name, c.type) for c in described] == [("id", t.BigInt())]
    rows = lake.read(engine, SourceQuery(sql)).collect()
    assert sorted(r[0] for r in rows) == [1, 1, 2]
    with pytest.raises(Permanent, match="no version 7"):
        lake.look_up(SourceQuery("SELECT * FROM shop.orders VERSION AS OF 7 o"))
    with pytest.raises(Unsupported, match="VERSION AS OF"):
        lake.look_up(SourceQuery("SELECT * FROM shop.orders TIMESTAMP AS OF '2024-01-01'"))


def test_a_table_that_appeared_meanwhile_is_met_again(lake: Delta, engine: Engine) -> None:
    late = load_for(lake)
    land(lake, engine, [(1, "a")], load_for(lake, pipeline="other"))
    with pytest.raises(Transient, match="created by somebody else"):
        land(lake, engine, [(2, "b")], late)
    assert stored(folder(lake)) == [(1, "a")]


def test_options_of_files_are_refused(lake: Delta) -> None:
    with pytest.raises(ConfigError, match="parquet_compression"):
        lake.land(load_for(lake, files=FileOptions(parquet_compression="gzip")))


def test_a_watermark_needs_a_table(lake: Delta) -> None:
    with pytest.raises(DataError, match="no table"):
        lake.set_watermark("copy", NAME, "id", "1")
    assert lake.watermarks("copy", NAME) == {}
    assert not folder(lake).exists()
