"""The conformance suite with ``engine="sail"``: the same promises, on Sail or on Spark instead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
FILES = ("test_append.py", "test_merge.py", "test_scd2.py", "test_truncate.py", "test_types.py")
PROMISES = (
    "test_a_run_inserts_every_row",
    "test_a_dry_run_counts",
    "test_a_failing_row",
    "test_the_new_rows_replace_the_old",
    "test_an_empty_source_is_refused",
    "test_every_value_lands",
    "test_every_value_reads_back",
)
HARNESSES = ("duckdb", "sqlite", "postgres")
HOURS = 3 * 3600


def _seen(notes: Path, *arguments: str) -> dict[str, dict[str, str]]:
    """Run tests of the suite where Sail is asked for; every test's engine and outcome."""
    plugins = ("-p", "connect.witness", "-p", "sail.rows_by_sail")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins),
            *("-m", "soak or not soak", *arguments),
        ],
        env={
            **{k: v for k, v in os.environ.items() if k != "EMATIX_FLOW_MASTER"},
            "EMATIX_FLOW_ENGINE": "sail",
            "CONNECT_WITNESS": str(notes),
            "PYTHONPATH": str(TESTS),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    found: dict[str, dict[str, str]] = json.loads(notes.read_text(encoding="utf-8"))
    return found


def _engines(seen: dict[str, dict[str, str]], harnesses: Collection[str]) -> Counter[str]:
    return Counter(
        note["engine"]
        for test, note in seen.items()
        if any(test.partition("[")[2].startswith((f"{name}]", f"{name}-")) for name in harnesses)
    )


@pytest.mark.slow
@pytest.mark.services("postgres")
def test_the_promises_hold_on_sail(tmp_path: Path) -> None:
    promised = " or ".join(PROMISES)
    selected = f"({promised}) and ({' or '.join(f'[{name}]' for name in HARNESSES)})"
    files = [str(TESTS / "conformance" / file) for file in FILES]
    seen = _seen(tmp_path / "notes.json", "-k", selected, *files)
    assert {note["outcome"] for note in seen.values()} == {"passed"}
    instead = [test for test, note in seen.items() if note["engine"] != "sail"]
    # SQLite keeps exact numbers as text, and text may have an exponent.
    assert [test.partition("::")[2] for test in instead] == [
        "test_every_value_reads_back_as_it_was[sqlite]"
    ]
    for name in HARNESSES:
        assert sum(test.endswith(f"[{name}]") for test in seen) == len(PROMISES), name


@pytest.mark.soak
@pytest.mark.timeout(HOURS)
@pytest.mark.services("postgres", "mysql", "mariadb")
def test_every_promise_holds_where_sail_is_asked_for(tmp_path: Path) -> None:
    seen = _seen(tmp_path / "notes.json", str(TESTS / "conformance"))
    assert {note.get("outcome") for note in seen.values()} == {"passed"}
    # What Sail cannot do has run on Spark; the databases have had it to do.
    assert set(_engines(seen, ("delta",))) <= {"spark", "none"}
    engines = _engines(seen, HARNESSES)
    assert engines["sail"] > engines.total() / 2
