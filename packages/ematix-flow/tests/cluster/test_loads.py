"""Loads by three real ``flow-worker`` processes, each on a network address of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow import BigInt, Numeric, Text, TimestampTZ, ematix, pk
from ematix_flow.connections import (
    DuckDBConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
)
from ematix_flow.engine.placing import Place
from ematix_flow.engine.session import current_engine, run_session
from ematix_flow.errors import EngineError, Unsupported
from ematix_flow.registry import register_connection
from ematix_flow.run.preview import preview_pipeline

from . import work
from .crew import Worker, wait_until
from .network import Authority, Network
from .work import Gate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_cluster() -> Iterator[None]:
    """What the first load opens stays for the others."""
    with run_session():
        yield


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    yield from work.user_module(tmp_path_factory.mktemp("mine"))


@pytest.fixture
def peers(workers: list[Worker]) -> list[str]:
    return [worker.address for worker in workers]


@pytest.mark.usefixtures("driver")
def test_from_postgres_to_postgres(
    *,
    origin: str,
    warehouse: str,
    module: ModuleType,
    gate: Gate,
    peers: list[str],
    workers: list[Worker],
    machines: Network,
) -> None:
    expected = work.fill(origin)
    running = work.begun(work.pipeline(module, gate, peers), gate, workers)
    gate.open()
    result = running.result()
    assert (result.path, result.counts.inserted) == ("spark", work.ROWS)
    assert work.loaded(warehouse) == expected
    assert gate.hosts == {machine.address for machine in machines.machines}
    assert work.litter(warehouse) == []
    engine: Any = current_engine()
    assert engine.slots == 3


@pytest.mark.usefixtures("driver")
def test_a_preview_names_the_peers_and_counts_their_cores(
    origin: str, warehouse: str, module: ModuleType, gate: Gate, peers: list[str]
) -> None:
    with psycopg.connect(origin) as connection:
        connection.execute("CREATE SCHEMA raw")
        connection.execute(
            "CREATE TABLE raw.events (event_id bigint PRIMARY KEY, name text NOT NULL)"
        )
        connection.execute(
            "INSERT INTO raw.events SELECT g, repeat(md5(g::text), 4) "
            "FROM generate_series(1, 200000) g"
        )
    pipeline = work.pipeline(module, gate, peers)
    # Whatever engine this process has open, the peers are asked.
    assert Place(pipeline.spec).cores == len(peers)
    shown = preview_pipeline(pipeline.spec)
    assert (shown.engine, shown.machines) == ("spark", peers)
    assert str(shown.source_read).startswith(f"in {len(peers)} splits by ")


@pytest.mark.usefixtures("driver")
def test_a_module_that_changes_is_sent_again(
    origin: str, warehouse: str, peers: list[str], tmp_path: Path
) -> None:
    work.fill(origin)
    with work.changing_module(tmp_path) as changed:
        for mark in ("first", "second", "third"):
            assert work.said_by(changed, mark, warehouse, peers=peers) == {mark}


@pytest.mark.usefixtures("driver")
def test_from_shared_files_to_postgres(warehouse: str, peers: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    folder.mkdir()
    rows = {"event_id": list(range(500)), "name": [f"n{i}" for i in range(500)]}
    pq.write_table(pa.table(rows), folder / "events.parquet")
    register_connection(ObjectStoreLocalConnection(name="lake", path=str(folder), shared=True))

    @ematix.pipeline(
        target=work.Events,
        target_connection="warehouse",
        source_connection="lake",
        source_table="events.parquet",
        mode="merge",
        peers=peers,
    )
    def load_files(conn: Any) -> None:
        return None

    for _ in range(2):
        load_files.sync()
    assert work.loaded(warehouse) == list(zip(rows["event_id"], rows["name"], strict=True))


@ematix.table(schema="main")
class Amounts:
    id: Annotated[BigInt, pk()]
    note: Text | None
    amount: Numeric(12, 2)  # type: ignore[valid-type]
    taken_at: TimestampTZ


@pytest.mark.usefixtures("driver")
def test_databases_in_a_file_of_the_driver_go_over_the_wire(
    peers: list[str], tmp_path: Path
) -> None:
    import sqlite3

    source, target = tmp_path / "source.db", tmp_path / "target.duckdb"
    rows = [
        (i, None if i % 7 == 0 else f"ñ{i}", f"{i}.25", f"2026-01-{1 + i % 28:02d} 10:00:00.5")
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

    def declared(name: str, **options: Any) -> Any:
        @ematix.pipeline(
            target=Amounts,
            target_connection="local",
            source_connection="small",
            source_table="amounts",
            name=name,
            mode="truncate",
            **options,
        )
        def load(conn: Any) -> None:
            return None

        return load

    def held() -> list[Any]:
        with duckdb.connect(str(target), read_only=True) as database:
            return database.execute(
                "SELECT id, note, amount, taken_at FROM main.amounts ORDER BY id"
            ).fetchall()

    assert declared("far", peers=peers).sync().counts.inserted == len(rows)
    over_the_wire = held()
    assert [(r[0], r[1], str(r[2])) for r in over_the_wire] == [r[:3] for r in rows]
    assert current_engine() is not None


def test_a_folder_of_the_driver_is_refused_before_a_row_moves(
    warehouse: str, tmp_path: Path
) -> None:
    register_connection(ObjectStoreLocalConnection(name="mine", path=str(tmp_path)))

    @ematix.pipeline(
        target=work.Events,
        target_connection="warehouse",
        source_connection="mine",
        source_table="events.parquet",
        peers=["https://10.9.9.9:9000"],
    )
    def load_files(conn: Any) -> None:
        return None

    with pytest.raises(Unsupported) as caught:
        load_files.sync()
    assert "connection 'mine' is the local path" in str(caught.value)
    assert "shared = true" in str(caught.value)
    assert work.loaded(warehouse) == []


@pytest.mark.usefixtures("driver")
def test_no_secret_is_on_a_command_line_or_in_a_log(workers: list[Worker]) -> None:
    engine: Any = current_engine()
    assert engine is not None
    conf = engine.spark.sparkContext._jsc.sc().conf()
    secret = str(conf.get("spark.authenticate.secret"))
    shown = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True)
    assert "CoarseGrainedExecutorBackend" in shown.stdout
    assert secret not in shown.stdout
    logs = [engine.log, *(worker.log for worker in workers)]
    assert not any(secret in log.read_text(errors="replace") for log in logs)


@pytest.mark.usefixtures("driver")
def test_the_pages_of_master_and_workers_are_closed(workers: list[Worker]) -> None:
    import http.client
    import re

    found = subprocess.run(
        workers[0].machine.command("ss", "-tlnH"), capture_output=True, text=True, check=True
    )
    ports = {int(p) for p in re.findall(r"(?:\d+\.){3}\d+\]?:(\d+)\s", found.stdout)} - {9000}
    assert ports
    answers = []
    for port in ports:
        connection = http.client.HTTPConnection(workers[0].machine.address, port, timeout=3)
        try:
            connection.request("GET", "/")
            answers.append(connection.getresponse().status)
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
    assert answers
    assert set(answers) == {403}


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "other")


def load_from(peers: list[str], name: str) -> Any:
    @ematix.pipeline(
        target=work.Events,
        target_connection="warehouse",
        source_connection="origin",
        source_table="raw.events",
        force_path="spark",
        name=name,
        peers=peers,
    )
    def load(conn: Any) -> None:
        return None

    return load


class TestStrangers:
    """Who does not belong is not let in, on either side."""

    @pytest.mark.usefixtures("driver")
    def test_a_peer_of_another_authority(
        self, origin: str, warehouse: str, machines: Network, other: Authority, tmp_path: Path
    ) -> None:
        work.fill(origin)
        impostor = Worker(
            machines.machines[0],
            other.sign(machines.machines[0].address),
            tmp_path / "w",
            port=9001,
        )
        impostor.start()
        try:
            with pytest.raises(EngineError) as caught:
                load_from([impostor.address], "stranger").sync()
        finally:
            impostor.stop()
        assert f"peer {impostor.address} shows a certificate that is not accepted" in str(
            caught.value
        )
        assert work.loaded(warehouse) == []

    @pytest.mark.usefixtures("driver")
    def test_a_peer_with_the_name_of_another(
        self, origin: str, warehouse: str, machines: Network, authority: Authority, tmp_path: Path
    ) -> None:
        work.fill(origin)
        impostor = Worker(
            machines.machines[0], authority.sign("10.1.2.3"), tmp_path / "w", port=9001
        )
        impostor.start()
        try:
            with pytest.raises(EngineError, match="IP address mismatch"):
                load_from([impostor.address], "renamed").sync()
        finally:
            impostor.stop()
        assert work.loaded(warehouse) == []

    @pytest.mark.usefixtures("driver")
    def test_a_driver_of_another_authority(
        self,
        *,
        origin: str,
        warehouse: str,
        workers: list[Worker],
        other: Authority,
        authority: Authority,
        machines: Network,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        work.fill(origin)
        before = len(workers[0].spark_processes)
        for name, value in other.sign(machines.driver).variables().items():
            monkeypatch.setenv(name, value)
        # It knows the peers, and is not known to them.
        monkeypatch.setenv("EMATIX_FLOW_TLS_CA", str(authority.cert))
        with pytest.raises(EngineError, match="certificate of this driver"):
            load_from([workers[0].address], "intruder").sync()
        wait_until(lambda: "was refused" in workers[0].log.read_text(), what="the worker says so")
        assert len(workers[0].spark_processes) <= before
        assert work.loaded(warehouse) == []

    @pytest.mark.usefixtures("driver")
    def test_a_driver_without_a_certificate(
        self, origin: str, warehouse: str, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        work.fill(origin)
        for name in ("CERT", "KEY", "CA"):
            monkeypatch.delenv(f"EMATIX_FLOW_TLS_{name}")
        with pytest.raises(EngineError, match="asks for a certificate, and none is set"):
            load_from([workers[0].address], "nobody").sync()

    @pytest.mark.usefixtures("driver")
    def test_secrets_do_not_travel_in_clear_text(self, origin: str, warehouse: str) -> None:
        work.fill(origin)
        with pytest.raises(EngineError, match="in clear text; start flow-worker with --cert"):
            load_from(["http://10.9.9.9:9000"], "plain").sync()

    @pytest.mark.usefixtures("driver")
    def test_a_peer_that_is_not_there(self, origin: str, warehouse: str, machines: Network) -> None:
        work.fill(origin)
        nobody = f"https://{machines.machines[0].address}:9009"
        with pytest.raises(EngineError, match=f"peer {nobody} cannot be reached"):
            load_from([nobody], "absent").sync()
