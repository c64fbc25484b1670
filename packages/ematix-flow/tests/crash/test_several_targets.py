"""A run that is killed between its targets: the next one finishes it, and doubles nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

PIPELINES = """
import os
import sys
from typing import Annotated

from ematix_flow import BigInt, DuckDBConnection, Target, ematix, pk, register_connection
from ematix_flow.run.batch import run_pipeline

register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))


@ematix.table(schema="shop")
class First:
    id: BigInt


@ematix.table(schema="shop")
class Second:
    id: BigInt


@ematix.pipeline(
    targets=[
        Target(table=First, connection="warehouse"),
        Target(table=Second, connection="warehouse"),
    ],
)
def load(conn):
    return "SELECT i AS id FROM range(5) r(i)"


if __name__ == "__main__":
    point, times = sys.argv[1], int(sys.argv[2])
    seen = []

    def die(now):
        seen.append(now)
        if seen.count(point) == times:
            os.kill(os.getpid(), 9)

    result = run_pipeline(load.spec, trigger="python", announce=die)
    print(*(held.status for held in result.targets.values()))
"""


def run(folder: Path, point: str, times: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "pipelines.py", point, str(times)],
        cwd=folder,
        env={**os.environ, "EMATIX_FLOW_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("point", "times", "then"),
    [
        ("committing", 1, "succeeded succeeded"),
        ("committed", 1, "skipped succeeded"),
        ("committing", 2, "skipped succeeded"),
        ("committed", 2, "succeeded succeeded"),
    ],
)
def test_killed_between_targets(tmp_path: Path, point: str, times: int, then: str) -> None:
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    killed = run(tmp_path, point, times)
    assert killed.returncode == -9, killed.stderr
    again = run(tmp_path, "never", 1)
    assert (again.returncode, again.stdout.strip()) == (0, then), again.stderr
    # Where both had been committed, that run was complete, and this is another one.
    whole = 10 if (point, times) == ("committed", 2) else 5
    with duckdb.connect(str(tmp_path / "warehouse.duckdb")) as raw:
        for table in ("first", "second"):
            assert raw.execute(f"SELECT count(*) FROM shop.{table}").fetchall() == [(whole,)]
        runs = raw.execute("SELECT count(*) FROM ematix_flow.run_history").fetchall()
    assert runs == [(whole // 5 * 2,)]
