"""The PostgreSQL that the suite runs against is what the tests take it for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from services.postgres import PostgresServer


def setting(url: str, name: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def test_logical_decoding_and_only_loopback(postgres: PostgresServer) -> None:
    assert setting(postgres.url, "wal_level") == "logical"
    assert setting(postgres.url, "listen_addresses") == "127.0.0.1"
    assert setting(postgres.url, "server_encoding") == "UTF8"


def test_wrong_password_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.url.replace(postgres.password, "guess"))


def test_a_new_database_is_empty_and_apart(postgres: PostgresServer) -> None:
    urls = [postgres.create_database(), postgres.create_database()]
    assert len(set(urls)) == 2
    with psycopg.connect(urls[0]) as connection:
        connection.execute("CREATE TABLE only_here (a int)")
    with psycopg.connect(urls[1]) as connection:
        found = connection.execute("SELECT to_regclass('only_here')").fetchone()
    assert found == (None,)
    for url in urls:
        postgres.drop_database(url.rpartition("/")[2])
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(urls[0])


def test_password_is_not_shown(postgres: PostgresServer) -> None:
    assert postgres.password not in repr(postgres)
