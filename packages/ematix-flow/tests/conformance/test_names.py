"""Any column name works everywhere: identifiers are always quoted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from conformance.conftest import Loader
from ematix_flow import BigInt, Column, DuckDBConnection, ManagedTable, Text, ematix
from ematix_flow.registry import register_connection
from harness.base import Harness

NASTY = ("order", "userName", "select", "a b", "日付", "it's", "50%", "dotted.name")


class Nasty(ManagedTable):
    __schema__ = "group"
    __tablename__ = "table"

    id = Column(BigInt(), nullable=False)
    locals().update({name: Column(Text(), name=name) for name in NASTY})


SCHEMA = "id BIGINT, " + ", ".join(f"`{name}` STRING" for name in NASTY)
ROW = (1, *(f"value of {name}" for name in NASTY))
EXPECTED = {"id": 1, **{name: f"value of {name}" for name in NASTY}}


def declared(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.startswith("_")}


def test_nasty_names_land(backend: Harness, loader: Loader) -> None:
    loader(Nasty, [ROW], SCHEMA).sync()
    found = backend.rows(backend.connection("target"), Nasty.__table__)
    assert [declared(row) for row in found] == [EXPECTED]


@pytest.mark.needs("source")
def test_nasty_names_read_back(backend: Harness, loader: Loader, tmp_path: Path) -> None:
    loader(Nasty, [ROW], SCHEMA).sync()
    register_connection(DuckDBConnection(name="copy", path=str(tmp_path / "copy.duckdb")))

    @ematix.pipeline(
        target=Nasty,
        source_connection="target",
        target_connection="copy",
        source_table='"group"."table"',
    )
    def read_back() -> None:
        pass

    read_back.sync()
    with duckdb.connect(str(tmp_path / "copy.duckdb")) as raw:
        result = raw.execute('SELECT * FROM "group"."table"')
        names = [d[0] for d in result.description]
        rows = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    assert [declared(row) for row in rows] == [EXPECTED]
