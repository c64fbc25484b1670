"""Runs the suite in two processes, each with servers of its own: ``run_tests.py "not soak"``.

One test may change what a whole server does. The lines of both are shown as they come.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parent.parent
# They take about as long as all else together.
_FIRST = [f"packages/ematix-flow/tests/{folder}" for folder in ("conformance", "crash")]
HALVES = {"first half": _FIRST, "second half": [f"--ignore={folder}" for folder in _FIRST]}


def main(which: str) -> int:
    """Run the tests that a marker expression selects; 1 if any of them fails."""
    failures: list[str] = []
    running = {name: start(name, [*what, "-m", which]) for name, what in HALVES.items()}
    readers = [
        threading.Thread(target=show, args=(name, process, failures))
        for name, process in running.items()
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    codes = {name: process.wait() for name, process in running.items()}
    # Not every failure is a failed test: what a session leaves behind can fail it, too.
    print("".join(failures), end="")
    for name, code in codes.items():
        print(f"{name}: {'failed' if code else 'passed'} (pytest exit code {code})")
    return int(any(codes.values()))


def start(name: str, arguments: list[str]) -> subprocess.Popen[str]:
    """One half, with its servers' state in a folder of its own."""
    state = ROOT / ".services" / name.replace(" ", "-")
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env={**os.environ, "SERVICES_STATE": str(state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def show(name: str, process: subprocess.Popen[str], failures: list[str]) -> None:
    """Print what a half says, and which of them it is; keep the lines that name a failure."""
    for line in process.stdout or ():
        print(f"{name} | {line}", end="", flush=True)
        if re.match(r"(FAILED|ERROR) \S", line):
            failures.append(f"{name} | {line}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
