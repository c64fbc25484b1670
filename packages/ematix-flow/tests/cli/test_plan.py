"""``flow plan`` shows what a run will do, and ``flow apply`` does that or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from .conftest import Flow

DECLARED = """
from typing import Annotated

from ematix_flow import (
    BigInt, DuckDBConnection, Target, Text, ematix, natural_key, pk, register_connection
)

register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))


@ematix.table(schema="shop")
class Words:
    number: Annotated[BigInt, pk()]
    word: Text | None


@ematix.table(schema="shop")
class History:
    number: Annotated[BigInt, natural_key()]
    word: Text | None


@ematix.table(schema="shop")
class Log:
    number: BigInt
    word: Text | None


@ematix.pipeline(
    target=Words, target_connection="warehouse", mode="merge", handle_deletes="hard",
    max_delete_fraction=1.0,
)
def merge_words(conn):
    return "SELECT * FROM raw.words"


@ematix.pipeline(target=History, target_connection="warehouse", mode="scd2")
def keep_words(conn):
    return "SELECT * FROM raw.words"


@ematix.pipeline(target=Log, target_connection="warehouse", mode="append")
def log_words(conn):
    return "SELECT * FROM raw.words"


@ematix.pipeline(target=Log, target_connection="warehouse", mode="truncate", name="copy_words")
def copy_words(conn):
    return "SELECT * FROM raw.words"


@ematix.pipeline(
    source_connection="warehouse",
    targets=[
        Target(table=Words, connection="warehouse", mode="merge"),
        Target(table=History, connection="warehouse", mode="scd2"),
    ],
)
def both_words(conn):
    return "SELECT * FROM raw.words"
"""


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(folder / "warehouse.duckdb")) as raw:
        return raw.execute(sql).fetchall()


@pytest.fixture
def shop(folder: Path) -> Path:
    (folder / "pipelines.py").write_text(DECLARED)
    (folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')
    query(folder, "CREATE SCHEMA raw")
    query(folder, "CREATE TABLE raw.words (number BIGINT, word VARCHAR)")
    query(folder, "INSERT INTO raw.words VALUES (1, 'one'), (2, 'two'), (3, NULL)")
    return folder


def change_source(folder: Path) -> None:
    query(folder, "UPDATE raw.words SET word = 'zwei' WHERE number = 2")
    query(folder, "DELETE FROM raw.words WHERE number = 1")
    query(folder, "INSERT INTO raw.words VALUES (4, 'four'), (5, NULL)")


def tables(folder: Path) -> list[tuple[Any, ...]]:
    return query(
        folder, "SELECT table_schema, table_name FROM information_schema.tables ORDER BY 1, 2"
    )


def operations(said: Any) -> dict[str, Any]:
    (target,) = said.json["targets"]
    return {op["name"]: (op["rows"], op["sample"]) for op in target["operations"]}


def test_the_first_plan_creates_nothing(shop: Path, flow: Flow) -> None:
    before = tables(shop)
    for name in ("merge_words", "keep_words", "log_words", "copy_words"):
        said = flow("plan", name, "--format", "json", "--sample", "2")
        assert said.code == 0, said.err
        (target,) = said.json["targets"]
        assert any(text.startswith("CREATE TABLE") for text in target["ddl"])
        (rows, sample) = operations(said)["insert"]
        assert (rows, len(sample)) == (3, 2)
        assert target["counts"]["inserted"] == 3
    assert tables(shop) == before


def test_a_plan_of_a_merge_shows_old_and_new(shop: Path, flow: Flow) -> None:
    assert flow("run", "merge_words").code == 0
    change_source(shop)
    before = query(shop, "SELECT * FROM shop.words ORDER BY number")
    said = flow("plan", "merge_words", "--format", "json")
    assert operations(said) == {
        "insert": (
            2,
            [
                {"key": {"number": 4}, "old": {}, "new": {"number": 4, "word": "four"}},
                {"key": {"number": 5}, "old": {}, "new": {"number": 5, "word": None}},
            ],
        ),
        "update": (
            1,
            [{"key": {"number": 2}, "old": {"word": "two"}, "new": {"word": "zwei"}}],
        ),
        "absent": (
            1,
            [{"key": {"number": 1}, "old": {"number": 1, "word": "one"}, "new": {}}],
        ),
    }
    counts = said.json["targets"][0]["counts"]
    assert {n: c for n, c in counts.items() if c} == {
        "read": 4,
        "inserted": 2,
        "updated": 1,
        "deleted": 1,
        "unchanged": 1,
    }
    shown = flow("plan", "merge_words", "--sample", "1")
    assert "update: 1 row\n  number=2  word: two → zwei\n" in shown.out
    assert "insert: 2 rows\n  number=4  word=four\n  … and 1 more\n" in shown.out
    assert query(shop, "SELECT * FROM shop.words ORDER BY number") == before


def test_a_plan_of_a_history_shows_what_is_closed(shop: Path, flow: Flow) -> None:
    assert flow("run", "keep_words").code == 0
    change_source(shop)
    found = operations(flow("plan", "keep_words", "--format", "json"))
    assert {name: rows for name, (rows, _) in found.items()} == {"insert": 3, "close": 1}
    (closed,) = found["close"][1]
    assert closed["key"]["number"] == 2
    assert (closed["old"]["is_current"], closed["new"]["is_current"]) == (True, False)
    assert closed["old"]["valid_to"] is None
    assert closed["new"]["valid_to"]
    assert set(closed["new"]) == {"is_current", "valid_to"}


def test_a_plan_of_a_replacement_shows_what_goes(shop: Path, flow: Flow) -> None:
    assert flow("run", "copy_words").code == 0
    query(shop, "DELETE FROM raw.words WHERE number > 1")
    found = operations(flow("plan", "copy_words", "--format", "json", "--sample", "9"))
    assert found["insert"] == (1, [{"key": {}, "old": {}, "new": {"number": 1, "word": "one"}}])
    assert found["delete"][0] == 3
    assert sorted(row["old"]["number"] for row in found["delete"][1]) == [1, 2, 3]


@pytest.mark.parametrize("name", ["merge_words", "keep_words", "log_words", "copy_words"])
def test_a_plan_is_applied_once_and_as_it_was_seen(shop: Path, flow: Flow, name: str) -> None:
    for round_ in range(2):
        planned = flow("plan", name, "--out", "plan.json", "--format", "json")
        assert planned.code == 0, planned.err
        applied = flow("apply", "plan.json", "--format", "json")
        assert applied.code == 0, applied.err
        counts = planned.json["targets"][0]["counts"]
        assert {f"rows_{n}": c for n, c in counts.items()}.items() <= applied.json.items()
        assert (counts["inserted"] > 0) or (round_ == 1)
        again = flow("apply", "plan.json")
        assert again.code == 1
        assert "has taken it already" in again.err
        change_source(shop)
    triggers = [r["trigger"] for r in flow("runs", "list", "--format", "json").json["runs"]]
    assert triggers == ["apply", "apply"]


def test_every_target_has_a_plan_of_its_own(shop: Path, flow: Flow) -> None:
    assert flow("run", "both_words").code == 0
    change_source(shop)
    planned = flow("plan", "both_words", "--out", "plan.json", "--format", "json")
    assert planned.code == 0, planned.err
    words, history = planned.json["targets"]
    assert [op["name"] for op in words["operations"]] == ["insert", "update"]
    assert [op["name"] for op in history["operations"]] == ["insert", "close"]
    applied = flow("apply", "plan.json", "--format", "json")
    assert applied.code == 0, applied.err
    for target in (words, history):
        held = applied.json["targets"][target["target"]]
        assert {f"rows_{n}": c for n, c in target["counts"].items()}.items() <= held.items()
    assert flow("apply", "plan.json").code == 1


def test_a_plan_of_no_change_is_applied_once_too(shop: Path, flow: Flow) -> None:
    assert flow("run", "merge_words").code == 0
    assert flow("plan", "merge_words", "--out", "plan.json").code == 0
    assert flow("apply", "plan.json").code == 0
    assert flow("apply", "plan.json").code == 1


@pytest.mark.parametrize(
    ("moved", "complaint"),
    [
        ("UPDATE raw.words SET word = 'deux' WHERE number = 2", "the source of pipeline"),
        ("UPDATE raw.words SET word = '' WHERE word IS NULL", "the source of pipeline"),
        ("INSERT INTO raw.words VALUES (9, 'nine')", "the source of pipeline"),
        ("UPDATE shop.words SET word = 'mine' WHERE number = 3", "table shop.words has changed"),
        ("DELETE FROM shop.words WHERE number = 1", "table shop.words has changed"),
    ],
)
def test_what_has_moved_is_not_overwritten(
    shop: Path, flow: Flow, moved: str, complaint: str
) -> None:
    assert flow("run", "merge_words").code == 0
    change_source(shop)
    assert flow("plan", "merge_words", "--out", "plan.json").code == 0
    query(shop, moved)
    before = query(shop, "SELECT * FROM shop.words ORDER BY number")
    said = flow("apply", "plan.json")
    assert said.code == 1
    assert complaint in said.err
    assert "flow plan merge_words --out plan.json" in said.err
    assert said.err.count("\n") == 1
    assert query(shop, "SELECT * FROM shop.words ORDER BY number") == before
    assert flow("runs", "list", "--format", "json").json["runs"][0]["status"] == "failed"


def test_another_declaration_needs_another_plan(shop: Path, flow: Flow) -> None:
    assert flow("plan", "log_words", "--out", "plan.json").code == 0
    elsewhere = "# A line that only moves the rest.\n" + DECLARED
    (shop / "pipelines.py").write_text(elsewhere)
    assert flow("apply", "plan.json").code == 0
    assert flow("plan", "log_words", "--out", "plan.json").code == 0
    (shop / "pipelines.py").write_text(
        elsewhere.replace("FROM raw.words", "FROM raw.words LIMIT 9")
    )
    said = flow("apply", "plan.json")
    assert said.code == 1
    assert "the declaration of pipeline 'log_words' has changed" in said.err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no plan", "is not a plan"),
        ("{}", "is not a plan"),
        (json.dumps({"format": 99}), "is a plan of format 99, this version knows 1"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(
    shop: Path, flow: Flow, text: str, complaint: str
) -> None:
    (shop / "plan.json").write_text(text)
    said = flow("apply", "plan.json")
    assert (said.code, complaint in said.err) == (2, True)
    missing = flow("apply", "elsewhere.json")
    assert (missing.code, "elsewhere.json cannot be read" in missing.err) == (2, True)


def test_a_kept_plan_holds_no_row(shop: Path, flow: Flow) -> None:
    query(shop, "UPDATE raw.words SET word = 'for your eyes only' WHERE number = 2")
    assert flow("plan", "log_words", "--out", "plan.json").code == 0
    assert "eyes" not in (shop / "plan.json").read_text()
    said = flow("plan", "log_words", "--out", "no/such/folder/plan.json")
    assert (said.code, "cannot be written" in said.err) == (2, True)
