"""What a run would refuse ``flow validate`` says beforehand, without Spark, in the same words."""

from __future__ import annotations

import dataclasses

import pytest

from mistakes import test_databases, test_files, test_functions
from mistakes.conftest import Make
from mistakes.workshop import Mistake, Shop

FORESEEN = {
    "function that raises",
    "function that returns a list",
    "function that returns nothing",
    "function that returns an INSERT",
    "SQL syntax error",
    "missing source table",
    "missing column in the SQL",
    "column that the source does not give",
    "two columns of one name",
    "column of the wrong type",
    "path that is impossible",
    "prefix for a database",
    "DuckDB source that does not exist",
    "DuckDB file that is a text",
    "SQLite file that is a folder",
    "target that lacks a column",
    "target of another type",
    "missing file",
    "text instead of Parquet",
    "CSV that lacks a column",
    "file where the target's folder should be",
    "manifest that is damaged",
}
FORESEEN_BY_THE_SERVER = {
    "unreachable host",
    "wrong password",
    "missing database",
    "missing table in Postgres",
    "missing privilege on the source",
    "drifted table in Postgres",
}


def validated(mistakes: list[Mistake], names: set[str]) -> list[Mistake]:
    """The same mistakes, met by ``flow validate``, which puts the pipeline's name first."""
    found = [
        dataclasses.replace(
            mistake,
            command=("validate", "load"),
            code=1,
            says=tuple(words for words in mistake.says if words != "pipeline 'load'"),
        )
        for mistake in mistakes
        if mistake.name in names
    ]
    assert {mistake.name for mistake in found} == names
    return found


HERE = validated([*test_functions.MISTAKES, *test_databases.FILES, *test_files.MISTAKES], FORESEEN)
THERE = validated(test_databases.SERVER, FORESEEN_BY_THE_SERVER)


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody opens an engine."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("validation has started Spark")

    monkeypatch.setattr("ematix_flow.engine.session.open_engine", refuse)


@pytest.mark.parametrize("mistake", HERE, ids=lambda m: m.name)
def test_foreseen(mistake: Mistake, make: Make) -> None:
    make(mistake)


@pytest.mark.parametrize("mistake", THERE, ids=lambda m: m.name)
def test_foreseen_by_the_server(mistake: Mistake, postgres_shop: Shop, make: Make) -> None:
    make(mistake)
