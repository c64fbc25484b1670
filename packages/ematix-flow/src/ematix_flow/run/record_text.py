"""Run records as JSON, for places that keep documents instead of rows."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from typing import Any

from ematix_flow.errors import ConfigError
from ematix_flow.run.records import RunRecord

VERSION = 1

_FIELDS = frozenset(f.name for f in dataclasses.fields(RunRecord))
_TIMES = ("started_at", "finished_at", "heartbeat_at", "slot")


def record_document(record: RunRecord, **beside: Any) -> bytes:
    """A record as JSON, with what else is to be kept beside it."""
    fields = {name: getattr(record, name) for name in sorted(_FIELDS)}
    for name in _TIMES:
        if fields[name] is not None:
            fields[name] = fields[name].astimezone(timezone.utc).isoformat()
    document = {"version": VERSION, **beside, "record": fields}
    return json.dumps(document, default=str, ensure_ascii=False).encode()


def read_document(data: bytes, *, where: str) -> tuple[RunRecord, dict[str, Any]]:
    """A record, and what was kept beside it; ``where`` is told if it cannot be read."""
    try:
        beside = json.loads(data)
        version = int(beside.pop("version"))
        fields = {n: v for n, v in beside.pop("record").items() if n in _FIELDS}
        for name in _TIMES:
            if fields.get(name) is not None:
                fields[name] = datetime.fromisoformat(fields[name])
        record = RunRecord(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{where} is not a run record ({type(error).__name__})",
            fix="move it away: nothing else was meant to be written there",
        ) from error
    if version > VERSION:
        raise ConfigError(
            f"{where} was written by a newer version (its form is {version}, this version "
            f"knows {VERSION})",
            fix="upgrade ematix-flow, or name another run log with --run-log",
        )
    return record, beside
