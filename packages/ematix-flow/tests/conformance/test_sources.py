"""Every backend is a source: SQL in its own dialect, ``source_table=``, and the live ``conn``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import duckdb
import pytest

from conformance.conftest import Loader
from conformance.test_append import ROWS, SCHEMA, Events
from ematix_flow import (
    BigInt,
    DuckDBConnection,
    EmatixError,
    Text,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.errors import DataError
from harness.base import Harness

pytestmark = pytest.mark.needs("source")


@ematix.table(schema="copy")
class Renamed:
    number: BigInt
    label: Text | None


@ematix.table(schema="app")
class Changes:
    number: BigInt
    op: Text | None


@ematix.table(schema="copy")
class Numbers:
    number: Annotated[BigInt, pk()]


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

    says = (
        r"the source app\.events of pipeline 'wrong_columns' has no column 'number'; .*column_map"
    )
    with pytest.raises(DataError, match=says) as caught:
        wrong_columns.sync()
    assert "column_map={'number': …}" in caught.value.fix
    assert "has no column 'number'" in wrong_columns.validate().errors[0]


def test_a_name_in_the_column_map_that_is_not_there(
    backend: Harness, loader: Loader, copy: Path
) -> None:
    loader(Events, ROWS, SCHEMA).sync()

    @ematix.pipeline(
        target=Renamed,
        source_connection="target",
        target_connection="copy",
        source_table="app.events",
        column_map={"number": "event_id", "label": "nam"},
    )
    def misspelt() -> None:
        pass

    says = "column_map= names 'nam' for 'label', .* source app.events; did you mean 'name'"
    with pytest.raises(DataError, match=says):
        misspelt.sync()


def test_deletes_are_told_by_a_column_that_is_not_loaded(
    backend: Harness, loader: Loader, copy: Path
) -> None:
    loader(Changes, [(1, "I"), (2, "D"), (3, None)], "number BIGINT, op STRING").sync()

    @ematix.pipeline(
        target=Numbers,
        source_connection="target",
        target_connection="copy",
        source_table="app.changes",
        mode="merge",
        delete_when="op = 'D'",
    )
    def told() -> None:
        pass

    told.sync()
    with duckdb.connect(str(copy), read_only=True) as raw:
        kept = raw.execute("SELECT number FROM copy.numbers ORDER BY number").fetchall()
    assert kept == [(1,), (3,)]


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
