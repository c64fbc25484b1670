"""A machine that goes without a word is missed by PostgreSQL before long: by every session of ours.

The kernel of the server's side says when it will next ask whether anybody is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from ematix_flow import BigInt, ematix, register_connection
from ematix_flow.backends.loading import load_backend
from ematix_flow.backends.parked import PARKED
from ematix_flow.backends.postgres import Postgres
from ematix_flow.backends.postgres_copy import CopyTask
from ematix_flow.run.batch import run_pipeline
from harness.postgres import PostgresHarness

pytestmark = pytest.mark.services("postgres")

TICKS = 100
MOST_SECONDS = 61
KEEPALIVE = "02"
PORTS = (
    "SELECT client_port FROM pg_stat_activity WHERE application_name LIKE 'ematix-flow%' "
    "AND datname = current_database() AND state = 'idle'"
)
PARTS = (
    "SELECT tablename FROM pg_tables WHERE schemaname = 'ematix_flow' AND tablename LIKE '%parts'"
)


@ematix.table(schema="mart")
class Numbers:
    id: BigInt


@pytest.fixture
def server(tmp_path: Path, postgres: Any) -> Iterator[PostgresHarness]:
    with contextlib.closing(PostgresHarness(tmp_path, postgres)) as held:
        register_connection(held.connection("origin"))
        register_connection(held.connection("target"))
        yield held


def url_of(server: PostgresHarness, name: str) -> str:
    return str(server.connection(name).resolved().fields()["url"])


def asked_again_in(port: int) -> dict[int, float]:
    """When the kernel asks whether the other end is there, for both ends, by the client's port.

    Where either end does not ask, the client is not among them.
    """
    ends: dict[int, list[float]] = {}
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        here, there = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
        kind, _, when = fields[5].partition(":")
        if port in (here, there) and kind == KEEPALIVE:
            ends.setdefault(there if here == port else here, []).append(int(when, 16) / TICKS)
    return {client: max(times) for client, times in ends.items() if len(times) == len(("us", "it"))}


def watched(server: PostgresHarness, name: str, *, sessions: str = PORTS) -> int:
    """How many sessions of ours there are in a database; the kernel must care for each."""
    url = url_of(server, name)
    with psycopg.connect(url, autocommit=True) as raw:
        ports = {port for (port,) in raw.execute(sessions).fetchall()}
    timers: dict[int, float] = {}
    # What is on its way has a timer of its own for a moment.
    while not ports <= timers.keys():
        timers = asked_again_in(urlsplit(url).port or 0)
    assert all(0 < timers[port] <= MOST_SECONDS for port in ports), timers
    return len(ports)


def test_of_a_copy_every_session_is_watched_at_every_point(server: PostgresHarness) -> None:
    with psycopg.connect(url_of(server, "origin"), autocommit=True) as raw:
        raw.execute("CREATE TABLE n AS SELECT 1::bigint id")

    @ematix.pipeline(target=Numbers, source_connection="origin", target_connection="target")
    def numbers(conn: Any) -> str:
        return "SELECT id FROM n"

    seen: list[int] = []

    def look(point: str) -> None:
        seen.append(watched(server, "origin") + watched(server, "target"))

    for _ in range(2):
        run_pipeline(numbers.spec, trigger="python", announce=look)
    assert len(seen) > 8
    assert max(seen) > 1


def test_of_a_task_that_copies_the_session_is_watched(server: PostgresHarness) -> None:
    import pyarrow as pa

    backend = load_backend(server.connection("target"))
    assert isinstance(backend, Postgres)
    with psycopg.connect(url_of(server, "target"), autocommit=True) as raw:
        raw.execute("CREATE TABLE stage (id bigint); CREATE TABLE parts (part bigint PRIMARY KEY)")

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"c0": [1, 2]})
        assert watched(server, "target", sessions=PORTS.replace("idle", "active")) == 1

    task = CopyTask(backend.conninfo(), "stage", "parts", "target")
    (told,) = task(batches())
    assert told.to_pydict()["rows"] == [2]


@pytest.mark.usefixtures("engine")
def test_spark_writes_over_no_more_sessions_than_can_be_spared(server: PostgresHarness) -> None:
    """Half of those that the database has left, as when it reads."""
    url = url_of(server, "target")
    parts: list[int] = []

    @ematix.pipeline(target=Numbers, source_connection="origin", target_connection="target")
    def numbers(spark: Any) -> Any:
        return spark.range(0, 1000, 1, 12)

    def count(point: str) -> None:
        if point == "staged":
            with psycopg.connect(url, autocommit=True) as raw:
                ((name,),) = raw.execute(PARTS).fetchall()
                found = raw.execute(f'SELECT count(*) FROM ematix_flow."{name}"')
                parts[:] = [rows for (rows,) in found.fetchall()]

    for limit, expected in ((-1, 12), (8, 3), (2, 1)):
        with psycopg.connect(url, autocommit=True) as raw:
            name = urlsplit(url).path[1:]
            raw.execute(f'ALTER DATABASE "{name}" CONNECTION LIMIT {limit}')
        PARKED.clear()
        result = run_pipeline(numbers.spec, trigger="python", announce=count)
        assert (result.counts.inserted, parts) == (1000, [expected])
