"""One cluster of three machines for all tests that leave it whole; others for those that do not."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.connections import PostgresConnection
from ematix_flow.registry import register_connection
from quick_java import quick_java

from .crew import Worker
from .network import Authority, Forwarder, Network, network
from .work import Gate

# Long enough for machines that share two cores with all else.
TIMEOUT = "20"
IMPATIENT = "8"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These come last: their Spark takes the place of the one that all other tests share."""
    here = Path(__file__).parent
    items.sort(key=lambda item: here in item.path.parents)


def _can_make_networks() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None


@pytest.fixture(scope="session")
def machines() -> Iterator[Network]:
    """Three network namespaces on a bridge; whoever may not make them is told so."""
    if not _can_make_networks():
        pytest.fail("these tests make network namespaces: run them as root, with iproute2")
    with network(3) as made:
        yield made


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="session")
def workers(
    machines: Network, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Worker]]:
    """A ``flow-worker`` on each machine, with one core."""
    folder = tmp_path_factory.mktemp("workers")
    held = [
        Worker(machine, authority.sign(machine.address), folder / machine.namespace)
        for machine in machines.machines
    ]
    try:
        with quick_java():
            for worker in held:
                worker.start()
        yield held
    finally:
        for worker in held:
            worker.stop()


@pytest.fixture(scope="session")
def driver_variables(machines: Network, authority: Authority) -> dict[str, str]:
    """What a driver is told by its environment."""
    return {
        **authority.sign(machines.driver).variables(),
        "EMATIX_FLOW_PEER_TIMEOUT": TIMEOUT,
        "EMATIX_FLOW_ENGINE": "distributed",
    }


@pytest.fixture
def driver(driver_variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in driver_variables.items():
        monkeypatch.setenv(name, value)
    with quick_java():
        yield


@pytest.fixture
def impatient_driver(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that soon gives up a silent peer."""
    monkeypatch.setenv("EMATIX_FLOW_PEER_TIMEOUT", IMPATIENT)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def crew(machines: Network, authority: Authority, tmp_path: Path) -> Iterator[list[Worker]]:
    """Workers of the test's own, on other ports than those that the other tests share."""
    held = [
        Worker(machine, authority.sign(machine.address), tmp_path / machine.namespace, port=9100)
        for machine in machines.machines[:2]
    ]
    try:
        with quick_java():
            for worker in held:
                worker.start()
        yield held
    finally:
        for machine in machines.machines:
            machine.plug_in()
        for worker in held:
            worker.signal(signal.SIGCONT)
            worker.stop()


@pytest.fixture(scope="session")
def reachable(machines: Network, postgres: Any) -> Iterator[Callable[[], str]]:
    """Makes databases of the Postgres server, at an address that all machines reach."""
    forwarder = Forwarder(machines.driver, postgres.port)
    made = []

    def make() -> str:
        url: str = postgres.create_database()
        made.append(url.rsplit("/", 1)[1])
        return url.replace(
            f"{postgres.host}:{postgres.port}", f"{machines.driver}:{forwarder.port}"
        )

    try:
        yield make
    finally:
        forwarder.close()
        for name in made:
            postgres.drop_database(name)


@pytest.fixture
def warehouse(reachable: Callable[[], str]) -> str:
    url = reachable()
    register_connection(PostgresConnection(name="warehouse", url=url))
    return url


@pytest.fixture
def origin(reachable: Callable[[], str]) -> str:
    url = reachable()
    register_connection(PostgresConnection(name="origin", url=url))
    return url
