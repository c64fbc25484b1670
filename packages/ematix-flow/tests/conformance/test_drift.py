"""A table that exists and is not the declared one is refused, with the exact difference."""

from __future__ import annotations

import pytest

from conformance.conftest import Loader
from conformance.test_append import ROWS, SCHEMA, Events, plain
from ematix_flow import BigInt, Text, ematix
from ematix_flow.backends.loading import load_backend
from ematix_flow.errors import SchemaDrift
from harness.base import Harness


@ematix.table(schema="app", name="events")
class OtherType:
    event_id: Text
    name: Text | None


@ematix.table(schema="app", name="events")
class MoreColumns:
    event_id: BigInt
    name: Text | None
    extra: Text | None


@ematix.table(schema="app", name="events")
class FewerColumns:
    event_id: BigInt


@ematix.table(schema="app", name="events")
class OtherNullability:
    event_id: BigInt
    name: Text


def test_another_type_is_refused(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA).sync()
    with pytest.raises(SchemaDrift, match="event_id") as caught:
        loader(OtherType, [("1", "a")], "event_id STRING, name STRING").sync()
    assert len(caught.value.differences) == 1
    assert plain(backend) == sorted(ROWS, key=repr)


def test_a_column_that_does_not_exist_is_refused(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA).sync()
    says = '\'extra\' is declared but does not exist.*on_drift="evolve".*on_drift="warn"'
    with pytest.raises(SchemaDrift, match=says):
        loader(MoreColumns, [(1, "a", "b")], SCHEMA + ", extra STRING").sync()


def test_a_column_that_is_not_declared_is_refused(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA).sync()
    with pytest.raises(SchemaDrift, match="'name' exists but is not declared"):
        loader(FewerColumns, [(1,)], "event_id BIGINT").sync()


def test_another_nullability_is_refused_where_it_is_kept(backend: Harness, loader: Loader) -> None:
    loader(Events, ROWS, SCHEMA).sync()
    pipeline = loader(OtherNullability, [(1, "a")], SCHEMA)
    if load_backend(backend.connection("target")).capabilities.constraints:
        with pytest.raises(SchemaDrift, match="'name' allows NULL, declared NOT NULL"):
            pipeline.sync()
    else:
        assert pipeline.sync().counts.inserted == 1


def test_preview_shows_the_table_it_would_create(backend: Harness, loader: Loader) -> None:
    preview = loader(Events, ROWS, SCHEMA).preview()
    product = load_backend(backend.connection("target"))
    assert preview.target == product.locate(Events.__table__.name, None)
    assert preview.path == "spark"
    assert not backend.exists(backend.connection("target"), Events.__table__.name)
    if product.capabilities.constraints:
        assert any("CREATE TABLE" in statement for statement in preview.ddl)
    loader(Events, ROWS, SCHEMA).sync()
    assert not any("CREATE TABLE" in s for s in loader(Events, ROWS, SCHEMA).preview().ddl)
