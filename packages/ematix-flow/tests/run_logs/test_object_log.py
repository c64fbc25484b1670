"""The run log in a bucket: how little it asks for, and what a crash in the middle leaves."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest

from ematix_flow.errors import ConfigError
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.object_keys import Entry, inverted, part
from ematix_flow.run.object_log import ObjectRunLog
from ematix_flow.run.records import RunRecord
from run_logs.kinds import MemoryBucket

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def record(number: int, pipeline: str = "orders") -> RunRecord:
    return RunRecord(
        run_id=new_run_id(),
        pipeline=pipeline,
        target="shop.orders",
        trigger="cli",
        started_at=NOON + timedelta(minutes=number),
        declared_in="pipelines.py",
    )


@pytest.fixture(scope="module")
def many() -> MemoryBucket:
    """Ten thousand runs of ten pipelines, the last of which is running."""
    bucket = MemoryBucket()
    log = ObjectRunLog(bucket)
    for number in range(10_000):
        one = record(number, f"p{number % 10}")
        log.begin(one)
        if number < 9_999:
            log.finish(one.closed("succeeded" if number % 1000 else "failed", finished_at=NOON))
    log.close()
    return bucket


def requests_of(bucket: MemoryBucket) -> Counter[str]:
    asked = Counter(bucket.asked)
    bucket.asked.clear()
    return asked


def test_the_latest_of_many_runs_cost_a_listing_and_themselves(many: MemoryBucket) -> None:
    log = ObjectRunLog(many)
    requests_of(many)
    assert len(log.list(limit=20)) == 20
    assert requests_of(many) == {"list": 1, "get": 20}
    assert len(log.list(pipeline="p3", limit=20)) == 20
    assert requests_of(many) == {"list": 1, "get": 20}
    assert len(log.list(status="failed", limit=3)) == 3
    assert requests_of(many) == {"list": 7, "get": 3}
    log.close()


def test_questions_of_a_run_cost_the_same_however_many_there_are(many: MemoryBucket) -> None:
    log = ObjectRunLog(many)
    requests_of(many)
    last = log.last("p9", declared_in="pipelines.py")
    assert last is not None
    assert last.status == "running"
    assert requests_of(many) == {"list": 3, "get": 1}
    assert log.running("p9") == [last]
    assert requests_of(many) == {"list": 2, "get": 1}
    assert log.get(last.run_id) == [last]
    assert requests_of(many) == {"list": 2, "get": 1}
    log.heartbeat(last.run_id)
    assert requests_of(many) == {"list": 1, "get": 1, "put": 1}
    log.close()


def test_a_run_costs_a_handful_of_writes() -> None:
    bucket = MemoryBucket()
    log = ObjectRunLog(bucket)
    one = record(1)
    log.begin(one)
    log.finish(one.closed("succeeded"))
    assert requests_of(bucket) == {"put": 8, "delete": 1}
    log.close()


class Crash(Exception):
    pass


class CrashingBucket(MemoryBucket):
    """Ends the process, as it were, before one of its writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str | None:
        self._count()
        return super().put(key, data, if_absent=if_absent, if_match=if_match)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)

    def _count(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1


@pytest.mark.parametrize("writes", range(10))
def test_a_crash_between_any_two_writes_leaves_a_true_log(writes: int) -> None:
    bucket = CrashingBucket(writes)
    first, one = ObjectRunLog(bucket), record(1)
    done = one.closed("failed", finished_at=NOON)
    with contextlib.suppress(Crash):
        first.begin(one)
        first.finish(done)
    first.close()
    bucket.left = 1000
    log = ObjectRunLog(bucket)
    shown = log.list()
    assert shown in ([], [one], [done])
    assert log.list(pipeline="orders") == shown
    assert log.get(one.run_id) == shown
    assert log.last("orders", declared_in="pipelines.py") == (shown[0] if shown else None)
    assert log.running("orders") == (shown if shown == [one] else [])
    # Whoever comes next settles it, and nothing of the crash is left.
    log.finish(done)
    assert [log.list(), log.get(one.run_id), log.running("orders")] == [[done], [done], []]
    assert not [key for key in bucket.objects if key.startswith("open/")]
    log.close()


@pytest.mark.parametrize("writes", range(10))
def test_what_failed_is_done_by_saying_it_again(writes: int) -> None:
    bucket = CrashingBucket(writes)
    log, one = ObjectRunLog(bucket), record(1)
    done = one.closed("succeeded", finished_at=NOON)
    for act, expected in ((lambda: log.begin(one), [one]), (lambda: log.finish(done), [])):
        with contextlib.suppress(Crash):
            act()
        bucket.left = 1000
        act()
        assert log.running("orders") == expected
        bucket.left = max(writes - 4, 0)
    bucket.left = 1000
    assert [log.list(), log.list(pipeline="orders"), log.get(one.run_id)] == [[done]] * 3
    assert not [key for key in bucket.objects if key.startswith("open/")]
    log.close()


@pytest.mark.parametrize("writes", range(6))
def test_a_crash_while_pruning_is_finished_the_next_time(writes: int) -> None:
    bucket = CrashingBucket(1000)
    log = ObjectRunLog(bucket)
    old, new = record(1), record(2)
    for one in (old, new):
        log.begin(one)
        log.finish(one.closed("succeeded", finished_at=NOON))
    bucket.left = writes
    before = NOON + timedelta(days=1)
    with contextlib.suppress(Crash):
        log.prune(before)
    bucket.left = 1000
    log.prune(before)
    assert [r.run_id for r in log.list()] == [new.run_id]
    assert not [key for key in bucket.objects if old.run_id in key]
    log.close()


def test_an_object_that_is_none_of_ours_is_named() -> None:
    bucket = MemoryBucket()
    log, one = ObjectRunLog(bucket), record(1)
    log.begin(one)
    key = Entry.of(one).run_key("running")
    bucket.put(key, b"not a record")
    with pytest.raises(ConfigError, match="running is not a run record"):
        log.list()
    bucket.put(key, b'{"version": 99, "record": %s}' % b'{"run_id": "a"}')
    with pytest.raises(ConfigError, match="not a run record"):
        log.list()
    log.close()


def test_later_times_come_first() -> None:
    times = [NOON, NOON + timedelta(microseconds=1), NOON + timedelta(days=9000)]
    assert sorted(map(inverted, times), reverse=True) == [inverted(t) for t in times]
    assert len({len(inverted(t)) for t in times}) == 1


def test_parts_of_keys_are_never_odd_or_long_or_the_same() -> None:
    odd = ["", ".", "..", "=", "=.", "a/b", "a%2Fb", "é" * 500, "é" * 499, "é" * 400 + "x"]
    parts = [part(text) for text in odd]
    assert len(set(parts)) == len(parts)
    assert not {"", ".", ".."} & set(parts)
    assert max(map(len, parts)) < 120
    assert not [p for p in parts if "/" in p]
