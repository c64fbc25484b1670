"""Systems side by side: rivals installed on first use, each in a process of its own, and data."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from measure import HERE

sys.path.insert(0, str(HERE.parent))
from services.harness import Harness, available

PEER = "ematix-flow 1.0.0"
# What each rival needs, and the script that drives it; no packages: our own interpreter will do.
RIVALS: dict[str, tuple[list[str], list[str]]] = {
    PEER: (["ematix-flow==1.0.0"], ["flow_loads.py"]),
    "dlt": (
        [
            "dlt[postgres,sql_database]",
            "connectorx",
            "pyarrow",
            "psycopg[binary]",
            "psycopg2-binary",
            "pandas",
            "adbc-driver-postgresql",
        ],
        ["dlt_loads.py", "connectorx"],
    ),
    "default Spark JDBC": ([], ["jdbc_loads.py"]),
    "DuckDB": (
        [
            "duckdb==1.5.5",
            "duckdb-extension-postgres-scanner==1.5.5",
            "duckdb-extension-mysql-scanner==1.5.5",
        ],
        ["duckdb_loads.py"],
    ),
    # The package that brings the program with it; newer ones fetch it when first run.
    "Sling": (["sling-linux-amd64==1.4.11"], ["sling_loads.py"]),
}


def environment(name: str) -> Path:
    """The Python of a rival, installed on first use."""
    home = HERE.parent / ".cache" / "bench" / name.replace(" ", "-")
    python = home / "bin" / "python"
    if not python.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", str(home)], check=True)
        install = [uv, "pip", "install", "-q", "--python", str(python), *RIVALS[name][0]]
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


def fill_mysql(url: str, rows: int) -> None:
    """The same rows in MySQL."""
    import pymysql

    with pymysql.connect(**named_in(url), autocommit=True) as raw, raw.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS orders")
        cursor.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, "
            "status varchar(10) NOT NULL, amount decimal(12, 2) NOT NULL, ratio double NOT NULL, "
            "note varchar(60) NOT NULL, updated_at datetime(6) NOT NULL)"
        )
        cursor.execute("SET SESSION cte_max_recursion_depth = %s", (rows,))
        cursor.execute(
            "INSERT INTO orders WITH RECURSIVE counted (g) AS "
            "(SELECT 1 UNION ALL SELECT g + 1 FROM counted WHERE g < %s) "
            "SELECT g, g * 7919 %% 50000, ELT(1 + g %% 4, 'new', 'paid', 'sent', 'back'), "
            "g %% 100000 / 4, SQRT(g), CONCAT('note ', LEFT(SHA2(g, 256), 32)), "
            "TIMESTAMP '2026-01-01 00:00:00' + INTERVAL g SECOND FROM counted",
            (rows,),
        )
        cursor.execute("ANALYZE TABLE orders")


def named_in(url: str) -> dict[str, Any]:
    """What a URL says of a MySQL database, as drivers take it."""
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": unquote(parts.password or ""),
        "database": parts.path[1:],
    }


def forget(url: str) -> None:
    """An empty target."""
    with psycopg.connect(url, autocommit=True) as raw:
        for (schema,) in raw.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'bench%' "
            "OR nspname = 'ematix_flow'"
        ).fetchall():
            raw.execute(f'DROP SCHEMA "{schema}" CASCADE')


@contextlib.contextmanager
def databases(*names: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A source, and a target for each system, on a server of this benchmark."""
    with served("postgres") as server, contextlib.ExitStack() as stack:
        source, *made = (stack.enter_context(made_in(server)) for _ in ("source", *names))
        yield source, dict(zip(names, made, strict=True))


@contextlib.contextmanager
def made_in(server: Any) -> Iterator[str]:
    """A database of a server, for as long as it is needed."""
    url = server.create_database()
    try:
        yield url
    finally:
        server.drop_database(url.rsplit("/", 1)[1])


@contextlib.contextmanager
def served(name: str) -> Iterator[Any]:
    """A server of this benchmark."""
    service = available()[name]
    harness = Harness(service)
    endpoint = harness.acquire(os.getpid())
    try:
        yield service.client(endpoint)
    finally:
        harness.release(os.getpid())


def loaders(source: str, targets: dict[str, str], home: Path, **more: str) -> dict[str, Loader]:
    """Every system, started and waiting; ``more`` goes into their environment."""
    return {name: _loader(name, source, target, home, more) for name, target in targets.items()}


def _loader(name: str, source: str, target: str, home: Path, more: dict[str, str]) -> Loader:
    place = home / name.replace(" ", "-")
    place.mkdir()
    env = {
        **os.environ,
        **more,
        "BENCH_SOURCE": source,
        "BENCH_TARGET": target,
        "BENCH_HOME": str(place),
        "BENCH_FILES": str(home),
        "EMATIX_FLOW_HOME": str(place),
    }
    packages, script = RIVALS.get(name, ([], ["flow_loads.py"]))
    if packages:
        env["HOME"] = str(place)
        env.pop("PYTHONPATH", None)
    if name == PEER:
        env["BENCH_PEER"] = "1"
        # It does not look at connections that are registered in Python.
        env["EMATIX_FLOW_DSN_BENCH_SOURCE"] = source
        env["EMATIX_FLOW_DSN_BENCH_TARGET"] = target
    python = str(environment(name)) if packages else sys.executable
    return Loader(name, [python, str(HERE / "rivals" / script[0]), *script[1:]], env)
