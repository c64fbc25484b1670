"""A run asks a server through as few connections as it can, and none of them is taken on trust."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from ematix_flow import BigInt, Text, ematix, register_connection
from ematix_flow.backends.loading import load_backend
from ematix_flow.backends.parked import PARKED, Parking
from ematix_flow.backends.postgres import Postgres
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.connections import Connection, MySQLConnection, PostgresConnection
from ematix_flow.errors import EmatixError
from ematix_flow.pipeline import Pipeline
from services.process import wait_until

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
        # What writes takes the same connection along; Postgres gives it back as good as new.
        assert who(backend, read_only=False) == first
        assert (who(backend) == first) == (backend.kind == "postgres")


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


@pytest.fixture
def warehouse(postgres: Any) -> Iterator[Postgres]:
    """A database to which this process holds no connection, before and after."""
    PARKED.clear()
    url = postgres.create_database()
    yield Postgres(PostgresConnection(name="warehouse", url=url))
    PARKED.clear()
    postgres.drop_database(url.rsplit("/", 1)[1])


def connections_to(warehouse: Postgres) -> int:
    """How many others the server knows of."""
    with load_backend(warehouse.connection).open() as other:
        [row] = other.query(
            "SELECT count(*) AS n FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    return int(row["n"])


@pytest.mark.services("postgres")
def test_the_next_run_of_a_process_finds_a_connection_as_good_as_new(warehouse: Postgres) -> None:
    with warehouse.kept(), warehouse.session() as session:
        first = session.one(WHO["postgres"])
        session.run("SET search_path TO nowhere; SET TIME ZONE 'Asia/Tokyo'")
        session.run("CREATE TEMPORARY TABLE litter (id int)")
        session.rows("SELECT pg_advisory_lock(4711)")
        assert session.one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 1
    assert connections_to(warehouse) == 1
    later = Postgres(warehouse.connection)
    with later.kept(), later.session(read_only=True) as session:
        assert session.one(WHO["postgres"]) == first
        assert session.one("SHOW search_path") == '"$user", public'
        assert session.one("SHOW timezone") == "UTC"
        assert session.one("SELECT to_regclass('pg_temp.litter')") is None
        assert session.one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
        assert session.one("SHOW default_transaction_read_only") == "on"


@pytest.mark.services("postgres")
def test_what_was_cut_off_between_two_runs_is_replaced(warehouse: Postgres) -> None:
    with warehouse.kept():
        waiting = who(warehouse)
    with load_backend(warehouse.connection).open() as other:
        other.execute(END["postgres"].format(waiting))
    with warehouse.kept():
        assert who(warehouse) != waiting


@pytest.mark.services("postgres")
def test_a_failed_run_leaves_no_connection(warehouse: Postgres) -> None:
    def fail() -> None:
        with warehouse.kept():
            raise ZeroDivisionError(who(warehouse))

    with pytest.raises(ZeroDivisionError):
        fail()
    assert wait_until(lambda: connections_to(warehouse) == 0, timeout=10)


@pytest.mark.services("postgres")
def test_another_user_never_gets_the_connection(warehouse: Postgres) -> None:
    with warehouse.kept():
        first = who(warehouse)
    url = str(warehouse.connection.url)  # type: ignore[attr-defined]
    other = Postgres(PostgresConnection(name="warehouse", url=f"{url}?application_name=other"))
    with other.kept():
        assert who(other) != first


def test_what_nobody_takes_is_closed_in_time_and_a_child_leaves_it_alone() -> None:
    closed: list[str] = []
    parking = Parking(seconds=0.05)
    assert all(parking.leave("here", name, lambda: closed.append("x")) for name in "ab")
    assert not parking.leave("here", "c", lambda: closed.append("c"))
    assert wait_until(lambda: closed == ["x", "x"], timeout=10)
    assert parking.take("here") is None
    parking = Parking()
    parking.leave("here", "a", lambda: closed.append("a"))
    child = os.fork()
    if child == 0:
        os._exit(0 if parking.take("here") is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert parking.take("here") == "a"


@pytest.fixture
def pair(postgres: Any) -> Iterator[dict[str, str]]:
    """Two databases, as connections ``origin`` and ``target``."""
    PARKED.clear()
    urls = {name: postgres.create_database() for name in ("origin", "target")}
    for name, url in urls.items():
        register_connection(PostgresConnection(name=name, url=url))
    yield urls
    PARKED.clear()
    for url in urls.values():
        postgres.drop_database(url.rsplit("/", 1)[1])


@pytest.mark.services("postgres")
def test_copies_share_their_two_connections_and_survive_their_loss(
    postgres: Any, pair: dict[str, str]
) -> None:
    pipeline = declared()
    for turn in range(4):
        assert pipeline.sync().path == "copy"
        if turn == 1:
            with psycopg.connect(postgres.url, autocommit=True) as admin:
                gone = admin.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = ANY(%s)",
                    ([url.rsplit("/", 1)[1] for url in pair.values()],),
                ).fetchone()
            # Planning and copying have one to either side.
            assert gone == (4,)
    with psycopg.connect(pair["target"]) as raw:
        assert raw.execute("SELECT count(*) FROM mart.kept").fetchone() == (4,)


def declared() -> Pipeline:
    @ematix.table(schema="mart", name="kept")
    class Kept:
        id: BigInt
        note: Text

    @ematix.pipeline(target=Kept, source_connection="origin", target_connection="target")
    def kept(conn: Any) -> str:
        return "SELECT 1::bigint AS id, 'a' AS note"

    return kept


@pytest.mark.services("postgres")
def test_a_small_run_connects_once_to_each_side_and_the_next_not_at_all(
    pair: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = declared()
    asked: list[str] = []
    connect = Postgres.connect

    def counted(self: Postgres, **how: bool) -> Any:
        asked.append(self.name)
        return connect(self, **how)

    monkeypatch.setattr(Postgres, "connect", counted)
    for expected in (["origin", "target"], []):
        asked.clear()
        assert pipeline.sync().path == "copy"
        assert sorted(asked) == expected
