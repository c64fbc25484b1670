"""Schedulers and workers that are killed, a server that restarts, clocks that are wrong, for days.

Time flies: a simulated day takes seconds. Afterwards every slot has had its effect exactly once,
by an oracle that knows cron and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from croniter import croniter

from chaos.child import TABLES, Plan
from services import process
from services.postgres import Postgres
from services.service import Endpoint

PATIENCE = 120
TESTS = Path(__file__).parent.parent


class Server:
    """A PostgreSQL of its own, which may be killed and comes back with what it had committed."""

    def __init__(self) -> None:
        self._service = Postgres()
        self._service.install()
        self.home = Path(tempfile.mkdtemp(prefix="ematix-chaos-"))
        account = self._service.run_as()
        if account is not None:
            shutil.chown(self.home, account, account)
        self._endpoint = Endpoint(process.free_port(), self.home, secrets.token_hex(16))
        self._service.prepare(self._endpoint)
        with (self.home / "data" / "postgresql.conf").open("a") as settings:
            settings.write("synchronous_commit = on\nmax_connections = 200\n")
        self.url = self._service.client(self._endpoint).url
        self._pid = self._launched()

    def _launched(self) -> int:
        command = self._service.command(self._endpoint)
        pid = process.launch(
            command, home=self.home, log=self.home / "log", account=self._service.run_as()
        )
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(Exception):
                self._service.check(self._endpoint)
                return pid
            assert time.monotonic() < deadline, (self.home / "log").read_text()[-2000:]
            time.sleep(0.05)

    def restart(self, number: int) -> None:
        born = process.birth(self._pid)
        os.kill(self._pid, number)
        process.stop(self._pid, born)
        self._pid = self._launched()

    def stop(self) -> None:
        process.stop(self._pid, process.birth(self._pid))
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def server() -> Iterator[Server]:
    held = Server()
    yield held
    held.stop()


class Storm:
    """Schedulers, and whoever kills them and their workers."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        self.deaths: dict[int, datetime] = {}
        self.chance = random.Random(plan.seed)  # noqa: S311 - no secret
        for skew in (-45.0, 0.0, 45.0):
            self.begin(skew)

    def begin(self, skew: float) -> None:
        path = self.folder / f"plan{len(list(self.folder.iterdir()))}.json"
        path.write_text(json.dumps(dataclasses.asdict(self.plan) | {"skew": skew}))
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONWARNINGS": "ignore"}
        with (self.folder / "said.txt").open("ab") as said:
            self.running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "chaos.child", str(path)],
                    env=environment,
                    cwd=self.folder,
                    stdout=said,
                    stderr=said,
                )
            )

    def kill_a_scheduler(self) -> None:
        """With its workers or without them: they may outlive it."""
        victim = self.running.pop(self.chance.randrange(len(self.running)))
        if self.chance.random() < 0.5:
            for pid in self._workers(victim.pid):
                self._kill(pid)
        victim.kill()
        victim.wait()
        self.begin(self.chance.choice((-45.0, 45.0)))

    def kill_a_worker(self) -> None:
        scheduler = self.chance.choice(self.running)
        workers = self._workers(scheduler.pid)
        if workers:
            self._kill(self.chance.choice(workers))

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.deaths[pid] = datetime.now(timezone.utc)

    @staticmethod
    def _workers(pid: int) -> list[int]:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            return [int(child) for child in text.split()]
        return []

    def end(self) -> None:
        for scheduler in self.running:
            scheduler.terminate()
        for scheduler in self.running:
            scheduler.wait(PATIENCE)


def meant(plan: Plan, until: datetime) -> set[tuple[str, datetime]]:
    """Every slot that there is, as somebody knows who knows cron and nothing else."""
    found = set()
    for spec in plan.specs():
        assert spec.schedule is not None
        times = croniter(spec.schedule.cron, plan.start - timedelta(seconds=1))
        while (slot := times.get_next(datetime)) <= until:
            found.add((spec.name, slot))
    return found


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as raw:
        return raw.execute(query.encode()).fetchall()


def weathered(server: Server, folder: Path, *, pipelines: int, days: float, seconds: float) -> None:
    with psycopg.connect(server.url, autocommit=True) as raw:
        raw.execute(TABLES)
        began = raw.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
    assert began is not None
    plan = Plan(
        url=server.url,
        pipelines=pipelines,
        began=float(began[0]),
        starts="2026-03-27T00:00:00+00:00",
        speed=days * 86_400 / seconds,
        skew=0.0,
        seed=pipelines,
    )
    storm = Storm(plan, folder)
    until = plan.start + timedelta(days=days)
    wanted = meant(plan, until)
    deadline = time.monotonic() + seconds
    troubles = 0
    try:
        while time.monotonic() < deadline:
            time.sleep(storm.chance.random() * seconds / 25)
            troubles += 1
            if troubles % 7 == 3:
                server.restart(storm.chance.choice((signal.SIGINT, signal.SIGQUIT)))
            elif troubles % 3 == 0:
                storm.kill_a_scheduler()
            else:
                storm.kill_a_worker()
        done: set[tuple[str, datetime]] = set()
        patience = time.monotonic() + PATIENCE
        while not wanted <= done:
            found = set(rows(server.url, "SELECT pipeline, slot FROM effects"))
            if len(found) > len(done):
                # A machine that is slow is no failure, as long as it goes on.
                patience = time.monotonic() + PATIENCE
            done = found
            missing = sorted(wanted - done)[:5]
            assert time.monotonic() < patience, (missing, (folder / "said.txt").read_text()[-4000:])
            time.sleep(0.2)
    finally:
        storm.end()
    assert troubles > 10
    _check(server.url, plan, wanted, storm.deaths)


def _check(
    url: str,
    plan: Plan,
    wanted: set[tuple[str, datetime]],
    deaths: dict[int, datetime],
) -> None:
    effects = Counter(rows(url, "SELECT pipeline, slot FROM effects"))
    assert [slot for slot, times in effects.items() if times != 1] == []
    # The clock went on while the last were waited for: what came then is meant, too.
    assert set(effects) >= wanted
    assert set(effects) <= meant(plan, datetime.max.replace(year=2027, tzinfo=timezone.utc))
    # Slots of a pipeline come one after the other; where rows lie in the table says nothing.
    for name, slots in _by_pipeline(rows(url, "SELECT pipeline, slot FROM effects ORDER BY at")):
        assert slots == sorted(slots), name
    spans: dict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
    ends = {
        (name, run): at
        for name, run, at in rows(url, "SELECT pipeline, run_id, at FROM events WHERE what = 'end'")
    }
    begun = rows(url, "SELECT pipeline, run_id, pid, at FROM events WHERE what = 'begin'")
    for name, run, pid, at in begun:
        end = ends.get((name, run)) or deaths.get(pid)
        if end is not None:
            spans[name].append((at, max(at, end)))
    overlaps = [
        (name, first, second)
        for name, held in spans.items()
        for first, second in zip(sorted(held), sorted(held)[1:], strict=False)
        if second[0] < first[1]
    ]
    assert overlaps == []
    assert len({pid for _, _, pid, _ in begun}) > 10
    recorded = {
        (name, slot)
        for name, slot in rows(
            url,
            "SELECT pipeline, slot::timestamptz FROM ematix_flow.log_runs "
            "WHERE status = 'succeeded'",
        )
    }
    assert recorded >= wanted


def _by_pipeline(found: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[datetime]]]:
    held: dict[str, list[datetime]] = defaultdict(list)
    for name, slot in found:
        held[name].append(slot)
    yield from held.items()


def test_a_stormy_day(server: Server, tmp_path: Path) -> None:
    weathered(server, tmp_path, pipelines=24, days=1, seconds=12)


@pytest.mark.soak
def test_three_stormy_days(server: Server, tmp_path: Path) -> None:
    weathered(server, tmp_path, pipelines=200, days=3, seconds=150)
