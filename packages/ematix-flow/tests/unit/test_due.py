"""Passes over pipelines that are due, beside what must be true of every history of them."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
from croniter import croniter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ematix_flow import BigInt, DuckDBConnection, ematix, register_connection
from ematix_flow.clock import Schedule
from ematix_flow.errors import ConfigError, DataError, Permanent, SourceLocation, Transient
from ematix_flow.model import LoadOptions, PipelineSpec, RetryPolicy, Table, TableName, TargetSpec
from ematix_flow.pipeline import run_due_with_dag_detailed
from ematix_flow.run.log import MemoryRunLog, RunLog
from ematix_flow.run.records import RunRecord
from ematix_flow.run.sqlite_log import SqliteRunLog
from ematix_flow.run.turns import GAVE_UP, Key, Turn
from ematix_flow.schedule.agenda import Fire
from ematix_flow.schedule.claims import Claims
from ematix_flow.schedule.due import How, planned, run_due
from ematix_flow.schedule.events import RunDueResult
from ematix_flow.schedule.slots import Assignment

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
FILE = "pipelines.py"


def spec(name: str, cron: str | None = "* * * * *", **details: Any) -> PipelineSpec:
    """A pipeline of which only what decides about its turn is declared."""
    table = Table(TableName(None, name), ())
    schedule = details.pop("schedule", None) or (Schedule(cron) if cron else None)
    depends_on = details.pop("depends_on", {})
    if not isinstance(depends_on, dict):
        depends_on = dict.fromkeys(depends_on, "success")
    return PipelineSpec(
        name,
        lambda: None,
        (TargetSpec(table, "w", "append", LoadOptions()),),
        SourceLocation(FILE, 1),
        schedule=schedule,
        depends_on=depends_on,
        **details,
    )


@dataclass
class World:
    """Runs that take no time, and all that is known of them."""

    log: RunLog
    now: datetime = NOON
    fails: Callable[[Assignment], Exception | None] = lambda work: None
    settled: Callable[[str], bool | Exception] = lambda run_id: False
    ran: list[tuple[str, datetime, int, datetime]] = field(default_factory=list)
    ended: list[tuple[str, str, datetime]] = field(default_factory=list)
    most_at_once: int = 0
    _busy: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def run(self, work: Assignment) -> None:
        error = self.fails(work)
        record = RunRecord.opened(
            run_id=work.run_id,
            pipeline=work.spec.name,
            target="t",
            trigger="run-due",
            declared_in=FILE,
            started_at=self.now,
            slot=work.slot,
            attempt=work.attempt,
        )
        work.log.begin(record)
        with self._lock:
            self._busy += 1
            self.most_at_once = max(self.most_at_once, self._busy)
            self.ran.append((work.spec.name, work.slot, work.attempt, self.now))
        status = "failed" if error else "succeeded"
        work.log.finish(record.closed(status, error=error, finished_at=self.now))
        with self._lock:
            self._busy -= 1
            self.ended.append((work.spec.name, status, self.now))
        if error:
            raise error

    def resume(self, work: Assignment) -> None:
        return None

    def settle(self, log: RunLog, spec: PipelineSpec, run_id: str) -> bool:
        answer = self.settled(run_id)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def due(self, *specs: PipelineSpec) -> RunDueResult:
        return run_due(specs, self.log, now=self.now, how=How(worker=self))

    def slots(self, name: str) -> list[datetime]:
        return [slot for n, slot, _, _ in self.ran if n == name]


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    log: RunLog = MemoryRunLog()
    if request.param == "sqlite":
        log = SqliteRunLog(tmp_path / "log.db")
    with contextlib.closing(log):
        yield World(log)


def reasons(result: RunDueResult) -> dict[str, str]:
    return {event.name: event.reason for event in result.skipped}


def test_a_slot_fires_once_however_often_somebody_looks(world: World) -> None:
    for _ in range(3):
        world.due(spec("a"))
    assert world.slots("a") == [NOON]
    world.now += MINUTE
    assert [e.slot for e in world.due(spec("a")).fired] == [NOON + MINUTE]
    assert world.due(spec("a")) == RunDueResult()


def test_a_pipeline_that_was_never_looked_at_begins_with_the_present(world: World) -> None:
    hourly = spec("a", "0 * * * *")
    world.now = NOON + timedelta(minutes=30)
    world.due(hourly)
    assert world.slots("a") == []
    # From then on nothing is lost, however late somebody looks.
    world.now += timedelta(minutes=59)
    world.due(hourly)
    assert world.slots("a") == [NOON + timedelta(hours=1)]


@pytest.mark.parametrize(
    ("policy", "fired"), [("none", [5]), ("last", [5]), ("all", [1, 2, 3, 4, 5])]
)
def test_missed_slots_are_caught_up_as_declared(
    world: World, policy: str, fired: list[int]
) -> None:
    job = spec("a", schedule=Schedule("* * * * *", catchup=policy))
    world.due(job)
    world.now += 5 * MINUTE
    world.due(job)
    assert world.slots("a")[1:] == [NOON + n * MINUTE for n in fired]


def test_none_passes_over_what_is_late(world: World) -> None:
    job = spec("a", schedule=Schedule("*/10 * * * *", catchup="none"))
    world.due(job)
    world.now += timedelta(minutes=13)
    world.due(job)
    world.now += timedelta(minutes=7)
    world.due(job)
    assert world.slots("a") == [NOON, NOON + 20 * MINUTE]


def test_pipelines_run_after_those_they_depend_on(world: World) -> None:
    result = world.due(spec("c", depends_on=["b"]), spec("b", depends_on=["a"]), spec("a"))
    assert [event.name for event in result.fired] == ["a", "b", "c"]


def test_what_depends_on_a_failure_is_skipped_and_told_why(world: World) -> None:
    world.fails = lambda work: Permanent("no", connection="w") if work.spec.name == "a" else None
    jobs = [
        spec("a"),
        spec("on_success", depends_on=["a"]),
        spec("on_failure", depends_on={"a": "failed"}),
        spec("anyway", depends_on={"a": "completed"}),
        spec("after_that", depends_on=["on_success"]),
    ]
    result = world.due(*jobs)
    assert [event.name for event in result.failed] == ["a"]
    assert [event.name for event in result.fired] == ["on_failure", "anyway"]
    assert reasons(result) == {
        "on_success": "it waits for a, which failed",
        "after_that": "it waits for on_success, which is due itself",
    }
    assert not result.ok
    world.fails = lambda work: None
    world.now += MINUTE
    result = world.due(*jobs)
    assert [event.name for event in result.fired] == ["a", "on_success", "anyway", "after_that"]
    assert reasons(result) == {"on_failure": "it waits for a, which succeeded"}


def test_a_downstream_waits_for_a_run_that_another_machine_is_at(world: World) -> None:
    """Yesterday's run of the upstream ended after yesterday's slot: it does not count for today."""
    jobs = [spec("a", "0 0 * * *"), spec("b", "0 0 * * *", depends_on=["a"])]
    world.now = NOON.replace(hour=0) + timedelta(seconds=5)
    world.due(*jobs)
    assert [name for name, *_ in world.ran] == ["a", "b"]
    world.now += timedelta(days=1)
    turn = world.log.standings([FILE])[Key(FILE, "a")].turn
    elsewhere = Claims(world.log, holder="elsewhere:1")
    assert elsewhere.take(
        Key(FILE, "a"), turn, Fire(world.now.replace(second=0), 1), "run-elsewhere"
    )
    result = world.due(*jobs)
    assert reasons(result) == {
        "a": "a run of it is under way",
        "b": "it waits for a (a run of it is under way)",
    }


def test_an_upstream_counts_by_its_age_where_that_is_asked_for(world: World) -> None:
    jobs = [
        spec("a", "0 * * * *"),
        spec("b", "30 * * * *", depends_on=["a"], upstream_freshness_secs=600),
        spec("c", "30 * * * *", depends_on=["a"]),
    ]
    world.due(*jobs)
    world.now += 30 * MINUTE
    result = world.due(*jobs)
    assert [event.name for event in result.fired] == ["c"]
    assert reasons(result) == {
        "b": "it waits for a, which has not run since 2026-03-01 12:20:00 UTC"
    }


def test_a_failed_run_is_tried_again_after_a_growing_pause(world: World) -> None:
    policy = RetryPolicy(max_attempts=4, backoff_seconds=60, backoff_factor=2)
    world.fails = lambda work: Transient("down", connection="w") if work.attempt < 4 else None
    job = spec("a", "0 * * * *", retry=policy)
    while world.now < NOON + 30 * MINUTE:
        world.due(job)
        world.now += MINUTE
    assert [(attempt, at - NOON) for _, _, attempt, at in world.ran] == [
        (1, timedelta()),
        (2, MINUTE),
        (3, 3 * MINUTE),
        (4, 7 * MINUTE),
    ]
    assert set(world.slots("a")) == {NOON}


def test_who_gives_up_stays_loud_until_somebody_sees_to_it(world: World) -> None:
    policy = RetryPolicy(max_attempts=2)
    world.fails = lambda work: Transient("down", connection="w")
    job = spec("a", retry=policy)
    result = world.due(job)
    assert [(e.attempt_count, e.gave_up) for e in result.failed] == [(1, False), (2, True)]
    world.now += 5 * MINUTE
    for _ in range(2):
        result = world.due(job)
        assert reasons(result) == {
            "a": "it gave up after 2 attempts; see to it, then: flow reset a"
        }
        assert not result.ok
    # A run by hand that succeeds says as much as a reset.
    by_hand = RunRecord.opened(
        run_id="by-hand", pipeline="a", target="t", trigger="cli", declared_in=FILE
    )
    world.log.begin(by_hand)
    world.log.finish(by_hand.closed("succeeded"))
    world.fails = lambda work: None
    assert [event.slot for event in world.due(job).fired] == [world.now]


def test_what_would_fail_the_same_way_is_not_tried_again(world: World) -> None:
    world.fails = lambda work: DataError("bad rows")
    result = world.due(
        spec("a", retry=RetryPolicy(max_attempts=5)),
        spec("b", retry=RetryPolicy(max_attempts=3, retry_on=("any",))),
        spec("c", retry=RetryPolicy(max_attempts=2, retry_on=("DataError",))),
    )
    tries: dict[str, int] = defaultdict(int)
    for event in result.failed:
        tries[event.name] += 1
    assert tries == {"a": 1, "b": 3, "c": 2}


def test_without_a_policy_the_next_slot_fires_as_if_nothing_had_been(world: World) -> None:
    world.fails = lambda work: Transient("down", connection="w")
    world.due(spec("a"))
    world.fails = lambda work: None
    world.now += MINUTE
    assert [event.slot for event in world.due(spec("a")).fired] == [NOON + MINUTE]


def test_a_paused_pipeline_waits_and_what_depends_on_it_too(world: World) -> None:
    jobs = [spec("a"), spec("b", depends_on=["a"])]
    world.due(*jobs)
    key = Key(FILE, "a")
    turn = world.log.standings([FILE])[key].turn
    assert world.log.move(key, turn, dataclasses.replace(turn, paused=True))
    world.now += MINUTE
    assert reasons(world.due(*jobs)) == {
        "a": "it is paused",
        "b": "it waits for a (it is paused)",
    }


def test_no_more_run_at_once_than_may(world: World) -> None:
    jobs = [spec(f"p{n}", tags=("heavy",) if n < 4 else ()) for n in range(8)]
    gate = threading.Barrier(3)

    def meet(work: Assignment) -> None:
        if work.spec.name in ("p0", "p4", "p5"):
            gate.wait(30)

    world.fails = meet  # type: ignore[assignment]  # it never fails
    heavy: list[int] = []

    class Careful(World):
        def run(self, work: Assignment) -> None:
            if work.spec.tags:
                heavy.append(1)
                assert len(heavy) == 1
            world.run(work)
            if work.spec.tags:
                heavy.pop()

    how = How(worker=Careful(world.log), max_parallel=3, limits={"heavy": 1})
    result = run_due(jobs, world.log, now=world.now, how=how)
    assert len(result.fired) == 8
    assert result.ok


def test_the_slot_of_a_run_that_is_lost_is_taken_over(world: World) -> None:
    job = spec("a", "0 * * * *")
    key = Key(FILE, "a")
    dead = Claims(world.log, lease=timedelta(seconds=-1), holder="elsewhere:1")
    assert dead.take(key, Turn(), Fire(NOON, 1), "lost-run")
    asked: list[str] = []
    world.settled = lambda run_id: bool(asked.append(run_id))  # type: ignore[func-returns-value]  # it is False
    result = world.due(job)
    assert [(e.slot, e.attempt_count) for e in result.fired] == [(NOON, 2)]
    assert asked == ["lost-run"]
    # Who wakes after that finds its slot taken: what it says of it does not count.
    assert dead.give_back(key, lambda turn: turn.ended(GAVE_UP)) is None
    assert world.log.standings([FILE])[key].turn.state == "succeeded"


def test_a_lost_run_that_had_committed_is_not_run_again(world: World) -> None:
    key = Key(FILE, "a")
    dead = Claims(world.log, lease=timedelta(seconds=-1), holder="elsewhere:1")
    assert dead.take(key, Turn(), Fire(NOON, 1), "lost-run")
    world.settled = lambda run_id: True
    result = world.due(spec("a", "0 * * * *"))
    assert [(e.name, e.result) for e in result.fired] == [("a", None)]
    assert world.ran == []


def test_while_nobody_knows_what_became_of_a_run_its_slot_waits(world: World) -> None:
    key = Key(FILE, "a")
    dead = Claims(world.log, lease=timedelta(seconds=-1), holder="elsewhere:1")
    assert dead.take(key, Turn(), Fire(NOON, 1), "lost-run")

    world.settled = lambda run_id: Transient("no answer", connection="w")
    job = spec("a", "0 * * * *")
    for _ in range(2):
        result = world.due(job)
        assert not result.ok
        assert "what became of its run lost-run is not known" in reasons(result)["a"]
    assert world.ran == []
    world.settled = lambda run_id: False
    assert [event.attempt_count for event in world.due(job).fired] == [2]


def test_a_run_by_hand_is_waited_for(world: World) -> None:
    world.log.begin(
        RunRecord.opened(run_id="x", pipeline="a", target="t", trigger="cli", declared_in=FILE)
    )
    assert reasons(world.due(spec("a"))) == {"a": "a run of it that no schedule began is under way"}
    assert world.ran == []


def test_looking_ahead_changes_nothing(world: World) -> None:
    for _ in range(2):
        assert planned([spec("a")], world.log, now=NOON) == {"a": Fire(NOON, 1)}
    assert world.log.standings([FILE]) == {}


def test_of_many_who_come_at_once_one_fires_each_slot(tmp_path: Path) -> None:
    path, jobs = tmp_path / "log.db", [spec(f"p{n}") for n in range(20)]
    logs = [SqliteRunLog(path) for _ in range(4)]
    worlds = [World(log) for log in logs]
    for minute in range(5):
        for world in worlds:
            world.now = NOON + minute * MINUTE
        threads = [threading.Thread(target=w.due, args=jobs) for w in worlds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for log in logs:
        log.close()
    fired = sorted((name, slot) for world in worlds for name, slot, _, _ in world.ran)
    assert fired == sorted((f"p{n}", NOON + m * MINUTE) for n in range(20) for m in range(5))
    assert len({id(w) for w in worlds if w.ran}) > 1


CRONS = ("* * * * *", "*/2 * * * *", "*/3 * * * *", "1-59/5 * * * *", "0,7,30 * * * *")


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[PipelineSpec], list[int], frozenset[int]]:
    count = draw(st.integers(2, 7))
    jobs = []
    for n in range(count):
        upstream = draw(st.lists(st.integers(0, n - 1), max_size=2, unique=True)) if n else []
        condition = draw(st.sampled_from(["success", "success", "completed"]))
        retry = draw(
            st.none()
            | st.builds(
                RetryPolicy,
                max_attempts=st.integers(1, 3),
                backoff_seconds=st.sampled_from([0.0, 60.0, 150.0]),
                jitter=st.sampled_from([0.0, 0.5]),
            )
        )
        catchup = draw(st.sampled_from(["all", "last", "none"]))
        jobs.append(
            spec(
                f"p{n}",
                schedule=Schedule(draw(st.sampled_from(CRONS)), catchup=catchup),
                depends_on={f"p{u}": condition for u in upstream},
                retry=retry,
            )
        )
    looks = draw(st.lists(st.integers(1, 9), min_size=3, max_size=14))
    bad = frozenset(draw(st.lists(st.integers(0, 60), max_size=12)))
    return jobs, looks, bad


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_what_is_true_of_every_history(
    history: tuple[list[PipelineSpec], list[int], frozenset[int]],
) -> None:
    jobs, looks, bad = history
    world = World(MemoryRunLog())

    def fails(work: Assignment) -> Exception | None:
        number = int(work.spec.name[1:]) * 7 + (work.slot - NOON) // MINUTE + work.attempt
        return Transient("down", connection="w") if number % 61 in bad else None

    world.fails = fails
    told: dict[str, list[str]] = defaultdict(list)
    for gap in looks:
        result = world.due(*jobs)
        for skipped in result.skipped:
            told[skipped.name].append(skipped.reason)
        _check_pass(world, {job.name: job for job in jobs})
        world.now += gap * MINUTE
    for job in jobs:
        _check_pipeline(world, job, told[job.name], world.now - looks[-1] * MINUTE)


def _check_pass(world: World, jobs: dict[str, PipelineSpec]) -> None:
    """Each run of this pass had its upstreams as its declaration wants them, at that moment."""
    seen: dict[str, tuple[str, datetime]] = {}
    for (name, slot, _, now), (_, status, _) in zip(world.ran, world.ended, strict=True):
        job = jobs[name]
        if now == world.now:
            for upstream, condition in job.depends_on.items():
                end, at = seen[upstream]
                assert condition == "completed" or end == "succeeded"
                assert job.schedule is not None
                before = croniter(job.schedule.cron, slot).get_prev(datetime)
                assert at == now or at > before
        seen[name] = (status, now)


def _check_pipeline(world: World, job: PipelineSpec, told: list[str], looked: datetime) -> None:
    runs = [
        (slot, attempt, status, now)
        for (name, slot, attempt, now), (_, status, _) in zip(world.ran, world.ended, strict=True)
        if name == job.name
    ]
    slots = [slot for slot, *_ in runs]
    assert slots == sorted(slots)
    most = job.retry.max_attempts if job.retry else 1
    for slot in set(slots):
        mine = [run for run in runs if run[0] == slot]
        assert [attempt for _, attempt, _, _ in mine] == list(range(1, len(mine) + 1))
        assert len(mine) <= most
        assert all(status == "failed" for _, _, status, _ in mine[:-1])
        for (_, attempt, _, before), (_, _, _, after) in pairwise(mine):
            assert job.retry is not None
            assert (after - before).total_seconds() >= job.retry.pause_after(attempt)
    assert job.schedule is not None
    meant = set()
    times = croniter(job.schedule.cron, NOON - MINUTE)
    while (at := times.get_next(datetime)) <= world.now:
        meant.add(at)
    assert set(slots) <= meant
    if job.schedule.catchup == "all" and not told:
        # Nothing ever held it up: it has run every slot up to the last look.
        assert set(slots) == {slot for slot in meant if slot <= looked}


def test_from_python_too_every_slot_fires_once(tmp_path: Path) -> None:
    path = str(tmp_path / "w.duckdb")
    register_connection(DuckDBConnection(name="w", path=path))

    @ematix.table(schema="s")
    class Slots:
        slot: BigInt

    @ematix.pipeline(target=Slots, target_connection="w", schedule="* * * * *")
    def first(run: Any) -> str:
        return f"SELECT {run.slot.timestamp():.0f}::BIGINT AS slot"

    @ematix.pipeline(target=Slots, target_connection="w", schedule="* * * * *", depends_on=[first])
    def second(run: Any) -> str:
        return f"SELECT {run.slot.timestamp():.0f}::BIGINT AS slot"

    log = f"sqlite://{tmp_path}/log.db"
    only = run_due_with_dag_detailed([second], now=NOON, run_log=log)
    assert reasons(only) == {"second": "it waits for first, which is due itself"}
    for fired in (["first", "second"], []):
        result = run_due_with_dag_detailed(now=NOON, run_log=log)
        assert [event.name for event in result.fired] == fired
    with duckdb.connect(path) as held:
        assert held.sql("SELECT slot FROM s.slots").fetchall() == [(int(NOON.timestamp()),)] * 2
    with (
        pytest.warns(UserWarning, match="cannot be written"),
        pytest.raises(ConfigError, match="what has fired is kept in the run log"),
    ):
        run_due_with_dag_detailed(run_log="/proc/none/log.db")
