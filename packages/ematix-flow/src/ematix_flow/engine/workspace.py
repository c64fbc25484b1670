"""The private folder of one running engine, and the sweeping of those left by killed ones."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from uuid import uuid4

from ematix_flow.errors import ConfigError

_PREFIX = "ematix-flow-engine-"
_LOCK = "lock"


class Workspace:
    """A 0700 folder that lives as long as its engine; a lock marks it as in use."""

    def __init__(self, base: Path | None = None) -> None:
        folder = Path(tempfile.gettempdir()) if base is None else base
        sweep(folder)
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"Spark's work folder cannot be made in {folder} ({error.strerror or error})",
                fix="free some space there, or set TMPDIR to a folder that can be written",
            ) from error
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def folder(self, name: str) -> Path:
        """A sub-folder, made when first asked for."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def take(self, file: Path) -> Path:
        """A file of any place under a name that no other has, without a copy where that can be."""
        named = self.folder("taken") / f"{uuid4().hex}{file.suffix}"
        if file.stat().st_dev == named.parent.stat().st_dev:
            os.link(file, named)
        else:
            shutil.copyfile(file, named)
        return named

    def write(self, name: str, text: str) -> Path:
        """A file that only this user can read."""
        path = self.path / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def remove(self) -> None:
        """Delete the folder and all that Spark left in it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            shutil.rmtree(self.path, ignore_errors=True)


def sweep(base: Path) -> None:
    """Remove the folders of engines whose process is gone."""
    try:
        candidates = [path for path in base.iterdir() if path.name.startswith(_PREFIX)]
    except OSError:
        return
    for path in candidates:
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
