"""``flow init`` writes a project that runs as it is."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from .conftest import Flow

if TYPE_CHECKING:
    import pytest


def test_a_new_project_runs_at_once(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = flow("init", "my_project")
    assert said.code == 0
    assert "cd my_project" in said.out
    assert "flow run" in said.out
    project = folder / "my_project"
    monkeypatch.chdir(project)
    # As a user would: the installed command, in a process with a Spark of its own.
    command = Path(sys.executable).with_name("flow")
    done = subprocess.run([str(command), "run"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "2 pipelines succeeded."

    expected: dict[str, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
    with (project / "data" / "orders.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            orders, revenue = expected[row["country"].upper()]
            expected[row["country"].upper()] = (orders + 1, revenue + Decimal(row["amount"]))
    with duckdb.connect(str(project / "warehouse.duckdb"), read_only=True) as connection:
        found = connection.execute("SELECT country, orders, revenue FROM shop.country_sales")
        assert {c: (n, r) for c, n, r in found.fetchall()} == expected

    assert flow("validate").code == 0
    assert flow("status").out.count("succeeded") == 2


def test_init_here(flow: Flow, folder: Path) -> None:
    said = flow("init", ".", "--format", "json")
    assert said.code == 0
    for name in said.json["files"]:
        assert (folder / name).is_file()
    assert "cd " not in flow("init", ".", "--force").out
    assert flow("list").code == 0


def test_init_overwrites_nothing_by_itself(flow: Flow, folder: Path) -> None:
    (folder / "pipelines.py").write_text("# mine\n")
    said = flow("init", ".")
    assert said.code == 2
    assert said.err.startswith("flow: error: . already has pipelines.py; choose another folder")
    assert (folder / "pipelines.py").read_text() == "# mine\n"
    assert not (folder / "README.md").exists()
    assert flow("init", ".", "--force").code == 0
    assert "load_orders" in (folder / "pipelines.py").read_text()


def test_init_into_a_file(flow: Flow, folder: Path) -> None:
    (folder / "taken").write_text("")
    for path in ("taken", "taken/below"):
        said = flow("init", path)
        assert said.code == 2
        assert said.err.count("\n") == 1
