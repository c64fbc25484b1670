"""Tables of files that change their columns: which files stay, and which are written again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow import (
    BigInt,
    Integer,
    ManagedTable,
    ObjectStoreLocalConnection,
    Text,
    connect,
    ematix,
    pk,
)
from ematix_flow.errors import SchemaDrift
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import register_connection


@ematix.table(schema="app", name="items")
class Small:
    id: Annotated[Integer, pk()]
    note: Text | None


@ematix.table(schema="app", name="items")
class Wide:
    id: Annotated[BigInt, pk()]
    note: Text | None


@ematix.table(schema="app", name="items")
class More:
    id: Annotated[Integer, pk()]
    note: Text | None
    town: Text | None


@pytest.fixture
def folder(tmp_path: Path, engine: object) -> Path:
    register_connection(ObjectStoreLocalConnection(name="lake", path=str(tmp_path)))
    return tmp_path / "app" / "items"


def load(table: type[ManagedTable], rows: list[Any], schema: str, **options: Any) -> Pipeline:
    @ematix.pipeline(
        target=table, source_connection="lake", target_connection="lake", name="load", **options
    )
    def load(spark: Any) -> Any:
        return spark.createDataFrame(rows, schema)

    return load


def live(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {p.name: pq.read_table(p).to_pylist() for p in sorted(folder.glob("*.parquet"))}


def values(folder: Path, *names: str) -> list[tuple[Any, ...]]:
    rows = [row for rows in live(folder).values() for row in rows]
    return sorted((tuple(row.get(n) for n in names) for row in rows), key=repr)


def test_a_new_column_touches_no_file(folder: Path) -> None:
    load(Small, [(1, "a")], "id INT, note STRING").sync()
    before = live(folder)
    load(More, [(2, "b", "x")], "id INT, note STRING, town STRING", on_drift="evolve").sync()
    after = live(folder)
    assert before.items() <= after.items()
    with connect("lake") as lake:
        found = lake.query("SELECT id, note, town FROM app.items ORDER BY id")
    assert found == [
        {"id": 1, "note": "a", "town": None},
        {"id": 2, "note": "b", "town": "x"},
    ]


def test_a_widened_table_is_one_kind_of_files(folder: Path) -> None:
    load(Small, [(1, "a")], "id INT, note STRING").sync()
    before = live(folder)
    load(Wide, [(2**40, "b")], "id BIGINT, note STRING", on_drift="evolve").sync()
    assert not before.keys() & live(folder).keys()
    schemas = {pq.read_schema(p).field("id").type for p in folder.glob("*.parquet")}
    assert schemas == {pa.int64()}
    assert values(folder, "id", "note") == [(1, "a"), (2**40, "b")]


def test_truncate_writes_no_old_row_again(folder: Path) -> None:
    load(Small, [(1, "a")], "id INT, note STRING").sync()
    options = {"mode": "truncate", "on_drift": "evolve"}
    counts = load(Wide, [(2**40, "b")], "id BIGINT, note STRING", **options).sync().counts
    assert (counts.inserted, counts.deleted) == (1, 1)
    assert values(folder, "id", "note") == [(2**40, "b")]


def plain_file(folder: Path, **columns: Any) -> None:
    """A file that another program has put there."""
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "theirs.parquet")


def test_files_of_another_program_are_widened(folder: Path) -> None:
    plain_file(folder, id=pa.array([1], pa.int32()), note=pa.array(["a"]))
    load(Wide, [(2**40, "b")], "id BIGINT, note STRING", on_drift="evolve").sync()
    assert values(folder, "id", "note") == [(1, "a"), (2**40, "b")]
    load(Wide, [(3, "c")], "id BIGINT, note STRING").sync()
    assert len(values(folder, "id")) == 3


def test_what_another_program_has_put_beside_the_declared_columns_stays(folder: Path) -> None:
    plain_file(
        folder,
        id=pa.array([1, 2], pa.int32()),
        note=pa.array(["a", "b"]),
        theirs=pa.array(["x", "y"]),
    )
    options = {"mode": "merge", "on_drift": "evolve"}
    counts = load(Small, [(1, "A"), (3, "c")], "id INT, note STRING", **options).sync().counts
    assert (counts.inserted, counts.updated) == (1, 1)
    expected = [(1, "A", "x"), (2, "b", "y"), (3, "c", None)]
    assert values(folder, "id", "note", "theirs") == expected


def test_a_value_that_does_not_fit_leaves_every_file_as_it_was(folder: Path) -> None:
    load(Wide, [(2**40, "a")], "id BIGINT, note STRING").sync()
    before = live(folder)
    options = {"on_drift": "evolve", "allow": ["narrow:id"]}
    said = f"of the stored rows, column 'id': the value '{2**40}' is not a valid Integer"
    with pytest.raises(SchemaDrift, match=said):
        load(Small, [(1, "b")], "id INT, note STRING", **options).sync()
    assert live(folder) == before
    assert not list((folder / "_ematix").glob("stage/*"))
