"""Passes and schedulers beside others, with a run log that fails and workers that die."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ematix_flow.errors import ConfigError, DataError, RunLogUnavailable, Transient
from ematix_flow.model import RetryPolicy
from ematix_flow.pipeline import run_due_with_dag_detailed
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.log import MemoryRunLog
from ematix_flow.run.records import RunRecord
from ematix_flow.run.turns import CLAIMED, FAILED, GAVE_UP, SUCCEEDED, Key, Standing, Turn
from ematix_flow.schedule.agenda import Agenda, Decision, Fire
from ematix_flow.schedule.claims import Claims
from ematix_flow.schedule.due import How, run_due
from ematix_flow.schedule.events import RunDueResult
from ematix_flow.schedule.executors import DispatchSpec
from ematix_flow.schedule.loop import Scheduler, Watch
from ematix_flow.schedule.slots import Assignment

from .test_due import FILE, MINUTE, NOON, World, reasons, spec


def turn_of(log: MemoryRunLog, name: str) -> Turn:
    return log.standings([FILE])[Key(FILE, name)].turn


def finished(work: Callable[[], RunDueResult]) -> RunDueResult:
    """What a pass came to, if it came to an end."""
    made: list[RunDueResult] = []
    thread = threading.Thread(target=lambda: made.append(work()), daemon=True)
    thread.start()
    thread.join(20)
    assert made, "the pass goes round and round"
    return made[0]


def test_a_pass_ends_while_others_are_at_all_that_a_tag_allows() -> None:
    log = MemoryRunLog()
    world = World(log)
    a, b = spec("a", tags=("heavy",)), spec("b", tags=("heavy",))
    Claims(log, holder="elsewhere:1").take(Key(FILE, "a"), Turn(), Fire(NOON, 1), "run")
    how = How(worker=world, limits={"heavy": 1})
    result = finished(lambda: run_due([a, b], log, now=NOON, how=how))
    assert reasons(result) == {
        "a": "a run of it is under way",
        "b": "no more pipelines with tag 'heavy' may run at once",
    }
    assert world.ran == []


def test_a_pass_ends_although_a_turn_cannot_be_changed() -> None:
    class Stuck(MemoryRunLog):
        def move(self, key: Key, before: Turn, after: Turn) -> bool:
            return False

    log = Stuck()
    how = How(worker=World(log))
    result = finished(lambda: run_due([spec("a")], log, now=NOON, how=how))
    assert reasons(result) == {"a": "its turn in the run log can be neither changed nor read"}
    assert not result.ok


@pytest.mark.parametrize("limits", [{}, {"t": 2}])
def test_the_work_of_a_pass_grows_with_what_is_due_and_no_faster(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    decide = Agenda.decide

    def counted(agenda: Agenda, name: str) -> Decision:
        looked.append(name)
        return decide(agenda, name)

    monkeypatch.setattr(Agenda, "decide", counted)
    log, many = MemoryRunLog(), [spec(f"p{n}", tags=("t",)) for n in range(60)]
    how = How(worker=World(log), max_parallel=4, limits=limits)
    assert len(run_due(many, log, now=NOON, how=how).fired) == len(many)
    # Before anything is begun, before it is begun itself, and after it has ended.
    assert max(Counter(looked).values()) <= 3


def test_a_claim_is_kept_while_a_run_goes_on_after_the_pass_has_failed() -> None:
    begun, renewed = threading.Event(), threading.Event()

    class Failing(MemoryRunLog):
        def move(self, key: Key, before: Turn, after: Turn) -> bool:
            if key.pipeline == "b" and after.state == CLAIMED:
                begun.wait(20)
                raise RunLogUnavailable("the run log cannot be read: down")
            done = super().move(key, before, after)
            if before.state == after.state == CLAIMED:
                renewed.set()
            return done

    class Long(World):
        def run(self, work: Assignment) -> None:
            begun.set()
            assert renewed.wait(20), "nobody renews the claim"
            super().run(work)

    log = Failing()
    how = How(worker=Long(log), max_parallel=2, lease=timedelta(seconds=1))
    with pytest.raises(ConfigError, match="cannot be read"):
        run_due([spec("a"), spec("b")], log, now=NOON, how=how)
    assert turn_of(log, "a").state == SUCCEEDED


def test_a_slot_is_not_given_up_because_the_run_log_is_down() -> None:
    log = MemoryRunLog()
    world = World(log, fails=lambda work: RunLogUnavailable("the run log cannot be read: down"))
    for job in (spec("a"), spec("b", retry=RetryPolicy(max_attempts=3))):
        assert not world.due(job).ok
        assert turn_of(log, job.name).state == CLAIMED
    world.fails = lambda work: None
    fired = world.due(spec("a"), spec("b", retry=RetryPolicy(max_attempts=3))).fired
    assert [(e.name, e.slot, e.attempt_count) for e in fired] == [("a", NOON, 1), ("b", NOON, 1)]


def test_who_gives_up_without_a_record_of_its_run_stays_loud() -> None:
    class DiesFirst(World):
        def run(self, work: Assignment) -> None:
            raise DataError("before anything was recorded")

    log = MemoryRunLog()
    job = spec("a", retry=RetryPolicy(max_attempts=1))
    world = World(log)
    assert world.due(job).ok
    dying = DiesFirst(log, now=NOON + MINUTE)
    assert [e.gave_up for e in dying.due(job).failed] == [True]
    dying.now += MINUTE
    result = dying.due(job)
    assert not result.failed
    assert "gave up" in reasons(result)["a"]


def test_a_pause_before_anybody_has_looked_loses_no_later_slot() -> None:
    log = MemoryRunLog()
    world, job = World(log), spec("a", "*/5 * * * *")
    log.move(Key(FILE, "a"), Turn(), Turn(paused=True))
    world.now = NOON + 3 * MINUTE
    assert world.due(job) == RunDueResult()
    paused = turn_of(log, "a")
    assert paused.paused
    log.move(Key(FILE, "a"), paused, dataclasses.replace(paused, paused=False))
    for _ in range(3):
        world.now += 5 * MINUTE
        world.due(job)
    assert world.slots("a") == [NOON + n * 5 * MINUTE for n in (1, 2, 3)]


def test_the_pause_before_a_retry_begins_when_the_run_has_failed() -> None:
    class Slow(World):
        def run(self, work: Assignment) -> None:
            time.sleep(0.3)  # what a run takes is what is measured
            raise Transient("down", connection="w")

    log, policy = MemoryRunLog(), RetryPolicy(max_attempts=5, backoff_seconds=60)
    how = How(worker=Slow(log), fresh=timedelta(minutes=2))
    run_due([spec("a", retry=policy)], log, how=how)
    failed_at = datetime.now(timezone.utc)
    turn = turn_of(log, "a")
    assert turn.state == FAILED
    assert turn.retry_at is not None
    assert abs(turn.retry_at - failed_at - timedelta(seconds=60)) < timedelta(seconds=0.25)


def test_the_clock_of_who_ran_an_upstream_may_be_behind() -> None:
    log = MemoryRunLog()
    jobs = [spec("up"), spec("down", depends_on=["up"])]
    run_id = new_run_id()
    claims = Claims(log)
    claims.take(Key(FILE, "up"), Turn(), Fire(NOON, 1), run_id)
    behind = NOON - 5 * MINUTE
    record = RunRecord.opened(
        run_id=run_id,
        pipeline="up",
        target="t",
        trigger="scheduler",
        declared_in=FILE,
        started_at=behind,
    )
    log.begin(record)
    log.finish(record.closed("succeeded", finished_at=behind))
    claims.give_back(Key(FILE, "up"), lambda turn: turn.ended(SUCCEEDED))
    assert [e.name for e in World(log).due(*jobs).fired] == ["down"]


def test_a_pass_that_is_stopped_says_so_also_when_its_runs_succeed() -> None:
    def main_waits() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        return any(f.f_code.co_name == "_wait" for f, _ in traceback.walk_stack(frame))

    class Interrupting(World):
        def run(self, work: Assignment) -> None:
            while not main_waits():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            super().run(work)

    log = MemoryRunLog()
    world = Interrupting(log)
    limited = How(worker=world, max_parallel=2, limits={"t": 1})
    jobs = [spec("a", tags=("t",)), spec("b", tags=("t",))]
    result = run_due(jobs, log, now=NOON, how=limited)
    assert result.stopped
    assert [event.name for event in result.fired] == ["a"]
    assert reasons(result) == {"b": "the pass was stopped before it"}


@pytest.mark.parametrize("lost", [("finish",), ("begin", "finish")])
def test_an_upstream_counts_whose_records_were_lost_while_the_log_was_down(
    lost: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryRunLog()
    world = World(log)
    jobs = [spec("up"), spec("down", depends_on=["up"])]
    world.due(*jobs)
    world.now += MINUTE
    with monkeypatch.context() as down:
        for what in lost:
            down.setattr(log, what, lambda record: None)
        assert world.due(jobs[0]).ok
    assert [e.name for e in world.due(*jobs).fired] == ["down"]


class Workers:
    """Workers that end at once, having done nothing."""

    def __init__(self, error: OSError | None = None) -> None:
        self.started: list[DispatchSpec] = []
        self.error = error

    def dispatch(self, spec: DispatchSpec) -> str:
        if self.error is not None:
            raise self.error
        self.started.append(spec)
        return str(len(self.started))

    def has_ended(self, worker: str) -> bool:
        return True

    def cancel(self, worker: str) -> None:
        pass


def test_a_scheduler_gives_up_whose_workers_cannot_even_begin() -> None:
    log, workers = MemoryRunLog(), Workers()
    scheduler = Scheduler([spec("a")], log, workers, Watch(), now=lambda: NOON)
    for _ in range(30):
        scheduler.look()
    assert 3 <= len(workers.started) <= 6
    assert turn_of(log, "a").state == GAVE_UP


def test_a_scheduler_goes_on_when_no_worker_can_be_started() -> None:
    log, workers = MemoryRunLog(), Workers(OSError(11, "Resource temporarily unavailable"))
    scheduler = Scheduler([spec("a")], log, workers, Watch(), now=lambda: NOON)
    for _ in range(9):
        assert scheduler.look() == 0
    workers.error = None
    assert scheduler.look() == 1


def test_schedulers_of_other_projects_do_not_wait_for_one_another() -> None:
    log = MemoryRunLog()
    deep = "/srv/" + "deeply/" * 40
    first, second = spec("a"), spec("b")
    for number, job in enumerate((first, second)):
        here = dataclasses.replace(job.location, file=f"{deep}{number}/pipelines.py")
        held = dataclasses.replace(job, location=here)
        scheduler = Scheduler([held], log, Workers(), Watch(worker_id=job.name), now=lambda: NOON)
        assert scheduler.look() == 1
    # In containers, pipelines of several projects are declared in files of one name.
    log = MemoryRunLog()
    for job in (first, second):
        scheduler = Scheduler([job], log, Workers(), Watch(worker_id=job.name), now=lambda: NOON)
        assert scheduler.look() == 1


def test_a_scheduler_waits_for_its_workers_also_while_the_log_is_down() -> None:
    class Failing(MemoryRunLog):
        answers = 0

        def standings(self, origins: Iterable[str]) -> dict[Key, Standing]:
            if scheduler.at_work and self.answers < 3:
                self.answers += 1
                raise RunLogUnavailable("the run log cannot be read: down")
            return super().standings(origins)

    log = Failing()
    watch = Watch(poll=timedelta(seconds=0.01))
    scheduler = Scheduler([spec("a")], log, Workers(), watch, now=lambda: NOON)
    scheduler.serve(max_iterations=1)
    assert scheduler.at_work == []
    assert log.answers == 3


def test_from_python_no_slot_fires_without_a_log_that_remembers(tmp_path: Path) -> None:
    folder = tmp_path / "log.db"
    folder.mkdir()
    with (
        pytest.warns(UserWarning, match="cannot be written"),
        pytest.raises(ConfigError, match="what has fired is kept in the run log"),
    ):
        run_due_with_dag_detailed([], run_log=f"sqlite://{folder}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"now": datetime(2026, 3, 1, 12)}, "has no time zone"),
        ({"max_parallel": 0}, "max_parallel must be a whole number"),
    ],
)
def test_from_python_what_cannot_be_meant_is_said(given: dict[str, object], message: str) -> None:
    with pytest.raises(Exception, match=message):
        run_due_with_dag_detailed([], run_log=MemoryRunLog(), **given)  # type: ignore[arg-type]
