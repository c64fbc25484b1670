"""Databases in files whose path has characters that a URL would spell otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_flow import BigInt, DuckDBConnection, SQLiteConnection, Text, ematix
from ematix_flow.backends.loading import load_backend
from ematix_flow.connections import Connection
from ematix_flow.registry import register_connection


@ematix.table(name="kept")
class Kept:
    id: BigInt
    note: Text


@pytest.mark.parametrize("folder", ["My Dätä", "100%20#1", "a+b=c"])
@pytest.mark.parametrize("kind", [DuckDBConnection, SQLiteConnection])
def test_rows_through_spark_arrive_there(
    kind: type[Connection], folder: str, tmp_path: Path, engine: object
) -> None:
    (tmp_path / folder).mkdir()
    target = register_connection(kind(name="odd", path=str(tmp_path / folder / "rows.db")))

    @ematix.pipeline(target=Kept, target_connection="odd", mode="truncate")
    def load(spark: Any) -> Any:
        return spark.createDataFrame([(1, "a"), (2, "b")], "id BIGINT, note STRING")

    assert load.sync().counts.inserted == 2
    with load_backend(target).open() as live:
        assert live.query("SELECT id, note FROM kept ORDER BY id") == [
            {"id": 1, "note": "a"},
            {"id": 2, "note": "b"},
        ]
    assert [p.name for p in tmp_path.iterdir()] == [folder]
