"""Who uses the warm engine: a locked file per session, which also says where its code runs.

The lock tells a living client from a killed one. The content (folder, import path, environment)
is what Python workers of that session take over, so that a function finds there what it would
find in a process of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.engine.jvm import python_path
from ematix_flow.engine.warm import Slot


@dataclass(frozen=True)
class Client:
    """A session and whose it is; ``path`` is named by what the server calls the session."""

    path: Path
    user: str
    session: str

    @property
    def name(self) -> str:
        """What the server calls the session."""
        return self.path.name


class Attachment:
    """The file of one session, locked until it is closed or this process dies."""

    def __init__(self, slot: Slot, name: str, *, user: str, session: str) -> None:
        self._user, self._session = user, session
        self._descriptor, temporary = tempfile.mkstemp(prefix=".", dir=slot.path)
        try:
            # Locked before it gets its name: an unlocked one would be taken for a dead client's.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._written = ""
            self.refresh()
            self._path = slot.clients / name
            os.rename(temporary, self._path)
        except BaseException:
            os.unlink(temporary)
            self.close()
            raise

    def refresh(self) -> None:
        """Write down folder, import path and environment as they are now."""
        text = json.dumps(
            {
                "user": self._user,
                "session": self._session,
                "folder": os.getcwd(),
                "path": python_path().split(os.pathsep),
                "environment": dict(os.environ),
            }
        )
        if text != self._written:
            content = text.encode("utf-8", "surrogateescape")
            os.pwrite(self._descriptor, content, 0)
            os.ftruncate(self._descriptor, len(content))
            self._written = text

    def close(self) -> None:
        """Give up the lock; the engine then ends what the session has left and the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def departed_clients(slot: Slot) -> Iterator[Client]:
    """Those whose process is gone or has closed its session."""
    for path in list(slot.clients.iterdir()):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            finally:
                os.close(descriptor)
            yield _read(path)


def _read(path: Path) -> Client:
    try:
        held = json.loads(path.read_bytes())
        return Client(path, str(held["user"]), str(held["session"]))
    except (ValueError, KeyError, TypeError):
        return Client(path, "", "")
