"""Machines that die, fall silent or stand still in the middle of a load: the rows are right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ematix_flow.engine.session import current_engine

from . import work
from .conftest import IMPATIENT
from .crew import Worker, descendants, wait_until
from .work import Gate, begun

pytestmark = pytest.mark.slow


@pytest.fixture
def driver(driver_variables: dict[str, str], impatient_driver: None) -> dict[str, str]:
    """What such a driver is told."""
    return {**driver_variables, "EMATIX_FLOW_PEER_TIMEOUT": IMPATIENT}


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    yield from work.user_module(tmp_path)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    "loss",
    [
        "killed",
        pytest.param("unplugged", marks=pytest.mark.soak),
        pytest.param("standing still", marks=pytest.mark.soak),
    ],
)
def test_a_worker_that_is_lost_in_the_middle_of_a_load(
    *,
    loss: str,
    origin: str,
    warehouse: str,
    module: ModuleType,
    gate: Gate,
    crew: list[Worker],
) -> None:
    expected = work.fill(origin)
    pipeline = work.pipeline(module, gate, [w.address for w in crew])
    running = begun(pipeline, gate, crew)
    lost = crew[1]
    if loss == "killed":
        lost.signal(signal.SIGKILL)
    elif loss == "unplugged":
        lost.machine.unplug()
    else:
        lost.signal(signal.SIGSTOP)
    gate.open()
    result = running.result()
    assert result.counts.inserted == work.ROWS
    assert work.loaded(warehouse) == expected
    assert work.litter(warehouse) == []
    assert current_engine() is None
    if loss == "unplugged":
        # It does not hear that the run is over, and ends it by itself.
        wait_until(lambda: not lost.spark_processes, what="the lost worker ends by itself")
        assert "its driver has fallen silent" in lost.log.read_text()


DRIVER = """
import os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {folder!r}]
from ematix_flow.connections import PostgresConnection
from ematix_flow.registry import register_connection
from cluster import work
import gate_of_user
register_connection(PostgresConnection(name="origin", url=os.environ["ORIGIN"]))
register_connection(PostgresConnection(name="warehouse", url=os.environ["WAREHOUSE"]))
gate = work.Gate.__new__(work.Gate)
gate.folder = Path({gate!r})
print(work.pipeline(gate_of_user, gate, {peers!r}).sync().counts.inserted)
"""


@pytest.mark.soak
def test_a_driver_that_is_killed(
    *,
    origin: str,
    warehouse: str,
    module: ModuleType,
    gate: Gate,
    crew: list[Worker],
    tmp_path: Path,
    driver: dict[str, str],
) -> None:
    expected = work.fill(origin)
    peers = [w.address for w in crew]
    script = DRIVER.format(
        tests=str(Path(__file__).parent.parent),
        folder=str(tmp_path),
        gate=str(gate.folder),
        peers=peers,
    )
    variables = {"ORIGIN": origin, "WAREHOUSE": warehouse, **driver}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, **variables},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )

    with start() as first:
        try:
            wait_until(
                lambda: all(gate.at(w.machine.address) for w in crew), what="work", seconds=90
            )
            below = descendants(first.pid)
            assert below
        finally:
            first.kill()
    wait_until(
        lambda: not any(Path(f"/proc/{process}").exists() for process in below),
        what="the driver's JVM is gone",
    )
    # The next run waits until the peers have noticed.
    gate.open()
    with start() as second:
        said, _ = second.communicate(timeout=150)
    assert said.split() == [str(work.ROWS)]
    assert work.loaded(warehouse) == expected
    assert work.litter(warehouse) == []
    for worker in crew:
        text = worker.log.read_text()
        assert text.count("its driver has fallen silent") == 1, text
        wait_until(lambda held=worker: not held.spark_processes, what="all workers are gone")  # type: ignore[misc]


@pytest.mark.soak
@pytest.mark.usefixtures("driver")
def test_all_peers_are_lost(
    origin: str, warehouse: str, module: ModuleType, gate: Gate, crew: list[Worker]
) -> None:
    work.fill(origin)
    running = begun(work.pipeline(module, gate, [w.address for w in crew]), gate, crew)
    for worker in crew:
        worker.signal(signal.SIGKILL)
    with pytest.raises(Exception, match="all peers are gone: ") as caught:
        running.result()
    assert crew[0].address in str(caught.value)
    assert work.loaded(warehouse) == []
