"""A run's private folder on disk, held by a file lock that even ``kill -9`` gives back.

The lock, not the clock, says whether a run is alive: what nobody holds is litter, and the next
run sweeps it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ematix_flow.errors import RunError

LOCK_FILE = ".lock"
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


class StageFolder:
    """``<root>/<run_id>/``, locked from creation until ``remove()`` or the process's end.

    ``root`` belongs to stage folders alone; it goes when the last of them goes.
    """

    def __init__(self, root: Path, run_id: str) -> None:
        self.root = root
        self.path = root / run_id
        self._lock = _create_locked(self.path)

    def is_ours(self) -> bool:
        """Whether the folder is still there: whoever gives a run up for dead takes it away."""
        try:
            return self._lock is not None and os.path.samestat(
                os.fstat(self._lock), os.stat(self.path / LOCK_FILE)
            )
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Delete the folder and give the lock back. Doing so twice is fine."""
        if self._lock is None:
            return
        _remove_locked(self.path)
        os.close(self._lock)
        self._lock = None
        _remove_if_empty(self.root)

    def __enter__(self) -> StageFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    @staticmethod
    def sweep(root: Path, *, settle: Callable[[Path], None] | None = None) -> list[str]:
        """Remove the folders of dead runs and return their ids.

        ``settle`` sees each one before it goes, while its lock is held: a run that is being
        settled can be neither alive nor swept by somebody else.
        """
        swept = []
        for path in _folders(root):
            with _held(path) as held:
                if held:
                    if settle is not None:
                        settle(path)
                    _remove_locked(path)
                    swept.append(path.name)
        if swept:
            _remove_if_empty(root)
        return swept


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _create_locked(path: Path) -> int | None:
    # A sweeper may hold the lock, or take the whole folder, at any moment before it is ours.
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = _try_lock(path)
            if lock is not None:
                return lock
        except FileNotFoundError:
            pass
        except FileExistsError:
            if any(_is_in_the_way(p) for p in (path, *path.parents)):
                raise
        if time.monotonic() > deadline:
            raise RunError(
                f"the stage folder {path} is held by another run",
                fix="wait until it has ended, then run again",
            )
        time.sleep(_PAUSE_SECONDS)


def _is_in_the_way(path: Path) -> bool:
    """Something that is no folder; asked once, because folders come and go meanwhile."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    try:
        lock = _try_lock(path)
    except (FileNotFoundError, PermissionError):
        lock = None
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _try_lock(path: Path) -> int | None:
    """The locked file of a folder, or None when another holds it or it was swept meanwhile."""
    file = path / LOCK_FILE
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Holding the lock of a file that was unlinked before we had it means nothing.
        if os.path.samestat(os.fstat(lock), os.stat(file)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _remove_locked(path: Path) -> None:
    """Everything but the lock first: until the lock's name is gone nobody else can own it."""
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            if entry.name == LOCK_FILE:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path / LOCK_FILE)
    _remove_if_empty(path)


def _remove_if_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
