"""A place for logs, for every kind of run log; and the ``flow`` command in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import flow, folder, project
from run_logs.kinds import KINDS, PARAMETERS, Place

__all__ = ["flow", "folder", "project"]

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Building the servers takes minutes, once: these wait for them, and come last."""
    waiting = {i for i in items if HERE in i.path.parents and i.get_closest_marker("services")}
    for item in waiting:
        item.add_marker(pytest.mark.timeout(900))
    items.sort(key=lambda item: item in waiting)


@pytest.fixture(params=PARAMETERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make, examples, _ = KINDS[request.param]
    return Place(request.param, make(request, tmp_path), examples)
