"""Runs the ``flow`` command in a folder of its own, with a home of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.cli.main import main


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Flow = Callable[..., Said]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; nothing of the user's own settings is seen."""
    for name in list(os.environ):
        if name.startswith("EMATIX_FLOW_") and name != "EMATIX_FLOW_CACHE_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return work


@pytest.fixture
def flow(capsys: pytest.CaptureFixture[str]) -> Flow:
    """Calls the command in this process."""

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return call


CONNECTION = """
from typing import Annotated

from ematix_flow import BigInt, DuckDBConnection, Text, ematix, pk, register_connection

register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))


@ematix.table(schema="shop")
class Numbers:
    number: Annotated[BigInt, pk()]
    word: Text


@ematix.table(schema="shop")
class Doubles:
    number: Annotated[BigInt, pk()]
"""

GOOD = """

@ematix.pipeline(
    target=Doubles, target_connection="warehouse", mode="truncate", depends_on=["load_numbers"]
)
def load_doubles(conn):
    return "SELECT number * 2 AS number FROM shop.numbers"


@ematix.pipeline(
    target=Numbers, target_connection="warehouse", mode="truncate", schedule="30 6 * * *",
    timezone="Europe/Berlin",
)
def load_numbers(conn):
    \"\"\"Three numbers.\"\"\"
    return "SELECT * FROM (VALUES (1, 'one'), (2, 'two'), (3, 'three')) AS t(number, word)"
"""

BROKEN = """

@ematix.pipeline(target=Numbers, target_connection="warehouse", mode="upsert")
def misspelt(conn):
    return "SELECT 1 AS number, 'one' AS word"


@ematix.pipeline(target=Numbers, target_connection="warehouse", depends_on=["misspelt"])
def after_misspelt(conn):
    return "SELECT 1 AS number, 'one' AS word"
"""


@pytest.fixture
def project(folder: Path) -> Path:
    """A project of two pipelines inside one DuckDB file, so that no Spark is needed."""
    (folder / "pipelines.py").write_text(CONNECTION + GOOD)
    (folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')
    return folder


@pytest.fixture
def half_broken(project: Path) -> Path:
    """The same with two more, one of them wrong."""
    (project / "pipelines.py").write_text(CONNECTION + GOOD + BROKEN)
    return project
