"""Server processes that outlive whoever started them: launch, recognise again, stop."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_children: dict[int, subprocess.Popen[bytes]] = {}

LOW_PORT, HIGH_PORT = 20_000, 32_000
POLL_SECONDS = 0.05


def launch(command: list[str], *, home: Path, log: Path, account: str | None) -> int:
    """Start a server in its own session, its output going to ``log``; return its id."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "HOME": str(home)},
            user=account,
            group=account,
            extra_groups=None if account is None else (),
        )
    _children[child.pid] = child
    return child.pid


def birth(pid: int) -> str:
    """Return a text that tells this process from a later one with the same id; "" if gone."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        return ""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] == "Z" else fields[19]
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return answer.stdout.strip()


def stop(pid: int, born: str, *, timeout: float = 30) -> None:
    """Ask a server to end, insist after ``timeout`` seconds; a stranger's id is left alone."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        if birth(pid) != born:
            break
        os.kill(pid, sign)
        wait_until(lambda: birth(pid) != born, timeout=timeout)
    child = _children.pop(pid, None)
    if child is not None:
        # One that has just ended may not have been collected yet.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout)


def wait_until(done: Callable[[], bool], *, timeout: float) -> bool:
    """Poll a condition until it holds or time is up; return whether it held."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def free_port() -> int:
    """Return a loopback port nobody listens on.

    It lies below the range the kernel uses for outgoing connections, so none of those can
    take it before the server does.
    """
    ports = list(range(LOW_PORT, HIGH_PORT))
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {LOW_PORT} and {HIGH_PORT}")
