"""Runs on Sail, each in a process of its own, as `flow run --engine sail` makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

PIPELINES = """
from typing import Annotated
from ematix_flow import BigInt, Date, Numeric, Text, ematix, pk


@ematix.connection
class files:
    kind = "object_store_local"
    path = "files"
    format = "csv"


@ematix.connection
class warehouse:
    kind = "duckdb"
    path = "warehouse.duckdb"


@ematix.table(schema="app")
class Orders:
    id: Annotated[BigInt, pk()]
    day: Date
    amount: Numeric[12, 2]
    note: Text | None


@ematix.pipeline(
    target=Orders, source_connection="files", source_table="orders.csv",
    target_connection="warehouse", mode="merge",
)
def load():
    pass


def note(target, spark):
    return f"CREATE TABLE app.noted AS SELECT '{type(spark).__module__}' AS module"


@ematix.pipeline(
    target=Orders, source_connection="files", source_table="orders.csv",
    target_connection="warehouse", mode="merge", transforms_post=[note],
)
def load_and_note():
    pass
"""
WATCHED = """
import os
from pathlib import Path
from ematix_flow.discovery import load_project
from ematix_flow.engine.session import open_now, run_session


def listening(*processes):
    # The sockets of these processes that listen on the network of this machine.
    lines = (Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()).splitlines()
    known = {f"socket:[{line.split()[9]}]" for line in lines if line.split()[3] == "0A"}
    held = [os.readlink(fd) for p in processes for fd in Path(f"/proc/{p}/fd").iterdir()
            if os.path.islink(fd)]
    return known & set(held)


with load_project(()) as project, run_session():
    project.pipeline("load").sync()
    engine = open_now()
    folder = engine._host.workspace.path
    process = engine._host._process.pid
    mode = oct(folder.stat().st_mode & 0o777)
    print(engine.kind, len(listening(os.getpid(), process)), mode, process, folder)
assert open_now() is None
assert not folder.exists()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    lines = ["id,day,amount,note"]
    lines += [f"{n},2024-01-{n % 28 + 1:02},{n}.5,{'' if n % 3 else 'é ' * n}" for n in range(200)]
    (tmp_path / "files" / "orders.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "pipelines.py").write_text(PIPELINES, encoding="utf-8")
    (tmp_path / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')
    return tmp_path


def _flow(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _python(project, "-m", "ematix_flow.cli.main", *arguments)


def _python(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env={**os.environ, "EMATIX_FLOW_ENGINE": "sail"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _rows(project: Path) -> list[tuple[object, ...]]:
    with duckdb.connect(str(project / "warehouse.duckdb")) as raw:
        return raw.execute("SELECT id, day, amount, note FROM app.orders ORDER BY id").fetchall()


def test_a_run_gives_what_the_file_says(project: Path) -> None:
    ended = _flow(project, "run", "load", "--engine", "sail")
    assert ended.returncode == 0, ended.stderr
    lines = (project / "files" / "orders.csv").read_text(encoding="utf-8").splitlines()[1:]
    shown = [
        (str(i), str(day), f"{amount:.1f}", note or "") for i, day, amount, note in _rows(project)
    ]
    assert shown == [tuple(line.split(",")) for line in lines]
    again = _flow(project, "run", "load", "--engine", "sail")
    assert f"{len(lines)} rows read, 0 inserted, {len(lines)} unchanged" in again.stdout


@pytest.mark.slow
def test_a_step_after_the_load_gets_spark(project: Path) -> None:
    ended = _flow(project, "run", "load_and_note")
    assert ended.returncode == 0, ended.stderr
    with duckdb.connect(str(project / "warehouse.duckdb")) as raw:
        assert raw.execute("SELECT module FROM app.noted").fetchall() == [("pyspark.sql.session",)]


def test_nobody_else_can_reach_it_and_nothing_stays(project: Path) -> None:
    ended = _python(project, "-c", WATCHED)
    assert ended.returncode == 0, ended.stderr
    kind, ports, mode, process, folder = ended.stdout.split()
    assert (kind, ports, mode) == ("sail", "0", "0o700")
    assert not Path(folder).exists()
    assert not Path(f"/proc/{process}").exists()
