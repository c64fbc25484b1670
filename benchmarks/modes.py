"""What the load modes cost: a first load and 1 % of changes, beside ematix-flow 1.0.0 and dlt.

Rows go from one PostgreSQL database to another. Every system keeps its process, so that sessions
are warm; a cold start is measured apart. Also: that a fixed number of changed rows costs the same
into tables of 1, 4 and 16 times the size, and what memory 5 M and 20 M rows take.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from measure import HERE, Bar, median_ratio, report

sys.path.insert(0, str(HERE.parent))
from ematix_flow.engine.settings import derive
from services.harness import Harness, available

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
MODES = ("append", "merge", "scd2")
RIVALS = {
    "ematix-flow 1.0.0": ["ematix-flow==1.0.0"],
    "dlt": [
        "dlt[postgres,sql_database]",
        "connectorx",
        "pyarrow",
        "psycopg[binary]",
        "psycopg2-binary",
        "pandas",
        "adbc-driver-postgresql",
    ],
}
GOALS = {"ematix-flow 1.0.0": 0.5, "dlt": 0.65}
KEYED = ("merge", "scd2")
PATHS = {"append": "copied", "spark": "through Spark"}
CHANGED = 10_000
# A load that takes longer is ended, and counts as if it had taken this long.
LIMIT = 40.0
SIZES = (1, 4, 16)
LARGE = tuple(int(n) for n in os.environ.get("BENCH_LARGE", "5000000,20000000").split(","))
SLACK = 1.5e9


def environment(name: str) -> Path:
    """The Python of a rival, installed on first use."""
    home = HERE.parent / ".cache" / "bench" / name.replace(" ", "-")
    python = home / "bin" / "python"
    if not python.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", str(home)], check=True)
        install = [uv, "pip", "install", "-q", "--python", str(python), *RIVALS[name]]
        subprocess.run(install, check=True)
    return python


class Loader:
    """A system in a process of its own that loads on demand."""

    def __init__(self, name: str, command: list[str], env: dict[str, str]) -> None:
        self.name, self._command, self._env = name, command, env
        self._start()

    def _start(self) -> None:
        log = HERE / "results" / f"{self.name.replace(' ', '-')}.log"
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._env,
                start_new_session=True,
            )
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        self._answer("ready", None)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put(line.strip())
        self._answers.put(None)

    def _answer(self, wanted: str | None, limit: float | None) -> str:
        while (text := self._answers.get(timeout=limit)) is not None:
            if text == wanted or (wanted is None and text.replace(".", "", 1).isdigit()):
                return text
        raise SystemExit(f"{self.name} ended; see benchmarks/results/")

    def load(self, mode: str, *, limit: float | None = None) -> float:
        """The seconds that one load took; the limit itself where it took longer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{mode}\n")
        self.process.stdin.flush()
        try:
            return float(self._answer(None, limit))
        except queue.Empty:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            hang_up(self._env["BENCH_TARGET"])
            # What it kept on disk belongs to the load that was ended.
            shutil.rmtree(self._env["BENCH_HOME"])
            Path(self._env["BENCH_HOME"]).mkdir()
            self._start()
            return limit or 0.0

    def close(self) -> None:
        """Let the process end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def hang_up(url: str) -> None:
    """End what a killed process has left running in its database."""
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def fill(url: str, rows: int) -> None:
    """The source: seven columns, one of them a growing time."""
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("CREATE SCHEMA IF NOT EXISTS bench")
        raw.execute("DROP TABLE IF EXISTS bench.orders")
        raw.execute(
            "CREATE TABLE bench.orders AS SELECT g::bigint AS id, "
            "(g::bigint * 7919 %% 50000)::int AS "
            "customer, (ARRAY['new', 'paid', 'sent', 'back'])[1 + g %% 4] AS status, "
            "(g %% 100000)::numeric(12, 2) / 4 AS amount, sqrt(g)::float8 AS ratio, "
            "'note ' || md5(g::text) AS note, timestamptz '2026-01-01' + g * interval '1 second' "
            "AS updated_at FROM generate_series(1, %s) g",
            (rows,),
        )
        raw.execute("ALTER TABLE bench.orders ALTER amount TYPE numeric(12, 2)")
        raw.execute("ALTER TABLE bench.orders ADD PRIMARY KEY (id)")
        raw.execute("VACUUM ANALYZE bench.orders")


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


def forget(url: str) -> None:
    """An empty target."""
    with psycopg.connect(url, autocommit=True) as raw:
        for (schema,) in raw.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'bench%' "
            "OR nspname = 'ematix_flow'"
        ).fetchall():
            raw.execute(f'DROP SCHEMA "{schema}" CASCADE')


@contextlib.contextmanager
def databases() -> Iterator[tuple[str, dict[str, str]]]:
    """A source, and a target for each system, on a server of this benchmark."""
    harness = Harness(available()["postgres"])
    endpoint = harness.acquire(os.getpid())
    server = available()["postgres"].client(endpoint)
    source = server.create_database()
    targets = {name: server.create_database() for name in ("ours", *RIVALS)}
    try:
        yield source, targets
    finally:
        for url in (source, *targets.values()):
            server.drop_database(url.rsplit("/", 1)[1])
        harness.release(os.getpid())


def loaders(source: str, targets: dict[str, str], home: Path) -> dict[str, Loader]:
    """Every system, started and waiting."""
    started = {}
    for name, target in targets.items():
        place = home / name.replace(" ", "-")
        place.mkdir()
        env = {
            **os.environ,
            "BENCH_SOURCE": source,
            "BENCH_TARGET": target,
            "BENCH_HOME": str(place),
            "EMATIX_FLOW_HOME": str(place),
            "HOME": str(place) if name != "ours" else os.environ.get("HOME", ""),
        }
        if name != "ours":
            env.pop("PYTHONPATH", None)
        if name == "ours":
            command = [sys.executable, str(HERE / "rivals" / "flow_loads.py")]
        elif name == "dlt":
            command = [str(environment(name)), str(HERE / "rivals" / "dlt_loads.py"), "connectorx"]
        else:
            env["BENCH_PEER"] = "1"
            # It does not look at connections that are registered in Python.
            env["EMATIX_FLOW_DSN_BENCH_SOURCE"] = source
            env["EMATIX_FLOW_DSN_BENCH_TARGET"] = target
            command = [str(environment(name)), str(HERE / "rivals" / "flow_loads.py")]
        started[name] = Loader(name, command, env)
    return started


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
                for name, system in systems.items():
                    seconds = system.load(mode, limit=LIMIT)
                    print(f"round {turn}: {mode} {phase} {name} {seconds:.2f} s", flush=True)
                    # The first round warms sessions, caches and compilers.
                    if turn:
                        taken.setdefault(f"{mode} {phase}: {name}", []).append(seconds)
    return taken


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
        raw.execute("UPDATE bench.orders SET note = 'again ' || %s", (str(turn),))
        raw.execute("VACUUM ANALYZE bench.orders")


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="ematix-bench-"))
    try:
        with databases() as (source, targets):
            systems = loaders(source, targets, home)
            taken = measure_modes(source, targets, systems)
            growth = measure_growth(source, targets["ours"], systems["ours"])
            for system in systems.values():
                system.close()
            peer = "ematix-flow 1.0.0"
            memory = {
                (mode, rows): peak_memory(source, targets["ours"], rows, mode, home)
                for rows in LARGE
                for mode in PATHS
            }
            fill(source, ROWS)
            cold: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                for name in ("ours", peer):
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
            "append with a cold start, against ematix-flow 1.0.0",
            median_ratio(cold["cold append: ours"], cold[f"cold append: {peer}"]),
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
