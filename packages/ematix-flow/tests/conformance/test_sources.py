"""Every backend is a source: SQL in its own dialect, ``source_table=``, and the live ``conn``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from conformance.conftest import Loader
from conformance.test_append import ROWS, SCHEMA, Events
from ematix_flow import BigInt, DuckDBConnection, EmatixError, Text, ematix, register_connection
from harness.base import Harness

pytestmark = pytest.mark.needs("source")


@ematix.table(schema="copy")
class Renamed:
    number: BigInt
    label: Text | None


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    file = tmp_path / "elsewhere.duckdb"
    register_connection(DuckDBConnection(name="copy", path=str(file)))
    return file


def copied(file: Path) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(file)) as raw:
        return raw.execute("SELECT number, label FROM copy.renamed ORDER BY ALL").fetchall()


def test_sql_in_its_own_dialect(backend: Harness, loader: Loader, copy: Path) -> None:
    loader(Events, ROWS, SCHEMA).sync()
    table = backend.spelled(Events.__table__.name)

    @ematix.pipeline(target=Renamed, source_connection="target", target_connection="copy")
    def from_sql(conn: Any) -> str:
        return f"SELECT event_id AS number, name AS label FROM {table} WHERE event_id <> 2;  "

    result = from_sql.sync()
    assert result.path == "spark"
    assert copied(copy) == [(1, "a"), (3, "")]


def test_a_table_with_renamed_columns(backend: Harness, loader: Loader, copy: Path) -> None:
    loader(Events, ROWS, SCHEMA).sync()

    @ematix.pipeline(
        target=Renamed,
        source_connection="target",
        target_connection="copy",
        source_table="app.events",
        column_map={"number": "event_id", "label": "name"},
        mode="truncate",
    )
    def from_table() -> None:
        pass

    from_table.sync()
    assert copied(copy) == [(1, "a"), (2, None), (3, "")]


def test_a_table_that_is_not_there(backend: Harness, loader: Loader, copy: Path) -> None:
    loader(Events, ROWS, SCHEMA).sync()

    @ematix.pipeline(
        target=Renamed,
        source_connection="target",
        target_connection="copy",
        source_table="app.nothing_here",
    )
    def from_nothing() -> None:
        pass

    with pytest.raises(EmatixError, match="nothing_here"):
        from_nothing.sync()
    validation = from_nothing.validate()
    assert not validation.ok
    assert "nothing_here" in validation.errors[0]


def test_a_column_that_is_not_there(backend: Harness, loader: Loader, copy: Path) -> None:
    loader(Events, ROWS, SCHEMA).sync()

    @ematix.pipeline(
        target=Renamed,
        source_connection="target",
        target_connection="copy",
        source_table="app.events",
    )
    def wrong_columns() -> None:
        pass

    with pytest.raises(EmatixError, match="number"):
        wrong_columns.sync()


def test_the_live_connection_answers(backend: Harness, loader: Loader) -> None:
    from ematix_flow import connect

    loader(Events, ROWS, SCHEMA).sync()
    name = backend.spelled(Events.__table__.name)
    with connect("target") as conn:
        conn.ping()
        assert conn.info()["kind"] == backend.kind
        rows = conn.query(f"SELECT event_id FROM {name} ORDER BY event_id", max_rows=2)
        assert rows == [{"event_id": 1}, {"event_id": 2}]
        frame = conn.read_df(f"SELECT count(*) AS n FROM {name}")
        assert int(frame["n"][0]) == 3
