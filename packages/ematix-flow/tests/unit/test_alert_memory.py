"""What alerters have told is known to the next process, too."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ematix_flow.run.alert_memory import LogMemory
from ematix_flow.run.log import NullRunLog
from ematix_flow.run.sqlite_log import SqliteRunLog

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
SECRET = "https://hooks.example/T0/pa55word"


def test_it_is_told_once_and_again_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    def claim(key: str, *, at: datetime = NOON, pipeline: str = "orders") -> bool:
        with contextlib.closing(SqliteRunLog(path)) as log:
            return LogMemory(log).claim(SECRET, pipeline, key, at=at, repeat=HOUR)

    assert claim("failed: X")
    assert not claim("failed: X", at=NOON + HOUR / 2)
    assert claim("failed: Y")
    assert claim("failed: X", pipeline="items")
    assert claim("failed: X", at=NOON + HOUR)
    with contextlib.closing(SqliteRunLog(path)) as log:
        LogMemory(log).release(SECRET, "orders", "failed: Y")
    assert claim("failed: Y")
    with contextlib.closing(SqliteRunLog(path)) as log:
        LogMemory(log).forget(SECRET, "orders")
    assert claim("failed: X", at=NOON + HOUR)
    assert not claim("failed: X", pipeline="items")
    assert b"pa55word" not in b"".join(f.read_bytes() for f in tmp_path.iterdir())


def test_without_a_log_everything_is_told() -> None:
    memory = LogMemory(NullRunLog())
    assert memory.claim("r", "p", "k", at=NOON, repeat=HOUR)
    assert memory.claim("r", "p", "k", at=NOON, repeat=HOUR)
    memory.forget("r", "p")
