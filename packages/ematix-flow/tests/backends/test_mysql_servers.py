"""The MySQL and MariaDB that the suite runs against are what the tests take them for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pymysql
import pytest

if TYPE_CHECKING:
    from services.mysql_family import MySQLServer

BOTH = [pytest.param(name, marks=pytest.mark.services(name)) for name in ("mysql", "mariadb")]


@pytest.fixture(params=BOTH)
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def asked(server: MySQLServer, sql: str, **login: Any) -> Any:
    given = {"user": server.user, "password": server.password, **login}
    connection = pymysql.connect(host=server.host, port=server.port, **given)
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def test_each_is_the_product_it_is_called(server: MySQLServer) -> None:
    ((version,),) = asked(server, "SELECT VERSION()")
    assert ("MariaDB" in version) == (server.scheme == "mariadb")


def test_rows_are_logged_and_files_are_taken(server: MySQLServer) -> None:
    found = asked(server, "SELECT @@log_bin, @@binlog_format, @@local_infile, @@bind_address")
    assert found == ((1, "ROW", 1, "127.0.0.1"),)


def test_only_the_password_lets_in(server: MySQLServer) -> None:
    for login in ({"password": "guess"}, {"user": "root", "password": ""}):
        with pytest.raises(pymysql.OperationalError):
            asked(server, "SELECT 1", **login)
    assert server.password not in repr(server)


def test_a_new_database_is_empty_and_apart(server: MySQLServer) -> None:
    names = [server.create_database().rsplit("/", 1)[1] for _ in range(2)]
    server.execute(f"CREATE TABLE `{names[0]}`.only_here (a int)")
    assert asked(server, f"SHOW TABLES FROM `{names[1]}`") == ()
    for name in names:
        server.drop_database(name)
    with pytest.raises(pymysql.OperationalError, match="Unknown database"):
        asked(server, "SELECT 1", database=names[0])
