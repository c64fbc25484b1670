"""A load inside one database and the same load through Spark give the same rows."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.conftest import Loader
from conformance.test_types import SCHEMA, Everything, by_id, rows_for
from ematix_flow import BigInt, Double, EmatixError, Numeric, Text, ematix
from ematix_flow.errors import DataError
from harness.base import Harness

pytestmark = pytest.mark.needs("same_database", "source", "replace", "every type")


@ematix.table(schema="paths")
class Plain:
    id: BigInt
    words: Text | None
    double: Double | None


@ematix.table(schema="paths", name="everything")
class Copied(Everything):  # the same columns in another table
    pass


def declare(table: Any, sql: str, **options: Any) -> Any:
    @ematix.pipeline(
        target=table, target_connection="target", mode="truncate", name="paths", **options
    )
    def load(conn: Any) -> str:
        return sql

    return load


def test_both_paths_give_the_same_rows(backend: Harness, loader: Loader) -> None:
    loader(Everything, rows_for(backend), SCHEMA).sync()
    sql = f"SELECT id, words, double FROM {backend.spelled(Everything.__table__.name)}"
    inside = declare(Plain, sql).sync()
    assert inside.path == "same_db"
    first = by_id(backend.rows(backend.connection("target"), Plain.__table__))
    through = declare(Plain, sql, force_path="spark").sync()
    assert through.path == "spark"
    second = by_id(backend.rows(backend.connection("target"), Plain.__table__))
    assert first == second
    assert (inside.counts.inserted, through.counts.inserted) == (len(first), len(first))


def test_every_type_is_the_same_on_both_paths(backend: Harness, loader: Loader) -> None:
    loader(Everything, rows_for(backend), SCHEMA).sync()
    sql = f"SELECT * FROM {backend.spelled(Everything.__table__.name)}"
    declare(Copied, sql).sync()
    first = by_id(backend.rows(backend.connection("target"), Copied.__table__))
    declare(Copied, sql, force_path="spark").sync()
    assert by_id(backend.rows(backend.connection("target"), Copied.__table__)) == first


@ematix.table(schema="paths")
class Rounded:
    id: BigInt
    exact: Numeric[38, 4] | None


def test_a_number_is_never_rounded_on_either_path(backend: Harness, loader: Loader) -> None:
    loader(Everything, rows_for(backend), SCHEMA).sync()
    table = backend.spelled(Everything.__table__.name)
    for path in (None, "spark"):
        fits = declare(
            Rounded, f"SELECT id, exact FROM {table} WHERE id IN (4, 5)", force_path=path
        )
        assert fits.sync().counts.inserted == 2
        rounds = declare(
            Rounded, f"SELECT id, exact FROM {table} WHERE id IN (3, 5)", force_path=path
        )
        with pytest.raises(EmatixError, match="exact"):
            rounds.sync()
        found = backend.rows(backend.connection("target"), Rounded.__table__)
        assert sorted(row["id"] for row in found) == [4, 5]


def test_preview_says_which_path_and_why(backend: Harness, loader: Loader) -> None:
    loader(Everything, rows_for(backend)[:1], SCHEMA).sync()
    table = backend.spelled(Everything.__table__.name)
    preview = declare(Plain, f"SELECT id, words, double FROM {table}").preview()
    assert (preview.path, preview.path_reason) == (
        "same_db",
        "source and target are the same database",
    )
    assert any("INSERT INTO" in step for step in preview.steps)
    as_text = declare(Plain, f"SELECT id, id AS words, double FROM {table}").preview()
    assert as_text.path == "spark"
    assert "'words'" in as_text.path_reason


def test_a_path_that_cannot_be_taken_is_refused(backend: Harness, loader: Loader) -> None:
    loader(Everything, rows_for(backend)[:1], SCHEMA).sync()
    table = backend.spelled(Everything.__table__.name)
    forced = declare(Plain, f"SELECT id, id AS words, double FROM {table}", force_path="same_db")
    with pytest.raises(DataError, match="force_path='same_db'"):
        forced.sync()


def test_an_empty_query_inside_the_database_is_refused_too(
    backend: Harness, loader: Loader
) -> None:
    loader(Everything, rows_for(backend), SCHEMA).sync()
    table = backend.spelled(Everything.__table__.name)
    declare(Plain, f"SELECT id, words, double FROM {table}").sync()
    before = by_id(backend.rows(backend.connection("target"), Plain.__table__))
    with pytest.raises(EmatixError, match="allow_empty"):
        declare(Plain, f"SELECT id, words, double FROM {table} WHERE id < 0").sync()
    assert by_id(backend.rows(backend.connection("target"), Plain.__table__)) == before
