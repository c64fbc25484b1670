"""A pytest plugin that notes on which engine every test ran and how it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

_notes: dict[str, dict[str, str]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Look at the engine while it is still open."""
    from ematix_flow.engine.session import open_now

    try:
        return (yield)
    finally:
        engine = open_now()
        _notes.setdefault(item.nodeid, {})["engine"] = engine.kind if engine else "none"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome of the test itself."""
    if report.when == "call":
        _notes.setdefault(report.nodeid, {})["outcome"] = report.outcome


def pytest_sessionfinish() -> None:
    """Write it all down."""
    Path(os.environ["CONNECT_WITNESS"]).write_text(json.dumps(_notes), encoding="utf-8")
