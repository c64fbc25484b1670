"""Finds uses of Spark's internals outside the engine, where they would tie us to one kind.

What only an in-process session has (its JVM, its SparkContext, RDDs) does not exist over
Spark Connect, so only ``ematix_flow/engine`` may touch it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

BANNED = frozenset(
    {"_jvm", "_jdf", "_jsparkSession", "_jsc", "_jconf", "_sc", "sparkContext", "rdd"}
)
ALLOWED = ("engine",)
SOURCES = Path(__file__).parent.parent / "packages"


def violations(source: str, file: str) -> Iterator[str]:
    """One line per use, as ``file:line: what``."""
    for node in ast.walk(ast.parse(source, filename=file)):
        name = _banned_name(node)
        if name is not None:
            line = getattr(node, "lineno", 0)
            yield f"{file}:{line}: {name} belongs to the engine; ask the Engine protocol instead"


def _banned_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute) and node.attr in BANNED:
        return node.attr
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark"):
        for alias in node.names:
            if alias.name in ("SparkContext", "RDD"):
                return alias.name
    if _is_getattr_of_banned(node):
        return str(node.args[1].value)  # type: ignore[attr-defined]
    return None


def _is_getattr_of_banned(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and node.args[1].value in BANNED
    )


def checked_files(packages: Path) -> Iterator[Path]:
    """All source files that may not touch internals."""
    for source in sorted(packages.glob("*/src/*")):
        for file in sorted(source.rglob("*.py")):
            if file.relative_to(source).parts[0] not in ALLOWED:
                yield file


def main(packages: Path = SOURCES) -> int:
    found = [
        line
        for file in checked_files(packages)
        for line in violations(file.read_text(encoding="utf-8"), str(file))
    ]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
