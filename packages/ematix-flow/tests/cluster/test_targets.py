"""Every kind of target, loaded by a cluster: the same rows as from one machine, and no litter."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from ematix_flow.connections import Connection
from ematix_flow.engine.session import run_session
from ematix_flow.registry import register_connection
from harness.base import Harness, all_harnesses

from . import work
from .crew import Worker
from .network import Forwarder, Network
from .work import Gate, begun

pytestmark = [
    pytest.mark.slow,
    # On an encrypted cluster, PySpark leaves to Python to close what an empty DataFrame goes by.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

OFTEN = ("mysql",)
SELDOM = ("mariadb", "sqlite", "duckdb", "delta", "parquet")
KILLED = ("mysql", "mariadb", "delta", "parquet", "duckdb")


def parameters(*names: str, soak: bool) -> Iterator[Any]:
    kinds = {cls.name: cls for cls in all_harnesses()}
    for name in names:
        service = kinds[name].service
        marks = [pytest.mark.soak] if soak else []
        marks += [pytest.mark.services(service)] if service else []
        yield pytest.param(kinds[name], id=name, marks=marks)


@dataclasses.dataclass(frozen=True)
class Target:
    """A fresh place that all machines reach."""

    harness: Harness
    connection: Connection

    def rows(self, pipeline: Any) -> list[tuple[Any, ...]]:
        table = pipeline.spec.targets[0].table
        found = self.harness.rows(self.connection, table)
        return sorted((row["event_id"], row["name"]) for row in found)

    def litter(self) -> list[str]:
        return self.harness.litter(self.connection)


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path, machines: Network) -> Iterator[Target]:
    kind: type[Harness] = request.param
    server = request.getfixturevalue(kind.service) if kind.service else None
    folder = tmp_path / "place"
    folder.mkdir()
    harness = kind(folder, server)
    connection = harness.connection("warehouse")
    forwarder = None if server is None else Forwarder(machines.driver, server.port)
    try:
        if forwarder is not None:
            there = f"{server.host}:{server.port}"
            url = str(connection.url).replace(there, f"{machines.driver}:{forwarder.port}")  # type: ignore[attr-defined]
            register_connection(dataclasses.replace(connection, url=url))  # type: ignore[call-arg]
        elif harness.by_spark:
            register_connection(dataclasses.replace(connection, shared=True))  # type: ignore[call-arg]
        else:
            register_connection(connection)
        yield Target(harness, connection)
    finally:
        if forwarder is not None:
            forwarder.close()
        harness.close()


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    yield from work.user_module(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="class")
def one_cluster() -> Iterator[None]:
    """What the first load opens stays for the others, whatever jars they need."""
    with run_session():
        yield


class TestWholeCluster:
    """Three machines, from the first row to the last."""

    @pytest.mark.usefixtures("driver", "one_cluster")
    @pytest.mark.parametrize(
        "target",
        [*parameters(*OFTEN, soak=False), *parameters(*SELDOM, soak=True)],
        indirect=True,
    )
    def test_a_load_and_a_merge(
        self,
        *,
        target: Target,
        origin: str,
        module: ModuleType,
        gate: Gate,
        workers: list[Worker],
    ) -> None:
        expected = work.fill(origin)
        peers = [worker.address for worker in workers]
        pipeline = work.pipeline(module, gate, peers, mode="merge")
        running = begun(pipeline, gate, workers)
        gate.open()
        assert running.result().counts.inserted == work.ROWS
        assert target.rows(pipeline) == expected
        with psycopg.connect(origin) as connection:
            connection.execute("UPDATE raw.events SET name = 'new' WHERE event_id % 100 = 0")
        counts = pipeline.sync().counts
        assert (counts.updated, counts.unchanged) == (work.ROWS // 100, work.ROWS * 99 // 100)
        assert target.rows(pipeline) == [
            (number, "new!" if number % 100 == 0 else name) for number, name in expected
        ]
        assert target.litter() == []


@pytest.mark.soak
@pytest.mark.usefixtures("impatient_driver")
@pytest.mark.parametrize("target", [*parameters(*KILLED, soak=True)], indirect=True)
def test_a_worker_that_is_killed_in_the_middle_of_a_load(
    *,
    target: Target,
    origin: str,
    module: ModuleType,
    gate: Gate,
    crew: list[Worker],
) -> None:
    expected = work.fill(origin)
    pipeline = work.pipeline(module, gate, [w.address for w in crew])
    running = begun(pipeline, gate, crew)
    crew[1].signal(signal.SIGKILL)
    gate.open()
    assert running.result().counts.inserted == work.ROWS
    assert target.rows(pipeline) == expected
    assert target.litter() == []
