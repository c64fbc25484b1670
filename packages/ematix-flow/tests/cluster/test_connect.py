"""``master="sc://…"``: a Spark Connect server of somebody else, behind TLS and a token.

It runs on a machine with a network address and a disk of its own, and comes up without any
connector: whatever a load needs there has to be sent.
"""

from __future__ import annotations

import logging
import sqlite3
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import duckdb
import pytest

from ematix_flow import BigInt, Numeric, Text, TimestampTZ, ematix, pk
from ematix_flow.connections import DuckDBConnection, ObjectStoreLocalConnection, SQLiteConnection
from ematix_flow.engine import remote
from ematix_flow.engine.peer_protocol import Versions
from ematix_flow.engine.session import current_engine
from ematix_flow.errors import EngineError, Unsupported
from ematix_flow.registry import register_connection

from . import work
from .network import Authority, Forwarder, Network
from .server import connect_process
from .work import Gate

pytestmark = pytest.mark.slow

TOKEN = "a token that = nobody ; guesses"


@dataclass(frozen=True)
class Server:
    """How it is reached, and the folder of this machine that it cannot see."""

    address: str
    hidden: Path
    log: Path
    token: str = field(repr=False)


@pytest.fixture(scope="module")
def server(
    machines: Network, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("connect")
    hidden = folder / "driver"
    hidden.mkdir()
    machine = machines.machines[0]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown = authority.sign(machines.driver)
    tls.load_cert_chain(shown.cert, shown.key)
    tls.set_alpn_protocols(["h2"])
    inside = machine.command()
    with connect_process(
        folder / "server", host=machine.address, inside=inside, hidden=hidden, token=TOKEN
    ) as port:
        forwarder = Forwarder(machines.driver, port, to=machine.address, tls=tls)
        try:
            address = f"sc://{machines.driver}:{forwarder.port}/;use_ssl=true"
            yield Server(address, hidden, folder / "server" / "server.log", TOKEN)
        finally:
            engine = current_engine()
            if engine is not None:
                engine.stop()
            forwarder.close()


@pytest.fixture(autouse=True)
def driver(server: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that this process writes is where the server does not see it."""
    monkeypatch.setattr(tempfile, "tempdir", str(server.hidden))
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(authority.cert))
    monkeypatch.setenv("EMATIX_FLOW_MASTER_SECRET", server.token)


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    yield from work.user_module(tmp_path)


def test_from_postgres_to_postgres(
    *,
    server: Server,
    origin: str,
    warehouse: str,
    module: ModuleType,
    machines: Network,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = work.fill(origin)
    gate = Gate(tmp_path / "gate")
    gate.open()
    pipeline = work.pipeline(module, gate, [], master=server.address)
    with caplog.at_level(logging.DEBUG):
        result = pipeline.sync()
    engine: Any = current_engine()
    assert (engine.kind, engine.distributed, engine.slots) == ("spark-connect", True, 2)
    assert (result.path, result.counts.inserted) == ("spark", work.ROWS)
    assert work.loaded(warehouse) == expected
    assert work.litter(warehouse) == []
    assert gate.hosts == {machines.machines[0].address}
    told = (caplog.text, repr(pipeline.spec), repr(engine.settings), server.log.read_text())
    assert not any(server.token in text or "nobody%20" in text for text in told)


def test_a_module_that_changes_is_sent_again(
    server: Server, origin: str, warehouse: str, tmp_path: Path
) -> None:
    work.fill(origin)
    with work.changing_module(tmp_path) as changed:
        for mark in ("first", "second"):
            assert work.said_by(changed, mark, warehouse, master=server.address) == {mark}


@ematix.table(schema="main")
class Amounts:
    id: Annotated[BigInt, pk()]
    note: Text | None
    amount: Numeric(12, 2)  # type: ignore[valid-type]
    taken_at: TimestampTZ


def test_databases_in_a_file_go_over_the_wire(server: Server, tmp_path: Path) -> None:
    source, target = server.hidden / "source.db", server.hidden / "target.duckdb"
    rows = [
        (i, None if i % 7 == 0 else f"ñ{i}", f"{i}.25", f"2026-01-{1 + i % 28:02d} 10:00:00")
        for i in range(3000)
    ]
    raw = sqlite3.connect(source)
    raw.execute(
        "CREATE TABLE amounts (id BIGINT, note TEXT, amount NUMERIC(12, 2), taken_at TIMESTAMP)"
    )
    raw.executemany("INSERT INTO amounts VALUES (?, ?, ?, ?)", rows)
    raw.commit()
    raw.close()
    register_connection(SQLiteConnection(name="small", path=str(source)))
    register_connection(DuckDBConnection(name="local", path=str(target)))

    @ematix.pipeline(
        target=Amounts,
        target_connection="local",
        source_connection="small",
        source_table="amounts",
        mode="merge",
        master=server.address,
    )
    def load(conn: Any) -> None:
        return None

    for _ in range(2):
        load.sync()
    with duckdb.connect(str(target), read_only=True) as database:
        held = database.execute(
            "SELECT id, note, CAST(amount AS TEXT), strftime(taken_at, '%Y-%m-%d %H:%M:%S') "
            "FROM main.amounts ORDER BY id"
        ).fetchall()
    assert held == rows
    assert not list(server.hidden.glob("ematix-flow-spool-*/*"))
    assert not list(server.hidden.glob(".target*/*"))


def load_files(server: Server) -> Any:
    @ematix.pipeline(
        target=work.Events,
        target_connection="warehouse",
        source_connection="mine",
        source_table="events.parquet",
        name="load_files",
        master=server.address,
    )
    def load(conn: Any) -> None:
        return None

    return load


def test_a_folder_that_the_server_does_not_see_is_refused(server: Server, warehouse: str) -> None:
    register_connection(ObjectStoreLocalConnection(name="mine", path=str(server.hidden)))
    with pytest.raises(Unsupported, match="connection 'mine' is the local path"):
        load_files(server).sync()
    assert work.loaded(warehouse) == []


def load_events(address: str) -> Any:
    @ematix.pipeline(
        target=work.Events,
        target_connection="warehouse",
        source_connection="origin",
        source_table="raw.events",
        force_path="spark",
        name="load_from_there",
        master=address,
    )
    def load(conn: Any) -> None:
        return None

    return load


class TestRefusals:
    """One sentence, without a secret in it, and no row has moved."""

    @pytest.fixture(autouse=True)
    def filled(self, origin: str, warehouse: str) -> Iterator[None]:
        engine = current_engine()
        if engine is not None:
            engine.stop()
        work.fill(origin)
        yield
        assert work.loaded(warehouse) == []

    def refusal(self, address: str) -> str:
        with pytest.raises(EngineError) as caught:
            load_events(address).sync()
        assert TOKEN not in str(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_a_wrong_token(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EMATIX_FLOW_MASTER_SECRET", "guessed wrong")
        said = self.refusal(server.address)
        assert "the Spark Connect server refused the token" in said
        assert "guessed" not in said

    def test_no_token(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("EMATIX_FLOW_MASTER_SECRET")
        assert "the Spark Connect server refused the token" in self.refusal(server.address)

    def test_a_token_in_clear_text(self, server: Server) -> None:
        said = self.refusal(server.address.partition("/;")[0])
        assert "would travel in clear text; reach it by TLS, with ;use_ssl=true" in said

    def test_a_server_that_is_not_there(self, machines: Network) -> None:
        said = self.refusal(f"sc://{machines.machines[0].address}:9/;use_ssl=true")
        assert "the Spark Connect server cannot be reached (connection refused)" in said

    def test_another_version_of_spark(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = Versions("3.11", "4.1.0", "1.0")
        monkeypatch.setattr(remote, "own_versions", lambda: own)
        said = self.refusal(server.address)
        assert "the Spark Connect server runs Spark 4.2.0, and this process has pyspark" in said

    def test_another_version_of_this_package(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = remote.own_versions()
        own = Versions(here.python, here.pyspark, "77.0")
        monkeypatch.setattr(remote, "own_versions", lambda: own)
        said = self.refusal(server.address)
        assert f"has ematix-flow {here.ematix_flow} instead of 77.0; install there" in said

    def test_a_certificate_of_another_authority(
        self, server: Server, machines: Network, tmp_path: Path
    ) -> None:
        stranger = Authority(tmp_path / "other").sign(machines.driver)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(stranger.cert, stranger.key)
        tls.set_alpn_protocols(["h2"])
        forwarder = Forwarder(machines.driver, 9, tls=tls)
        try:
            said = self.refusal(f"sc://{machines.driver}:{forwarder.port}/;use_ssl=true")
        finally:
            forwarder.close()
        assert "the Spark Connect server cannot be reached (TLS with it fails)" in said
