"""Every kind of run log tells the same: random histories against a model in plain Python."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.log import RunLog, last_of
from ematix_flow.run.records import RunRecord, utc_now
from ematix_flow.run.turns import Key, Standing, Turn
from run_logs.kinds import Place

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
RUNS = {"0a": "orders", "0ab": "orders", "1/é": "orders", "2": "a b/c", "3": "a b/c"}
FILES = {"0a": "a.py", "0ab": "a.py", "1/é": "b.py", "2": "", "3": ""}
TARGETS = ("shop.orders", "", "x/" + "long " * 50)
STEPS = ("load", "post é")
KEYS = [(run, target, step) for run in RUNS for target in TARGETS for step in STEPS]
ENDS = ("succeeded", "failed", "cancelled", "lost")
SILENT = NOON - timedelta(hours=1)


def record_of(key: tuple[str, str, str], size: int = 0) -> RunRecord:
    """A record whose process is elsewhere, so that only heartbeats tell of its life."""
    run, target, step = key
    return RunRecord(
        run_id=run,
        pipeline=RUNS[run],
        target=target,
        step=step,
        trigger="cli",
        # No two begin at one moment; the order is not that of the keys.
        started_at=NOON + timedelta(seconds=KEYS.index(key) * 7 % len(KEYS)),
        heartbeat_at=SILENT,
        host="elsewhere",
        pid=1,
        declared_in=FILES[run],
        bytes=size,
    )


@dataclass
class Model:
    """What a run log must tell, said as plainly as possible."""

    held: dict[tuple[str, str, str], RunRecord] = field(default_factory=dict)
    alive: set[tuple[str, str, str]] = field(default_factory=set)

    def may_begin(self, key: tuple[str, str, str]) -> bool:
        """A run begins once; it may say more of itself while it is running."""
        return key not in self.held or self.held[key].status == "running"

    def begin(self, record: RunRecord) -> None:
        key = (record.run_id, record.target, record.step)
        self.held[key] = record
        self.alive.discard(key)

    def heartbeat(self, run: str) -> None:
        self.alive |= {k for k, r in self.held.items() if k[0] == run and r.status == "running"}

    def finish(self, record: RunRecord) -> None:
        key = (record.run_id, record.target, record.step)
        before = self.held.get(key)
        if before is None or before.status in ("running", "lost") or record.status == "succeeded":
            self.held[key] = record

    def shown(self, record: RunRecord) -> str:
        key = (record.run_id, record.target, record.step)
        if record.status == "running":
            return "running" if key in self.alive else "lost"
        return record.status

    def newest(self) -> list[RunRecord]:
        return sorted(self.held.values(), key=lambda r: r.started_at, reverse=True)

    def list(self, pipeline: str | None, status: str | None, limit: int) -> list[RunRecord]:
        return [
            r
            for r in self.newest()
            if pipeline in (None, r.pipeline) and status in (None, self.shown(r))
        ][:limit]

    def get(self, begins: str) -> list[RunRecord] | int:
        """The records, or how many runs there are."""
        found = [r for r in self.newest()[::-1] if r.run_id.startswith(begins)]
        exact = [r for r in found if r.run_id == begins]
        runs = {r.run_id for r in exact or found}
        return (exact or found) if len(runs) < 2 else len(runs)

    def running(self, pipeline: str) -> list[RunRecord]:
        known = ("running", "lost")
        return [r for r in self.newest() if r.pipeline == pipeline and r.status in known]

    def last(self, pipeline: str, file: str) -> RunRecord | None:
        ours = [r for r in self.newest() if (r.pipeline, r.declared_in) == (pipeline, file)]
        run = [r for r in ours[::-1] if r.run_id == ours[0].run_id]
        bad = [r for r in run if r.status != "succeeded"]
        return next(iter(bad + run), None)

    def prune(self, before: datetime, *, dry_run: bool) -> set[str]:
        last = {
            (p, f): next(r.run_id for r in self.newest() if (r.pipeline, r.declared_in) == (p, f))
            for p, f in {(r.pipeline, r.declared_in) for r in self.held.values()}
        }
        gone = [
            key
            for key, r in self.held.items()
            if r.started_at < before
            and r.status not in ("running", "lost")
            and last[r.pipeline, r.declared_in] != r.run_id
        ]
        if not dry_run:
            for key in gone:
                del self.held[key]
        return {run for run, _, _ in gone}


keys = st.sampled_from(KEYS)
# These come again and again, so that much becomes of one record.
often = st.sampled_from(KEYS[:2])
pipelines = st.sampled_from(sorted({*RUNS.values(), "nothing"}))
steps = st.one_of(
    st.tuples(st.just("begin"), keys),
    st.tuples(st.just("finish"), keys, st.sampled_from(ENDS)),
    st.tuples(st.just("finish"), often, st.sampled_from(ENDS)),
    st.tuples(st.just("finish"), often, st.sampled_from(ENDS)),
    st.tuples(st.just("heartbeat"), st.sampled_from([*RUNS, "unknown"])),
    st.tuples(
        st.just("list"),
        st.none() | pipelines,
        st.none() | st.sampled_from(["running", *ENDS]),
        st.integers(1, 6),
    ),
    st.tuples(st.just("get"), st.sampled_from(["0", "0a", "0ab", "1", "1/é", "2", "x"])),
    st.tuples(st.just("running"), pipelines),
    st.tuples(st.just("last"), pipelines, st.sampled_from(["", "a.py", "b.py"])),
    st.tuples(st.just("prune"), st.integers(0, len(KEYS)), st.booleans()),
)


def plain(found: object) -> object:
    """Heartbeats are of this moment: that they were heard is seen by the status."""
    if isinstance(found, list):
        return [plain(r) for r in found]
    if isinstance(found, RunRecord) and found.status == "running":
        return dataclasses.replace(found, heartbeat_at=None)
    return found


def follow(log: RunLog, history: list[tuple[object, ...]]) -> None:
    model = Model()
    for size, (what, *rest) in enumerate(history):
        match what, *rest:
            case "begin", key:
                if model.may_begin(key):
                    log.begin(record_of(key, size))
                    model.begin(record_of(key, size))
            case "finish", key, status:
                ended = record_of(key, size).closed(status, finished_at=NOON)
                log.finish(ended)
                model.finish(ended)
            case "heartbeat", run:
                log.heartbeat(run)
                model.heartbeat(run)
            case "list", pipeline, status, limit:
                found = log.list(pipeline=pipeline, status=status, limit=limit)
                assert plain(found) == plain(model.list(pipeline, status, limit))
            case "get", begins:
                check_get(log, model, begins)
            case "running", pipeline:
                assert plain(log.running(pipeline)) == plain(model.running(pipeline))
            case "last", pipeline, file:
                last = log.last(pipeline, declared_in=file)
                assert plain(last) == plain(model.last(pipeline, file))
            case "prune", second, dry_run:
                before = NOON + timedelta(seconds=second)
                gone = log.prune(before, dry_run=dry_run)
                assert gone == model.prune(before, dry_run=dry_run)
    assert plain(log.list(limit=100)) == plain(model.newest())
    for run in RUNS:
        check_get(log, model, run)


def check_get(log: RunLog, model: Model, begins: str) -> None:
    expected = model.get(begins)
    if isinstance(expected, int):
        with pytest.raises(UnknownName, match=f"{expected} runs have an id that starts with"):
            log.get(begins)
    else:
        assert plain(log.get(begins)) == plain(expected)


def test_any_history_reads_as_the_model_says(place: Place) -> None:
    @settings(
        max_examples=place.examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(steps, min_size=25, max_size=40))
    def check(history: list[tuple[object, ...]]) -> None:
        log = place.fresh()()
        try:
            follow(log, history)
        finally:
            log.close()

    check()


def test_another_process_reads_and_ends_what_one_began(place: Place) -> None:
    open_log = place.fresh()
    first, second = open_log(), open_log()
    records = [dataclasses.replace(record_of(KEYS[0]), target=t) for t in "cab"]
    for record in records:
        first.begin(record)
    assert second.get("0a") == records
    second.heartbeat("0a")
    assert {r.status for r in first.list(status="running")} == {"running"}
    for record in records:
        second.finish(record.closed("failed", finished_at=NOON))
        first.finish(record.closed("cancelled", finished_at=NOON))
    # In the order in which they were begun, though all began at one time.
    assert [(r.target, r.status) for r in first.get("0a")] == [(t, "failed") for t in "cab"]
    decisive = first.last("orders", declared_in="a.py")
    assert decisive is not None
    assert decisive.target == "c"
    first.close()
    second.close()


def test_writers_at_once_lose_nothing(place: Place) -> None:
    open_log = place.fresh()
    writers, count = 8, 50
    failures: list[BaseException] = []
    written: set[str] = set()

    def write(number: int) -> None:
        log = open_log()
        try:
            for turn in range(count):
                record = RunRecord.opened(
                    run_id=new_run_id(),
                    pipeline=f"p{(number + turn) % 3}",
                    target="t",
                    trigger="cli",
                    attempt=turn + 1,
                )
                log.begin(record)
                log.finish(record.closed("succeeded" if turn % 5 else "failed"))
                written.add(record.run_id)
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            log.close()

    at_once([lambda n=n: write(n) for n in range(writers)])  # type: ignore[misc]
    assert failures == []
    log = open_log()
    found = log.list(limit=1000)
    assert {r.run_id for r in found} == written
    assert len(found) == len(written) == writers * count
    assert [r.started_at for r in found] == sorted((r.started_at for r in found), reverse=True)
    assert len(log.list(status="failed", limit=1000)) == writers * count / 5
    assert sum(len(log.list(pipeline=f"p{n}", limit=1000)) for n in range(3)) == writers * count
    assert [log.running(f"p{n}") for n in range(3)] == [[], [], []]
    log.close()


def test_of_many_that_end_one_run_the_first_is_believed(place: Place) -> None:
    open_log = place.fresh()
    ends = [record_of(KEYS[0], n).closed("failed", finished_at=NOON) for n in range(6)]
    seen: list[RunRecord] = []

    def end(record: RunRecord) -> None:
        log = open_log()
        log.finish(record)
        seen.extend(log.get("0a"))
        log.close()

    at_once([lambda r=r: end(r) for r in ends])  # type: ignore[misc]
    log = open_log()
    assert len({r.bytes for r in [*seen, *log.get("0a")]}) == 1
    log.close()


def test_a_turn_is_changed_by_whoever_has_seen_it(place: Place) -> None:
    open_log = place.fresh()
    log, other = open_log(), open_log()
    key, long = Key("shop", "a b/é"), Key("shop", "p" * 200)
    first = Turn(slot=NOON, state="succeeded", attempt=1)
    log.enter({key: first, long: Turn(paused=True)})
    other.enter({key: Turn(slot=NOON + timedelta(days=1)), long: Turn()})
    entered = other.standings(["shop", "nothing"])
    assert entered == {
        key: Standing(None, dataclasses.replace(first, epoch=1)),
        long: Standing(None, Turn(paused=True, epoch=1)),
    }
    seen = entered[key].turn
    claimed = dataclasses.replace(
        seen,
        state="claimed",
        token="t",
        holder="h:1",
        run_id="r",
        retry_at=NOON,
        expires_at=NOON + timedelta(microseconds=1),
    )
    assert log.move(key, seen, claimed)
    assert not other.move(key, seen, claimed)
    assert other.standings(["shop"])[key].turn == dataclasses.replace(claimed, epoch=2)
    unseen = Key("other", "new")
    assert log.move(unseen, Turn(), first)
    assert not other.move(unseen, Turn(), first)
    assert set(log.standings(["shop", "other"])) == {key, long, unseen}
    log.close()
    other.close()


def test_of_all_who_claim_a_turn_one_does(place: Place) -> None:
    open_log = place.fresh()
    key = Key("shop", "orders")
    log = open_log()
    log.enter({key: Turn(slot=NOON)})
    winners: list[int] = []
    claimants, rounds = 6, 4

    def claim(number: int) -> None:
        mine = open_log()
        for turn in range(rounds):
            seen = Turn(slot=NOON, epoch=turn + 1)
            # Whoever is too early for a round has seen what is not there yet, and does not win.
            while mine.standings(["shop"])[key].turn.epoch < seen.epoch:
                pass
            if mine.move(key, seen, dataclasses.replace(seen, token=f"{number} {turn}")):
                winners.append(turn)
        mine.close()

    at_once([lambda n=n: claim(n) for n in range(claimants)])  # type: ignore[misc]
    assert sorted(winners) == list(range(rounds))
    log.close()


def test_a_standing_tells_of_the_last_run(place: Place) -> None:
    log = place.fresh()()
    key = Key("shop", "orders")
    for number, end in enumerate(["succeeded", "failed", None]):
        record = RunRecord(
            run_id=f"r{number}",
            pipeline="orders",
            target="t",
            trigger="cli",
            started_at=NOON + timedelta(minutes=number),
            declared_in="shop",
        )
        log.begin(record)
        if end:
            record = record.closed(end, finished_at=NOON + timedelta(hours=1))
            log.finish(record)
        assert log.standings(["shop"]) == {key: Standing(last_of(record), Turn())}
    assert log.standings(["elsewhere"]) == {}
    log.close()


def test_the_clock_is_about_right(place: Place) -> None:
    log = place.fresh()()
    before = utc_now()
    shown = log.clock()
    assert before - timedelta(seconds=2) < shown < utc_now() + timedelta(seconds=2)
    log.close()


def at_once(acts: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_what_finds_nothing_is_refused(place: Place) -> None:
    log = place.fresh()()
    with pytest.raises(UnknownName, match="did you mean 'failed'"):
        log.list(status="failde")
    with pytest.raises(ConfigError, match="shows nothing"):
        log.list(limit=0)
    log.close()
