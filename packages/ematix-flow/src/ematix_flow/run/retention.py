"""How long the run log keeps what it knows, and this machine the log lines of runs."""

from __future__ import annotations

import contextlib
import hashlib
import time
from datetime import timedelta

from ematix_flow import config
from ematix_flow.errors import RunLogUnavailable
from ematix_flow.run.log import RunLog
from ematix_flow.run.logs import remove_run_logs
from ematix_flow.run.records import utc_now

_INTERVAL = timedelta(days=1)


def prune(log: RunLog, *, older_than: timedelta, dry_run: bool = False) -> frozenset[str]:
    """Remove the runs that began longer ago, and their log lines here; their ids."""
    before = utc_now() - older_than
    gone = log.prune(before, dry_run=dry_run)
    if not dry_run:
        remove_run_logs(gone, before=before)
    return gone


def tidy(log: RunLog) -> frozenset[str]:
    """Prune as ``run_log_keep`` of the project says, once a day; the ids of the runs."""
    project = config.project_settings()
    if project.run_log_keep is None:
        return frozenset()
    name = hashlib.sha256(str(project.folder).encode()).hexdigest()[:16]
    stamp = config.home() / "pruned" / name
    # A log that is down, or a home that is read-only, is told of by the run.
    with contextlib.suppress(OSError, RunLogUnavailable):
        if stamp.exists() and time.time() - stamp.stat().st_mtime < _INTERVAL.total_seconds():
            return frozenset()
        stamp.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        stamp.touch()
        return prune(log, older_than=project.run_log_keep)
    return frozenset()
