"""``flow transform``, and what the other commands show of transforms and several targets."""

from __future__ import annotations

from pathlib import Path

import duckdb

from .conftest import CONNECTION, Flow

STEPS = """
from ematix_flow import Target


@ematix.transform(connection="warehouse")
def update_mart(conn):
    \"\"\"Count the numbers.

    And more words.
    \"\"\"
    return "CREATE OR REPLACE TABLE mart AS SELECT count(*) AS n FROM shop.numbers"


@ematix.transform(name="measure", connection="warehouse")
def measured(conn, run):
    return {"numbers": conn.query("SELECT count(*) AS n FROM shop.numbers")[0]["n"]}


@ematix.pipeline(
    targets=[
        Target(table=Numbers, connection="warehouse", mode="truncate"),
        Target(table=Doubles, connection="warehouse", mode="truncate"),
    ],
    transforms_post=[ematix.transform_ref("update_mart"), "CHECKPOINT"],
)
def load_both(conn):
    return "SELECT * FROM (VALUES (1, 'one'), (2, 'two')) AS t(number, word)"
"""


def write(project: Path) -> None:
    (project / "pipelines.py").write_text(CONNECTION + STEPS)
    (project / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')


def test_list_and_run(folder: Path, flow: Flow) -> None:
    write(folder)
    header, *lines = flow("transform", "list").out.splitlines()
    assert header.split() == ["NAME", "CONNECTION", "AFTER", "DESCRIPTION"]
    assert lines[0].split() == ["update_mart", "warehouse", "load_both", "Count", "the", "numbers."]
    listed = flow("transform", "list", "--format", "json").json["transforms"]
    assert [(t["name"], t["after"]) for t in listed] == [
        ("update_mart", ["load_both"]),
        ("measure", []),
    ]
    assert flow("transform", "run", "measure").code == 1
    assert flow("run").code == 0
    said = flow("transform", "run", "measure")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("measure: done, in ")
    assert "  numbers: 2" in said.out
    told = flow("transform", "run", "measure", "--format", "json").json
    assert (told["status"], told["metrics"]) == ("succeeded", {"numbers": 2})
    runs = flow("runs", "list", "--pipeline", "measure", "--format", "json").json["runs"]
    assert [(r["kind"], r["status"]) for r in runs] == [
        ("transform", "succeeded"),
        ("transform", "succeeded"),
        ("transform", "failed"),
    ]


def test_several_targets_and_steps_are_shown(folder: Path, flow: Flow) -> None:
    write(folder)
    said = flow("preview", "load_both")
    assert (said.code, said.err) == (0, "")
    assert said.out.count("target    ") == 2
    assert said.out.count("pipeline  ") == said.out.count("source    ") == 1
    assert "after the load (not run now)\n  transform update_mart\n  CHECKPOINT" in said.out
    document = flow("dry-run", "load_both", "--format", "json").json
    assert [p["target"] for p in (document, *document["also"])] == [
        '"shop"."numbers"',
        '"shop"."doubles"',
    ]
    counted = document["counts"]["targets"]
    assert {n: t["rows_inserted"] for n, t in counted.items()} == {
        "shop.numbers": 2,
        "shop.doubles": 2,
    }
    assert "shop.doubles\n  read                 2" in flow("dry-run", "load_both").out
    assert flow("validate").out.startswith("load_both: ok")
    with duckdb.connect("warehouse.duckdb") as raw:
        assert raw.execute("SELECT table_name FROM information_schema.tables").fetchall() == []

    said = flow("run")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "load_both → shop.numbers: 2 rows read, 2 inserted (same_db)"
    assert lines[1] == "load_both → shop.doubles: 2 rows read, 2 inserted (same_db)"
    assert lines[2].startswith("load_both: 2 targets in ")
    assert lines[3].startswith("load_both, then update_mart: done in ")
    assert lines[4].startswith("load_both, then CHECKPOINT: done in ")
    with duckdb.connect("warehouse.duckdb") as raw:
        assert raw.execute("SELECT n FROM mart").fetchall() == [(2,)]
    run_id = flow("runs", "list", "--format", "json").json["runs"][0]["run_id"]
    records = flow("runs", "show", run_id, "--format", "json").json["records"]
    assert sorted((r["target"], r["step"]) for r in records) == [
        ("shop.doubles", "load"),
        ("shop.numbers", "load"),
        ("shop.numbers", "post:1"),
        ("shop.numbers", "post:2"),
    ]
    assert "transforms_post 1 (update_mart)" in flow("logs", run_id).out


def test_a_project_without_any(project: Path, flow: Flow) -> None:
    assert flow("transform", "list").out == "No transform is declared in pipelines.py.\n"
