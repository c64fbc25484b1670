"""Mistakes in what is done around a load, and in loads of several targets."""

from __future__ import annotations

import json

import pytest

from mistakes.conftest import Make
from mistakes.workshop import Failure, Mistake, Shop

HERE = "pipelines.py:"
STEPS = "from ematix_flow.transforms import deduplicate_by, filter_where, limit, sample_pct\n"


def load(options: str, before: str = "") -> str:
    """A pipeline inside the warehouse, with something around it."""
    return (
        f"{STEPS}{before}\n"
        f'@ematix.pipeline(target=Orders, target_connection="warehouse", {options})\n'
        "def load(conn):\n    return ONE_ORDER\n"
    )


CHECK = """
def no_threes(rows):
    assert rows.where("id = 3").count() == 0, "an order has number 3"
"""

MISTAKES = [
    Mistake(
        "sample of more than all",
        (HERE, "sample_pct() takes a number above 0 and up to 100, not 200", "write 5"),
        load("transforms_pre=[sample_pct(200)]"),
    ),
    Mistake(
        "limit on an incremental load",
        (HERE, "pipeline 'load'", "limit()", "incremental=True", "never be read", "filter_where"),
        load('transforms_pre=[limit(5)], incremental=True, watermark_column="id"'),
    ),
    Mistake(
        "function of two arguments before the load",
        (HERE, "pipeline 'load'", "cannot be called with a DataFrame alone", "one parameter"),
        load("transforms_pre=[lambda a, b: a]"),
    ),
    Mistake(
        "name of a transform that is not there",
        (HERE, "transforms_post=", "there is no transform 'update_mart'", "@ematix.transform"),
        load('transforms_post=[ematix.transform_ref("update_mart")]'),
    ),
    Mistake(
        "misspelt name of a transform",
        (HERE, "there is no transform 'update_mart'", "did you mean 'update_marts'"),
        load(
            'transforms_post=[ematix.transform_ref("update_mart")]',
            '@ematix.transform()\ndef update_marts(conn):\n    return "SELECT 1"\n',
        ),
    ),
    Mistake(
        "transform with a parameter that nothing fits",
        (HERE, "transform 'mart'", "a parameter 'day' that nothing can be put into", "conn"),
        "@ematix.transform()\ndef mart(conn, day):\n    pass\n",
        command=("transform", "run", "mart"),
    ),
    Mistake(
        "transform that is not there",
        ("there is no transform 'mart'", "@ematix.transform"),
        command=("transform", "run", "mart"),
    ),
    Failure(
        "condition on a column that is not there",
        ("filter_where('nota IS NULL')", "names 'nota', which is not a column", "'note'"),
        load('transforms_pre=[filter_where("nota IS NULL")]'),
    ),
    Failure(
        "deduplication by a column that is not there",
        ("deduplicate_by('ids')", "names 'ids', which is not a column", "'id'"),
        load('transforms_pre=[deduplicate_by("ids")]'),
    ),
    Failure(
        "transform_sql that is no query",
        ("pipeline 'load'", "the source SQL starts with DELETE", "return a SELECT"),
        load('transform_sql="DELETE FROM source"'),
    ),
    Failure(
        "rows that a function refuses",
        (HERE, "pipeline 'load'", "no_threes in transforms_pre= refused the rows", "number 3"),
        load("transforms_pre=[no_threes]", CHECK),
    ),
    Failure(
        "transform whose SQL fails",
        ("transform 'mart'", "nothing_here does not exist"),
        '@ematix.transform(connection="warehouse")\n'
        'def mart(conn):\n    return "DELETE FROM nothing_here"\n',
        command=("transform", "run", "mart"),
    ),
    Failure(
        "transform that raises",
        (HERE, "the function mart raised KeyError: 'day'", "correct the function"),
        '@ematix.transform(connection="warehouse")\ndef mart(conn):\n    return {}["day"]\n',
        command=("transform", "run", "mart"),
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_transforms(mistake: Mistake, make: Make, engine: object) -> None:
    make(mistake)


def test_a_step_that_fails_after_the_load(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.declare(load('transforms_post=["DELETE FROM nothing_here"]'))
    said = shop.flow(capsys, "run", "load")
    assert said.code == 1
    (line,) = said.err.splitlines()
    assert "step 1 of transforms_post= (DELETE FROM nothing_here) failed" in line
    assert "the load into shop.orders had been committed and stays" in line
    assert "nothing_here" in line.rpartition("stays")[2]
    listed = json.loads(shop.flow(capsys, "runs", "list", "--format", "json").out)["runs"]
    assert {(r["step"], r["status"]) for r in listed} == {
        ("load", "succeeded"),
        ("post:1", "failed"),
    }


SEVERAL = """
@ematix.pipeline(
    targets=[
        Target(table=Parcels, connection="warehouse"),
        Target(table=Orders, connection="warehouse", mode="append"),
    ],
    continue_on_target_failure={go_on},
    source_connection="source",
)
def load(conn):
    return "SELECT 1 AS id, 'one' AS note, 1.0::DECIMAL(8,2) AS amount"
"""


def test_one_target_of_two_fails(
    shop: Shop, capsys: pytest.CaptureFixture[str], engine: object
) -> None:
    # Order 1 is there already, so that it cannot be appended again.
    shop.declare(SEVERAL.format(go_on=True))
    said = shop.flow(capsys, "run", "load", "--format", "json")
    assert said.code == 1
    (line,) = said.err.splitlines()
    assert "pipeline 'load': 1 of 2 targets failed (shop.orders: " in line
    assert "committed: shop.parcels" in line
    (failed,) = json.loads(said.out)["failed"]
    assert failed["error_class"] == "TargetsFailed"
    assert {n: t["status"] for n, t in failed["targets"].items()} == {
        "shop.parcels": "succeeded",
        "shop.orders": "failed",
    }
    shop.duckdb("DELETE FROM shop.orders WHERE id = 1")
    said = shop.flow(capsys, "run", "load")
    assert (said.code, said.err) == (0, "")
    first, second, both = said.out.splitlines()
    assert first.startswith("load → shop.parcels: already loaded by run ")
    assert second.startswith("load → shop.orders: 1 row read, 1 inserted")
    assert both.startswith("load: 2 targets in ")
    shop.duckdb("DELETE FROM shop.orders WHERE id = 1", "DELETE FROM shop.parcels")
    said = shop.flow(capsys, "run", "load", "--all-targets")
    assert "shop.parcels: 1 row read, 1 inserted" in said.out
