"""Runs Python programs in processes of their own and looks at what they leave behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PATIENCE = 120.0


@contextlib.contextmanager
def start(
    code: str, *, cwd: Path, env: Mapping[str, str] | None = None, stderr: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` in a session of its own, as a terminal's foreground job would be."""
    program = cwd / "program.py"
    program.write_text(code, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(program)],
        cwd=cwd,
        env={**_clean_environment(), "TMPDIR": str(temporary(cwd)), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _clean_environment() -> dict[str, str]:
    """Ours without what PySpark leaves behind in a process that has run it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}


def run(code: str, *, cwd: Path, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run ``code`` to its end: exit code, output, errors."""
    with start(code, cwd=cwd, env=env) as process:
        out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def temporary(cwd: Path) -> Path:
    """The child's TMPDIR: beside its working folder, so that each can be checked for litter."""
    folder = cwd.parent / f"{cwd.name}-tmp"
    folder.mkdir(exist_ok=True)
    return folder


def wait_until(condition: Callable[[], bool], *, what: str) -> None:
    """Wait for ``condition``, or fail saying ``what`` never happened."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.02)


def exists(pid: int) -> bool:
    """Whether a process runs (one that is dead but not yet collected does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def descendants(pid: int) -> set[int]:
    """All living processes that ``pid`` started, and those that these started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found
