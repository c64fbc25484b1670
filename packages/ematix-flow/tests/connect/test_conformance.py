"""The conformance suite over Spark Connect: the same promises on the other Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ematix_flow.engine.connect_server import connect_server
from ematix_flow.engine.settings import derive

TESTS = Path(__file__).parent.parent
FILES = (
    *("test_append.py", "test_truncate.py", "test_types.py"),
    *("test_fan_out.py", "test_transforms.py"),
)
PROMISES = (
    "test_a_run_inserts_every_row",
    "test_a_dry_run_counts",
    "test_a_failing_row",
    "test_the_new_rows_replace_the_old",
    "test_an_empty_source_is_refused",
    "test_every_value_lands",
    "test_every_value_reads_back",
    "test_the_source_is_read_once",
    "test_transform_sql_over_the_source",
)
HARNESSES = ("duckdb", "sqlite", "postgres", "parquet", "csv")
HOURS = 3 * 3600


def _seen_over_connect(
    notes: Path, *arguments: str, jars: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Run tests of the suite on a server of their own; every test's engine and outcome."""
    with connect_server(derive(jars=tuple(jars))) as server:
        ended = subprocess.run(
            [
                sys.executable,
                *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "connect.witness"),
                *("-m", "soak or not soak", *arguments),
            ],
            env={
                **os.environ,
                "EMATIX_FLOW_MASTER": server.remote,
                "CONNECT_WITNESS": str(notes),
                "PYTHONPATH": str(TESTS),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert server.remote not in ended.stdout
    assert ended.returncode == 0, ended.stdout
    seen: dict[str, dict[str, str]] = json.loads(notes.read_text(encoding="utf-8"))
    return seen


@pytest.mark.slow
@pytest.mark.services("postgres")
def test_the_promises_hold_over_connect(tmp_path: Path) -> None:
    promised = " or ".join(PROMISES)
    selected = f"({promised}) and ({' or '.join(f'[{name}]' for name in HARNESSES)})"
    files = [str(TESTS / "conformance" / file) for file in FILES]
    seen = _seen_over_connect(tmp_path / "notes.json", "-k", selected, *files, jars=["postgres"])
    assert {note["outcome"] for note in seen.values()} == {"passed"}
    assert {note["engine"] for note in seen.values()} == {"spark-connect"}
    for name in HARNESSES:
        assert sum(test.endswith(f"[{name}]") for test in seen) == len(PROMISES), name


@pytest.mark.soak
@pytest.mark.timeout(HOURS)
@pytest.mark.services("postgres", "mysql", "mariadb")
def test_every_promise_holds_over_connect(tmp_path: Path) -> None:
    whole = str(TESTS / "conformance")
    jars = ["delta", "mysql", "postgres"]
    seen = _seen_over_connect(tmp_path / "notes.json", whole, jars=jars)
    assert {note.get("outcome") for note in seen.values()} == {"passed"}
    # Those that need no Spark have none; nobody has one in process.
    assert {note["engine"] for note in seen.values()} <= {"spark-connect", "none"}
    assert sum(note["engine"] == "spark-connect" for note in seen.values()) > len(seen) / 2
