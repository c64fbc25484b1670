"""The process behind the warm engine: it starts the server, watches over it and ends it.

Run as ``python -m ematix_flow.engine.warm_server SLOT IDLE_SECONDS [JAR]...`` by
``engine.warm_control``. The JVM ends when this process does, however it does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from ematix_flow.engine.cache import write_in_place
from ematix_flow.engine.clients import Client, departed_clients
from ematix_flow.engine.connect_server import ConnectServer, connect_server
from ematix_flow.engine.failures import translate
from ematix_flow.engine.session import configured
from ematix_flow.engine.warm import (
    SLOT_VARIABLE,
    Slot,
    expected_record,
    make_private,
    record_text,
)
from ematix_flow.errors import EngineError

_PAUSE = 0.5
_PATIENCE = 10.0
_WORKERS = "ematix_flow.engine.python_workers"
# Whose client is gone is ended by us; whose client waits is not.
_SESSION_TIMEOUT = "spark.connect.session.manager.defaultSessionTimeout"


def main(arguments: list[str]) -> int:
    """Serve until asked to stop, idle for too long, or the JVM is gone."""
    slot, idle, jars = Slot(Path(arguments[0])), float(arguments[1]), tuple(arguments[2:])
    for ignored in (signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    make_private(slot)
    try:
        with _held(slot):
            _serve(slot, idle, jars)
    except Exception as error:  # noqa: BLE001 - whoever started us reads why
        write_in_place(slot.failure, f"{translate(error)}\n")
        return 1
    return 0


@contextlib.contextmanager
def _held(slot: Slot) -> Iterator[None]:
    """The slot is ours; what a killed engine left in it is gone, before and after."""
    descriptor = os.open(slot.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                # Those who only look hold it for a moment.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EngineError("another engine is running here already") from None
                time.sleep(0.01)
        try:
            slot.clear()
            slot.failure.unlink(missing_ok=True)
            make_private(slot)
            yield
        finally:
            slot.clear()
    finally:
        os.close(descriptor)


def _serve(slot: Slot, idle: float, jars: tuple[str, ...]) -> None:
    settings = dataclasses.replace(configured(), jars=jars)
    token = secrets.token_urlsafe(32)
    expected = expected_record(settings, token)
    with connect_server(
        settings,
        token=token,
        conf={"spark.python.daemon.module": _WORKERS, _SESSION_TIMEOUT: "3650d"},
        environment={SLOT_VARIABLE: str(slot.path)},
        log=slot.log,
    ) as server:
        try:
            write_in_place(slot.token, token)
            record = dataclasses.replace(
                expected,
                jvm_process_id=server.process_id,
                port=server.port,
                started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                idle_seconds=idle,
            )
            threading.Thread(target=_warm_up, args=(server,), daemon=True).start()
            departed = False
            while not departed:
                write_in_place(slot.record, record_text(record))
                watch(slot, server, idle=idle)
                # Whoever enrols from now on finds no record; who did so before is seen.
                slot.record.unlink(missing_ok=True)
                departed = not server.alive or not in_use(slot, server)
        finally:
            # Nobody may find an engine that is about to go.
            slot.record.unlink(missing_ok=True)
            slot.token.unlink(missing_ok=True)


def _warm_up(server: ConnectServer) -> None:
    with contextlib.suppress(Exception):  # it only saves time, and the JVM may be on its way out
        server.warm_up()


class Served(Protocol):
    """What has to be known of a server to watch over it."""

    @property
    def process_id(self) -> int:
        """Its JVM."""

    @property
    def alive(self) -> bool:
        """Whether it is there."""

    @property
    def is_busy(self) -> bool:
        """Whether it works for anyone."""

    def end_session(self, user: str, session: str) -> None:
        """Stop what a session runs."""


def watch(slot: Slot, server: Served, *, idle: float, pause: float = _PAUSE) -> None:
    """Clear up after clients until the server is gone or was idle for too long."""
    used = time.monotonic()
    while server.alive:
        for client in departed_clients(slot):
            server.end_session(client.user, client.session)
            _end_workers(slot, client, server.process_id)
            client.path.unlink(missing_ok=True)
            used = time.monotonic()
        if in_use(slot, server):
            used = time.monotonic()
        if time.monotonic() - used > idle:
            return
        time.sleep(pause)


def in_use(slot: Slot, server: Served) -> bool:
    """Whether anyone is attached, or anything is under way."""
    return any(slot.clients.iterdir()) or server.is_busy


def _end_workers(slot: Slot, client: Client, jvm: int) -> None:
    """End the process that forks the Python workers of a session; Spark itself never does."""
    for mark in slot.workers.glob(f"{client.name}.*"):
        process = mark.suffix.removeprefix(".")
        if process.isdigit() and _parent(process) == jvm:
            with contextlib.suppress(OSError):
                os.kill(int(process), signal.SIGTERM)
        mark.unlink(missing_ok=True)


def _parent(process: str) -> int | None:
    asked = subprocess.run(
        ["ps", "-o", "ppid=", "-p", process], capture_output=True, text=True, check=False
    )
    return int(asked.stdout) if asked.stdout.strip().isdigit() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
