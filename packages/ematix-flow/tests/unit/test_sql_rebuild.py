"""A table's own CREATE statement, changed in some columns: a real database says what it became."""

from __future__ import annotations

import contextlib
import sqlite3

import duckdb

from ematix_flow.backends.sql_rebuild import ColumnChange, rebuilt

CREATE = """\
CREATE TABLE "app__t" ( -- with, a (comment
  "id" INTEGER NOT NULL,
  "na""me(" VARCHAR(10) DEFAULT 'a,b)' NOT NULL CHECK (length("na""me(") IN (1, 2)),
  "amt" DECIMAL_TEXT(8,2),
  "primary" TIMESTAMPTZ_TEXT COLLATE NOCASE,
  bare,
  PRIMARY KEY ("id", "amt"), UNIQUE (bare)
) WITHOUT ROWID"""


def test_only_what_is_named_changes() -> None:
    changes = {
        "id": ColumnChange("BIGINT"),
        'na"me(': ColumnChange("TEXT", nullable=True),
        "amt": ColumnChange("DECIMAL_TEXT(10,4)", nullable=False),
        "bare": ColumnChange("INT"),
    }
    with contextlib.closing(sqlite3.connect(":memory:")) as raw:
        raw.execute(rebuilt(CREATE, '"x"', changes, ['"new" TEXT NOT NULL'], dialect="sqlite"))
        found = raw.execute(
            'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info("x")'
        )
        assert found.fetchall() == [
            ("id", "BIGINT", 1, None, 1),
            ('na"me(', "TEXT", 0, "'a,b)'", 0),
            ("amt", "DECIMAL_TEXT(10,4)", 1, None, 2),
            ("primary", "TIMESTAMPTZ_TEXT", 0, None, 0),
            ("bare", "INT", 0, None, 0),
            ("new", "TEXT", 1, None, 0),
        ]
        (sql,) = raw.execute("SELECT sql FROM sqlite_master WHERE name = 'x'").fetchone()
        assert "CHECK (length" in sql
        assert "COLLATE NOCASE" in sql
        assert sql.endswith("WITHOUT ROWID")


def test_without_changes_only_the_name_is_another() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as raw:
        raw.execute(CREATE)
        raw.execute(rebuilt(CREATE, "x", {}, dialect="sqlite"))
        described = "SELECT * FROM pragma_table_info(?)"
        before = raw.execute(described, ("app__t",)).fetchall()
        assert raw.execute(described, ("x",)).fetchall() == before


def test_what_duckdb_says_of_its_tables() -> None:
    with duckdb.connect() as raw:
        raw.execute(
            "CREATE TABLE t (id INTEGER, name VARCHAR DEFAULT 'x' NOT NULL, "
            "moment TIMESTAMP WITH TIME ZONE NOT NULL, tags INTEGER[], "
            's STRUCT(a INTEGER, b INTEGER[]), "order" DECIMAL(8,2), PRIMARY KEY (id), '
            "UNIQUE (name))"
        )
        row = raw.execute("SELECT sql FROM duckdb_tables() WHERE table_name = 't'").fetchone()
        assert row is not None
        changes = {
            "id": ColumnChange("BIGINT"),
            "moment": ColumnChange(None, nullable=True),
            "tags": ColumnChange("BIGINT[]"),
            "order": ColumnChange("DECIMAL(10,2)", nullable=False),
        }
        raw.execute(rebuilt(row[0], "u", changes, dialect="duckdb"))
        found = raw.execute('SELECT column_name, column_type, "null", key FROM (DESCRIBE u)')
        assert found.fetchall() == [
            ("id", "BIGINT", "NO", "PRI"),
            ("name", "VARCHAR", "NO", "UNI"),
            ("moment", "TIMESTAMP WITH TIME ZONE", "YES", None),
            ("tags", "BIGINT[]", "YES", None),
            ("s", "STRUCT(a INTEGER, b INTEGER[])", "YES", None),
            ("order", "DECIMAL(10,2)", "NO", None),
        ]
