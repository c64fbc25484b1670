"""Which engine a pipeline gets, why, and that the answer comes before any row moves."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from ematix_flow import (
    JSON,
    BigInt,
    Double,
    DuckDBConnection,
    Numeric,
    Target,
    Text,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.connections import DeltaLocalConnection, ObjectStoreLocalConnection
from ematix_flow.connections.databases import SQLiteConnection
from ematix_flow.errors import DeclarationError, MissingExtra, Unsupported
from ematix_flow.normalize import lower, trim
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.engines import chosen_engine
from ematix_flow.transforms import filter_where

SAIL = "EMATIX_FLOW_ENGINE or --engine"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a source of every kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EMATIX_FLOW_ENGINE", raising=False)
    # Other tests of this process have a Spark; to a user it would be a reason against Sail.
    monkeypatch.setattr("ematix_flow.run.engines.has_other_session", lambda: False)
    with sqlite3.connect("source.db") as raw:
        raw.execute("CREATE TABLE words (id BIGINT, word TEXT, amount TEXT)")
        raw.execute("INSERT INTO words VALUES (1, 'one', '1.50')")
    raw.close()
    Path("files").mkdir()
    Path("files/plain.csv").write_text("id,word,amount\n1,one,1.50\n")
    Path("files/quoted.csv").write_text('id,word,amount\n1,"one",1.50\n')
    Path("files/exponent.csv").write_text("id,word,amount\n1,one,15e-1\n")
    Path("files/late.csv").write_text("\nid,word,amount\n1,one,1.50\n")
    Path("files/lines.jsonl").write_text('{"id": 1, "word": "one", "amount": "1.50"}\n')
    register_connection(SQLiteConnection(name="source", path="source.db"))
    register_connection(ObjectStoreLocalConnection(name="files", path="files", format="csv"))
    register_connection(DuckDBConnection(name="target", path="target.duckdb"))
    register_connection(DeltaLocalConnection(name="lake", path="lake"))
    return tmp_path


@ematix.table(schema="app")
class Words:
    id: Annotated[BigInt, pk()]
    word: Text | None


@ematix.table(schema="app")
class Amounts:
    id: Annotated[BigInt, pk()]
    amount: Numeric[12, 2] | None


@ematix.table(schema="app")
class Trimmed:
    id: BigInt
    word: Annotated[Text | None, trim()]


@ematix.table(schema="app")
class Lowered:
    id: BigInt
    word: Annotated[Text | None, lower()]


@ematix.table(schema="app")
class Documents:
    id: BigInt
    word: JSON | None


@ematix.table(schema="app")
class Measures:
    id: BigInt
    word: Double | None


def _declared(table: Any = Words, function: Callable[..., Any] | None = None, **given: Any) -> Any:
    options = {"source_connection": "source", "target_connection": "target", **given}
    if function is None:
        options.setdefault("source_table", "words")

        def function() -> None:
            """Everything is declared."""

    return ematix.pipeline(target=table, name="load", **options)(function)


def _engine(pipeline: Pipeline) -> tuple[str, str]:
    told = pipeline.preview()
    return told.engine, told.engine_reason


def test_who_decides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _engine(_declared()) == ("spark", "the default")
    (folder / ".ematix-flow.toml").write_text('[project]\nengine = "sail"\n')
    assert _engine(_declared()) == ("sail", "engine in [project] of .ematix-flow.toml")
    assert _engine(_declared(engine="local")) == ("spark", "engine='local' of the pipeline")
    assert _engine(_declared(engine="sail")) == ("sail", "engine='sail' of the pipeline")
    monkeypatch.setenv("EMATIX_FLOW_ENGINE", "auto")
    assert _engine(_declared(engine="sail"))[0] == "spark"
    monkeypatch.setenv("EMATIX_FLOW_ENGINE", "sail")
    assert _engine(_declared(engine="local")) == ("sail", SAIL)


TAKEN: dict[str, Callable[[], Any]] = {
    "a table of a database": _declared,
    "a query of a database": lambda: _declared(function=lambda: "SELECT id, word FROM words"),
    "merge": lambda: _declared(mode="merge"),
    "scd2": lambda: _declared(mode="scd2"),
    "a proven normalizer": lambda: _declared(Trimmed),
    "text as a double": lambda: _declared(Measures),
    "plain CSV": lambda: _declared(source_connection="files", source_table="plain.csv"),
    "numbers of plain CSV": lambda: _declared(
        Amounts, source_connection="files", source_table="plain.csv"
    ),
}


@pytest.mark.parametrize("what", TAKEN)
def test_sail_takes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_ENGINE", "sail")
    assert _engine(TAKEN[what]()) == ("sail", SAIL)


ROUTED: dict[str, tuple[Callable[[], Any], str]] = {
    "transforms_pre": (
        lambda: _declared(transforms_pre=[filter_where("id > 0")]),
        "it has transforms_pre=",
    ),
    "delete_when": (
        lambda: _declared(mode="merge", delete_when="word = 'gone'"),
        "delete_when= is a condition in Spark SQL",
    ),
    "a normalizer": (lambda: _declared(Lowered), "column 'word' uses lower()"),
    "JSON": (lambda: _declared(Documents), "column 'word' is made JSON from Text"),
    "numbers as text": (
        lambda: _declared(Amounts),
        "column 'amount' is a number in words of any kind",
    ),
    "a query of files": (
        lambda: _declared(
            function=lambda: "SELECT id, word FROM `plain.csv`", source_connection="files"
        ),
        "its query of 'files' is Spark SQL",
    ),
    "quoted CSV": (
        lambda: _declared(source_connection="files", source_table="quoted.csv"),
        "quoted.csv has quoted fields",
    ),
    "exponents": (
        lambda: _declared(source_connection="files", source_table="exponent.csv"),
        "exponent.csv has numbers with exponents",
    ),
    "a late header": (
        lambda: _declared(source_connection="files", source_table="late.csv"),
        "late.csv does not begin with its header",
    ),
    "JSON lines": (
        lambda: _declared(source_connection="files", source_table="lines.jsonl"),
        "the files are json_lines",
    ),
    "files": (
        lambda: _declared(target_connection="files"),
        "object_store_local has not been proven on it as a target",
    ),
    "Delta": (
        lambda: _declared(target_connection="lake"),
        "delta_local has not been proven on it as a target",
    ),
    "several targets": (
        lambda: ematix.pipeline(
            targets=[
                Target(table=Words, connection="target"),
                Target(table=Trimmed, connection="target"),
            ],
            name="load",
            source_connection="source",
            source_table="words",
        )(lambda: None),
        "it has several targets, for which Spark keeps the rows",
    ),
}


@pytest.mark.parametrize("what", ROUTED)
def test_spark_takes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_ENGINE", "sail")
    declare, reason = ROUTED[what]
    engine, told = _engine(declare())
    assert engine == "spark"
    assert told.startswith(f"{SAIL} asks for Sail, but ")
    assert told.endswith(reason)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"transform_sql": "SELECT * FROM source"}, "transform_sql= is Spark SQL"),
        ({"function": lambda spark: spark.range(1)}, "its function asks for spark"),
    ],
)
def test_what_is_written_for_spark_is_sparks(given: dict[str, Any], reason: str) -> None:
    chosen = chosen_engine(_declared(engine="sail", **given).spec)
    assert not chosen.is_sail
    assert chosen.reason == f"engine='sail' of the pipeline asks for Sail, but {reason}"


def test_no_engine_where_the_database_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_ENGINE", "sail")
    held = _declared(target_connection="source")
    assert _engine(held) == ("none", "no row leaves the database")


class Frame:
    """What a function gives that has a session from somewhere."""

    selectExpr = None
    schema = SimpleNamespace(fields=[])


def test_a_frame_from_somewhere_is_refused() -> None:
    def give() -> Frame:
        return Frame()

    with pytest.raises(Unsupported, match="gives a DataFrame without asking for spark"):
        _declared(engine="sail", function=give).preview()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"ematix-flow\[sail\]"):
        _declared(engine="sail").preview()


def test_it_may_be_asked_for_by_name_only() -> None:
    with pytest.raises(DeclarationError, match="engine='snail'"):
        _declared(engine="snail")
