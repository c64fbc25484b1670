"""What a run log could not take while it was down, kept in files until it can.

Every record is a file of its own, complete as soon as it has its name, and removed after it was
delivered; delivered twice, it does no harm. Whoever reaches the log next delivers for all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from ematix_flow import config
from ematix_flow.errors import ConfigError, RunLogUnavailable
from ematix_flow.redaction import redact_text
from ematix_flow.run.log import MemoryRunLog, Records, RunLog
from ematix_flow.run.record_text import read_document, record_document
from ematix_flow.run.records import RunRecord
from ematix_flow.run.turns import Key, Standing, Turn

logger = logging.getLogger(__name__)

_BEGUN, _FINISHED = "begun", "finished"
_PAUSE = 30.0
"""Seconds for which a log that was down is not tried again: every try may take as long."""

_PATIENCE = 5.0
"""Seconds that a run spends at a time on delivering what others have left."""

_REFUSALS = 2
"""So many may fail one after the other before the log counts as down."""

_numbers = itertools.count()
Answer = TypeVar("Answer")


def undelivered_folder(place: str) -> Path:
    """Where the records for a log wait that is at ``place``, a text without secrets."""
    return config.home() / "undelivered" / hashlib.sha256(place.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Kept:
    """A record that waits, and the file in which it does."""

    file: Path
    what: str
    record: RunRecord

    @property
    def about(self) -> tuple[str, str, str]:
        """Which record of which run it is."""
        return self.record.run_id, self.record.target, self.record.step


class Undelivered:
    """The records that wait in one folder, shared by all processes of this user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, what: str, record: RunRecord) -> None:
        """Write a record so that neither a crash nor another process can spoil it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{time.time_ns():020d}-{os.getpid()}-{next(_numbers)}"
        fresh = self.folder / f"{name}.new"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(record_document(record, what=what))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.folder / f"{name}.json")
        self._sync_names()

    def waiting(self) -> list[Kept]:
        """All of them, in the order in which they were said."""
        found = []
        for file in self.files():
            try:
                record, beside = read_document(file.read_bytes(), where=str(file))
            except FileNotFoundError:
                continue
            except ConfigError as error:
                logger.warning("left undelivered: %s", error)
                continue
            found.append(Kept(file, str(beside.get("what", _FINISHED)), record))
        return found

    def files(self) -> list[Path]:
        """The files that wait; usually there is not even a folder."""
        try:
            return sorted(p for p in self.folder.iterdir() if p.suffix == ".json")
        except OSError:
            return []

    def deliver(self, log: RunLog, *, seconds: float = math.inf) -> int:
        """Hand over what can be in that time, unless another process is at it; how many files.

        What is refused while others are taken is put aside, so that it holds up nobody.
        """
        if not self.files():
            return 0
        with self._locked(wait=False) as mine:
            if not mine:
                return 0
            waiting, count = self.waiting(), 0
            ended = {k.about for k in waiting if k.what == _FINISHED}
            deadline = time.monotonic() + seconds
            failed: list[tuple[Kept, RunLogUnavailable]] = []
            for kept in waiting:
                if time.monotonic() > deadline or len(failed) > _REFUSALS:
                    break
                if kept.what == _BEGUN and kept.about in ended:
                    _remove(kept.file)
                elif error := _refusal(log, kept):
                    failed.append((kept, error))
                else:
                    # The log is there: what it still does not take, it never will.
                    for other, _ in failed:
                        self._put_aside(other, _refusal(log, other))
                    failed = []
                count += 1
            if failed:
                raise failed[0][1]
            return count

    @staticmethod
    def _put_aside(kept: Kept, error: RunLogUnavailable | None) -> None:
        if error is not None:
            logger.warning("%s is not taken by the run log: %s", kept.file, error)
            with contextlib.suppress(OSError):
                kept.file.rename(kept.file.with_suffix(".refused"))

    def forget_begun(self, record: RunRecord) -> None:
        """Its end will tell all, and nobody may say after that end that it has begun."""
        if not self.files():
            return
        with self._locked(wait=True):
            about = (record.run_id, record.target, record.step)
            for kept in self.waiting():
                if kept.what == _BEGUN and kept.about == about:
                    _remove(kept.file)

    @contextlib.contextmanager
    def _locked(self, *, wait: bool) -> Iterator[bool]:
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context((self.folder / "lock").open("w"))
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                yield False
                return
            yield True

    def _sync_names(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refusal(log: RunLog, kept: Kept) -> RunLogUnavailable | None:
    """Hand a record over and remove its file; what the log says if it does not take it."""
    try:
        if kept.what == _FINISHED:
            log.finish(kept.record)
        elif not _knows(log, kept.record):
            log.begin(kept.record)
    except RunLogUnavailable as error:
        return error
    _remove(kept.file)
    return None


def _remove(file: Path) -> None:
    """What cannot be removed is delivered again, which does no harm."""
    with contextlib.suppress(OSError):
        file.unlink()


def _knows(log: RunLog, record: RunRecord) -> bool:
    held = log.get(record.run_id)
    return any((r.target, r.step) == (record.target, record.step) for r in held)


class BufferedRunLog:
    """A run log that may be down: a run goes on, and its records are delivered later.

    ``open_log`` opens the log itself, at once and again whenever it was down; whatever is
    ``RunLogUnavailable`` there or later is waited out. ``folder`` is where records wait.
    """

    def __init__(self, open_log: Callable[[], RunLog], folder: Path) -> None:
        self._open_log = open_log
        self._undelivered = Undelivered(folder)
        self._lock = threading.RLock()
        self._log: RunLog | None = None
        self._warned = False
        self._not_before = 0.0
        self._insists = False
        self._try(lambda log: None)

    def begin(self, record: RunRecord) -> None:
        """Record a run that has started."""
        self._write(_BEGUN, record, lambda log: log.begin(record))

    def heartbeat(self, run_id: str) -> None:
        """Say that a run is still alive; nobody hears it while the log is down."""
        self._try(lambda log: log.heartbeat(run_id))

    def finish(self, record: RunRecord) -> None:
        """Record how a run ended."""

        def finish(log: RunLog) -> None:
            self._undelivered.forget_begun(record)
            log.finish(record)

        self._write(_FINISHED, record, finish)

    def list(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50
    ) -> Records:
        """The latest records, newest first; while the log is down, those that wait."""
        return self._ask(lambda log: log.list(pipeline=pipeline, status=status, limit=limit))

    def get(self, run_id: str) -> Records:
        """The records of one run."""
        return self._ask(lambda log: log.get(run_id))

    def running(self, pipeline: str) -> Records:
        """The records of a pipeline whose end is not known."""
        return self._ask(lambda log: log.running(pipeline))

    def last(self, pipeline: str, *, declared_in: str) -> RunRecord | None:
        """The record that tells how the last run of this file's pipeline ended."""
        return self._ask(lambda log: log.last(pipeline, declared_in=declared_in))

    def prune(self, before: datetime, *, dry_run: bool = False) -> frozenset[str]:
        """Remove what began before; nothing while the log is down."""
        return self.reached().prune(before, dry_run=dry_run)

    def standings(self, origins: Iterable[str]) -> dict[Key, Standing]:
        """How the pipelines of these origins stand; turns are never guessed."""
        return self.reached().standings(origins)

    def enter(self, turns: Mapping[Key, Turn]) -> None:
        """Write first turns down."""
        self.reached().enter(turns)

    def move(self, key: Key, before: Turn, after: Turn) -> bool:
        """Change a turn; False if somebody else has changed it since it was read."""
        return self.reached().move(key, before, after)

    def clock(self) -> datetime:
        """The time, by a clock that all who share the log go by."""
        return self.reached().clock()

    def insist(self) -> BufferedRunLog:
        """Never answer without the log itself: for those who decide by what it says."""
        self._insists = True
        return self

    def reached(self) -> RunLog:
        """The log itself, with all that waited in it; ``RunLogUnavailable`` if it is down."""
        log = self._opened()
        # What is not taken has been told of, or the question itself fails.
        with contextlib.suppress(RunLogUnavailable):
            self._undelivered.deliver(log)
        return log

    def close(self) -> None:
        """Deliver what can be delivered, and give back connections."""
        with self._lock:
            if self._undelivered.files():
                self._try(lambda log: None)
            if self._log is not None:
                self._log.close()
                self._log = None

    def _opened(self) -> RunLog:
        with self._lock:
            if self._log is None:
                self._log = self._open_log()
            return self._log

    def _write(self, what: str, record: RunRecord, act: Callable[[RunLog], None]) -> None:
        if self._try(act) is None:
            try:
                self._undelivered.keep(what, record)
            except OSError as error:
                self._warn(f"{self._undelivered.folder} cannot be written ({error.strerror})")

    def _ask(self, act: Callable[[RunLog], Answer]) -> Answer:
        if self._insists:
            return act(self.reached())
        if self._undelivered.files():
            self._try(lambda log: None)
        answer = self._try(act)
        if answer is not None:
            return answer[0]
        held = MemoryRunLog()
        for kept in self._undelivered.waiting():
            (held.begin if kept.what == _BEGUN else held.finish)(kept.record)
        return act(held)

    def _try(self, act: Callable[[RunLog], Answer]) -> tuple[Answer] | None:
        """What the log answers; None where it is down. Where it is not, others are delivered."""
        if time.monotonic() < self._not_before:
            return None
        try:
            log = self._opened()
            answer = act(log)
        except RunLogUnavailable as error:
            self._not_before = time.monotonic() + _PAUSE
            self._warn(str(error))
            return None
        with contextlib.suppress(RunLogUnavailable):
            self._undelivered.deliver(log, seconds=_PATIENCE)
        return (answer,)

    def _warn(self, reason: str) -> None:
        text = redact_text(f"{reason}; this run goes on, and its records are delivered later")
        logger.info(text)
        if not self._warned:
            self._warned = True
            warnings.warn(text, stacklevel=5)
