"""``flow run`` inside one DuckDB file, and the history it leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from .conftest import CONNECTION, GOOD, Flow


def rows(path: Path, table: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path / "warehouse.duckdb"), read_only=True) as connection:
        return connection.execute(f"SELECT number FROM shop.{table} ORDER BY 1").fetchall()


def test_run_all_in_order(flow: Flow, project: Path) -> None:
    said = flow("run")
    assert (said.code, said.err) == (0, "")
    first, second, summary = said.out.splitlines()
    assert first.startswith("load_numbers → shop.numbers: 3 rows read, 3 inserted in ")
    assert second.startswith("load_doubles → shop.doubles: 3 rows read, 3 inserted in ")
    assert summary == "2 pipelines succeeded."
    assert rows(project, "doubles") == [(2,), (4,), (6,)]


def test_run_one_as_json(flow: Flow, project: Path) -> None:
    said = flow("run", "load_numbers", "--format", "json")
    assert said.code == 0
    (ran,) = said.json["ran"]
    assert (ran["pipeline"], ran["status"], ran["rows_inserted"]) == (
        "load_numbers",
        "succeeded",
        3,
    )
    assert said.json["failed"] == said.json["skipped"] == []
    shown = flow("runs", "show", ran["run_id"], "--format", "json").json["records"]
    assert [(r["run_id"], r["status"], r["trigger"]) for r in shown] == [
        (ran["run_id"], "succeeded", "cli")
    ]


def test_a_failure_skips_what_depends_on_it(flow: Flow, project: Path) -> None:
    module = project / "pipelines.py"
    module.write_text(
        module.read_text().replace("FROM (VALUES", "FROM shop.missing, (VALUES")
        + "\n@ematix.pipeline("
        "\n    target=Numbers, target_connection='warehouse', mode='truncate')\n"
        "def apart(conn):\n    return \"SELECT 9 AS number, 'nine' AS word\"\n"
    )
    assert flow("run", "apart").code == 0
    said = flow("run", "--format", "json")
    assert said.code == 1
    assert [r["pipeline"] for r in said.json["ran"]] == ["apart"]
    assert [f["pipeline"] for f in said.json["failed"]] == ["load_numbers"]
    assert said.json["skipped"] == [
        {"pipeline": "load_doubles", "reason": "load_numbers did not succeed"}
    ]
    errors = [line for line in said.err.splitlines() if line.startswith("flow: error:")]
    assert len(errors) == 1
    assert "load_numbers" in errors[0]
    assert "missing" in errors[0]
    assert "Traceback" not in said.err
    assert "Traceback" in flow("run", "load_numbers", "--verbose").err
    listed = flow("runs", "list", "--status", "failed", "--format", "json").json["runs"]
    assert {r["pipeline"] for r in listed} == {"load_numbers"}


def test_broken_others_do_not_stop_a_good_one(flow: Flow, half_broken: Path) -> None:
    said = flow("run", "load_numbers")
    assert said.code == 0
    assert said.err.startswith("flow: warning: ")
    assert said.err.count("\n") == 1
    said = flow("run", "misspelt")
    assert said.code == 2
    assert said.err.startswith("flow: error: ")
    assert "mode='upsert' is not known" in said.err


def test_run_all_runs_the_good_and_names_the_broken(flow: Flow, half_broken: Path) -> None:
    said = flow("run", "--format", "json")
    assert said.code == 2
    assert [r["pipeline"] for r in said.json["ran"]] == ["load_numbers", "load_doubles"]
    skipped = {s["pipeline"]: s["reason"] for s in said.json["skipped"]}
    assert set(skipped) == {"misspelt", "after_misspelt"}
    assert skipped["after_misspelt"] == "misspelt did not succeed"


def test_a_cycle_stops_only_its_members(flow: Flow, project: Path) -> None:
    module = project / "pipelines.py"
    for name, upstream in (("a", "b"), ("b", "a")):
        module.write_text(
            module.read_text() + f"\n@ematix.pipeline(target=Numbers, target_connection="
            f"'warehouse', name='{name}', depends_on=['{upstream}'])\ndef {name}(conn):\n"
            "    return \"SELECT 1 AS number, 'one' AS word\"\n"
        )
    said = flow("run", "--format", "json")
    assert said.code == 2
    assert [r["pipeline"] for r in said.json["ran"]] == ["load_numbers", "load_doubles"]
    assert {s["pipeline"] for s in said.json["skipped"]} == {"a", "b"}
    assert flow("run", "load_numbers").code == 0
    said = flow("run", "a")
    assert said.code == 2
    assert "circle" in said.err


def test_an_unknown_dependency_stops_its_pipeline(flow: Flow, project: Path) -> None:
    module = project / "pipelines.py"
    module.write_text(module.read_text().replace('["load_numbers"]', '["load_nubmers"]'))
    said = flow("run", "load_doubles")
    assert said.code == 2
    assert "did you mean 'load_numbers'?" in said.err
    assert flow("run", "load_numbers").code == 0


def test_an_unknown_connection_is_exit_code_2(flow: Flow, project: Path) -> None:
    module = project / "pipelines.py"
    module.write_text(
        module.read_text().replace('target_connection="warehouse"', 'target_connection="warehuose"')
    )
    said = flow("run", "load_numbers")
    assert said.code == 2
    assert "there is no connection 'warehuose'" in said.err
    assert said.err.count("flow: error:") == 1


def test_parameters_reach_the_function_and_the_log(flow: Flow, project: Path) -> None:
    module = project / "pipelines.py"
    module.write_text(
        CONNECTION + "\n@ematix.pipeline(target=Numbers, target_connection='warehouse')\n"
        "def load(conn, run):\n"
        "    return f\"SELECT {run.parameters['n']} AS number, 'x' AS word\"\n"
    )
    assert flow("run", "load", "--param", "n=42", "-p", "api_token=abc-secret-1").code == 0
    assert rows(project, "numbers") == [(42,)]
    said = flow("runs", "list", "--format", "json")
    assert said.json["runs"][0]["parameters"] == {"n": "42", "api_token": "***"}


def test_the_run_log_can_be_elsewhere_or_nowhere(flow: Flow, project: Path) -> None:
    assert flow("run", "load_numbers", "--no-run-log").code == 0
    assert flow("runs", "list").out == "No run is recorded.\n"
    assert flow("run", "load_numbers", "--run-log", "sqlite://mine.db").code == 0
    assert flow("runs", "list").out == "No run is recorded.\n"
    for option in ("--run-log", "--run-log-url", "--run-log-path"):
        said = flow("runs", "list", option, "mine.db", "--format", "json")
        assert [r["pipeline"] for r in said.json["runs"]] == ["load_numbers"]


def test_an_unwritable_run_log_warns_and_the_run_goes_on(flow: Flow, project: Path) -> None:
    (project / "file").write_text("")
    said = flow("run", "load_numbers", "--run-log", "file/runs.db")
    assert said.code == 0
    assert said.err.startswith("flow: warning: the run log file/runs.db cannot be written (Not a ")
    assert said.err.count("\n") == 1
    said = flow("runs", "list", "--run-log", "file/runs.db")
    assert said.code == 2
    assert said.err.startswith("flow: error: the run log cannot be read")


def test_status_tells_what_happened(flow: Flow, project: Path) -> None:
    before = {p["name"]: p for p in flow("status", "--format", "json").json["pipelines"]}
    assert before["load_numbers"]["last_run"] is None
    assert before["load_numbers"]["next_due"].partition("T")[2][:5] == "06:30"
    assert before["load_doubles"]["next_due"] is None
    assert "never ran" in flow("status").out
    flow("run")
    after = {p["name"]: p for p in flow("status", "--format", "json").json["pipelines"]}
    assert after["load_numbers"]["last_run"]["rows_inserted"] == 3
    line = next(x for x in flow("status").out.splitlines() if x.startswith("load_doubles"))
    assert line.split()[-3:] == ["succeeded", "3", "-"]


def test_runs_and_logs_take_the_beginning_of_an_id(flow: Flow, project: Path) -> None:
    run_id = flow("run", "load_numbers", "--format", "json").json["ran"][0]["run_id"]
    short = flow("runs", "list").out.splitlines()[1].split()[0]
    assert run_id.startswith(short)
    shown = flow("runs", "show", short)
    assert f"run_id            {run_id}" in shown.out
    assert "rows_inserted     3" in shown.out
    lines = flow("logs", short, "--format", "json").json["lines"]
    assert lines
    assert all(run_id in line for line in lines)
    assert flow("logs", run_id, "--tail", "1").out == lines[-1] + "\n"


def test_explain_tells_how_the_rows_would_move(flow: Flow, project: Path) -> None:
    said = flow("explain")
    # The other one reads what this one has not made yet; that is no reason to be silent here.
    assert (said.code, "load that table first" in said.err) == (1, True)
    assert "load_numbers → " in said.out
    assert "path      same_db: source and target are the same database" in said.out
    assert "engine    none: " in said.out
    found = flow("explain", "load_numbers", "--format", "json").json["pipelines"]
    assert [(one["pipeline"], one["path"], one["engine"]) for one in found] == [
        ("load_numbers", "same_db", "none")
    ]
    wrong = flow("explain", "load_nubmers")
    assert (wrong.code, "load_numbers" in wrong.err) == (2, True)


def test_a_placement_of_no_pipeline_is_refused(flow: Flow, project: Path) -> None:
    file = project / ".ematix-flow.toml"
    held = file.read_text()
    file.write_text(f'{held}\n[pipelines.load_nubmers]\nengine = "local"\n')
    for command in (["list"], ["run", "load_numbers"]):
        said = flow(*command)
        assert said.code == 2
        assert "[pipelines.load_nubmers] is of no pipeline of this project" in said.err
        assert "load_numbers" in said.err
    file.write_text(f'{held}\n[pipelines.load_numbers]\nengine = "local"\n')
    assert flow("list").code == 0


def test_preview_and_dry_run_write_nothing(flow: Flow, project: Path) -> None:
    said = flow("preview", "load_numbers")
    assert said.code == 0
    assert "path      same_db: " in said.out
    assert "CREATE TABLE" in said.out
    plan = flow("preview", "load_numbers", "--format", "json").json
    assert [c["name"] for c in plan["columns"]] == ["number", "word"]
    assert "counts" not in plan
    for arguments in (["dry-run", "load_numbers"], ["preview", "load_numbers", "--counts"]):
        counted = flow(*arguments, "--format", "json").json["counts"]
        assert (counted["rows_inserted"], counted["dry_run"]) == (3, True)
        assert "  inserted             3" in flow(*arguments).out
    if (project / "warehouse.duckdb").exists():
        with duckdb.connect(str(project / "warehouse.duckdb"), read_only=True) as connection:
            assert connection.execute("SHOW ALL TABLES").fetchall() == []
    assert flow("runs", "list").out == "No run is recorded.\n"


SLOW = """

@ematix.pipeline(target=Numbers, target_connection="warehouse", name="slow")
def slow(conn):
    import pathlib, threading
    pathlib.Path("started").touch()
    threading.Event().wait(60)
    return "SELECT 1 AS number, 'one' AS word"


@ematix.pipeline(target=Doubles, target_connection="warehouse", name="next", depends_on=["slow"])
def next_one(conn):
    return "SELECT 1 AS number"
"""


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "ematix_flow.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background lets them inherit that Ctrl-C is ignored.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_is_cancelled(flow: Flow, project: Path, number: signal.Signals) -> None:
    (project / "pipelines.py").write_text(CONNECTION + SLOW)
    with started("run") as process:
        wait_for(project / "started", process)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "next: skipped, " in err
    (run,) = flow("runs", "list", "--format", "json").json["runs"]
    assert (run["pipeline"], run["status"]) == ("slow", "cancelled")


def test_a_killed_run_is_shown_as_lost(flow: Flow, project: Path) -> None:
    (project / "pipelines.py").write_text(CONNECTION + SLOW + GOOD)
    with started("run", "slow") as process:
        wait_for(project / "started", process)
        said = flow("runs", "list", "--status", "running", "--format", "json")
        assert [r["pipeline"] for r in said.json["runs"]] == ["slow"]
        process.kill()
        process.wait(timeout=60)
    said = flow("runs", "list", "--format", "json")
    assert [(r["pipeline"], r["status"]) for r in said.json["runs"]] == [("slow", "lost")]
    line = next(x for x in flow("status").out.splitlines() if x.startswith("slow"))
    assert "lost" in line.split()


def test_the_installed_command_runs(project: Path) -> None:
    command = Path(sys.executable).with_name("flow")
    done = subprocess.run(
        [str(command), "run", "load_numbers", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"rows_inserted": 3' in done.stdout
    assert rows(project, "numbers") == [(1,), (2,), (3,)]


def test_a_dry_run_calls_the_function_once(flow: Flow, project: Path) -> None:
    module = project / "pipelines.py"
    module.write_text(
        module.read_text() + "\n@ematix.pipeline("
        "\n    target=Numbers, target_connection='warehouse', mode='truncate')\n"
        "def counted(conn):\n"
        "    with open('calls', 'a') as file:\n        file.write('x')\n"
        "    return \"SELECT 9 AS number, 'nine' AS word\"\n"
    )
    assert flow("dry-run", "counted").code == 0
    assert Path("calls").read_text() == "x"
