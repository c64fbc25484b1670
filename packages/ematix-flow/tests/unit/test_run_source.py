"""The source of a run: what is recorded of it, without secrets, in old logs too."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from ematix_flow import DuckDBConnection, ObjectStoreLocalConnection
from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.loading import load_backend
from ematix_flow.run import sql_log, sqlite_log
from ematix_flow.run.provenance import source_text
from ematix_flow.run.records import RunRecord
from ematix_flow.run.sqlite_log import SqliteRunLog

SECRET = "hunter22-x"


def record(**fields: object) -> RunRecord:
    return RunRecord.opened(run_id="r1", pipeline="p", target="t", trigger="cli", **fields)


def test_a_secret_in_the_source_is_masked() -> None:
    held = record(source=f"SELECT * FROM read('https://me:{SECRET}@host/x') -- token={SECRET}")
    assert SECRET not in held.source
    assert SECRET not in str(record().closed("succeeded", source=f"password={SECRET}").source)


def test_it_is_kept(tmp_path: Path) -> None:
    with contextlib.closing(SqliteRunLog(tmp_path / "log.db")) as log:
        log.begin(record())
        log.finish(record().closed("succeeded", source="crm: SELECT 1"))
        assert log.get("r1")[0].source == "crm: SELECT 1"
        assert log.get("r1")[0].to_dict()["source"] == "crm: SELECT 1"


def test_a_log_from_before_is_brought_forward(tmp_path: Path) -> None:
    file = tmp_path / "log.db"
    with contextlib.closing(sqlite3.connect(file)) as raw:
        for statement in sqlite_log._MIGRATIONS[0]:
            raw.execute(statement)
        raw.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
        raw.execute("INSERT INTO schema_version VALUES (1)")
        names = [c for c in sql_log.COLUMNS if c != "source"]
        row = sql_log.row_of(record())
        marks = ", ".join("?" * len(names))
        raw.execute(
            f"INSERT INTO runs ({', '.join(names)}) VALUES ({marks})", [row[n] for n in names]
        )
        raw.commit()
    with contextlib.closing(SqliteRunLog(file)) as log:
        (found,) = log.get("r1")
        assert (found.pipeline, found.source) == ("p", "")
        log.finish(found.closed("succeeded", source="now it is"))
        assert log.get("r1")[0].source == "now it is"


def test_what_is_read_in_words(tmp_path: Path) -> None:
    database = load_backend(DuckDBConnection(name="crm", path=str(tmp_path / "x.duckdb")))
    query = SourceQuery("  SELECT 1 AS a\n")
    assert source_text(database, query=query) == "crm: SELECT 1 AS a"
    assert source_text(database, query=query, table="shop.orders") == "crm: shop.orders"
    assert source_text(database, query=None, function="load") == "DataFrame of load"
    assert source_text(database, query=None) == "DataFrame"
    long = source_text(database, query=SourceQuery("SELECT " + "1, " * 5000 + "1"))
    assert len(long) == 4000
    assert long.endswith("…")


def test_files_are_named(tmp_path: Path) -> None:
    for n in range(23):
        (tmp_path / f"part-{n:02}.csv").write_text("a\n1\n")
    lake = load_backend(ObjectStoreLocalConnection(name="lake", path=str(tmp_path), format="csv"))
    text = source_text(lake, query=SourceQuery("SELECT * FROM `part-*.csv` WHERE a > 0"))
    query, files = text.splitlines()
    assert query == "lake: SELECT * FROM `part-*.csv` WHERE a > 0"
    assert files.startswith("files: part-00.csv, part-01.csv, ")
    assert files.endswith("part-19.csv, and 3 more")
    assert source_text(lake, query=SourceQuery("SELECT * FROM app.t")) == (
        "lake: SELECT * FROM app.t"
    )
