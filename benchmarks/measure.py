"""How benchmarks measure and report: interleaved runs, medians, ratios, one table per benchmark.

Only ratios between things measured in one go mean anything here; the machines are shared.
"""

from __future__ import annotations

import json
import platform
import re
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"


@dataclass(frozen=True)
class Bar:
    """One promise: a measured ratio and the goal it has to stay at or below."""

    what: str
    ratio: float
    goal: float

    @property
    def met(self) -> bool:
        """Whether it does."""
        return self.ratio <= self.goal


def interleaved(
    runs: Mapping[str, Callable[[], float]], *, rounds: int = 5
) -> dict[str, list[float]]:
    """Every run once per round, so that a busy moment hits them all alike."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(rounds):
        for name, run in runs.items():
            taken[name].append(run())
            print(f"round {round_number + 1}: {name} {taken[name][-1]:.3f} s", flush=True)
    return taken


def wall_seconds(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> float:
    """How long a command takes; it must succeed."""
    began = time.perf_counter()
    subprocess.run(command, cwd=cwd, env=dict(env), check=True, capture_output=True)
    return time.perf_counter() - began


def cpu_seconds(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> float:
    """How much processor time a command takes, its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=cwd, env=dict(env), check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Our median over theirs."""
    return statistics.median(ours) / statistics.median(theirs)


def report(
    name: str,
    *,
    bars: Sequence[Bar],
    taken: Mapping[str, Sequence[float]],
    packages: Sequence[str],
) -> int:
    """Print, keep ``results/<name>.json`` and the table in RESULTS.md; 1 if a bar is missed."""
    document = {
        "bars": [{**asdict(bar), "ratio": round(bar.ratio, 3), "met": bar.met} for bar in bars]
    }
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    lines = [
        f"## {name}",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}, Python {platform.python_version()}, "
        + ", ".join(f"{package} {version(package)}" for package in packages),
        "",
        "| promise | ratio | goal | met |",
        "|---|---|---|---|",
        *(
            f"| {b.what} | {b.ratio:.2f} | {b.goal} | {'yes' if b.met else '**no**'} |"
            for b in bars
        ),
        "",
        "| measured | median s | runs |",
        "|---|---|---|",
        *(f"| {n} | {statistics.median(t):.3f} | {len(t)} |" for n, t in taken.items()),
        "",
    ]
    text = "\n".join(lines)
    print(text)
    held = RESULTS.read_text() if RESULTS.exists() else _INTRODUCTION
    section = re.compile(rf"## {re.escape(name)}\n.*?(?=\n## |\Z)", re.DOTALL)
    updated = section.sub(lambda _: text, held) if section.search(held) else f"{held}\n{text}"
    RESULTS.write_text(updated)
    return 0 if all(bar.met for bar in bars) else 1


_INTRODUCTION = """# Benchmark results

Each table comes from one run of `make bench NAME=<name>`, ours and the alternatives interleaved.
Seconds depend on the machine; the ratios are what is promised.
"""
