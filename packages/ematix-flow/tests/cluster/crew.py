"""Real ``flow-worker`` processes on the machines of a network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .network import Credentials, Machine

PORT = 9000


def wait_until(met: Callable[[], bool], *, what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.05)


def descendants(process: int) -> list[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            parent = int(text.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [process]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found


@dataclass
class Worker:
    """A ``flow-worker`` and what it has written."""

    machine: Machine
    credentials: Credentials
    folder: Path
    cores: int = 1
    port: int = PORT
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def address(self) -> str:
        return f"https://{self.machine.address}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        program = Path(sys.executable).with_name("flow-worker")
        listen = ("--listen", f"{self.machine.address}:{self.port}")
        lent = ("--cores", str(self.cores), "--memory", "1g")
        arguments = [str(program), *listen, *lent, *self.credentials.options()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.machine.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        wait_until(lambda: "listening on" in self.log.read_text(), what="flow-worker listens")

    @property
    def spark_processes(self) -> list[int]:
        """The Spark worker, its executors and their Python processes."""
        assert self.process is not None
        return descendants(self.process.pid)

    def signal(self, number: signal.Signals, *, whole: bool = True) -> None:
        """To ``flow-worker`` and, with ``whole``, to all that it has started."""
        assert self.process is not None
        for process in [self.process.pid, *(self.spark_processes if whole else [])]:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue

    def stop(self) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.terminate()
        try:
            return process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
