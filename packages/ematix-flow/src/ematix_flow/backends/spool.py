"""Rows on their way from a database to Spark: what they need goes when their reader is done.

That is a folder of rows of a file database, or a snapshot that a server keeps.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from ematix_flow.backends.staging import StageFolder
from ematix_flow.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine
    from ematix_flow.engine.wire import FarEngine

_held: ContextVar[list[Callable[[], object]] | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def spooling() -> Iterator[None]:
    """Keep what this thread spools or holds inside the block until the block ends."""
    held: list[Callable[[], object]] = []
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)
        for release in held:
            release()


def until_read(release: Callable[[], object]) -> bool:
    """Call this when the rows have been read; False where nobody says when that is."""
    held = _held.get()
    if held is not None:
        held.append(release)
    return held is not None


def read_spooled(engine: Engine, file: Path) -> DataFrame:
    """The rows of a spooled file; they are sent to executors that cannot see it."""
    if getattr(engine, "distributed", False):
        from ematix_flow.engine.wire import sent

        return sent(cast("FarEngine", engine), file)
    return engine.spark.read.parquet(str(file))


def spool_folder() -> Path:
    """A fresh folder; outside of ``spooling`` it goes with the process.

    What killed processes have left goes first: their rows may be many.
    """
    root = _own_root()
    StageFolder.sweep(root)
    folder = StageFolder(root, uuid4().hex)
    rows = folder.path / "rows"
    rows.mkdir(mode=0o700)
    if not until_read(folder.remove):
        atexit.register(folder.remove)
    return rows


def _own_root() -> Path:
    root = Path(tempfile.gettempdir()) / f"ematix-flow-spool-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    # Whoever owns it could put other rows in the place of ours.
    if root.is_symlink() or (root.exists() and root.stat().st_uid != os.getuid()):
        raise ConfigError(
            f"the temporary folder {root} belongs to another user",
            fix="set TMPDIR to a folder of your own",
        )
    return root
