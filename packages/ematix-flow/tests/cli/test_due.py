"""``flow run-due`` and what goes with it, on real databases, with processes that are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from ematix_flow.errors import Transient
from ematix_flow.run.journal import Journal

from .conftest import CONNECTION, Flow

# The first run of a pipeline that is to be killed waits for ever at the place that it is told.
DUE = (
    CONNECTION
    + """
import os
import time
from pathlib import Path

from ematix_flow.errors import Transient


def hold(place):
    if os.environ.get("HOLD") == place:
        Path("held").write_text(place)
        for _ in range(6000):
            time.sleep(0.1)


@ematix.pipeline(target=Numbers, target_connection="warehouse", schedule="* * * * *")
def numbers(conn, run):
    hold("numbers")
    return f"SELECT {run.slot.minute + 1}::BIGINT AS number, 'one' AS word"


@ematix.pipeline(
    target=Doubles, target_connection="warehouse", mode="truncate", schedule="* * * * *",
    depends_on=[numbers], transforms_post=[lambda conn: hold("post")],
)
def doubles(conn):
    return "SELECT number * 2 AS number FROM shop.numbers"


@ematix.pipeline(
    target=Doubles, target_connection="warehouse", schedule="0 0 1 1 *",
    retry={"max_attempts": 2, "backoff_seconds": 60},
)
def moody(conn):
    raise Transient("out of order", connection="warehouse")


@ematix.pipeline(target=Doubles, target_connection="warehouse")
def unscheduled(conn):
    return "SELECT 1 AS number"
"""
)
NOON = "2026-03-01T12:00:05Z"


@pytest.fixture(autouse=True)
def declared(folder: Path) -> None:
    (folder / "pipelines.py").write_text(DUE)
    (folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')


def stored(table: str) -> list[int]:
    with duckdb.connect("warehouse.duckdb") as held:
        return [n for (n,) in held.sql(f"SELECT number FROM shop.{table} ORDER BY 1").fetchall()]


def begun(arguments: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    import os

    return subprocess.Popen(
        [sys.executable, "-m", "ematix_flow.cli.main", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed_at(place: str, folder: Path, now: str) -> None:
    """A pass that is killed with -9 while a pipeline is at a place."""
    process = begun(["run-due", "--now", now, "--max-parallel", "1"], HOLD=place)
    try:
        while not (folder / "held").exists():
            assert process.poll() is None, process.communicate()
            signal.sigtimedwait([], 0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    (folder / "held").unlink()


def test_slots_fire_once_and_in_order(flow: Flow) -> None:
    said = flow("run-due", "--dry-run", "--now", NOON)
    assert said.out.splitlines() == [
        "numbers: would run for 2026-03-01 12:00:00",
        "doubles: it waits for numbers, which is due itself",
    ]
    said = flow("run-due", "--now", NOON)
    assert (said.code, said.err) == (0, "")
    assert [line.split(" → ")[0] for line in said.out.splitlines()[:2]] == ["numbers", "doubles"]
    assert (stored("numbers"), stored("doubles")) == ([1], [2])
    again = flow("run-due", "--now", NOON)
    assert (again.code, again.out) == (0, "Nothing is due.\n")
    runs = flow("runs", "list", "--format", "json").json["runs"]
    assert {(r["pipeline"], r["trigger"], r["slot"]) for r in runs if r["step"] == "load"} == {
        ("numbers", "run-due", "2026-03-01T12:00:00+00:00"),
        ("doubles", "run-due", "2026-03-01T12:00:00+00:00"),
    }


def test_a_failure_is_tried_again_given_up_and_reset(flow: Flow) -> None:
    new_year = "2026-01-01T00:00:0{}Z"
    said = flow("run-due", "--now", new_year.format(0))
    assert said.code == 1
    assert "out of order; it is tried again at 2026-01-01 00:01:00" in said.err
    # The next pass comes too early, the one after it fails again.
    early = flow("run-due", "--now", "2026-01-01T00:00:30Z", "--format", "json")
    assert (early.code, early.json["failed"]) == (0, [])
    last = flow("run-due", "--now", "2026-01-01T00:01:10Z", "--format", "json")
    assert last.code == 1
    (failed,) = last.json["failed"]
    assert (failed["pipeline"], failed["attempt_count"], failed["gave_up"]) == ("moody", 2, True)
    loud = flow("run-due", "--now", "2026-01-01T00:01:20Z")
    assert loud.code == 1
    assert "moody: it gave up after 2 attempts; see to it, then: flow reset moody" in loud.err
    assert flow("reset", "moody").out == "moody: goes on with its next slot\n"
    assert flow("run-due", "--now", "2026-01-01T00:01:30Z").code == 0
    assert flow("reset", "moody").out == "moody: had not given up; nothing to do\n"


def test_a_pause_holds_until_it_ends(flow: Flow) -> None:
    assert flow("pause", "numbers").out == "numbers: is paused\n"
    said = flow("run-due", "--now", NOON)
    assert said.code == 0
    assert "numbers: skipped, it is paused" in said.err
    assert "doubles: skipped, it waits for numbers (it is paused)" in said.err
    assert flow("resume", "numbers").out == "numbers: goes on with its schedule\n"
    assert flow("run-due", "--now", NOON).code == 0
    assert stored("doubles") == [2]


def test_who_is_killed_before_the_commit_is_run_again(flow: Flow, folder: Path) -> None:
    killed_at("numbers", folder, NOON)
    said = flow("run-due", "--now", NOON, "--format", "json")
    assert said.code == 0, said
    assert [(r["_pipeline"], r["attempt_count"]) for r in said.json["ran"]] == [
        ("numbers", 2),
        ("doubles", 1),
    ]
    assert (stored("numbers"), stored("doubles")) == ([1], [2])


def test_who_is_killed_after_the_commit_is_not_loaded_twice(flow: Flow, folder: Path) -> None:
    """What is left of the run is done, under its own id."""
    killed_at("post", folder, NOON)
    (before,) = [
        r["run_id"]
        for r in flow("runs", "list", "--pipeline", "doubles", "--format", "json").json["runs"]
        if r["step"] == "load"
    ]
    said = flow("run-due", "--now", NOON, "--format", "json")
    assert said.code == 0, said
    (ran,) = said.json["ran"]
    assert (ran["_pipeline"], ran["run_id"], ran["attempt_count"]) == ("doubles", before, 2)
    assert [step["status"] for step in ran["post"]] == ["succeeded"]
    assert ran["targets"]["shop.doubles"]["status"] == "skipped"
    records = flow("runs", "show", before, "--format", "json").json["records"]
    assert [(r["step"], r["status"]) for r in records] == [
        ("load", "succeeded"),
        ("post:1", "succeeded"),
    ]


def test_who_is_stopped_after_the_commit_is_not_loaded_twice(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed = Journal.succeed

    def stopped(*_: object, **__: object) -> None:
        monkeypatch.setattr(Journal, "succeed", succeed)
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "succeed", stopped)
    arguments = ("run-due", "--now", NOON, "--max-parallel", "1")
    assert flow(*arguments).code == 130
    assert stored("numbers") == [1]
    assert flow(*arguments).code == 0
    assert stored("numbers") == [1]
    assert stored("doubles") == [2]


def test_who_fails_after_the_commit_is_not_loaded_twice(
    flow: Flow, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = (folder / "pipelines.py").read_text()
    again = 'retry={"max_attempts": 2}, schedule="* * * * *")\ndef numbers'
    declared = declared.replace('schedule="* * * * *")\ndef numbers', again)
    (folder / "pipelines.py").write_text(declared)
    succeed = Journal.succeed

    def cut_off(*_: object, **__: object) -> None:
        monkeypatch.setattr(Journal, "succeed", succeed)
        raise Transient("the connection is lost", connection="warehouse")

    monkeypatch.setattr(Journal, "succeed", cut_off)
    said = flow("run-due", "--now", NOON, "--max-parallel", "1", "--format", "json").json
    assert [(e["pipeline"], e["attempt_count"]) for e in said["failed"]] == [("numbers", 1)]
    assert [e["_pipeline"] for e in said["ran"]] == ["numbers", "doubles"]
    assert (stored("numbers"), stored("doubles")) == ([1], [2])


def test_many_processes_at_once_fire_each_slot_once(flow: Flow) -> None:
    passes = [begun(["run-due", "--now", NOON, "--format", "json"]) for _ in range(3)]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in passes]
    assert [process.returncode for process in passes] == [0, 0, 0]
    ran = sorted(r["_pipeline"] for answer in answers for r in answer["ran"])
    # Who finds the first under way skips the second, and nobody may be left to run it.
    assert ran in (["doubles", "numbers"], ["numbers"])
    flow("run-due", "--now", NOON)
    assert (stored("numbers"), stored("doubles")) == ([1], [2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run-due", "--now", "noon"], "'noon' is not a time such as 2026-01-31T09:30:00Z"),
        (["run-due", "--limit", "heavy"], "'heavy' is not TAG=N"),
        (["run-due", "--limit", "heavy=2"], "--limit: no pipeline has the tag 'heavy'; add tags="),
        (["run", "numbers", "--lease-seconds", "9"], "--lost-run go with --claim-token"),
        (["run", "numbers", "--lost-run", "x"], "--lost-run go with --claim-token"),
        (
            ["run", "numbers", "--claim-token", "t", "--param", "a=b"],
            "--claim-token goes with one pipeline, without --param and --all-targets",
        ),
        (["run-due", "--max-parallel", "0"], "0 is not in the range x>=1"),
        (["run-due", "--run-log", "/proc/none/x.db"], "what has fired is kept in the run log, and"),
        (["run-due", "--run-log", "shopp"], "the run log 'shopp' is no connection that is known"),
        (
            ["runs", "list", "--run-log", "/proc/none/x.db"],
            "the run log cannot be read: the run log /",
        ),
        (["reset", "mody"], "there is no pipeline 'mody'; did you mean 'moody'?"),
        (["pause"], "missing argument"),
    ],
)
def test_what_cannot_be_done_says_so(flow: Flow, arguments: list[str], message: str) -> None:
    said = flow(*arguments)
    assert said.code == 2
    assert message in said.err


def test_limits_of_the_project_are_numbers(flow: Flow, folder: Path) -> None:
    (folder / ".ematix-flow.toml").write_text('[limits]\nheavy = "two"\n')
    said = flow("run-due", "--module", "pipelines.py")
    assert said.code == 2
    assert "heavy in [limits] must be a whole number from 1 upwards, not 'two'" in said.err


def test_projects_of_one_name_share_their_turns(flow: Flow, folder: Path) -> None:
    """The same project on another machine has another path."""
    named = '[project]\nname = "shop"\nmodules = ["{}"]\n'
    (folder / ".ematix-flow.toml").write_text(named.format("pipelines.py"))
    assert len(flow("run-due", "--now", NOON, "--format", "json").json["ran"]) == 2
    (folder / "pipelines.py").rename(folder / "moved.py")
    (folder / ".ematix-flow.toml").write_text(named.format("moved.py"))
    assert flow("run-due", "--now", NOON).out == "Nothing is due.\n"


def test_runs_and_lines_can_be_watched(flow: Flow, folder: Path) -> None:
    """Lines appear while the run is under way, and following ends with it."""
    watching = begun(["runs", "tail", "--interval", "0.1"])
    flow("run-due", "--now", NOON)
    assert watching.stdout is not None
    seen = ""
    while "doubles (post:1): succeeded" not in (seen := seen + watching.stdout.readline()):
        assert watching.poll() is None
    watching.send_signal(signal.SIGINT)
    watching.communicate()
    assert watching.returncode == 130
    assert "numbers → shop.numbers: succeeded, 1 rows in" in seen
    held = begun(["run-due", "--now", "2026-03-01T12:01:05Z"], HOLD="numbers")
    while not (folder / "held").exists():
        assert held.poll() is None, held.communicate()
        signal.sigtimedwait([], 0.05)
    (run,) = flow("runs", "list", "--status", "running", "--format", "json").json["runs"]
    following = begun(["logs", run["run_id"], "--follow"])
    assert following.stdout is not None
    assert "run of numbers into shop.numbers started" in following.stdout.readline()
    held.send_signal(signal.SIGINT)
    _, said = held.communicate(timeout=60)
    assert (held.returncode, "cancelled" in said) == (130, True)
    rest, _ = following.communicate(timeout=60)
    assert "cancelled" in rest
    assert following.returncode == 0
    assert flow("logs", run["run_id"], "--follow", "--format", "json").code == 2


def test_who_does_not_heed_an_interrupt_is_left_behind(flow: Flow, folder: Path) -> None:
    """A second one ends the process; the next pass takes the slot over."""
    deaf = DUE.replace("for _ in range(6000):\n            time.sleep(0.1)", "time.sleep(600)")
    assert deaf != DUE
    (folder / "pipelines.py").write_text(deaf)
    process = begun(["run-due", "--now", NOON, "--max-parallel", "2"], HOLD="numbers")
    while not (folder / "held").exists():
        assert process.poll() is None, process.communicate()
        signal.sigtimedwait([], 0.05)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        signal.sigtimedwait([], 0.5)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "stopped; the next pass takes over what was under way" in said
    assert flow("run-due", "--now", NOON).code == 0
    assert (stored("numbers"), stored("doubles")) == ([1], [2])


def test_a_run_is_restarted_at_the_step_that_failed(flow: Flow, folder: Path) -> None:
    (folder / "pipelines.py").write_text(
        DUE.replace('transforms_post=[lambda conn: hold("post")]', "transforms_post=[first, then]")
        .replace("numbers(conn, run)", "numbers(conn)")
        .replace("{run.slot.minute + 1}", "1")
        .replace(
            "@ematix.pipeline(target=Numbers",
            """
def first(conn):
    with open("first.txt", "a") as file:
        file.write("x")


def then(conn):
    if not Path("ready").exists():
        raise ValueError("not ready")


@ematix.pipeline(target=Numbers""",
            1,
        )
    )
    assert flow("run", "numbers").code == 0
    assert flow("run", "doubles").code == 1
    (failed,) = {
        r["run_id"]
        for r in flow("runs", "list", "--pipeline", "doubles", "--format", "json").json["runs"]
    }
    assert flow("restart", failed).code == 1
    (folder / "ready").touch()
    said = flow("restart", failed[:18])
    assert (said.code, said.err) == (0, "")
    assert f"already loaded by run {failed}" in said.out
    assert ("then first: done" in said.out, "then then: done" in said.out) == (False, True)
    assert (folder / "first.txt").read_text() == "x"
    done = flow("restart", failed)
    assert (done.code, "nothing of it is left to do" in done.err) == (2, True)


def test_whoever_is_to_hear_of_it_hears_once(flow: Flow, folder: Path) -> None:
    """Each pass is a process of its own; what was told is kept in the run log."""
    (folder / "pipelines.py").write_text(
        DUE.replace('schedule="0 0 1 1 *"', 'schedule="* * * * *"').replace(
            '"max_attempts": 2', '"max_attempts": 1'
        )
    )
    heard = ["--alerter", "stdout://", "--metrics", "stdout://"]
    said = flow("run-due", "--now", NOON, *heard)
    assert said.code == 1
    assert [line for line in said.err.splitlines() if "flow: alert:" in line and "moody" in line]
    assert 'pipeline_failing{name="moody"} 1' in said.out
    # It fails in the same way again: nobody is told a second time.
    flow("reset", "moody")
    said = flow("run-due", "--now", "2026-03-01T12:01:05Z", *heard)
    assert said.code == 1
    assert "flow: alert:" not in said.err
