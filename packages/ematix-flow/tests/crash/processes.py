"""Who a process's relatives are and what they hold, as Linux tells it."""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path

from crash.child import PATIENCE

_PROC = Path("/proc")


def parent_of(pid: int) -> int:
    """The process that started another."""
    told = (_PROC / str(pid) / "stat").read_text()
    return int(told.rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[int]:
    """The processes that one has started and that are still there."""
    found: list[int] = []
    for task in (_PROC / str(pid) / "task").iterdir():
        with contextlib.suppress(OSError):
            found += (int(child) for child in (task / "children").read_text().split())
    return found


def siblings(pid: int) -> list[int]:
    """All processes with the same parent."""
    return children_of(parent_of(pid))


def java_below(pid: int) -> int:
    """The only JVM that a process has started, by itself or through others."""
    waiting, found = [pid], []
    while waiting:
        held = waiting.pop()
        waiting += children_of(held)
        if (_PROC / str(held) / "comm").read_text().strip() == "java":
            found.append(held)
    (jvm,) = found
    return jvm


def holds_connection_to(pid: int, port: int) -> bool:
    """Whether a process has an open connection to a port of this machine."""
    lines = (_PROC / "net/tcp").read_text().splitlines()[1:]
    columns = [line.split() for line in lines]
    sockets = {f"socket:[{c[9]}]" for c in columns if c[2].endswith(f":{port:04X}")}
    with contextlib.suppress(OSError):
        for handle in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(handle) in sockets:
                    return True
    return False


def wait_for_end_of(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(PATIENCE * 1000), f"process {pid} is still there"
    finally:
        os.close(handle)
