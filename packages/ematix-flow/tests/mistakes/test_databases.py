"""Mistakes that a database answers: not there, not let in, not as declared, not writable."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

import pytest

from mistakes.conftest import Make
from mistakes.workshop import Failure, Mistake, Shop

Prepare = Callable[[Shop], object]


def into(target: str, query: str | None = None, options: str = "") -> str:
    """A pipeline from the source file, or within the target when it has a query."""
    source = "source" if query is None else target
    returned = query or "SELECT id, note, amount FROM orders"
    return (
        f'@ematix.pipeline(target=Orders, target_connection="{target}", '
        f'source_connection="{source}", {options})\ndef load(conn):\n    return "{returned}"\n'
    )


def in_duckdb(*statements: str) -> Prepare:
    """Statements in the warehouse."""
    return lambda shop: shop.duckdb(*statements)


def in_sqlite(*statements: str) -> Prepare:
    """Statements in the ledger."""
    return lambda shop: shop.sqlite(*statements)


def in_postgres(*statements: str) -> Prepare:
    """Statements in the Postgres database."""
    return lambda shop: shop.postgres(*statements)


def held_by_another_process(shop: Shop) -> None:
    """Another program has the DuckDB file open until the test is over."""
    program = (
        "import duckdb, sys; held = duckdb.connect('warehouse.duckdb'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    shop.cleanup.enter_context(other)
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "held\n"


def locked_by_a_transaction(shop: Shop) -> None:
    """Another connection is writing to the SQLite file, and patience is short."""
    import sqlite3

    shop.monkeypatch.setattr("ematix_flow.backends.sqlite._BUSY_SECONDS", 0.1)
    other = shop.cleanup.enter_context(contextlib.closing(sqlite3.connect("ledger.db")))
    other.execute("BEGIN EXCLUSIVE")


def truncated(name: str) -> Prepare:
    """The beginning of a database file."""

    def prepare(shop: Shop) -> None:
        path = shop.folder / name
        path.write_bytes(path.read_bytes()[:5000])

    return prepare


def replaced_by_a_folder(name: str) -> Prepare:
    """A folder where a file should be."""

    def prepare(shop: Shop) -> None:
        (shop.folder / name).unlink()
        (shop.folder / name).mkdir()

    return prepare


def without(name: str) -> Prepare:
    """No such file."""
    return lambda shop: (shop.folder / name).unlink()


FILES = [
    Failure(
        "DuckDB file in a folder that does not exist",
        (
            "pipeline 'load'",
            "connection 'far'",
            "the folder",
            "nowhere does not exist",
            "create it",
        ),
        'register_connection(DuckDBConnection(name="far", path="nowhere/far.duckdb"))\n'
        + into("far", "SELECT 1"),
    ),
    Failure(
        "SQLite file in a folder that does not exist",
        (
            "pipeline 'load'",
            "connection 'far'",
            "the folder",
            "nowhere does not exist",
            "create it",
        ),
        'register_connection(SQLiteConnection(name="far", path="nowhere/far.db"))\n'
        + into("far", "SELECT 1"),
    ),
    Failure(
        "DuckDB source that does not exist",
        (
            "pipeline 'load'",
            "connection 'source'",
            "orders does not exist: there is no file",
            "source.duckdb",
            "path=",
        ),
        into("ledger"),
        prepare=without("source.duckdb"),
    ),
    Failure(
        "DuckDB file that another process holds",
        ("connection 'warehouse'", "warehouse.duckdb is in use by another process", "close"),
        into("warehouse", "SELECT 1 AS id, 'x' AS note, 1.5 AS amount"),
        prepare=held_by_another_process,
    ),
    Failure(
        "truncated DuckDB file",
        ("connection 'warehouse'", "warehouse.duckdb", "damaged", "restore"),
        into("warehouse", "SELECT 1 AS id, 'x' AS note, 1.5 AS amount"),
        prepare=truncated("warehouse.duckdb"),
    ),
    Failure(
        "DuckDB file that is a text",
        ("connection 'warehouse'", "warehouse.duckdb is not a DuckDB database", "path="),
        into("warehouse", "SELECT 1 AS id, 'x' AS note, 1.5 AS amount"),
        prepare=lambda shop: shop.file("warehouse.duckdb", "id,note\n" * 900),
    ),
    Failure(
        "DuckDB file that is a folder",
        ("connection 'warehouse'", "warehouse.duckdb is a folder", "path="),
        into("warehouse", "SELECT 1 AS id, 'x' AS note, 1.5 AS amount"),
        prepare=replaced_by_a_folder("warehouse.duckdb"),
    ),
    Failure(
        "SQLite file that is a text",
        ("connection 'ledger'", "ledger.db is not a SQLite database", "path="),
        into("ledger", "SELECT 1 AS id, 'x' AS note, 1.5 AS amount"),
        prepare=lambda shop: shop.file("ledger.db", "id,note\n" * 900),
    ),
    Failure(
        "SQLite file that is a folder",
        ("connection 'ledger'", "ledger.db is a folder", "path="),
        into("ledger", "SELECT 1 AS id, 'x' AS note, 1.5 AS amount"),
        prepare=replaced_by_a_folder("ledger.db"),
    ),
    Failure(
        "SQLite file that is locked",
        ("connection 'ledger'", "ledger.db is locked", "close it"),
        into("ledger", "SELECT 3 AS id, 'x' AS note, 1.5 AS amount"),
        prepare=locked_by_a_transaction,
    ),
    Failure(
        "SQLite view whose table is gone",
        ("connection 'ledger'", "no such table: main.gone", "check the names"),
        into("ledger", "SELECT * FROM recent"),
        prepare=in_sqlite(
            "CREATE TABLE gone (id, note, amount)",
            "CREATE VIEW recent AS SELECT * FROM gone",
            "DROP TABLE gone",
        ),
    ),
    Failure(
        "SQL syntax error in SQLite",
        ("connection 'ledger'", 'near "FORM": syntax error', "correct the SQL"),
        into("ledger", "SELECT 1 AS id FORM orders"),
    ),
    Failure(
        "duplicate key in SQLite",
        ("pipeline 'load'", "table shop.orders", "connection 'ledger'", "duplicate key in 'id'"),
        into("ledger", "SELECT 1 AS id, 'x' AS note, '1.50' AS amount"),
    ),
    Failure(
        "NULL in SQLite",
        ("pipeline 'load'", "column 'note' is NULL", "correct the rows"),
        into("ledger", "SELECT 3 AS id, NULL AS note, '1.50' AS amount"),
    ),
    Failure(
        "value of another type in a SQLite column",
        ("pipeline 'load'", "'amount'", "'dear'", "correct"),
        into("ledger", "SELECT 3 AS id, 'x' AS note, 'dear' AS amount"),
    ),
    Failure(
        "target that lacks a column",
        ("shop", "orders", "column 'amount' is declared but does not exist", "change"),
        into("warehouse"),
        prepare=in_duckdb("ALTER TABLE shop.orders DROP COLUMN amount"),
    ),
    Failure(
        "target with one more column",
        ("shop", "orders", "column 'vat' exists but is not declared", "change"),
        into("warehouse"),
        prepare=in_duckdb("ALTER TABLE shop.orders ADD COLUMN vat DOUBLE"),
    ),
    Failure(
        "target of another type",
        ("shop", "orders", "column 'amount' is DOUBLE, declared DECIMAL(8,2)", "change"),
        into("warehouse"),
        prepare=in_duckdb("ALTER TABLE shop.orders ALTER amount TYPE DOUBLE"),
    ),
    Failure(
        "target of other nullability",
        ("shop", "orders", "column 'note' allows NULL, declared NOT NULL", "change"),
        into("warehouse"),
        prepare=in_duckdb("ALTER TABLE shop.orders ALTER note DROP NOT NULL"),
    ),
    Failure(
        "target of another key",
        ("shop", "orders", "primary key is none, declared id", "change"),
        into("ledger"),
        prepare=in_sqlite(
            "CREATE TABLE new (id BIGINT NOT NULL, note VARCHAR(8) NOT NULL, "
            "amount DECIMAL_TEXT(8,2))",
            "DROP TABLE shop__orders",
            "ALTER TABLE new RENAME TO shop__orders",
        ),
    ),
    Failure(
        "target that is a view",
        ("shop", "orders", "differs from its declaration", "primary key is none", "change"),
        into("warehouse"),
        prepare=in_duckdb(
            "DROP TABLE shop.orders",
            "CREATE VIEW shop.orders AS SELECT 1::BIGINT AS id, 'x' AS note, "
            "1::DECIMAL(8,2) AS amount",
        ),
    ),
]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mistake", FILES, ids=lambda m: m.name)
def test_file_database(mistake: Mistake, make: Make) -> None:
    make(mistake)


def address(**changes: str | int) -> Prepare:
    """The URL of the Postgres database with some of its parts changed."""

    def prepare(shop: Shop) -> None:
        assert shop.postgres_url is not None
        held = urlsplit(shop.postgres_url)
        parts = {
            "user": held.username,
            "password": held.password,
            "host": held.hostname,
            "port": held.port,
            "database": held.path.lstrip("/"),
            **changes,
        }
        place = "{user}:{password}@{host}:{port}".format(**parts)
        url = urlunsplit((held.scheme, place, f"/{parts['database']}", "", ""))
        shop.monkeypatch.setenv("EMATIX_FLOW_DSN_PG", url)

    return prepare


def unused_port(shop: Shop) -> None:
    """An address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address(port=port)(shop)


def as_somebody_else(*grants: str) -> Prepare:
    """A user of few rights, who goes with the test."""

    def prepare(shop: Shop) -> None:
        name = f"clerk_{shop.postgres_url and shop.postgres_url[-8:]}"
        shop.postgres(f"CREATE ROLE {name} LOGIN PASSWORD 'tea-and-cakes'")
        shop.cleanup.callback(shop.postgres, f"DROP OWNED BY {name}", f"DROP ROLE {name}")
        shop.postgres(*(grant.format(name=name) for grant in grants))
        address(user=name, password="tea-and-cakes")(shop)

    return prepare


QUERY = "SELECT 3 AS id, 'x' AS note, 1.5 AS amount"

SERVER = [
    Failure(
        "unreachable host",
        ("pipeline 'load'", "connection 'pg'", "nothing answers at 127.0.0.1:", "start the server"),
        into("pg", QUERY),
        prepare=unused_port,
    ),
    Failure(
        "unknown host",
        ("connection 'pg'", "no-such-host.invalid", "cannot be found", "correct host"),
        into("pg", QUERY),
        prepare=address(host="no-such-host.invalid"),
    ),
    Failure(
        "wrong password",
        ("connection 'pg'", "refused the user or password", "check user and password"),
        into("pg", QUERY),
        prepare=address(password="wrong-horse"),
    ),
    Failure(
        "wrong password of a target that Spark writes",
        ("connection 'pg'", "refused the user or password", "check user and password"),
        into("pg"),
        prepare=address(password="wrong-horse"),
    ),
    Failure(
        "missing database",
        ("connection 'pg'", '"no_such_db" does not exist', "check the database name"),
        into("pg", QUERY),
        prepare=address(database="no_such_db"),
    ),
    Failure(
        "missing table in Postgres",
        ("connection 'pg'", '"shop.odrers" does not exist', "check the names"),
        into("pg", "SELECT * FROM shop.odrers"),
    ),
    Failure(
        "missing column in Postgres",
        ("connection 'pg'", '"nota" does not exist', "check the names"),
        into("pg", "SELECT id, nota AS note, amount FROM shop.orders"),
    ),
    Failure(
        "SQL syntax error in Postgres",
        ("connection 'pg'", 'syntax error at or near "FORM"', "correct the SQL"),
        into("pg", "SELECT 1 AS id FORM orders"),
    ),
    Failure(
        "INSERT instead of SELECT in Postgres",
        ("pipeline 'load'", "INSERT", "SELECT"),
        into("pg", "INSERT INTO shop.orders VALUES (9, 'nine', 9) RETURNING *"),
    ),
    Failure(
        "duplicate key in Postgres",
        ("pipeline 'load'", "connection 'pg'", "duplicate key", "(id)=(1) already exists"),
        into("pg", "SELECT 1 AS id, 'x' AS note, 1.5 AS amount"),
    ),
    Failure(
        "duplicate key in Postgres, by Spark",
        ("pipeline 'load'", "connection 'pg'", "duplicate key", "(id)=(1) already exists"),
        into("pg").replace("SELECT id", "SELECT 1 AS id"),
    ),
    Failure(
        "NULL in Postgres",
        ("pipeline 'load'", "connection 'pg'", '"note"', "null"),
        into("pg", "SELECT 3 AS id, NULL::text AS note, 1.5 AS amount"),
    ),
    Failure(
        "text that Postgres cannot hold",
        ("pipeline 'load'", "connection 'pg'", "NUL character", "regex_replace"),
        into("pg").replace("note, amount", "'a' || chr(0) AS note, amount"),
    ),
    Failure(
        "too long for Postgres",
        ("pipeline 'load'", "connection 'pg'", "varying(8)", "correct"),
        into("pg", "SELECT 3 AS id, 'far too long' AS note, 1.5 AS amount"),
    ),
    Failure(
        "read-only role",
        ("pipeline 'load'", "connection 'pg'", "read-only transaction", "use a role"),
        into("pg", QUERY),
        prepare=as_somebody_else(
            "GRANT ALL ON SCHEMA shop TO {name}",
            "GRANT ALL ON shop.orders TO {name}",
            "ALTER ROLE {name} SET default_transaction_read_only = on",
        ),
    ),
    Failure(
        "missing privilege on the source",
        ("pipeline 'load'", "connection 'pg'", "permission denied for schema shop", "grant"),
        into("warehouse")
        .replace('source_connection="source"', 'source_connection="pg"')
        .replace("FROM orders", "FROM shop.orders"),
        prepare=as_somebody_else(),
    ),
    Failure(
        "missing privilege on the target",
        ("pipeline 'load'", "connection 'pg'", "permission denied", "grant"),
        into("pg"),
        prepare=as_somebody_else("GRANT USAGE ON SCHEMA shop TO {name}"),
    ),
    Failure(
        "view of the source that fails",
        ("pipeline 'load'", "connection 'pg'", "division by zero", "correct the SQL"),
        into("warehouse")
        .replace('source_connection="source"', 'source_connection="pg"')
        .replace("FROM orders", "FROM shop.shares"),
        prepare=in_postgres(
            "CREATE VIEW shop.shares AS SELECT id, note, amount / (id - 1) AS amount "
            "FROM shop.orders"
        ),
    ),
    Failure(
        "drifted table in Postgres",
        ("shop", "orders", "column 'note' is text, declared character varying(8)", "change"),
        into("pg", QUERY),
        prepare=in_postgres("ALTER TABLE shop.orders ALTER note TYPE text"),
    ),
    Failure(
        "key that Postgres cannot have",
        ("pipeline 'load'", "postgres", "column 'doc' of type JSON in a key", "JSONB"),
        '@ematix.table(schema="shop")\nclass Docs:\n    doc: Annotated[JSON, pk()]\n\n'
        + into("pg", "SELECT '{}'::json AS doc").replace("target=Orders", "target=Docs"),
        code=2,
    ),
    Failure(
        "type that Postgres cannot hold",
        ("pipeline 'load'", "postgres cannot load column 'tags' of type Array[Bytes]", "JSONB"),
        '@ematix.table(schema="shop")\nclass Docs:\n    tags: Array[Bytes]\n\n'
        + into("pg", "SELECT ARRAY['x'::bytea] AS tags").replace("target=Orders", "target=Docs"),
        code=2,
    ),
]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mistake", SERVER, ids=lambda m: m.name)
def test_server(mistake: Mistake, postgres_shop: Shop, make: Make) -> None:
    make(mistake)


def test_connections_check_says_what_is_wrong(
    postgres_shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same words where a user asks before running."""
    postgres_shop.declare("")
    address(password="wrong-horse")(postgres_shop)
    said = postgres_shop.flow(capsys, "connections", "check", "pg")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "refused the user or password" in said.err
    assert "wrong-horse" not in said.err
