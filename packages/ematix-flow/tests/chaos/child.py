"""A scheduler whose clock is skewed, whose time flies, and whose workers are forks that may die.

Called as ``python -m chaos.child <plan.json>``. The effect of a slot is a row in ``effects``; the
fate of a run is decided once, in the same transaction, as a target decides it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from ematix_flow.clock import Schedule
from ematix_flow.connections import PostgresConnection
from ematix_flow.errors import SourceLocation, Transient, Undecided
from ematix_flow.model import LoadOptions, PipelineSpec, RetryPolicy, Table, TableName, TargetSpec
from ematix_flow.run.database_log import DatabaseRunLog
from ematix_flow.run.log import RunLog
from ematix_flow.run.records import RunRecord
from ematix_flow.run.result import RunResult
from ematix_flow.run.undelivered import BufferedRunLog, undelivered_folder
from ematix_flow.schedule.executors import DispatchSpec
from ematix_flow.schedule.loop import Scheduler, Watch
from ematix_flow.schedule.slots import Assignment
from ematix_flow.schedule.worker import run_claimed

FILE = "chaos.py"
TABLES = """
CREATE TABLE fates (run_id text PRIMARY KEY, fate text NOT NULL);
CREATE TABLE effects (pipeline text, slot timestamptz, run_id text, attempt int,
    at timestamptz DEFAULT clock_timestamp());
CREATE TABLE events (pipeline text, slot timestamptz, run_id text, pid int, what text,
    at timestamptz DEFAULT clock_timestamp());
"""


@dataclass(frozen=True)
class Plan:
    """What all processes of one simulation go by."""

    url: str
    pipelines: int
    began: float
    starts: str
    speed: float
    skew: float
    seed: int

    @property
    def start(self) -> datetime:
        return datetime.fromisoformat(self.starts)

    def specs(self) -> list[PipelineSpec]:
        """Every third depends on the one before it; a failing attempt is tried again."""
        return [self._spec(n) for n in range(self.pipelines)]

    def _spec(self, n: int) -> PipelineSpec:
        cron = ("0 */3 * * *", "30 */6 * * *", "15 4,16 * * *", "0 0 * * *")[n // 3 % 4]
        return PipelineSpec(
            f"p{n}",
            lambda: None,
            (TargetSpec(Table(TableName(None, f"t{n}"), ()), "w", "append", LoadOptions()),),
            SourceLocation(FILE, 1),
            schedule=Schedule(cron, catchup="all", start=self.start),
            depends_on={f"p{n - 1}": "success"} if n % 3 else {},
            retry=RetryPolicy(max_attempts=1000, backoff_seconds=60, retry_on=("any",)),
        )

    def simulated(self, moment: datetime) -> datetime:
        """The simulated time at a moment of the server's clock."""
        return self.start + timedelta(seconds=(moment.timestamp() - self.began) * self.speed)


class Effects:
    """Runs a slot: its effect and its fate in one transaction, a little work around it."""

    def __init__(self, plan: Plan, now: datetime) -> None:
        self.plan = plan
        self.now = now
        self.chance = random.Random(os.getpid() * 1000 + plan.seed)  # noqa: S311 - no secret

    def run(self, work: Assignment) -> RunResult | None:
        record = RunRecord.opened(
            run_id=work.run_id,
            pipeline=work.spec.name,
            target="t",
            trigger="scheduler",
            declared_in=FILE,
            started_at=self.now,
            slot=work.slot,
            attempt=work.attempt,
        )
        work.log.begin(record)
        try:
            self._commit(work, record)
        except psycopg.Error as error:
            work.log.finish(record.closed("lost", error=error, finished_at=self.now))
            raise Undecided(f"the server is gone: {error}") from error
        work.log.finish(record.closed("succeeded", finished_at=self.now))
        return None

    def _commit(self, work: Assignment, record: RunRecord) -> None:
        told = (work.spec.name, work.slot, work.run_id, os.getpid())
        tell = "INSERT INTO events (pipeline, slot, run_id, pid, what) VALUES (%s, %s, %s, %s, {})"
        with psycopg.connect(self.plan.url, autocommit=True) as raw:
            raw.execute(tell.format("'begin'"), told)
            time.sleep(self.chance.random() * 0.05)
            lucky = self.chance.random() > 0.05
            if lucky:
                with raw.transaction():
                    raw.execute("INSERT INTO fates VALUES (%s, 'committed')", (work.run_id,))
                    raw.execute(
                        "INSERT INTO effects (pipeline, slot, run_id, attempt) "
                        "VALUES (%s, %s, %s, %s)",
                        (work.spec.name, work.slot, work.run_id, work.attempt),
                    )
            raw.execute(tell.format("'end'"), told)
        if not lucky:
            failure = Transient("bad luck", connection="w")
            work.log.finish(record.closed("failed", error=failure, finished_at=self.now))
            raise failure

    def resume(self, work: Assignment) -> RunResult | None:
        return None

    def settle(self, log: RunLog, spec: PipelineSpec, run_id: str) -> bool:
        """First come, first served: from now on the run's fate is what it is."""
        try:
            with psycopg.connect(self.plan.url, autocommit=True) as raw:
                raw.execute(
                    "INSERT INTO fates VALUES (%s, 'dead') ON CONFLICT DO NOTHING", (run_id,)
                )
                found = raw.execute(
                    "SELECT fate FROM fates WHERE run_id = %s", (run_id,)
                ).fetchone()
        except psycopg.Error as error:
            raise Transient(str(error), connection="w") from error
        committed = found == ("committed",)
        for record in log.get(run_id):
            log.finish(record.closed("succeeded" if committed else "failed", finished_at=self.now))
        return committed


class Forks:
    """An executor whose workers are forks of the scheduler."""

    def __init__(self, plan: Plan, specs: dict[str, PipelineSpec]) -> None:
        self.plan = plan
        self.specs = specs

    def dispatch(self, spec: DispatchSpec) -> str:
        pid = os.fork()
        if pid:
            return str(pid)
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            log = opened(self.plan)
            worker = Effects(self.plan, self.plan.simulated(log.clock()))
            run_claimed(
                self.specs[spec.pipeline_name],
                spec.claim_token,
                log,
                lease=timedelta(seconds=spec.lease_seconds),
                previous=spec.previous,
                lost=spec.lost,
                worker=worker,
                now=worker.now,
            )
            log.close()
            code = 0
        finally:
            os._exit(code)

    def has_ended(self, worker: str) -> bool:
        try:
            return os.waitpid(int(worker), os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def cancel(self, worker: str) -> None:
        os.kill(int(worker), signal.SIGTERM)


def opened(plan: Plan) -> RunLog:
    """The log; a server that restarts is waited for."""
    deadline = time.monotonic() + 60
    connection = PostgresConnection(name="log", url=plan.url)
    folder = undelivered_folder(repr(connection))
    while True:
        try:
            log = BufferedRunLog(lambda: DatabaseRunLog(connection), folder)
            log.reached()
            return log.insist()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def skewed(seconds: float) -> None:
    """Put the clock of this process wrong, wherever it is looked at."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("ematix_flow") and hasattr(module, "utc_now"):
            right: Any = module.utc_now
            module.utc_now = lambda right=right: right() + timedelta(seconds=seconds)


def main(plan: Plan) -> None:
    specs = plan.specs()
    log = opened(plan)
    skewed(plan.skew)
    watch = Watch(
        poll=timedelta(seconds=0.15),
        lease=timedelta(seconds=4),
        lead=timedelta(seconds=2),
        fresh=timedelta(days=30),
        max_parallel=6,
        worker_id=f"elsewhere:{os.getpid()}",
    )
    scheduler = Scheduler(
        specs,
        log,
        Forks(plan, {spec.name: spec for spec in specs}),
        watch,
        now=lambda: plan.simulated(log.clock()),
    )
    signal.signal(signal.SIGTERM, lambda *_: scheduler.stop())
    scheduler.serve()


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        main(Plan(**json.load(file)))
