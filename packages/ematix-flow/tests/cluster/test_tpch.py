"""TPC-H by ``flow run`` on three real workers: DuckDB, on the same files, is the oracle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tpch
from quick_java import quick_java

from .crew import Worker

pytestmark = pytest.mark.slow

# Joins, an outer join, NOT IN with DISTINCT, NOT EXISTS.
FEW = ("q05", "q13", "q16", "q21")


def run(
    folder: Path, data: Path, names: tuple[str, ...], variables: dict[str, str], crew: list[Worker]
) -> dict[str, Any]:
    """The pipelines in a process of their own, as a user runs them."""
    tpch.make_project(folder, data, peers=[worker.address for worker in crew])
    with quick_java():
        env = {**os.environ, **variables, "EMATIX_FLOW_HOME": str(folder / "home")}
        return tpch.flow_run(folder, names, env)


def test_a_few_queries(
    driver_variables: dict[str, str], workers: list[Worker], tmp_path: Path
) -> None:
    data, folder = tmp_path / "data", tmp_path / "project"
    tpch.make_data(data, scale=0.01, parts=3)
    told = run(folder, data, FEW, driver_variables, workers)
    assert [(ran["pipeline"], ran["path"]) for ran in told["ran"]] == [(n, "spark") for n in FEW]
    answers = {name: tpch.loaded(folder, name) for name in FEW}
    assert all(answers.values())
    for name, rows in answers.items():
        assert tpch.difference(rows, tpch.by_duckdb(data, name)) is None, name


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_all_queries_at_scale_factor_1(
    driver_variables: dict[str, str], workers: list[Worker], tmp_path: Path
) -> None:
    data, folder = tmp_path / "data", tmp_path / "project"
    tpch.make_data(data, scale=1, parts=6)
    told = run(folder, data, tpch.NAMES, driver_variables, workers)
    assert [ran["pipeline"] for ran in told["ran"]] == list(tpch.NAMES)
    assert len(tpch.carried()) == 21
    assert tpch.wrong(folder, data, scale=1) == {}


def test_a_wrong_answer_is_found(tmp_path: Path) -> None:
    data = tmp_path / "data"
    tpch.make_data(data, scale=0.01, parts=1)
    right = tpch.by_duckdb(data, "q05")
    assert tpch.difference(list(reversed(right)), right) is None
    (name, revenue), *others = right
    assert "instead of" in str(tpch.difference([(name, revenue * 2), *others], right))
    assert tpch.difference(others, right) == "4 rows instead of 5"
