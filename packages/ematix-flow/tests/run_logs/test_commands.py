"""The commands with a run log in a bucket of a real server, and with one that is down."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Flow
from run_logs.kinds import url_of
from services.process import free_port
from services.s3 import S3Server


@pytest.fixture
def url(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3.create_bucket()}/log?region={s3.region}&endpoint={s3.url}"


@pytest.fixture
def down(url: str, s3: S3Server) -> str:
    return url.replace(str(s3.port), str(free_port()))


def test_every_command_reads_what_runs_wrote(flow: Flow, project: Path, url: str) -> None:
    there = ("--run-log", url)
    assert flow("run", "load_numbers", *there).code == 0
    (run,) = flow("runs", "list", *there, "--format", "json").json["runs"]
    ended = (run["pipeline"], run["status"], run["rows_inserted"])
    assert ended == ("load_numbers", "succeeded", 3)
    shown = flow("runs", "show", run["run_id"][:20], *there, "--format", "json").json
    assert shown["records"] == [run]
    status = flow("status", *there, "--format", "json").json["pipelines"]
    assert {p["name"]: p["last_run"] for p in status} == {"load_numbers": run, "load_doubles": None}
    assert flow("logs", run["run_id"][:20], *there).code == 0
    assert flow("runs", "prune", "--older-than", "1s", *there).out == "0 runs removed.\n"
    bucket = url.partition("?")[0]
    checks = flow("doctor", *there).out
    assert [line for line in checks.splitlines() if "run log" in line and bucket in line]


def test_a_log_that_is_down_stops_no_run(
    flow: Flow, project: Path, url: str, down: str, s3: S3Server
) -> None:
    said = flow("run", "load_numbers", "--run-log", down)
    assert said.code == 0
    assert said.err.startswith("flow: warning: the run log s3://")
    assert "goes on, and its records are delivered later" in said.err
    assert said.err.count("\n") == 1
    assert s3.secret not in said.err
    said = flow("runs", "list", "--run-log", down)
    assert said.code == 2
    assert said.err.startswith("flow: error: the run log s3://")
    waiting = Path("../home/undelivered").resolve()
    (place,) = waiting.iterdir()
    assert list(place.glob("*.json"))
    said = flow("doctor", "--run-log", down)
    assert said.code == 1


def test_an_unknown_bucket_stops_no_run(flow: Flow, project: Path, url: str) -> None:
    missing = url.replace("bucket-", "missing-")
    said = flow("run", "load_numbers", "--run-log", missing)
    assert said.code == 0
    assert "there is no such bucket" in said.err
    said = flow("runs", "list", "--run-log", missing)
    assert (said.code, said.err.count("\n")) == (2, 1)


STORES = [pytest.param(kind, marks=pytest.mark.services(kind)) for kind in ("s3", "gcs", "azurite")]


@pytest.mark.parametrize("kind", STORES)
def test_a_slot_fires_once_by_a_log_in_a_bucket(
    flow: Flow, project: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    there = ("--run-log", url_of(request, kind), "--format", "json")
    fired = []
    for now in ("05:30:10", "05:30:40", "06:00:00"):
        said = flow("run-due", "--now", f"2026-03-02T{now}Z", *there)
        assert said.code == 0
        fired.append([r["_pipeline"] for r in said.json["ran"]])
    assert fired == [["load_numbers"], [], []]
    (run,) = flow("runs", "list", *there).json["runs"]
    assert (run["slot"], run["status"]) == ("2026-03-02T05:30:00+00:00", "succeeded")


def test_nothing_fires_while_the_log_is_down(flow: Flow, project: Path, down: str) -> None:
    said = flow("run-due", "--now", "2026-03-02T05:30:10Z", "--run-log", down)
    assert said.code == 2
    assert not Path("warehouse.duckdb").exists()
