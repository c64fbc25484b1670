"""``flow lineage`` and ``flow impact`` on a project that has never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import CONNECTION, GOOD, Flow

MORE = """

@ematix.table(schema="shop")
class Words:
    word: Annotated[Text, pk()]
    largest: BigInt


@ematix.pipeline(target=Words, target_connection="warehouse", mode="truncate")
def load_words(conn):
    return '''
        SELECT n.word, max(d.number) AS largest
        FROM shop.numbers AS n JOIN shop.doubles AS d ON d.number = n.number * 2
        GROUP BY n.word
    '''


@ematix.pipeline(target=Words, target_connection="warehouse", mode="truncate")
def framed(spark):
    return spark.range(1).selectExpr("'a' AS word", "id AS largest")
"""


@pytest.fixture
def words(project: Path) -> Path:
    (project / "pipelines.py").write_text(CONNECTION + GOOD + MORE)
    return project


def test_a_column_as_a_tree(flow: Flow, words: Path) -> None:
    said = flow("lineage", "shop.words.largest")
    assert said.code == 0
    assert said.out.splitlines() == [
        "warehouse.shop.words.largest",
        "├─ warehouse.shop.doubles.number  (direct, join) by load_words",
        "│  └─ warehouse.shop.numbers.number  (direct) by load_doubles",
        "├─ warehouse.shop.numbers.word  (indirect, group) by load_words",
        "└─ warehouse.shop.numbers.number  (indirect, join) by load_words",
    ]
    assert "framed: its function must be run" in said.err


def test_a_table(flow: Flow, words: Path) -> None:
    lines = flow("lineage", "warehouse.shop.doubles").out.splitlines()
    assert lines[:3] == [
        "warehouse.shop.doubles, loaded by load_doubles (known from its declaration)",
        "  number  ← warehouse.shop.numbers.number",
        "  reads: warehouse.shop.numbers",
    ]
    assert "warehouse.shop.numbers, loaded by load_numbers (known from its declaration)" in lines
    assert "  number  ← no column" in lines


def test_impact(flow: Flow, words: Path) -> None:
    assert flow("impact", "shop.numbers.number").out.splitlines() == [
        "warehouse.shop.numbers.number",
        "├─ warehouse.shop.doubles.number  (direct) through load_doubles",
        "│  ├─ warehouse.shop.words.largest  (direct, join) through load_words",
        "│  └─ warehouse.shop.words.word  (indirect, join) through load_words",
        "└─ warehouse.shop.words: every column  (indirect, join) through load_words",
    ]
    assert "feeds no other table" in flow("impact", "shop.words.largest").out


def test_as_json(flow: Flow, words: Path) -> None:
    held = flow("lineage", "warehouse:shop.words.largest", "--format", "json").json
    assert (held["table"], held["column"]) == ("warehouse.shop.words", "largest")
    assert {
        "source_table": "warehouse.shop.numbers",
        "source_column": "number",
        "target_table": "warehouse.shop.doubles",
        "target_column": "number",
        "kind": "direct",
        "how": "projection",
        "pipeline": "load_doubles",
    } in held["edges"]
    notes = {p["name"]: p["notes"] for p in held["pipelines"]}
    assert notes["load_words"] == []
    assert len(notes["framed"]) == 1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("shop.wrods", "reads or loads 'shop.wrods'; did you mean 'shop.words'?"),
        ("shop.words.lagrest", "no column 'lagrest' of warehouse.shop.words is read or loaded by a "
         "pipeline; did you mean 'largest'?"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["lineage", "impact"])
def test_names_that_are_not_there(
    flow: Flow, words: Path, command: str, asked: str, says: str
) -> None:
    said = flow(command, asked)
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert says in said.err


def test_a_name_that_may_be_two(flow: Flow, words: Path) -> None:
    text = CONNECTION + GOOD.replace('FROM shop.numbers"', 'FROM other.numbers"')
    (words / "pipelines.py").write_text(text)
    said = flow("lineage", "numbers")
    assert said.code == 2
    assert "may be any of warehouse.other.numbers, warehouse.shop.numbers" in said.err


def test_broken_pipelines_do_not_hide_the_good(flow: Flow, half_broken: Path) -> None:
    said = flow("lineage", "shop.doubles.number")
    assert said.code == 2
    assert "└─ warehouse.shop.numbers.number  (direct) by load_doubles" in said.out
    assert "mode='upsert' is not known" in said.err


def test_what_a_run_has_kept_is_not_poured_out(flow: Flow, project: Path) -> None:
    assert flow("run").code == 0
    run = flow("runs", "list", "--format", "json").json["runs"][0]
    assert run["metrics"]["lineage"]["target"] == "warehouse.shop.doubles"
    shown = flow("runs", "show", run["run_id"])
    assert "lineage" not in shown.out
