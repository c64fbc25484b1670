"""Starting and stopping the warm engine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ematix_flow.engine.cache import cache_dir, file_lock
from ematix_flow.engine.jars import ensure_jars, read_lock
from ematix_flow.engine.session import configured
from ematix_flow.engine.warm import Found, Slot, look, make_private, misfit, own_slot
from ematix_flow.errors import EngineError

IDLE_SECONDS = 1800.0
_START_SECONDS = 180.0
_STOP_SECONDS = 20.0


def start(*, idle_seconds: float = IDLE_SECONDS, jars: Sequence[str] = ()) -> tuple[Found, bool]:
    """The engine of this folder, and whether it was started by this call.

    It knows the connector jars that are in the cache already, and those named. One that does
    not fit any more is replaced, unless it is at work.
    """
    slot = own_slot()
    make_private(slot)
    wanted = list(dict.fromkeys((*cached_jars(), *jars)))
    ensure_jars(wanted)
    with file_lock(slot.starting):
        found = look(slot)
        if found.state in ("running", "starting"):
            reason = misfit(found, dataclasses.replace(configured(), jars=tuple(jars)))
            if reason is None:
                return found, False
            _replace(found, reason)
        return _spawned(slot, idle_seconds, wanted), True


def stop(found: Found) -> bool:
    """End an engine, at work or not; False when there was none."""
    if found.state in ("off", "dead"):
        _clear_away(found.slot)
        return False
    if found.record is None:
        found = _once_started(found.slot)
        if found.record is None:
            if found.slot.is_held:
                raise EngineError(
                    "an engine is running here whose record cannot be read",
                    fix=f"end its process by hand; its log is {found.slot.log}",
                )
            return found.state != "off"
    process = found.record.process_id
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    if not _gone(found.slot, _STOP_SECONDS):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        _gone(found.slot, _STOP_SECONDS)
    _clear_away(found.slot)
    return True


def cached_jars() -> list[str]:
    """The connectors whose jars are here already."""
    folder = cache_dir() / "jars"
    return [
        name
        for name, jars in read_lock().items()
        if all((folder / jar.file_name).is_file() for jar in jars)
    ]


def _replace(found: Found, reason: str) -> None:
    """Stop an engine that does not fit any more; one with clients is left alone."""
    if any(found.slot.clients.iterdir()):
        raise EngineError(
            f"the engine of this folder is at work and does not fit any more: {reason}",
            fix="wait for it, or end it with: flow engine stop",
        )
    stop(found)


def _spawned(slot: Slot, idle: float, jars: Sequence[str]) -> Found:
    slot.failure.unlink(missing_ok=True)
    _keep_one_log(slot.log)
    module = "ematix_flow.engine.warm_server"
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", module, str(slot.path), str(idle), *jars],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(slot.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        found = look(slot)
        if found.record is not None and found.record.process_id == process:
            return found
        if os.waitpid(process, os.WNOHANG) != (0, 0):
            break
        time.sleep(0.02)
    else:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    try:
        reason = slot.failure.read_text(encoding="utf-8").strip()
    except OSError:
        reason = "it gave no reason"
    raise EngineError(f"the engine did not come up: {reason}", fix="see: flow engine logs")


def _keep_one_log(log: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        log.replace(log.with_suffix(".log.1"))


def _once_started(slot: Slot) -> Found:
    deadline = time.monotonic() + _START_SECONDS
    found = look(slot)
    while found.state == "starting" and time.monotonic() < deadline:
        time.sleep(0.05)
        found = look(slot)
    return found


def _gone(slot: Slot, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while slot.is_held:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _clear_away(slot: Slot) -> None:
    if not slot.is_held:
        slot.clear()
