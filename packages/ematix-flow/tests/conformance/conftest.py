"""Every promise is tested on every backend: the ``backend`` fixture goes through them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.base import Harness, all_harnesses

from ematix_flow import ManagedTable, ematix
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import register_connection


def _parameter(cls: type[Harness]) -> Any:
    marks = [pytest.mark.services(cls.service)] if cls.service else []
    return pytest.param(cls, id=cls.name, marks=marks)


@pytest.fixture(params=[_parameter(cls) for cls in all_harnesses()])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """One backend, reached by its own driver."""
    cls: type[Harness] = request.param
    server = request.getfixturevalue(cls.service) if cls.service else None
    held = cls(tmp_path, server)
    yield held
    held.close()


Rows = Sequence[tuple[Any, ...]]
Loader = Callable[..., Pipeline]


@pytest.fixture
def loader(backend: Harness, engine: object) -> Loader:
    """Declares a pipeline that loads Python rows into a table of the backend."""

    def declare(
        table: type[ManagedTable], rows: Rows, schema: str, *, mode: str = "append", **options: Any
    ) -> Pipeline:
        register_connection(backend.connection("target"))
        held = list(rows)

        @ematix.pipeline(
            target=table,
            source_connection="target",
            target_connection="target",
            mode=mode,
            name=f"load_{table.__name__.lower()}",
            **options,
        )
        def load(spark: Any) -> Any:
            return spark.createDataFrame(held, schema)

        return load

    return declare
