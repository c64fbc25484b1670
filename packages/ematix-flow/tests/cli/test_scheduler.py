"""``flow scheduler`` with real workers: they are killed, it is killed, it is told to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from ematix_flow.run.log import open_run_log

from .conftest import CONNECTION, Flow

PATIENCE = 90
SECONDS = (
    CONNECTION
    + """
import os
import time
from pathlib import Path


@ematix.pipeline(
    target=Numbers, target_connection="warehouse", schedule="*/2 * * * * *", catchup="all"
)
def seconds(run):
    if Path("hold").exists():
        Path(f"held-{os.getpid()}").touch()
        time.sleep(600)
    return f"SELECT {run.slot.timestamp():.0f}::BIGINT AS number, 'x' AS word"
"""
)


@pytest.fixture(autouse=True)
def declared(folder: Path) -> None:
    (folder / "pipelines.py").write_text(SECONDS)
    (folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')


Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts schedulers that look often and are quick to give one another up."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        quick = ["--poll-interval", "0.2", "--lease-seconds", "3", "--leader-lease-seconds", "2"]
        process = subprocess.Popen(
            [sys.executable, "-m", "ematix_flow.cli.main", "scheduler", *quick, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def loaded() -> list[int]:
    with duckdb.connect("warehouse.duckdb", read_only=True) as held:
        return [n for (n,) in held.sql("SELECT number FROM shop.numbers").fetchall()]


def succeeded() -> int:
    """How many runs have; DuckDB's file is for the workers alone."""
    with contextlib.closing(open_run_log()) as log:
        return len(log.list(status="succeeded", limit=1000))


def leaders() -> list[str]:
    """Who leads by the run log."""
    with contextlib.closing(open_run_log()) as log:
        turns = [held.turn for held in log.standings(["@scheduler"]).values()]
        return [turn.holder or "" for turn in turns if turn.is_claimed(log.clock())]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def slots(numbers: list[int]) -> None:
    """Each once, none left out between the first and the last."""
    assert set(Counter(numbers).values()) == {1}
    assert sorted(numbers) == list(range(min(numbers), max(numbers) + 1, 2))


def test_it_stops_when_it_has_looked_often_enough(flow: Flow) -> None:
    said = flow("scheduler", "--poll-interval", "0.5", "--max-iterations", "6")
    assert (said.code, said.out.splitlines()[-1]) == (0, "The scheduler has stopped.")
    slots(loaded())


def test_workers_and_leaders_that_are_killed_are_taken_over_from(
    flow: Flow, folder: Path, begin: Begin
) -> None:
    both = [begin(), begin()]
    wait_for(succeeded)
    (folder / "hold").touch()
    wait_for(lambda: list(folder.glob("held-*")))
    (folder / "hold").unlink()
    (held,) = folder.glob("held-*")
    worker = int(held.name.removeprefix("held-"))
    (leader,) = [p for p in both if worker in children(p.pid)]
    (rest,) = [p for p in both if p is not leader]
    os.kill(worker, signal.SIGKILL)
    before = succeeded()
    wait_for(lambda: succeeded() > before)
    leader.kill()
    before = succeeded()
    wait_for(lambda: succeeded() > before + 1)
    rest.send_signal(signal.SIGTERM)
    out, err = rest.communicate(timeout=PATIENCE)
    assert rest.returncode == 0, err
    assert out.splitlines()[-1] == "The scheduler has stopped."
    slots(loaded())
    runs = flow("runs", "list", "--limit", "500", "--format", "json").json["runs"]
    assert {r["trigger"] for r in runs} == {"scheduler"}
    assert {r["status"] for r in runs} <= {"succeeded", "failed"}


def test_told_twice_to_stop_it_stops_its_workers(flow: Flow, folder: Path, begin: Begin) -> None:
    (folder / "hold").touch()
    scheduler = begin()
    wait_for(lambda: list(folder.glob("held-*")))
    scheduler.send_signal(signal.SIGTERM)
    # It has heard the first when it leaves the lead to others.
    wait_for(lambda: not leaders())
    assert scheduler.poll() is None
    scheduler.send_signal(signal.SIGTERM)
    scheduler.communicate(timeout=PATIENCE)
    assert scheduler.returncode == 0
    (folder / "hold").unlink()
    (run,) = flow("runs", "list", "--format", "json").json["runs"]
    assert run["status"] == "cancelled"
    # The slot is still to be done.
    assert flow("scheduler", "--poll-interval", "0.5", "--max-iterations", "4").code == 0
    slots(loaded())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--executor", "threads://"], "there is no executor 'threads://'"),
        (["--executor", "k8s://jobs?image=x"], "an executor k8s:// is not available yet"),
        (["--executor", "subprocess://here"], "subprocess:// takes nothing after it, not 'here'"),
        (["--run-log", "/proc/none/x.db"], "what has fired is kept in the run log, and it cannot"),
        (["--no-run-log"], "a scheduler and its workers meet in the run log, and this one no"),
        (["--run-log", "memory://"], "a scheduler and its workers meet in the run log, and this"),
        (["--metrics", "prometheus://:9100"], "workers of a scheduler end before Prometheus asks"),
        (["--poll-interval", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_what_cannot_be_done_says_so(flow: Flow, arguments: list[str], message: str) -> None:
    said = flow("scheduler", "--max-iterations", "1", *arguments)
    assert said.code == 2
    assert message in said.err


def test_a_claim_that_is_not_good_runs_nothing(flow: Flow, folder: Path) -> None:
    said = flow("run", "seconds", "--claim-token", "stale")
    assert said.code == 1
    assert "the claim of this worker is not good any more" in said.err
    assert not (folder / "warehouse.duckdb").exists()
