"""What a second worker is worth: the same loads on one and on two workers of one core each.

Beside them the same work written by hand, for Spark alone with two threads and for a standalone
cluster of Spark's own. What it costs to form the cluster, and to encrypt what goes
between machines, is measured apart, and so are the constants of docs/concepts/scaling.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import psycopg
from contest import Loader, databases, forget
from machines import Authority, Standalone, standalone, workers
from measure import HERE, Bar, interleaved, median_ratio, report
from psycopg.sql import SQL, Identifier
from scaling import Constants, renew
from tpch import make_data

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
NOTES = int(os.environ.get("BENCH_NOTES", "200000"))
MANY = int(os.environ.get("BENCH_MANY", "500000"))
SCALE = float(os.environ.get("BENCH_SCALE", "0.2"))
FEW = 2_000
CREWS = (1, 2)
LOADS = {"transform": "CPU-bound transform, Postgres → Postgres", "tpch": "TPC-H mix"}
SUBMIT = str(Path(sys.executable).with_name("spark-submit"))


def fill(url: str) -> None:
    """The source: rows of a number and a text."""
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("CREATE SCHEMA bench")
        for name, rows in {"notes": NOTES, "many": MANY, "few": FEW}.items():
            made = SQL(
                "CREATE TABLE bench.{} AS SELECT g::bigint AS id, md5(g::text) AS note "
                "FROM generate_series(1, {}) g"
            )
            raw.execute(made.format(Identifier(name), rows))
            raw.execute(f"ALTER TABLE bench.{name} ADD PRIMARY KEY (id)")
            raw.execute(f"VACUUM ANALYZE bench.{name}")


class Field:
    """Where everything happens: databases, files, certificates; and systems that are started."""

    def __init__(self, home: Path, source: str, targets: Mapping[str, str]) -> None:
        self.home, self.source, self.targets = home, source, targets
        self.authority = Authority(home / "authority")
        self.lake = home / "lake"
        make_data(self.lake, scale=SCALE, parts=4)
        self.open = contextlib.ExitStack()

    def env(self, target: str, **variables: str) -> dict[str, str]:
        """What a process of a system is told."""
        folder = self.home / target.replace(" ", "-")
        folder.mkdir(exist_ok=True)
        return {
            **os.environ,
            "BENCH_SOURCE": self.source,
            "BENCH_TARGET": self.targets[target],
            "BENCH_HOME": str(folder),
            "BENCH_LAKE": str(self.lake),
            "BENCH_NOTES": str(NOTES),
            "EMATIX_FLOW_HOME": str(folder),
            **variables,
        }

    def crew(self, count: int) -> dict[str, str]:
        """Workers until the field is left; what a driver has to know of them."""
        folder = Path(tempfile.mkdtemp(dir=self.home)) / "workers"
        return self.open.enter_context(workers(folder, self.authority, count)).variables

    def ours(self, name: str, count: int) -> Loader:
        """A driver with that many workers."""
        script = str(HERE / "rivals" / "cluster_loads.py")
        return self._held(name, [sys.executable, script], self.env(name, **self.crew(count)))

    def by_hand(self, name: str, slots: int, on: Standalone | None = None) -> Loader:
        """Without a cluster it is Spark alone, with that many threads."""
        return self._held(name, [sys.executable, _BY_HAND], self.env(name, **_by_hand(slots, on)))

    def standalone(self, *, secured: bool) -> Standalone:
        """A cluster of Spark's own with two workers."""
        folder = Path(tempfile.mkdtemp(dir=self.home)) / "standalone"
        return self.open.enter_context(standalone(folder, count=2, secured=secured))

    def _held(self, name: str, command: list[str], env: dict[str, str]) -> Loader:
        loader = Loader(name, command, env)
        self.open.callback(loader.close)
        return loader


_BY_HAND = str(HERE / "rivals" / "spark_loads.py")


def _by_hand(slots: int, on: Standalone | None) -> dict[str, str]:
    told = {
        "BENCH_SLOTS": str(slots),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    if on is None:
        return {**told, "BENCH_MASTER": f"local[{slots}]"}
    # In a file, because a command line could be read by anybody.
    settings = f"--properties-file {on.settings} pyspark-shell"
    return {**told, "BENCH_MASTER": on.master, "PYSPARK_SUBMIT_ARGS": settings}


def until_first_task(command: list[str], env: dict[str, str]) -> float:
    """From nothing to the end of one empty task."""
    told = {**env, "BENCH_BEGAN": str(time.time())}
    done = subprocess.run(command, env=told, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def warmed(loaders: Mapping[str, Loader], loads: list[str]) -> dict[str, list[float]]:
    """Every load by every system, interleaved; the first round is not counted."""
    runs: dict[str, Callable[[], float]] = {
        f"{load}: {name}": (lambda one=loader, what=load: one.load(what))
        for load in loads
        for name, loader in loaders.items()
    }
    interleaved(runs, rounds=1)
    return interleaved(runs, rounds=ROUNDS)


def measure_loads(field: Field) -> dict[str, list[float]]:
    cluster = field.standalone(secured=False)
    loaders = {workers_of(count): field.ours(workers_of(count), count) for count in CREWS}
    loaders[hand(2)] = field.by_hand(hand(2), 2, cluster)
    loaders[alone(2)] = field.by_hand(alone(2), 2)
    return warmed(loaders, list(LOADS))


def workers_of(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


def hand(count: int) -> str:
    return f"standalone Spark by hand, {workers_of(count)}"


def alone(threads: int) -> str:
    return f"Spark by hand, local[{threads}]"


def measure_forming(field: Field) -> dict[str, list[float]]:
    """Ours starts a master and workers for the run; the other cluster is there already."""
    script = str(HERE / "rivals" / "cluster_loads.py")
    there = field.env(hand(2), **_by_hand(2, field.standalone(secured=False)))
    submit = [SUBMIT, "--master", there["BENCH_MASTER"], _BY_HAND, "form"]
    crews = {count: field.env(workers_of(count), **field.crew(count)) for count in CREWS}
    runs: dict[str, Callable[[], float]] = {
        f"first task: {workers_of(count)}": (
            lambda env=env: until_first_task([sys.executable, script, "form"], env)
        )
        for count, env in crews.items()
    }
    runs["first task: spark-submit to a cluster that is up"] = lambda: until_first_task(
        submit, there
    )
    # The first start leaves an archive of classes for the others.
    interleaved(runs, rounds=1)
    return interleaved(runs, rounds=ROUNDS)


def measure_security(field: Field) -> dict[str, list[float]]:
    clusters = {
        "in the clear": field.standalone(secured=False),
        "encrypted": field.standalone(secured=True),
    }
    loaders = {name: field.by_hand(hand(2), 2, cluster) for name, cluster in clusters.items()}
    return warmed(loaders, ["shuffle", "scan"])


def measure_costs(field: Field) -> dict[str, list[float]]:
    """Where one load differs from another in one thing only."""
    one, two = (field.ours(workers_of(count), count) for count in CREWS)
    loads = ("100 requests", "few rows in 2", "few rows in 50", "copied")
    taken: dict[str, list[float]] = {}
    for turn in range(ROUNDS + 1):
        forget(field.targets[workers_of(1)])
        measured = {f"{load}: {workers_of(1)}": one.load(load) for load in loads}
        # The first has created the table, the second adds to it.
        measured |= {f"{load}, again: {workers_of(1)}": one.load(load) for load in loads[1:]}
        measured |= {f"{n} tasks: {workers_of(2)}": two.load(f"{n} tasks") for n in (100, 1100)}
        for name, seconds in measured.items():
            print(f"round {turn}: {name} {seconds:.3f} s", flush=True)
            if turn:
                taken.setdefault(name, []).append(seconds)
    return taken


def measure_server(field: Field) -> dict[str, list[float]]:
    """How fast one connection of the server takes rows, from whoever sends them."""
    target = field.targets[workers_of(1)]
    out = "COPY bench.many TO STDOUT (FORMAT BINARY)"
    with psycopg.connect(field.source) as raw, raw.cursor().copy(out) as rows:
        content = b"".join(bytes(chunk) for chunk in rows)

    def copy() -> float:
        with psycopg.connect(target) as raw, raw.cursor() as cursor:
            cursor.execute("CREATE UNLOGGED TABLE taken (id bigint, note text)")
            began = time.perf_counter()
            with cursor.copy("COPY taken FROM STDIN (FORMAT BINARY)") as rows:
                rows.write(content)
            seconds = time.perf_counter() - began
            raw.rollback()
        return seconds

    return interleaved({"COPY into one connection": copy}, rounds=ROUNDS)


PARTS = {
    "loads": measure_loads,
    "forming": measure_forming,
    "security": measure_security,
    "costs": measure_costs,
    "server": measure_server,
}


def bars_of(taken: Mapping[str, list[float]]) -> list[Bar]:
    """What is promised of all that was measured."""

    def ratio(ours: str, theirs: str) -> float:
        return median_ratio(taken[ours], taken[theirs])

    goals = {"transform": 0.65, "tpch": 0.8}
    bars = [
        Bar(f"{LOADS[load]}: 2 workers / 1 worker", ratio(*_pair(load, 2, 1)), goal)
        for load, goal in goals.items()
    ]
    bars += [
        Bar(
            f"{LOADS[load]}, 2 workers: ours / written by hand for standalone Spark",
            ratio(f"{load}: {workers_of(2)}", f"{load}: {hand(2)}"),
            goal,
        )
        for load, goal in {"transform": 1.1, "tpch": 1.3}.items()
    ]
    up = "first task: spark-submit to a cluster that is up"
    first = f"first task: {workers_of(2)}"
    bars.append(Bar("first task: 2 workers, not up yet / spark-submit, up", ratio(first, up), 1.5))
    shuffled = ratio("shuffle: encrypted", "shuffle: in the clear")
    bars.append(Bar("shuffle, authenticated and encrypted / in the clear", shuffled, 1.5))
    return bars


def _pair(load: str, ours: int, theirs: int) -> tuple[str, str]:
    return f"{load}: {workers_of(ours)}", f"{load}: {workers_of(theirs)}"


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="ematix-bench-"))
    names = [workers_of(c) for c in CREWS] + [hand(2), alone(2)]
    taken: dict[str, list[float]] = {}
    try:
        with databases(*names) as (source, targets):
            fill(source)
            field = Field(home, source, targets)
            for measured in PARTS.values():
                with field.open:
                    taken |= measured(field)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    constants = Constants.of(taken, notes=NOTES, many=MANY, scale=SCALE)
    (HERE / "results" / "scaling.json").write_text(json.dumps(asdict(constants), indent=2) + "\n")
    renew(HERE.parent / "docs" / "concepts" / "scaling.md", constants)
    return report(
        "cluster", bars=bars_of(taken), taken=taken, packages=("ematix-flow", "pyspark", "duckdb")
    )


if __name__ == "__main__":
    sys.exit(main())
