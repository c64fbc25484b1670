"""What every test shares: one Spark engine, a private home, a private registry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ematix_flow import redaction, secrets
from ematix_flow.registry import Registry, isolated_registry
from quick_java import quick_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ematix_flow.engine.session import Engine


def pytest_configure(config: pytest.Config) -> None:
    """Know the markers of tests of which other folders borrow parts."""
    config.addinivalue_line("markers", "needs(*abilities): only backends that declare all of them")
    config.addinivalue_line("markers", "every_harness: not only one harness per kind of backend")


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, so that no test sees or touches the user's."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(home))
    return home


@pytest.fixture(autouse=True)
def private_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test resolves or registers is forgotten after it."""
    monkeypatch.setattr(redaction, "_remembered", set())
    monkeypatch.setattr(secrets, "_resolvers", dict(secrets._resolvers))


@pytest.fixture(autouse=True)
def registry() -> Iterator[Registry]:
    """A registry of its own."""
    with isolated_registry() as held:
        yield held


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The one Spark engine of the whole session, with every connector on its class path."""
    from ematix_flow.config import SAIL, setting
    from ematix_flow.engine.session import open_engine
    from ematix_flow.engine.settings import derive

    with quick_java():
        settings = derive(jars=("postgres",), remote=setting("MASTER"))
        if setting("ENGINE") == SAIL:
            settings = replace(derive(), sail=True)
        opened = open_engine(settings)
    yield opened
    opened.stop()


@pytest.fixture(scope="session")
def spark(engine: Engine) -> SparkSession:
    """The session of that engine."""
    return engine.spark
