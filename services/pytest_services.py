"""A session fixture per server, and the marker ``services`` on every test that needs one.

Servers start in the background, side by side, once the selected tests are known. One that cannot
start fails the tests that use it: nothing is ever skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from services.harness import STATE, Harness, available
from services.service import Endpoint, Service

SERVICES = available()


class Fleet:
    """The servers that one test session uses."""

    def __init__(self, services: Mapping[str, Service], *, root: Path = STATE) -> None:
        self._harnesses = {n: Harness(service, root=root) for n, service in services.items()}
        self._starting: dict[str, Future[Endpoint]] = {}
        self._pool = ThreadPoolExecutor(max_workers=len(services))

    def start(self, name: str) -> Future[Endpoint]:
        """Begin to start a server unless that has been done."""
        if name not in self._starting:
            self._starting[name] = self._pool.submit(self._harnesses[name].acquire)
        return self._starting[name]

    def release(self) -> None:
        """Give back every server that was started."""
        self._pool.shutdown()
        for name, start in self._starting.items():
            if start.exception() is None:
                self._harnesses[name].release()
        self._starting.clear()


FLEET = pytest.StashKey[Fleet]()


def pytest_configure(config: pytest.Config) -> None:
    """Set up an empty fleet."""
    config.addinivalue_line(
        "markers", "services(*names): needs real servers; automatic for their fixtures"
    )
    config.stash[FLEET] = Fleet(SERVICES)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the servers go, also after Ctrl-C."""
    config.stash[FLEET].release()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server, before ``-m`` selects."""
    for item in items:
        if needed(item):
            item.add_marker("services")


def pytest_runtestloop(session: pytest.Session) -> None:
    """Start what the selected tests need while the first of them already run."""
    if not session.config.option.collectonly:
        for name in sorted({name for item in session.items for name in needed(item)}):
            session.config.stash[FLEET].start(name)


def needed(item: pytest.Item) -> set[str]:
    """Name the servers a test uses: its fixtures, and what its ``services`` markers name.

    A test that asks for the fixture while it runs says so: ``pytest.mark.services("postgres")``.
    """
    named = {str(name) for mark in item.iter_markers("services") for name in mark.args}
    return SERVICES.keys() & {*getattr(item, "fixturenames", ()), *named}


def _fixture(name: str) -> Callable[..., Any]:
    @pytest.fixture(scope="session", name=name)
    def server(pytestconfig: pytest.Config) -> Any:
        endpoint = pytestconfig.stash[FLEET].start(name).result()
        return SERVICES[name].client(endpoint)

    server.__doc__ = f"The {name} server; see services/{name}.py."
    return server


globals().update({f"{name}_fixture": _fixture(name) for name in SERVICES})
