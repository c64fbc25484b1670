"""Embedded databases make a table anew to change a column; all that hangs on it must survive."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pytest

from ematix_flow import (
    BigInt,
    DuckDBConnection,
    SQLiteConnection,
    Text,
    ematix,
    pk,
)
from ematix_flow.errors import Unsupported
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import register_connection


@ematix.table(schema="main", name="people")
class People:
    id: Annotated[BigInt, pk()]
    name: Text


def evolving(sql: str, **options: Any) -> Pipeline:
    """A load by the database itself, so that no Spark is needed."""

    @ematix.pipeline(
        target=People,
        source_connection="db",
        target_connection="db",
        name="load_people",
        on_drift="evolve",
        force_path="same_db",
        **options,
    )
    def load(conn: Any) -> str:
        return sql

    return load


@pytest.fixture
def lite(tmp_path: Path) -> Path:
    file = tmp_path / "db.sqlite"
    register_connection(SQLiteConnection(name="db", path=str(file)))
    with contextlib.closing(sqlite3.connect(file)) as raw:
        raw.executescript(
            """
            CREATE TABLE people (
              id SMALLINT NOT NULL CHECK (id > 0),
              name VARCHAR(5) NOT NULL,
              seen TEXT DEFAULT 'never',
              PRIMARY KEY (id)
            );
            CREATE INDEX by_name ON people (name DESC);
            CREATE VIEW names AS SELECT name FROM people;
            CREATE TABLE log (id);
            CREATE TRIGGER noted AFTER INSERT ON people BEGIN INSERT INTO log VALUES (new.id); END;
            INSERT INTO people (id, name) VALUES (1, 'one');
            CREATE TABLE source (id BIGINT, name TEXT);
            INSERT INTO source VALUES (1099511627776, 'a long name');
            """
        )
    return file


def lite_rows(file: Path, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(file)) as raw:
        return raw.execute(sql).fetchall()


def test_sqlite_keeps_index_trigger_view_check_and_default(lite: Path) -> None:
    before = lite_rows(lite, "SELECT name FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    dump = lite_rows(lite, "SELECT * FROM sqlite_master")
    assert evolving("SELECT id, name FROM source").dry_run().counts.inserted == 1
    assert lite_rows(lite, "SELECT * FROM sqlite_master") == dump
    evolving("SELECT id, name FROM source").sync()
    assert lite_rows(lite, "SELECT id, name, seen FROM people ORDER BY id") == [
        (1, "one", "never"),
        (2**40, "a long name", "never"),
    ]
    assert lite_rows(lite, "SELECT name FROM names ORDER BY 1") == [("a long name",), ("one",)]
    # The copy of the old rows is not an insert that anybody made.
    assert lite_rows(lite, "SELECT id FROM log") == [(1,), (2**40,)]
    types = lite_rows(lite, "SELECT name, type FROM pragma_table_info('people')")
    assert types[:2] == [("id", "BIGINT"), ("name", "TEXT")]
    own = "name NOT LIKE 'ematix%' AND name NOT LIKE 'sqlite_%'"
    after = lite_rows(
        lite, f"SELECT name FROM sqlite_master WHERE sql IS NOT NULL AND {own} ORDER BY name"
    )
    assert after == [name for name in before if not name[0].startswith(("ematix", "sqlite_"))]
    with pytest.raises(sqlite3.IntegrityError):
        lite_rows(lite, "INSERT INTO people (id, name) VALUES (0, 'x')")


def test_sqlite_refuses_a_table_that_others_refer_to(lite: Path) -> None:
    with contextlib.closing(sqlite3.connect(lite)) as raw:
        raw.execute("CREATE TABLE pets (owner REFERENCES people (id) ON DELETE CASCADE)")
        raw.execute("INSERT INTO pets VALUES (1)")
        raw.commit()
    with pytest.raises(Unsupported, match="'pets' refers to 'people' by a foreign key"):
        evolving("SELECT id, name FROM source").sync()
    assert lite_rows(lite, "SELECT * FROM pets") == [(1,)]
    assert lite_rows(lite, "SELECT id, name FROM people") == [(1, "one")]


def test_duckdb_keeps_keys_index_view_check_and_default(tmp_path: Path) -> None:
    file = str(tmp_path / "db.duckdb")
    register_connection(DuckDBConnection(name="db", path=file))
    with duckdb.connect(file) as raw:
        raw.execute(
            "CREATE TABLE people (id SMALLINT PRIMARY KEY CHECK (id > 0), name VARCHAR NOT NULL, "
            "seen VARCHAR DEFAULT 'never', code INTEGER UNIQUE)"
        )
        raw.execute("CREATE INDEX by_name ON people (name)")
        raw.execute("CREATE VIEW names AS SELECT name FROM people")
        raw.execute("INSERT INTO people (id, name, code) VALUES (1, 'one', 7)")
        raw.execute("CREATE TABLE source AS SELECT 1099511627776 AS id, 'two' AS name")
    assert evolving("SELECT id, name FROM source").dry_run().counts.inserted == 1
    with duckdb.connect(file) as raw:
        assert raw.execute("SELECT id, name, seen, code FROM people").fetchall() == [
            (1, "one", "never", 7)
        ]
        described = raw.execute("DESCRIBE people").fetchall()
        assert described[0][1] == "SMALLINT"
    evolving("SELECT id, name FROM source").sync()
    with duckdb.connect(file) as raw:
        rows = raw.execute("SELECT id, name, seen, code FROM people ORDER BY id").fetchall()
        assert rows == [(1, "one", "never", 7), (2**40, "two", "never", None)]
        assert raw.execute("SELECT count(*) FROM names").fetchone() == (2,)
        indexes = raw.execute("SELECT index_name FROM duckdb_indexes()").fetchall()
        assert indexes == [("by_name",)]
        for wrong in ("(1, 'again', 8)", "(0, 'none', 9)", "(5, 'same code', 7)"):
            with pytest.raises(duckdb.ConstraintException):
                raw.execute(f"INSERT INTO people (id, name, code) VALUES {wrong}")
