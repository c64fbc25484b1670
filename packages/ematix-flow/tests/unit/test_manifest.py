"""Manifests: exact on disk and back, created once, and refused when they cannot be right."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow import types as t
from ematix_flow.backends.manifest import (
    FORMAT_VERSION,
    DataFile,
    Layout,
    Manifest,
    ManifestLog,
    StoredColumn,
    type_from_spec,
    type_to_spec,
)
from ematix_flow.change import Counts
from ematix_flow.errors import DataError, Unsupported

PLAIN_TYPES = [
    cls() for cls in t.ColumnType.__subclasses__() if cls not in (t.String, t.Numeric, t.Array)
]
scalars = st.one_of(
    st.sampled_from(PLAIN_TYPES),
    st.builds(t.String, st.integers(1, 10_000)),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: t.Numeric(p, s))),
)
column_types = st.recursive(scalars, lambda inner: st.builds(t.Array, inner), max_leaves=3)
layouts = st.builds(
    Layout,
    st.sampled_from(["parquet", "csv", "orc", "json_lines"]),
    st.dictionaries(st.sampled_from(["delimiter", "header", "quote"]), st.text() | st.booleans()),
    st.lists(st.text(min_size=1), max_size=3).map(tuple),
)
manifests = st.builds(
    Manifest,
    columns=st.lists(
        st.builds(StoredColumn, st.text(min_size=1), column_types, st.booleans()), max_size=4
    ).map(tuple),
    files=st.lists(
        st.builds(DataFile, st.text(min_size=1), st.integers(0), st.integers(0), layouts),
        max_size=4,
    ).map(tuple),
    primary_key=st.lists(st.text(), max_size=2).map(tuple),
    run=st.dictionaries(st.text(), st.text(), max_size=3),
    counts=st.builds(Counts, inserted=st.integers(0), deleted=st.integers(0)),
    fences=st.dictionaries(st.text(), st.integers(0), max_size=3),
    batches=st.lists(st.text(), max_size=2).map(tuple),
    watermarks=st.dictionaries(st.text(), st.dictionaries(st.text(), st.text())),
    number=st.just(7),
)


@given(column_types)
def test_every_type_survives(column_type: t.ColumnType) -> None:
    stored = json.loads(json.dumps(type_to_spec(column_type)))
    assert type_from_spec(stored) == column_type


@given(manifests)
def test_a_manifest_survives(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json(), number=7) == manifest


def test_equal_layouts_are_stored_once() -> None:
    layout = Layout("csv", {"delimiter": ";"}, ("a",))
    files = tuple(
        DataFile(f"f{n}", 1, 1, Layout("csv", {"delimiter": ";"}, ("a",))) for n in range(50)
    )
    stored = json.loads(Manifest((), files).to_json())
    assert stored["layouts"] == [{"format": "csv", "options": {"delimiter": ";"}, "columns": ["a"]}]
    assert {f["layout"] for f in stored["files"]} == {0}
    assert Manifest.from_json(Manifest((), files).to_json(), number=0).files[49].layout == layout


@pytest.fixture
def log(tmp_path: Path) -> ManifestLog:
    made = ManifestLog(tmp_path / "table")
    made.folder.mkdir(parents=True)
    return made


def manifest(number: int, run_id: str = "run") -> Manifest:
    return Manifest((), (), run={"run_id": run_id}, number=number)


def test_a_folder_without_manifests(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path / "absent")
    assert log.newest() is None
    assert log.of_run("run") is None


def test_the_newest_is_the_highest_number(log: ManifestLog, tmp_path: Path) -> None:
    for number in (1, 2, 10, 9):
        assert log.create(manifest(number, f"run-{number}"), scratch=tmp_path / "scratch")
    newest, older = log.newest(), log.of_run("run-2")
    assert newest is not None
    assert newest.number == 10
    assert older is not None
    assert older.number == 2
    assert log.of_run("run-3") is None
    assert not (tmp_path / "scratch").exists()


def test_a_number_is_taken_once(log: ManifestLog, tmp_path: Path) -> None:
    assert log.create(manifest(1, "first"), scratch=tmp_path / "a")
    assert not log.create(manifest(1, "second"), scratch=tmp_path / "b")
    assert log.read(1).run["run_id"] == "first"
    assert not (tmp_path / "b").exists()


def _commit(folder: Path, worker: int, rounds: int) -> None:
    log = ManifestLog(folder)
    for n in range(rounds):
        while True:
            newest = log.newest()
            mine = manifest(newest.number + 1 if newest else 1, f"run-{worker}-{n}")
            if log.create(mine, scratch=folder / f"scratch-{worker}"):
                break


def test_commits_at_once_never_share_a_number(log: ManifestLog) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_commit, args=(log.table_folder, n, 40)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    runs = [log.read(number).run["run_id"] for number in log.numbers()]
    assert log.numbers() == list(range(160, 0, -1))
    assert set(runs) == {f"run-{worker}-{n}" for worker in range(4) for n in range(40)}


def test_other_files_beside_manifests_are_not_manifests(log: ManifestLog) -> None:
    (log.folder / "notes.json").write_text("{}")
    (log.folder / "stage").mkdir()
    assert log.newest() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1}'])
def test_a_damaged_manifest_is_named(log: ManifestLog, text: str) -> None:
    path = log.folder / "000000000001.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"000000000001\.json is damaged"):
        log.newest()


def test_a_manifest_of_a_newer_version_is_refused(log: ManifestLog, tmp_path: Path) -> None:
    log.create(manifest(1), scratch=tmp_path / "scratch")
    path = log.folder / "000000000001.json"
    newer = json.loads(path.read_text()) | {"version": FORMAT_VERSION + 1}
    path.write_text(json.dumps(newer))
    with pytest.raises(Unsupported, match="upgrade ematix-flow"):
        log.newest()
