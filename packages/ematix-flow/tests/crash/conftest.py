"""One Spark Connect server for all children of the crash tests, and a world per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from conformance.conftest import backend, pytest_configure, pytest_generate_tests
from crash.world import World
from harness.base import Harness

__all__ = ["backend", "pytest_configure", "pytest_generate_tests"]


@pytest.fixture(scope="session")
def remote() -> Iterator[str]:
    """The address of a Spark Connect server that outlives every child."""
    from ematix_flow.engine.connect_server import connect_server
    from ematix_flow.engine.settings import derive

    with connect_server(derive(jars=("postgres",))) as server:
        # One session for all: every new one would start Python workers of its own.
        yield f"{server.remote};session_id={uuid4()}"


@pytest.fixture
def world(
    backend: Harness, private_home: Path, tmp_path_factory: pytest.TempPathFactory, remote: str
) -> World:
    """One backend, with a home and a temporary folder that children share."""
    return World(backend, private_home, tmp_path_factory.mktemp("scratch"), remote)
