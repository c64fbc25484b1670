"""Declaring, listing and asking for help load neither Spark nor any driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "boto3",
    "duckdb",
    "grpc",
    "numpy",
    "pandas",
    "psycopg",
    "py4j",
    "pyarrow",
    "pyspark",
    "sqlglot",
}

PROJECT = '''
from ematix_flow import Annotated, BigInt, DuckDBConnection, ManagedTable, ematix, pk
from ematix_flow import register_connection

register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))


class Events(ManagedTable):
    __tablename__ = "events"
    event_id: Annotated[BigInt, pk()]


@ematix.pipeline(target=Events, target_connection="warehouse", schedule="0 * * * *")
def load_events(conn):
    """Copies events."""
    return "SELECT 1 AS event_id"
'''

REPORT = """
import atexit, sys
atexit.register(
    lambda: print("LOADED", *sorted({name.partition(".")[0] for name in sys.modules}))
)
"""


def loaded_by(program: str, folder: Path, *arguments: str) -> tuple[set[str], str]:
    """Run a program in a fresh interpreter; return the packages it loaded and what it said."""
    result = subprocess.run(
        [sys.executable, "-c", REPORT + program, *arguments],
        cwd=folder,
        env={**os.environ, "EMATIX_FLOW_HOME": str(folder / "home")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    said, _, loaded = result.stdout.rpartition("LOADED ")
    return set(loaded.split()), said


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipelines.py").write_text(PROJECT)
    return tmp_path


def test_importing_the_package(tmp_path: Path) -> None:
    loaded, _ = loaded_by("import ematix_flow", tmp_path)
    assert "ematix_flow" in loaded
    assert not loaded & HEAVY


def test_importing_a_project_file(project: Path) -> None:
    loaded, said = loaded_by("import pipelines; print(pipelines.load_events.name)", project)
    assert said.strip() == "load_events"
    assert not loaded & HEAVY


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "run"),
        (["run", "--help"], "--module"),
        (["list", "--module", "pipelines.py"], "load_events"),
        (["list", "--module", "pipelines.py", "--format", "json"], "load_events"),
    ],
)
def test_commands_that_only_tell(project: Path, arguments: list[str], expected: str) -> None:
    program = "import sys; from ematix_flow.cli.main import main; sys.argv[0] = 'flow'; main()"
    loaded, said = loaded_by(program, project, *arguments)
    assert expected in said
    assert not loaded & HEAVY
