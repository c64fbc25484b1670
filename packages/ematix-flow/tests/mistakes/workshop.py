"""A shop whose pipelines go wrong: its sources and targets, and what a mistake must look like."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg

from ematix_flow.cli.main import main

if TYPE_CHECKING:
    import pytest

PREAMBLE = """\
from typing import Annotated

from ematix_flow import (
    UUID, Array, BigInt, Boolean, Bytes, Date, Double, DuckDBConnection, Integer, JSON,
    KafkaConnection, ManagedTable, Numeric, ObjectStoreLocalConnection, PostgresConnection,
    SQLiteConnection, SmallInt, String, Target, Text, Time, Timestamp, ematix, natural_key,
    nullable, pk, register_connection,
)
from ematix_flow.normalize import (
    date_trunc, derive, lower, parse_date, parse_int, regex_replace, sql, to_timezone, trim,
)

register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))
register_connection(DuckDBConnection(name="source", path="source.duckdb"))
register_connection(SQLiteConnection(name="ledger", path="ledger.db"))
register_connection(ObjectStoreLocalConnection(name="lake", path="lake"))
register_connection(ObjectStoreLocalConnection(name="drop", path="drop", format="csv"))
register_connection(ObjectStoreLocalConnection(name="feed", path="drop", format="json_lines"))


@ematix.table(schema="shop")
class Orders:
    id: Annotated[BigInt, pk()]
    note: String[8]
    amount: Annotated[Numeric[8, 2], nullable()]


@ematix.table(schema="shop")
class Parcels:
    id: Annotated[BigInt, pk()]
    note: Text


ONE_ORDER = "SELECT 3 AS id, 'three' AS note, CAST(3.5 AS DECIMAL(8,2)) AS amount"

"""

# What stands in every target before a mistake is made, and must stand there after it.
_COLUMNS = "id BIGINT NOT NULL PRIMARY KEY, note {text} NOT NULL, amount {number}"
_ROWS = "INSERT INTO {table} VALUES (1, 'one', 1.25), (2, 'two', NULL)"


@dataclass(frozen=True)
class Mistake:
    """One thing a user gets wrong: how, and what the one line on stderr must say.

    ``says`` are the essential words in their order; ``declares`` follows the preamble.
    """

    name: str
    says: tuple[str, ...]
    declares: str = ""
    code: int = 2
    command: tuple[str, ...] = ("run", "load")
    prepare: Callable[[Shop], object] = lambda shop: None


@dataclass(frozen=True)
class Failure(Mistake):
    """One that only shows when the pipeline runs."""

    code: int = 1


@dataclass
class Said:
    """What ``flow`` printed, and its exit code."""

    code: int
    out: str
    err: str


@dataclass
class Shop:
    """A folder with a project in it, its databases filled by their own drivers."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    postgres_url: str | None = None
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def declare(self, text: str) -> None:
        """Make the project's pipelines these."""
        (self.folder / "pipelines.py").write_text(PREAMBLE + text)

    def toml(self, text: str) -> None:
        """Add to the project's settings."""
        with (self.folder / ".ematix-flow.toml").open("a") as file:
            file.write(text)

    def file(self, name: str, content: str | bytes) -> Path:
        """Write a file below the project."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def duckdb(self, *statements: str, name: str = "warehouse") -> None:
        """Run statements in a DuckDB file."""
        with duckdb.connect(str(self.folder / f"{name}.duckdb")) as raw:
            for statement in statements:
                raw.execute(statement)

    def sqlite(self, *statements: str) -> None:
        """Run statements in the SQLite file."""
        with contextlib.closing(sqlite3.connect(self.folder / "ledger.db")) as raw:
            for statement in statements:
                raw.execute(statement)
            raw.commit()

    def postgres(self, *statements: str) -> None:
        """Run statements in the Postgres database."""
        assert self.postgres_url is not None
        with psycopg.connect(self.postgres_url, autocommit=True) as raw:
            for statement in statements:
                raw.execute(statement.encode())

    def flow(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> Said:
        """Call the command in this process."""
        capsys.readouterr()
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return Said(code, out, err)

    def targets(self) -> dict[str, Any]:
        """Everything that every target holds, bookkeeping aside."""
        return {
            "duckdb": _duckdb_state(self.folder / "warehouse.duckdb"),
            "sqlite": _sqlite_state(self.folder / "ledger.db"),
            "files": _folder_state(self.folder / "lake"),
            "postgres": _postgres_state(self.postgres_url) if self.postgres_url else None,
            "litter": sorted(
                p.name for p in self.folder.iterdir() if p.name.endswith((".stage", ".tmp"))
            ),
        }


def furnish(folder: Path) -> None:
    """Fill a folder with the targets as they stand before any mistake."""
    (folder / "drop").mkdir(parents=True)
    (folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')
    with duckdb.connect(str(folder / "warehouse.duckdb")) as raw:
        raw.execute("CREATE SCHEMA shop")
        raw.execute(
            f"CREATE TABLE shop.orders ({_COLUMNS.format(text='VARCHAR', number='DECIMAL(8,2)')})"
        )
        raw.execute(_ROWS.format(table="shop.orders"))
    with duckdb.connect(str(folder / "source.duckdb")) as raw:
        raw.execute(
            "CREATE TABLE orders AS SELECT 3 AS id, 'three' AS note, 3.5::DECIMAL(8,2) AS amount"
        )
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as raw:
        columns = _COLUMNS.format(text="VARCHAR(8)", number="DECIMAL_TEXT(8,2)")
        raw.execute(f"CREATE TABLE shop__orders ({columns})")
        raw.execute(_ROWS.format(table="shop__orders"))
        raw.commit()
    (folder / "lake" / "shop" / "parcels").mkdir(parents=True)
    with duckdb.connect() as raw:
        raw.execute(
            "COPY (SELECT 1::BIGINT AS id, 'one' AS note) TO "
            f"'{folder}/lake/shop/parcels/old.parquet'"
        )


def furnish_postgres(url: str) -> None:
    """The same in a Postgres database."""
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("CREATE SCHEMA shop")
        columns = _COLUMNS.format(text="varchar(8)", number="numeric(8,2)")
        raw.execute(f"CREATE TABLE shop.orders ({columns})".encode())
        raw.execute(_ROWS.format(table="shop.orders").encode())


def _duckdb_state(path: Path) -> Any:
    if not path.is_file():
        return "not a file"
    try:
        with duckdb.connect(str(path), read_only=not os.access(path, os.W_OK)) as raw:
            tables = raw.execute(
                "SELECT table_schema, table_name FROM information_schema.tables "
                "WHERE table_schema <> 'ematix_flow' ORDER BY ALL"
            ).fetchall()
            return {
                (schema, table): (
                    raw.execute(f'DESCRIBE "{schema}"."{table}"').fetchall(),
                    raw.execute(f'SELECT * FROM "{schema}"."{table}" ORDER BY ALL').fetchall(),
                )
                for schema, table in tables
            }
    except duckdb.Error:
        return path.read_bytes()


def _sqlite_state(path: Path) -> Any:
    if not path.is_file():
        return "not a file"
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=0.1)) as raw:
            return [line for line in raw.iterdump() if "ematix_flow__" not in line]
    except sqlite3.Error:
        return path.read_bytes()


def _folder_state(path: Path) -> Any:
    if not path.is_dir():
        return "not a folder"
    files = (p for p in path.rglob("*") if p.is_file())
    return {str(p.relative_to(path)): p.read_bytes() for p in files}


def _postgres_state(url: str) -> Any:
    with psycopg.connect(url) as raw:
        tables = raw.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN "
            "('pg_catalog', 'information_schema') "
            "AND (schemaname <> 'ematix_flow' OR tablename LIKE 'stage%') ORDER BY 1, 2"
        ).fetchall()
        state = {}
        for schema, table in tables:
            rows = raw.execute(f'SELECT * FROM "{schema}"."{table}"'.encode())
            state[schema, table] = ([d.name for d in rows.description or ()], sorted(rows))
        return state


# What belongs to a developer, not to the line a user reads.
INTERNALS = re.compile(
    r"Traceback|org\.apache|java\.|py4j|SQLSTATE|psycopg|_jvm|\.scala|site-packages"
    r"|errorClass|JVM stacktrace|\bat 0x|<class|SparkException|object has no attribute"
)
_LONGEST = 420


def assert_one_line(said: Said, mistake: Mistake) -> None:
    """One readable line: what is wrong, where, and how to put it right."""
    assert said.code == mistake.code, said
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    (line,) = lines
    assert line.startswith("flow: error: ")
    position = 0
    for words in mistake.says:
        found = line.find(words, position)
        assert found >= 0, f"{words!r} is not in {line[position:]!r}"
        position = found + len(words)
    assert not INTERNALS.search(line), line
    assert len(line) <= _LONGEST, line
    assert re.search(r"; \S|\? See: ", line), f"no way out is named: {line}"
