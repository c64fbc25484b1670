"""A pytest plugin that lets the functions of the conformance suite make their rows on Sail.

They ask for spark only to turn Python rows into a DataFrame, which is no reason for Spark here.
What they call JSON is JSON, and no number that they give as text has an exponent.
Changing from one engine to the other takes seconds, so tests of one backend follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ematix_flow.engine.sail import SailEngine
from ematix_flow.model import PipelineSpec
from ematix_flow.run import engines, plan

if TYPE_CHECKING:
    from harness.base import Harness


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Most backends have one engine for nearly all that they do."""
    items.sort(key=_backend)


def _backend(item: pytest.Item) -> str:
    given: type[Harness] | None = getattr(getattr(item, "callspec", None), "params", {}).get(
        "backend"
    )
    return "" if given is None else given.name


@pytest.fixture(autouse=True)
def _rows_by_sail(monkeypatch: pytest.MonkeyPatch) -> None:
    of_user_code = engines._user_code

    def other_code(spec: PipelineSpec) -> Iterator[str]:
        return (reason for reason in of_user_code(spec) if reason != engines.ASKS_FOR_SPARK)

    monkeypatch.setattr(engines, "_user_code", other_code)
    monkeypatch.setattr(engines, "UNPROVEN_TYPES", frozenset())
    monkeypatch.setitem(engines._PROVEN_CASTS, "text", engines._PROVEN_CASTS["text"] | {"json"})
    monkeypatch.setattr(plan, "refuse_frame", lambda *_: None)
    # Also a Sail that comes after a Spark is there for all tests that follow.
    monkeypatch.setattr(SailEngine, "per_run", False)
