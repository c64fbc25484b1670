"""One Spark Connect server for all children of the crash tests, and a world per test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from conformance import conftest as conformance
from conformance.conftest import backend
from crash.world import World, first_of_their_kind
from ematix_flow.backends.loading import backend_class
from harness.base import Harness, all_harnesses
from quick_java import quick_java

__all__ = ["backend"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "servers: only backends that are reached over a network")
    config.addinivalue_line("markers", "in_turn(cases): each kind of backend takes one of them")
    config.addinivalue_line("markers", "one_of_a_sort: one backend on a server, one on the disk")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every backend by its abilities; only ``make soak`` tries harnesses that share a backend."""
    if metafunc.definition.get_closest_marker("servers"):
        chosen = [cls for cls in all_harnesses() if cls.service]
        marked = [
            pytest.param(cls, id=cls.name, marks=pytest.mark.services(cls.service))
            for cls in chosen
        ]
        metafunc.parametrize("backend", marked, indirect=True)
    else:
        conformance.pytest_generate_tests(metafunc)


_cases: Counter[tuple[str, str]] = Counter()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave to ``make soak`` what shares its code with something that is tested anyway."""
    given = getattr(getattr(item, "callspec", None), "params", {}).get("backend")
    if given is None or item.get_closest_marker("soak"):
        return
    spared = given.name not in first_of_their_kind()
    spared &= item.get_closest_marker("every_harness") is None
    if item.get_closest_marker("one_of_a_sort"):
        alike = [c.name for c in all_harnesses() if bool(c.service) == bool(given.service)]
        spared |= given.name != alike[0]
    if turns := item.get_closest_marker("in_turn"):
        test = (item.nodeid.partition("[")[0], given.name)
        kinds = list(dict.fromkeys(cls.kind for cls in all_harnesses()))
        spared |= (_cases[test] + kinds.index(given.kind)) % turns.args[0] != 0
        _cases[test] += 1
    if spared:
        item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def remote() -> Iterator[str]:
    """The address of a Spark Connect server that outlives every child."""
    from ematix_flow.engine import delta
    from ematix_flow.engine.connect_server import connect_server
    from ematix_flow.engine.settings import derive

    jars = {name for cls in all_harnesses() for name in backend_class(cls.kind).jars}
    with ExitStack() as stack:
        with quick_java():
            settings = derive(jars=sorted({*jars, delta.JARS}))
            server = stack.enter_context(connect_server(settings))
        # One session for all: every new one would start Python workers of its own.
        yield f"{server.remote};session_id={uuid4()}"


@pytest.fixture
def world(
    backend: Harness, private_home: Path, tmp_path_factory: pytest.TempPathFactory, remote: str
) -> World:
    """One backend, with a home and a temporary folder that children share."""
    return World(backend, private_home, tmp_path_factory.mktemp("scratch"), remote)


@pytest.fixture
def place(backend: Harness, private_home: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """One backend for runs that are threads of this process."""
    return World(backend, private_home, tmp_path_factory.mktemp("scratch"), "")
