"""Log lines: their form on stderr, and the file that keeps those of each run.

Nothing is configured at import. The ``flow`` command calls ``configure_logging``; a program that
uses the package configures the ``ematix_flow`` loggers as it likes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime, timezone
from pathlib import Path

from ematix_flow import config
from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError
from ematix_flow.redaction import redact_text

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

current_run_id: ContextVar[str | None] = ContextVar("ematix_flow_run_id", default=None)

_ROOT = "ematix_flow"
_RUNNER = "ematix_flow.run.batch"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class RunIdFilter(logging.Filter):
    """Gives every line the id of the run it belongs to."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass everything, with its run id."""
        record.run_id = current_run_id.get()
        return True


class _OneRunOnly(RunIdFilter):
    """Lets only the lines of one run into its file."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id

    def filter(self, record: logging.LogRecord) -> bool:
        super().filter(record)
        return current_run_id.get() == self.run_id


class _NotTheEndOfRuns(logging.Filter):
    """Holds back how a run ended, where the command says so itself in a line of its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name != _RUNNER or record.levelno < logging.ERROR


class TextFormatter(logging.Formatter):
    """``2026-01-31T09:30:00.123Z WARNING ematix_flow.run [run id] message``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without secrets."""
        run_id = getattr(record, "run_id", None) or "-"
        line = f"{_time(record)} {record.levelname} {record.name} [{run_id}] {record.getMessage()}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return redact_text(line)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without secrets."""
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "run_id": getattr(record, "run_id", None),
            "message": redact_text(record.getMessage()),
        }
        if record.exc_info:
            fields["exception"] = redact_text(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def configure_logging(level: str | None = None, format: str = "text") -> Callable[[], None]:
    """Send ``ematix_flow.*`` lines to stderr; returns what puts everything back.

    Without a level these are warnings and worse, the end of a run aside.
    """
    shown = level or "warning"
    for value, allowed, option in ((shown, LEVELS, "level"), (format, FORMATS, "format")):
        if value not in allowed:
            raise ConfigError(f"there is no log {option} {value!r}", fix=nearest(value, allowed))
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(shown.upper())
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler.addFilter(RunIdFilter())
    if level is None:
        handler.addFilter(_NotTheEndOfRuns())
    root = logging.getLogger(_ROOT)
    # What these have to say we say ourselves, in fewer lines.
    others = [logging.getLogger(name) for name in ("py4j", "opentelemetry")]
    before = (root.level, root.propagate, [other.level for other in others])
    # A run's own file also takes the lines that are too fine for the screen.
    root.setLevel(min(logging.INFO, handler.level))
    root.propagate = False
    root.addHandler(handler)
    for other in others:
        other.setLevel(logging.CRITICAL)

    def restore() -> None:
        root.removeHandler(handler)
        root.setLevel(before[0])
        root.propagate = before[1]
        for other, held in zip(others, before[2], strict=True):
            other.setLevel(held)

    return restore


@contextlib.contextmanager
def capture_run_log(run_id: str) -> Iterator[Path | None]:
    """Mark this context's lines with the run, and keep them in a file of its own.

    Yields the file, or None where it cannot be written.
    """
    token = current_run_id.set(run_id)
    handler = _file_handler(run_id)
    root = logging.getLogger(_ROOT)
    if handler is not None:
        root.addHandler(handler)
    try:
        yield Path(handler.baseFilename) if handler is not None else None
    finally:
        if handler is not None:
            root.removeHandler(handler)
            handler.close()
        current_run_id.reset(token)


def _file_handler(run_id: str) -> logging.FileHandler | None:
    path = run_log_file(run_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        warnings.warn(
            f"the log file {path} cannot be written ({error.strerror}); going on without it",
            stacklevel=4,
        )
        return None
    handler.setFormatter(TextFormatter())
    handler.addFilter(_OneRunOnly(run_id))
    return handler


def run_log_file(run_id: str) -> Path:
    """Where the lines of a run are kept."""
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(f"{run_id!r} is not the id of a run", fix="see: flow runs list")
    return config.home() / "logs" / f"{run_id}.log"


def read_run_log(run_id: str) -> list[str] | None:
    """The lines of a run, or None where no file was kept."""
    path = run_log_file(run_id)
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"the log file {path} cannot be read: {error.strerror}", fix="check its permissions"
        ) from error


def remove_run_logs(run_ids: Iterable[str], *, before: datetime) -> None:
    """Remove the lines of these runs, where nothing was added to them since."""
    for run_id in run_ids:
        with contextlib.suppress(OSError, ConfigError):
            path = run_log_file(run_id)
            if path.stat().st_mtime < before.timestamp():
                path.unlink()
