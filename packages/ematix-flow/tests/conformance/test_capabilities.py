"""What a backend does not declare is refused before any data moves, and none is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.conftest import abilities, is_its_turn
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


def test_a_push_leaves_no_backend_out_and_no_test_alone() -> None:
    """Of as many tests as it takes until all is as it was, each harness gets its share."""
    taken = [[cls for cls in all_harnesses() if is_its_turn(cls, turn)] for turn in range(12)]
    assert {cls for chosen in taken for cls in chosen} == set(all_harnesses())
    for chosen in taken:
        kinds = [cls.kind for cls in chosen]
        assert len(kinds) == len(set(kinds))
        assert any(cls.service for cls in chosen)
        assert any(cls.service is None and not cls.by_spark for cls in chosen)
        assert sum(cls.by_spark for cls in chosen) <= 1
    assert sum(cls.by_spark for chosen in taken for cls in chosen) == 8


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
