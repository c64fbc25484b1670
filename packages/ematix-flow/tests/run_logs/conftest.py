"""One fixture: a place for logs, for every kind of run log."""

from __future__ import annotations

from pathlib import Path

import pytest

from run_logs.kinds import KINDS, PARAMETERS, Place


@pytest.fixture(params=PARAMETERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make, examples, _ = KINDS[request.param]
    return Place(request.param, make(request, tmp_path), examples)
