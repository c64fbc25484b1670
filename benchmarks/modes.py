"""What the load modes cost: a first load and 1 % of changes, beside ematix-flow 1.0.0 and dlt.

Rows go from one PostgreSQL database to another. Every system keeps its process, so that sessions
are warm; a cold start is measured apart. Also: that a fixed number of changed rows costs the same
into tables of 1, 4 and 16 times the size, and what memory 5 M and 20 M rows take.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg
from contest import PEER, Loader, databases, fill, forget, loaders
from measure import Bar, median_ratio, report

from ematix_flow.engine.settings import derive

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
MODES = ("append", "merge", "scd2")
GOALS = {PEER: 0.5, "dlt": 0.65}
KEYED = ("merge", "scd2")
PATHS = {"append": "copied", "spark": "through Spark"}
CHANGED = 10_000
# A load that takes longer is ended, and counts as if it had taken this long.
LIMIT = 40.0
SIZES = (1, 4, 16)
LARGE = tuple(int(n) for n in os.environ.get("BENCH_LARGE", "5000000,20000000").split(","))
SLACK = 1.5e9


def touch(url: str, turn: int) -> None:
    """Change 1 % of the rows, and add as many, for the loads that only add."""
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute(
            "UPDATE bench.orders SET note = 'touched ' || %s, updated_at = "
            "(SELECT max(updated_at) FROM bench.orders) + id * interval '1 microsecond' "
            "WHERE id %% 100 = %s",
            (str(turn), turn % 100),
        )
        raw.execute("VACUUM ANALYZE bench.orders")


def measure_modes(
    source: str, targets: dict[str, str], systems: dict[str, Loader]
) -> dict[str, list[float]]:
    """First loads and changed loads of every system, interleaved."""
    taken: dict[str, list[float]] = {}
    for turn in range(ROUNDS + 1):
        fill(source, ROWS)
        for target in targets.values():
            forget(target)
        for phase in ("first", "changed"):
            if phase == "changed":
                touch(source, turn)
            for mode in MODES:
                for name, system in in_turn(systems, turn):
                    seconds = system.load(mode, limit=LIMIT)
                    print(f"round {turn}: {mode} {phase} {name} {seconds:.2f} s", flush=True)
                    # The first round warms sessions, caches and compilers.
                    if turn:
                        taken.setdefault(f"{mode} {phase}: {name}", []).append(seconds)
    return taken


def in_turn(systems: dict[str, Loader], turn: int) -> list[tuple[str, Loader]]:
    """Every system is the first to read what has just been changed, one round after the other."""
    listed = list(systems.items())
    first = turn % len(listed)
    return [*listed[first:], *listed[:first]]


def cold_seconds(source: str, target: str, name: str, home: Path) -> float:
    """One append in a new process, start-up included."""
    forget(target)
    began = time.perf_counter()
    (home / "cold").mkdir(exist_ok=True)
    single = loaders(source, {name: target}, Path(tempfile.mkdtemp(dir=home / "cold")))[name]
    single.load("append")
    taken = time.perf_counter() - began
    single.close()
    return taken


def measure_growth(source: str, target: str, ours: Loader) -> dict[str, list[float]]:
    """A fixed number of changed rows loaded into tables of different sizes."""
    taken: dict[str, list[float]] = {}
    for size in SIZES:
        fill(source, ROWS // 4 * size)
        forget(target)
        for mode in KEYED:
            ours.load(mode)
        # The first load of few rows is not counted: it finds a table nobody has analysed yet.
        for turn in range(ROUNDS + 1):
            touch_few(source, turn)
            for mode in KEYED:
                seconds = ours.load(mode)
                print(f"growth {size}x: {mode} {seconds:.2f} s", flush=True)
                if turn:
                    taken.setdefault(grown(mode, size), []).append(seconds)
    return taken


def grown(mode: str, size: int) -> str:
    """What a load into a table of some size is called."""
    return f"{mode} {CHANGED} rows into {size}x"


def peak_memory(source: str, target: str, rows: int, mode: str, home: Path) -> float:
    """The most memory, in bytes, that all processes of one large append hold together."""
    fill(source, rows)
    forget(target)
    env_home = Path(tempfile.mkdtemp(dir=home))
    system = loaders(source, {"ours": target}, env_home)["ours"]
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            peak[0] = max(peak[0], _resident(system.process.pid))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    system.load(mode)
    ended.set()
    thread.join()
    system.close()
    print(f"memory of {rows} rows, {mode}: {peak[0] / 1e6:.0f} MB", flush=True)
    return peak[0]


def _resident(pid: int) -> float:
    """The resident bytes of a process and everything it has started."""
    total, page = 0.0, os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        total = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total += _resident(int(child))
    return total


def touch_few(url: str, turn: int) -> None:
    """Leave only a fixed number of rows in the source, all of them changed."""
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("DELETE FROM bench.orders WHERE id > %s", (CHANGED,))
        # Or the source would be a table full of holes, whose size grows with the target's.
        raw.execute("VACUUM bench.orders")
        raw.execute("UPDATE bench.orders SET note = 'again ' || %s", (str(turn),))
        raw.execute("VACUUM ANALYZE bench.orders")


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="ematix-bench-"))
    try:
        with databases("ours", *GOALS) as (source, targets):
            systems = loaders(source, targets, home)
            taken = measure_modes(source, targets, systems)
            growth = measure_growth(source, targets["ours"], systems["ours"])
            for system in systems.values():
                system.close()
            memory = {
                (mode, rows): peak_memory(source, targets["ours"], rows, mode, home)
                for rows in LARGE
                for mode in PATHS
            }
            fill(source, ROWS)
            cold: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                for name in ("ours", PEER):
                    seconds = cold_seconds(source, targets[name], name, home)
                    cold.setdefault(f"cold append: {name}", []).append(seconds)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    bars = [
        Bar(
            f"{mode}, {phase} load, against {rival}"
            + (
                f", stopped after {LIMIT:.0f} s"
                if LIMIT in taken[f"{mode} {phase}: {rival}"]
                else ""
            ),
            median_ratio(taken[f"{mode} {phase}: ours"], taken[f"{mode} {phase}: {rival}"]),
            goal,
        )
        for mode in MODES
        for phase in ("first", "changed")
        for rival, goal in GOALS.items()
    ]
    bars.append(
        Bar(
            f"append with a cold start, against {PEER}",
            median_ratio(cold["cold append: ours"], cold[f"cold append: {PEER}"]),
            1.0,
        )
    )
    bars += [
        Bar(
            f"{mode} of {CHANGED} changed rows, table {size} times as large",
            median_ratio(growth[grown(mode, size)], growth[grown(mode, 1)]),
            1.5,
        )
        for mode in KEYED
        for size in SIZES[1:]
    ]
    few_rows, many_rows = LARGE
    heap = derive().driver_memory_bytes
    for mode, path in PATHS.items():
        most = memory[mode, many_rows]
        bars += [
            Bar(
                f"memory of {many_rows} rows {path}, against {few_rows}",
                most / memory[mode, few_rows],
                1.1,
            ),
            Bar(
                f"memory of {many_rows} rows {path}, against heap + 1.5 GB",
                most / (heap + SLACK),
                1.0,
            ),
        ]
    return report(
        "modes", bars=bars, taken={**taken, **growth, **cold}, packages=("ematix-flow", "pyspark")
    )


if __name__ == "__main__":
    sys.exit(main())
