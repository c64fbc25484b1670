"""The lint that keeps Spark's internals inside the engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[5] / "scripts" / "lint_spark_internals.py"


def lint(packages: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(packages)], capture_output=True, text=True, check=False
    )


def package(tmp_path: Path, file: str, source: str) -> Path:
    path = tmp_path / "packages" / "one" / "src" / "one" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    return tmp_path / "packages"


@pytest.mark.parametrize(
    "line",
    [
        "spark._jvm.java.lang.System.gc()",
        "frame._jdf.count()",
        "session._jsparkSession",
        "spark.sparkContext.addJobTag('x')",
        "frame.rdd.map(print)",
        "spark._sc",
        "getattr(spark, '_jvm')",
        "from pyspark import SparkContext",
    ],
)
def test_every_way_in_is_found(tmp_path: Path, line: str) -> None:
    done = lint(package(tmp_path, "backends/some.py", f"import x\n\n{line}\n"))
    assert done.returncode == 1
    assert "some.py:3:" in done.stderr


def test_the_engine_may(tmp_path: Path) -> None:
    done = lint(package(tmp_path, "engine/some.py", "spark._jvm\n"))
    assert (done.returncode, done.stderr) == (0, "")


def test_words_that_only_look_alike_pass(tmp_path: Path) -> None:
    source = "# spark._jvm\ntext = 'frame.rdd'\nrdd = 1\ncolumn.sparkContexts\n"
    done = lint(package(tmp_path, "some.py", source))
    assert (done.returncode, done.stderr) == (0, "")


def test_this_repository_passes() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
