"""The per-user folder for what is fetched or built once: jars, class archives, logs.

What lies here is executed as code, so the folder belongs to the user alone, and files
appear in it by rename only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ematix_flow.errors import ConfigError

CACHE_VARIABLE = "EMATIX_FLOW_CACHE_DIR"


def cache_dir() -> Path:
    """The cache folder, created private when it is not there yet."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        folder = Path(named).expanduser()
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(base) if base else Path.home() / ".cache") / "ematix-flow"
    return private_folder(folder)


def private_folder(folder: Path) -> Path:
    """Make ``folder`` (and parents) readable by this user only, or refuse it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid():
            raise ConfigError(
                f"the cache folder {folder} belongs to another user, and its files run as code",
                fix=f"set {CACHE_VARIABLE} to a folder of your own",
            )
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder} cannot be used ({error.strerror or error})",
            fix=f"make it writable or set {CACHE_VARIABLE} to another folder",
        ) from error
    return folder


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock shared by processes; yields False when it is taken and ``wait`` is off.

    The operating system gives the lock back when its holder dies, however it dies.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def put_in_place(temporary: Path, final: Path) -> None:
    """Rename a finished file to its name once its bytes are on disk."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, final)


def write_in_place(final: Path, text: str) -> None:
    """Write a small private file so that readers see all of it or none."""
    descriptor, name = tempfile.mkstemp(dir=final.parent, prefix=f".{final.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    put_in_place(Path(name), final)
