"""How long the run log keeps what it knows, and the log lines of runs with it."""

from __future__ import annotations

from datetime import timedelta

from ematix_flow.run.log import RunLog
from ematix_flow.run.logs import remove_run_logs
from ematix_flow.run.records import utc_now


def prune(log: RunLog, *, older_than: timedelta, dry_run: bool = False) -> frozenset[str]:
    """Remove the runs that began longer ago, and their log lines here; their ids."""
    before = utc_now() - older_than
    gone = log.prune(before, dry_run=dry_run)
    if not dry_run:
        remove_run_logs(gone, before=before)
    return gone
