"""The four engines as one fixture."""

from __future__ import annotations

from typing import Any

import pytest

from conformance_normalizers.engines import Run, in_duckdb, in_postgres, in_spark, in_sqlite

ENGINES = ("spark", "postgres", "duckdb", "sqlite")


@pytest.fixture(params=ENGINES)
def engine_run(request: pytest.FixtureRequest) -> tuple[str, Run]:
    runs: dict[str, Any] = {
        "spark": lambda: in_spark(request.getfixturevalue("spark")),
        "postgres": lambda: in_postgres(request.getfixturevalue("postgres").url),
        "duckdb": lambda: in_duckdb,
        "sqlite": lambda: in_sqlite,
    }
    return request.param, runs[request.param]()
