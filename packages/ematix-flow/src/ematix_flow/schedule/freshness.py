"""How fresh the tables of pipelines are, beside what was promised of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

from ematix_flow import config
from ematix_flow.errors import ConfigError, EmatixError
from ematix_flow.model import PipelineSpec, TargetSpec
from ematix_flow.run.log import RunLog

HEALTHY, WARNING, BREACHED, UNKNOWN = "healthy", "warning", "breached", "unknown"
# From this part of what was promised on, it is worth a look.
_NEAR = 0.8


@dataclass(frozen=True)
class Freshness:
    """How old a pipeline's data is; ``reason`` says why that is not known."""

    pipeline: str
    sla_seconds: float
    state: str
    lag_seconds: float | None = None
    fresh_at: datetime | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        fresh_at = self.fresh_at.isoformat() if self.fresh_at else None
        return {**vars(self), "fresh_at": fresh_at}


def freshness_of(spec: PipelineSpec, log: RunLog, now: datetime) -> Freshness | None:
    """How fresh a pipeline's data is; None where nothing was promised."""
    sla = spec.freshness_sla_seconds
    if sla is None:
        return None
    try:
        moment = _fresh_at(spec, log)
    except EmatixError as error:
        return Freshness(spec.name, sla, UNKNOWN, reason=str(error))
    if moment is None:
        empty = "its table is empty" if spec.freshness_column else "it has never succeeded"
        return Freshness(spec.name, sla, UNKNOWN, reason=empty)
    lag = max((now - moment).total_seconds(), 0.0)
    state = BREACHED if lag > sla else WARNING if lag >= sla * _NEAR else HEALTHY
    return Freshness(spec.name, sla, state, lag, moment)


def _fresh_at(spec: PipelineSpec, log: RunLog) -> datetime | None:
    """When the newest row happened, or else when the last run began that succeeded."""
    if spec.freshness_column is not None:
        return _newest(spec.targets[0], spec.freshness_column)
    origin = config.origin_of(spec.location.file)
    for record in log.list(pipeline=spec.name, status="succeeded", limit=50):
        if record.declared_in == origin and record.step == "load":
            return record.started_at
    return None


def _newest(target: TargetSpec, column: str) -> datetime | None:
    from ematix_flow.backends.loading import load_backend
    from ematix_flow.backends.sql import SqlBackend
    from ematix_flow.sql.identifiers import quoted

    backend = load_backend(config.resolve_connection(target.connection).connection)
    if not isinstance(backend, SqlBackend):
        raise ConfigError(
            f"freshness_column= of a {backend.kind} target is not looked at",
            fix="leave it out: the last success counts then",
        )
    place = backend.locate(target.table.name, target.prefix)
    column_name = quoted(column, backend.dialect)
    newest = f"SELECT max({column_name}) AS newest FROM {place}"  # noqa: S608 - both are quoted
    with backend.open() as live:
        return _instant(live.query(newest)[0]["newest"], column)


def _instant(value: Any, column: str) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    if isinstance(value, date):
        # A day is over when it ends: its rows are as new as that.
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc) + timedelta(days=1)
    try:
        read = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError as error:
        raise ConfigError(
            f"freshness_column={column!r} holds {value!r}, which is no time",
            fix="name a column of dates or times",
        ) from error
    return read if read.tzinfo is not None else read.replace(tzinfo=timezone.utc)
