"""The public names are typed: a strict user's project checks cleanly, and mistakes are caught."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ematix_flow

CONSUMER = Path(__file__).with_name("consumer.py")


def test_consumer_passes_strict_checking(tmp_path: Path) -> None:
    strict = ["--strict", "--warn-unused-ignores", "--no-incremental", "--config-file="]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *strict, str(CONSUMER)],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_consumer_uses_every_public_name() -> None:
    tree = ast.parse(CONSUMER.read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "ematix_flow"
        for alias in node.names
    }
    assert set(ematix_flow.__all__) - {"__version__"} == imported
