"""``flow freshness-check``: by the last success, and by the newest row."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from .conftest import CONNECTION, Flow

DECLARED = (
    CONNECTION
    + """
import os

from ematix_flow import TimestampTZ


@ematix.table(schema="shop")
class Readings:
    number: BigInt
    seen: TimestampTZ


@ematix.pipeline(
    target=Readings, target_connection="warehouse", mode="truncate", allow_empty=True,
    freshness_sla="1h", freshness_column="seen",
)
def readings():
    age = os.environ["AGE"]
    some = "" if age else " WHERE false"
    return f"SELECT 1::BIGINT AS number, now() - INTERVAL '{age or 0} minutes' AS seen{some}"


@ematix.pipeline(target=Numbers, target_connection="warehouse", mode="truncate", freshness_sla=3600)
def numbers():
    return "SELECT 1::BIGINT AS number, 'one' AS word"


@ematix.pipeline(target=Doubles, target_connection="warehouse", mode="truncate")
def doubles():
    return "SELECT 2::BIGINT AS number"
"""
)


@pytest.fixture(autouse=True)
def declared(folder: Path) -> None:
    (folder / "pipelines.py").write_text(DECLARED)
    (folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')


def states(flow: Flow) -> tuple[int, dict[str, str]]:
    said = flow("freshness-check", "--format", "json")
    return said.code, {s["pipeline"]: s["state"] for s in said.json["pipelines"]}


@pytest.mark.parametrize(
    ("age", "code", "state"),
    [("5", 0, "healthy"), ("50", 0, "warning"), ("61", 1, "breached"), ("", 0, "unknown")],
)
def test_the_newest_row_tells(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, age: str, code: int, state: str
) -> None:
    monkeypatch.setenv("AGE", age)
    assert states(flow)[1] == {"readings": "unknown", "numbers": "unknown"}
    assert flow("run").code == 0
    assert states(flow) == (code, {"readings": state, "numbers": "healthy"})


def test_the_last_success_tells_and_a_failure_does_not(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGE", "1")
    flow("run", "numbers")
    later = datetime.now(timezone.utc) + timedelta(hours=2)
    monkeypatch.setattr("ematix_flow.cli.freshness.utc_now", lambda: later)
    said = flow("freshness-check", "--alerter", "stdout://")
    assert said.code == 1
    assert "its data is 120 min" in said.err
    assert "and 60 min 0 s was promised" in said.err
    again = flow("freshness-check", "--alerter", "stdout://")
    assert (again.code, "promised" in again.err) == (1, False)
