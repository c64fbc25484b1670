"""What a backend does not declare is refused before any data moves, and none is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.conftest import abilities
from conformance.test_append import ROWS, SCHEMA, Events
from conformance.test_types import SCHEMA as EVERY_SCHEMA
from conformance.test_types import Everything
from ematix_flow import DuckDBConnection, ManagedTable, ematix, register_connection
from ematix_flow.backends.loading import backend_names
from ematix_flow.errors import Unsupported
from ematix_flow.pipeline import Pipeline
from harness.base import Harness, all_harnesses

WITHOUT_SERVICE = [cls for cls in all_harnesses() if cls.service is None]


def lacking(ability: str) -> list[type[Harness]]:
    return [cls for cls in WITHOUT_SERVICE if ability not in abilities(cls)]


def test_every_installed_backend_is_under_test() -> None:
    assert {cls.kind for cls in all_harnesses()} == set(backend_names())


def pipeline_into(
    cls: type[Harness], folder: Path, table: type[ManagedTable], schema: str, mode: str
) -> Pipeline:
    register_connection(cls(folder).connection("target"))
    register_connection(DuckDBConnection(name="rows", path=str(folder / "rows.duckdb")))

    @ematix.pipeline(target=table, source_connection="rows", target_connection="target", mode=mode)
    def load(spark: object) -> object:
        return spark.createDataFrame(ROWS if table is Events else [], schema)  # type: ignore[attr-defined]

    return load


@pytest.mark.parametrize("cls", lacking("replace"))
def test_an_undeclared_mode_is_refused(cls: type[Harness], tmp_path: Path, engine: object) -> None:
    load = pipeline_into(cls, tmp_path, Events, SCHEMA, "truncate")
    with pytest.raises(Unsupported, match="truncate"):
        load.sync()
    harness = cls(tmp_path)
    assert not harness.exists(harness.connection("target"), Events.__table__.name)


@pytest.mark.parametrize("cls", lacking("every type"))
def test_an_undeclared_type_is_refused(cls: type[Harness], tmp_path: Path, engine: object) -> None:
    load = pipeline_into(cls, tmp_path, Everything, EVERY_SCHEMA, "append")
    with pytest.raises(Unsupported, match="cannot hold column"):
        load.sync()
    harness = cls(tmp_path)
    assert not harness.exists(harness.connection("target"), Everything.__table__.name)


@pytest.mark.parametrize("cls", lacking("source"))
def test_what_cannot_be_read_is_refused_as_a_source(cls: type[Harness], tmp_path: Path) -> None:
    register_connection(cls(tmp_path).connection("source"))
    register_connection(DuckDBConnection(name="copy", path=str(tmp_path / "c.duckdb")))

    @ematix.pipeline(
        target=Events,
        source_connection="source",
        target_connection="copy",
        source_table="app.events",
    )
    def load() -> None:
        pass

    with pytest.raises(Unsupported, match="cannot be read"):
        load.sync()
