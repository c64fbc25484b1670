"""What the run log holds: one frozen record per run, target and step."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ematix_flow.change import Counts
from ematix_flow.errors import Cancelled, ConfigError
from ematix_flow.redaction import redact, redact_text

KINDS = ("batch", "stream", "transform", "probe")
TRIGGERS = ("cli", "python", "run-due", "scheduler", "web", "message", "apply", "backfill")
STATUSES = ("running", "succeeded", "failed", "cancelled", "lost")

HEARTBEAT_INTERVAL = timedelta(seconds=10)
HEARTBEAT_EXPIRY = timedelta(seconds=60)

_CHOICES = {"kind": KINDS, "trigger": TRIGGERS, "status": STATUSES}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run's work on one target in one step, from its start to its end."""

    run_id: str
    pipeline: str
    target: str
    trigger: str
    started_at: datetime
    step: str = "load"
    parent_id: str | None = None
    workflow_id: str | None = None
    kind: str = "batch"
    slot: datetime | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    host: str = ""
    pid: int = 0
    heartbeat_at: datetime | None = None
    code_version: str = ""
    engine: str = ""
    mode: str = ""
    path: str = ""
    finished_at: datetime | None = None
    status: str = "running"
    rows_read: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_closed: int = 0
    rows_deleted: int = 0
    rows_unchanged: int = 0
    rows_rejected: int = 0
    bytes: int = 0
    watermark_before: str | None = None
    watermark_after: str | None = None
    verdict: str | None = None
    error_class: str | None = None
    error_text: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    declared_in: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"a run record cannot have {name}={getattr(self, name)!r}",
                    fix=f"use one of {', '.join(allowed)}",
                )
        # Any of these may quote a secret, and the log outlives the process.
        safe = {name: str(redact(name, value)) for name, value in self.parameters.items()}
        object.__setattr__(self, "parameters", safe)
        object.__setattr__(self, "source", redact_text(self.source))
        if self.error_text is not None:
            object.__setattr__(self, "error_text", redact_text(self.error_text))

    @classmethod
    def opened(
        cls, *, run_id: str, pipeline: str, target: str, trigger: str, **fields: Any
    ) -> RunRecord:
        """A record of a run that starts here and now, in this process."""
        now = utc_now()
        here: dict[str, Any] = {
            "started_at": now,
            "heartbeat_at": now,
            "host": this_host(),
            "pid": os.getpid(),
            "code_version": _version(),
        }
        return cls(
            run_id=run_id, pipeline=pipeline, target=target, trigger=trigger, **here | fields
        )

    def closed(
        self,
        status: str,
        *,
        counts: Counts | None = None,
        error: BaseException | None = None,
        finished_at: datetime | None = None,
        **fields: Any,
    ) -> RunRecord:
        """The same run at its end."""
        ended = finished_at or utc_now()
        changed: dict[str, Any] = {"status": status, "finished_at": ended, "heartbeat_at": ended}
        if counts is not None:
            changed |= {f"rows_{name}": n for name, n in dataclasses.asdict(counts).items()}
        if error is not None:
            changed |= {"error_class": type(error).__name__, "error_text": _one_line(error)}
        return dataclasses.replace(self, **changed | fields)

    @property
    def seconds(self) -> float | None:
        """How long it took, once it has ended."""
        if self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()

    @property
    def rows_written(self) -> int:
        """How many rows of the target are new or different because of it."""
        return self.rows_inserted + self.rows_updated + self.rows_closed

    def to_dict(self, *, now: datetime | None = None) -> dict[str, Any]:
        """Plain data for JSON; with ``now``, the status as it must be shown at that moment."""
        plain = dataclasses.asdict(self)
        for name, value in plain.items():
            if isinstance(value, datetime):
                plain[name] = value.isoformat()
        if now is not None:
            plain["status"] = effective_status(self, now)
        plain["seconds"] = self.seconds
        return plain


def status_of(error: BaseException) -> str:
    """The status of a run that ended with this error."""
    return "cancelled" if isinstance(error, Cancelled | KeyboardInterrupt) else "failed"


def effective_status(record: RunRecord, now: datetime) -> str:
    """The status to show: a run whose process is gone is lost, whatever it last wrote."""
    if record.status != "running":
        return record.status
    seen = record.heartbeat_at or record.started_at
    if now - seen > HEARTBEAT_EXPIRY:
        return "lost"
    if record.pid and record.host == this_host() and not is_alive(record.pid):
        return "lost"
    return "running"


def utc_now() -> datetime:
    """The current time, with its zone."""
    return datetime.now(timezone.utc)


def this_host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def _one_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _version() -> str:
    from ematix_flow import __version__

    return __version__


def is_alive(pid: int) -> bool:
    """Whether a process of this machine still is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """A killed process that its parent has not collected still answers signals."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["Z"]
