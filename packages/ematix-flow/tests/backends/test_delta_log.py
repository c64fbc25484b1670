"""The log of a Delta table, read and written without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow import types as t
from ematix_flow.backends.delta_log import (
    TYPE_KEY,
    DeltaLog,
    Record,
    Snapshot,
    fence_name,
    type_metadata,
)
from ematix_flow.change import Counts
from ematix_flow.errors import DataError, Unsupported

PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def column(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def metadata(*columns: dict[str, Any], **properties: str) -> dict[str, Any]:
    schema = json.dumps({"type": "struct", "fields": columns})
    return {
        "metaData": {
            "id": "x",
            "schemaString": schema,
            "partitionColumns": [],
            "configuration": properties,
        }
    }


def commit(log: DeltaLog, version: int, *actions: dict[str, Any], said: str | None = None) -> None:
    info = {"commitInfo": {"timestamp": 1, **({} if said is None else {"userMetadata": said})}}
    log.folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(a, separators=(",", ":")) for a in (info, *actions)]
    log.path(version).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    return DeltaLog(tmp_path / "table")


def snapshot_of(log: DeltaLog) -> Snapshot:
    found = log.snapshot()
    assert found is not None
    return found


def test_no_log_is_no_table(log: DeltaLog) -> None:
    assert log.snapshot() is None
    log.folder.mkdir(parents=True)
    assert log.snapshot() is None
    assert log.newest_record(None) == Record()


@pytest.mark.parametrize(
    ("stored", "logical"),
    [
        ("long", t.BigInt()),
        ("byte", t.SmallInt()),
        ("decimal(38,10)", t.Numeric(38, 10)),
        ("timestamp_ntz", t.Timestamp()),
        ("timestamp", t.TimestampTZ()),
        ({"type": "array", "elementType": "string", "containsNull": True}, t.Array(t.Text())),
        ({"type": "struct", "fields": []}, t.JSON()),
        ("interval day", None),
    ],
)
def test_types_of_other_writers(log: DeltaLog, stored: Any, logical: t.ColumnType | None) -> None:
    commit(log, 0, PROTOCOL, metadata(column("a", stored)))
    assert [c.type for c in snapshot_of(log).columns] == [logical]


@pytest.mark.parametrize(
    "kind", [t.UUID(), t.Time(), t.JSON(), t.String(8), t.Array(t.UUID()), t.BigInt(), t.Text()]
)
def test_a_logical_type_is_kept_with_its_column(log: DeltaLog, kind: t.ColumnType) -> None:
    stored: Any = {"type": "array", "elementType": "string", "containsNull": True}
    plain = {"big_int": "long", "array": stored}.get(kind.kind, "string")
    commit(log, 0, metadata(column("a", plain, **type_metadata(kind))))
    assert snapshot_of(log).columns[0].type == kind


def test_a_kept_type_counts_only_while_it_fits_the_column(log: DeltaLog) -> None:
    note = type_metadata(t.UUID())[TYPE_KEY]
    commit(log, 0, metadata(column("a", "long", **{TYPE_KEY: note})))
    assert snapshot_of(log).columns[0].type == t.BigInt()


def test_the_newest_metadata_counts_and_an_older_version_can_be_asked_for(log: DeltaLog) -> None:
    commit(log, 0, PROTOCOL, metadata(column("a", "long")))
    commit(log, 1, metadata(column("a", "long"), column("b", "string")))
    assert [c.name for c in snapshot_of(log).columns] == ["a", "b"]
    older = log.snapshot(at=0)
    assert older is not None
    assert ([c.name for c in older.columns], older.version) == (["a"], 0)


def checkpoint(log: DeltaLog, name: str, *actions: dict[str, Any]) -> None:
    wanted = ("metaData", "protocol", "txn")
    rows = [{kind: action.get(kind) for kind in wanted} for action in actions]
    kinds = pa.schema(
        [
            pa.field(
                "metaData",
                pa.struct(
                    [
                        ("id", pa.string()),
                        ("schemaString", pa.string()),
                        ("partitionColumns", pa.list_(pa.string())),
                        ("configuration", pa.map_(pa.string(), pa.string())),
                    ]
                ),
            ),
            pa.field(
                "protocol",
                pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
            ),
            pa.field("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
        ]
    )
    for row in rows:
        if row["metaData"]:
            held = row["metaData"]
            row["metaData"] = {**held, "configuration": list(held["configuration"].items())}
    pq.write_table(pa.Table.from_pylist(rows, schema=kinds), log.folder / name)


def test_a_checkpoint_stands_for_commits_that_are_gone(log: DeltaLog) -> None:
    fence = {"txn": {"appId": fence_name("p"), "version": 7}}
    commit(log, 10, {"txn": {"appId": fence_name("p"), "version": 7}})
    state = (PROTOCOL, metadata(column("a", "long"), owner="me"), fence)
    checkpoint(log, f"{10:020}.checkpoint.parquet", *state)
    commit(log, 11, {"txn": {"appId": "other", "version": 3}})
    found = snapshot_of(log)
    assert (found.version, found.properties) == (11, {"owner": "me"})
    assert found.transactions == {fence_name("p"): 7, "other": 3}


def test_a_checkpoint_in_parts_counts_when_all_are_there(log: DeltaLog) -> None:
    commit(log, 0, PROTOCOL, metadata(column("a", "long")))
    commit(log, 1)
    checkpoint(log, f"{1:020}.checkpoint.{1:010}.{2:010}.parquet", metadata(column("b", "long")))
    assert [c.name for c in snapshot_of(log).columns] == ["a"]
    checkpoint(log, f"{1:020}.checkpoint.{2:010}.{2:010}.parquet", PROTOCOL)
    assert [c.name for c in snapshot_of(log).columns] == ["b"]


RECORD = Record(
    run={"run_id": "r1", "pipeline": "p"},
    counts=Counts(read=3, inserted=2),
    fences={"p": 4},
    watermarks={"p": {"at": "2024-01-01"}},
    batches=("q/1",),
    side=3,
)


def test_a_record_comes_back_as_it_was(log: DeltaLog) -> None:
    commit(log, 0, metadata(column("a", "long")), said=RECORD.to_json())
    assert log.newest_record(snapshot_of(log)) == RECORD
    assert log.of_run("r1") == RECORD
    assert log.of_run("r2") is None


@pytest.mark.parametrize("said", ["", "nightly load", "[1]", "7", '{"a": 1}'])
def test_what_others_say_in_their_commits_is_theirs(log: DeltaLog, said: str) -> None:
    commit(log, 0, metadata(column("a", "long")), said=RECORD.to_json())
    commit(log, 1, said=said)
    assert log.newest_record(snapshot_of(log)) == RECORD


def test_a_record_of_a_newer_version_is_refused(log: DeltaLog) -> None:
    document = json.loads(RECORD.to_json())
    document["ematix_flow"]["version"] = 99
    commit(log, 0, metadata(column("a", "long")), said=json.dumps(document))
    with pytest.raises(Unsupported, match="newer version"):
        log.newest_record(snapshot_of(log))


def test_lost_bookkeeping_is_an_error_and_not_a_fresh_start(log: DeltaLog) -> None:
    commit(log, 5, metadata(column("a", "long")), {"txn": {"appId": "x", "version": 1}})
    assert log.newest_record(snapshot_of(log)) == Record()
    commit(log, 6, {"txn": {"appId": fence_name("p"), "version": 2}})
    with pytest.raises(DataError, match="no longer in its log"):
        log.newest_record(snapshot_of(log))


def test_a_damaged_commit_is_named(log: DeltaLog) -> None:
    commit(log, 0, metadata(column("a", "long")))
    log.path(1).write_text('{"commitInfo":{}}\n{"metaDa', encoding="utf-8")
    with pytest.raises(DataError, match=r"00001\.json is damaged"):
        log.snapshot()


def test_a_note_is_a_commit_that_only_one_can_make(log: DeltaLog) -> None:
    commit(log, 0, metadata(column("a", "long")))
    before = snapshot_of(log)
    assert log.note(before, RECORD, fence="p")
    assert not log.note(before, RECORD)
    after = snapshot_of(log)
    assert (after.version, after.transactions) == (1, {fence_name("p"): 4})
    assert log.newest_record(after) == RECORD
    assert list(log.own_folder.iterdir()) == []


def test_a_note_keeps_the_time_of_commits_rising(log: DeltaLog) -> None:
    ahead = 10**14
    properties = {"delta.enableInCommitTimestamps": "true"}
    commit(log, 0, metadata(column("a", "long"), **properties))
    info = json.dumps({"commitInfo": {"inCommitTimestamp": ahead}})
    log.path(1).write_text(info + "\n", encoding="utf-8")
    assert log.note(snapshot_of(log), RECORD)
    (said,) = log.actions(2)
    assert next(iter(said["commitInfo"])) == "inCommitTimestamp"
    assert said["commitInfo"]["inCommitTimestamp"] == ahead + 1


def test_only_so_many_batches_are_carried_forward() -> None:
    many = tuple(f"q/{n}" for n in range(10_005))
    kept = Record.from_json(Record(batches=many).to_json())
    assert kept is not None
    assert kept.batches == many[5:]
