"""A run asks a server through as few connections as it can, and none of them is taken on trust."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow import BigInt, Text, ematix, register_connection
from ematix_flow.backends.loading import load_backend
from ematix_flow.backends.postgres import Postgres
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.connections import Connection, MySQLConnection, PostgresConnection
from ematix_flow.errors import EmatixError

WHO = {"postgres": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
END = {"postgres": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}
SERVERS = [
    pytest.param(name, marks=pytest.mark.services(name))
    for name in ("postgres", "mysql", "mariadb")
]


@pytest.fixture(params=SERVERS)
def backend(request: pytest.FixtureRequest) -> Any:
    server = request.getfixturevalue(request.param)
    url = server.create_database()
    kind: type[Connection] = PostgresConnection if request.param == "postgres" else MySQLConnection
    found = load_backend(kind(name="kept", url=url))
    assert isinstance(found, SqlBackend)
    yield found
    server.drop_database(url.rsplit("/", 1)[1])


def who(backend: SqlBackend, *, read_only: bool = True) -> int:
    with backend.session(read_only=read_only) as session:
        return int(session.one(WHO[backend.kind]))


def test_questions_of_one_run_share_a_connection(backend: SqlBackend) -> None:
    assert who(backend) != who(backend)
    with backend.kept():
        first = who(backend)
        assert who(backend) == first
        # What writes takes the same connection along and is not waited for by anybody.
        assert who(backend, read_only=False) == first
        assert who(backend) != first


def test_what_reads_cannot_write_and_what_writes_can(backend: SqlBackend) -> None:
    with backend.kept():
        with (
            pytest.raises(EmatixError, match=r"(?i)read.only"),
            backend.session(read_only=True) as session,
        ):
            session.run("CREATE TABLE refused (id int)")
        who(backend)
        with backend.session() as session:
            session.run("CREATE TABLE taken (id int)")
            assert session.rows("SELECT count(*) FROM taken") == [(0,)]


def test_a_connection_that_was_cut_off_while_it_waited_is_replaced(backend: SqlBackend) -> None:
    with backend.kept():
        for read_only in (True, False):
            waiting = who(backend)
            with load_backend(backend.connection).open() as other:
                other.execute(END[backend.kind].format(waiting))
            assert who(backend, read_only=read_only) != waiting


@pytest.mark.services("postgres")
def test_a_small_run_connects_once_to_each_side(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {name: postgres.create_database() for name in ("origin", "target")}
    for name, url in urls.items():
        register_connection(PostgresConnection(name=name, url=url))

    @ematix.table(schema="mart", name="kept")
    class Kept:
        id: BigInt
        note: Text

    @ematix.pipeline(target=Kept, source_connection="origin", target_connection="target")
    def kept(conn: Any) -> str:
        return "SELECT 1::bigint AS id, 'a' AS note"

    asked: list[str] = []
    connect = Postgres.connect

    def counted(self: Postgres, **how: bool) -> Any:
        asked.append(self.name)
        return connect(self, **how)

    monkeypatch.setattr(Postgres, "connect", counted)
    for _ in range(2):
        asked.clear()
        assert kept.sync().path == "copy"
        assert sorted(asked) == ["origin", "target"]
    for url in urls.values():
        postgres.drop_database(url.rsplit("/", 1)[1])
