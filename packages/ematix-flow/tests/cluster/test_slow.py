"""A machine that is far slower than the others: its task is begun once more, and lands once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ematix_flow.engine.session import current_engine, run_session

from . import work
from .crew import Worker
from .work import Gate, begun

pytestmark = [pytest.mark.slow, pytest.mark.soak]

# A machine that works for a twentieth of the time.
AT_WORK, AT_REST = 0.01, 0.19
# About half a second of work for one that is not slowed down.
TOIL = 400_000


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    yield from work.user_module(tmp_path)


@contextlib.contextmanager
def slowed(worker: Worker) -> Iterator[None]:
    """Let all processes of a worker stand still for most of the time."""
    over = threading.Event()

    def tell(number: signal.Signals) -> None:
        for process in worker.spark_processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def slow() -> None:
        while not over.is_set():
            tell(signal.SIGSTOP)
            over.wait(AT_REST)
            tell(signal.SIGCONT)
            over.wait(AT_WORK)

    thread = threading.Thread(target=slow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        tell(signal.SIGCONT)


def second_tries(engine: Any) -> list[tuple[str, str]]:
    """Host and end of each attempt that Spark made because another took too long."""
    store = engine.spark.sparkContext._jsc.sc().statusStore()
    unset = [getattr(store, f"stageList$default${number}")() for number in (4, 5)]
    stages = store.stageList(None, False, False, *unset)
    found = []
    for i in range(stages.size()):
        stage = stages.apply(i)
        tasks = store.taskList(stage.stageId(), stage.attemptId(), 1000)
        for j in range(tasks.size()):
            task = tasks.apply(j)
            if task.speculative():
                found.append((str(task.host()), str(task.status())))
    return found


@pytest.mark.usefixtures("driver")
def test_a_slow_worker(
    *,
    origin: str,
    warehouse: str,
    module: ModuleType,
    gate: Gate,
    crew: list[Worker],
) -> None:
    expected = work.fill(origin)
    pipeline = work.pipeline(module, gate, [w.address for w in crew], toil=TOIL)
    fast, slow = crew
    with run_session():
        running = begun(pipeline, gate, crew)
        held = {name.split()[1] for name in gate.at(slow.machine.address)}
        with slowed(slow):
            gate.open()
            result = running.result()
        engine: Any = current_engine()
        tries = second_tries(engine)
    assert (fast.machine.address, "SUCCESS") in tries
    # What the slow one had begun, the other one has begun, too.
    again = {name.split()[1] for name in gate.at(fast.machine.address) if not name.endswith(" 0")}
    assert again
    assert again <= held
    assert result.counts.inserted == work.ROWS
    assert work.loaded(warehouse) == expected
    assert work.litter(warehouse) == []
