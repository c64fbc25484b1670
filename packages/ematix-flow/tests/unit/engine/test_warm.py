"""What is found in the slot of a warm engine, and what may be made of it."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.engine import warm, warm_control
from ematix_flow.engine.clients import Attachment, departed_clients
from ematix_flow.engine.python_workers import become
from ematix_flow.engine.session import configured
from ematix_flow.engine.warm import Slot, look, make_private, misfit, own_slot, record_text
from ematix_flow.engine.warm_control import stop
from ematix_flow.engine.warm_server import watch
from ematix_flow.errors import EngineError
from unit.engine import child

TOKEN = "a-token"


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slot:
    monkeypatch.chdir(tmp_path)
    for name in ("EMATIX_FLOW_ENGINE", "EMATIX_FLOW_MASTER"):
        monkeypatch.delenv(name, raising=False)
    held = own_slot()
    make_private(held)
    return held


@pytest.fixture
def port() -> Iterator[int]:
    """A port that this process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def held(slot: Slot, port: int) -> Iterator[Slot]:
    """A slot as a sound engine in this very process would hold it."""
    record = dataclasses.replace(
        warm.expected_record(configured(), TOKEN), jvm_process_id=os.getpid(), port=port
    )
    slot.record.write_text(record_text(record))
    slot.token.touch(mode=0o600)
    slot.token.write_text(TOKEN)
    with slot.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield slot


def _changed(slot: Slot, **fields: object) -> str | None:
    record = warm.read_record(slot)
    assert record is not None
    slot.record.write_text(record_text(dataclasses.replace(record, **fields)))  # type: ignore[arg-type]
    return misfit(look(slot), configured())


def test_a_sound_engine_fits(held: Slot) -> None:
    found = look(held)
    assert found.state == "running"
    assert misfit(found, configured()) is None
    assert [other.slot for other in warm.look_everywhere()] == [held]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("spark", "4.1.1", "another version of Spark"),
        ("ematix_flow", "0.0.1", "another version of ematix-flow"),
        ("python", "python 3.9", "another Python"),
        ("settings", "", "other settings"),
        ("packages", "", "other installed packages"),
        ("folder", "elsewhere", "another working folder"),
    ],
)
def test_a_stale_one_does_not(held: Slot, field: str, value: str, reason: str) -> None:
    assert _changed(held, **{field: value}) == f"it was started with {reason}"


def test_what_is_left_of_a_dead_one_is_not_used(held: Slot) -> None:
    with held.lock.open("w"):
        held.lock.unlink()
    assert look(held).state == "dead"
    assert misfit(look(held), configured()) == "the engine has died"


@pytest.mark.parametrize("text", ["", "{", '{"format": 1, "port": 1}', '{"format": 99}', "[]", "7"])
def test_half_a_record_is_none(held: Slot, text: str) -> None:
    held.record.write_text(text)
    assert look(held).state == "starting"
    assert misfit(look(held), configured()) == "the engine is still starting"


def test_a_port_of_somebody_else_is_seen(held: Slot) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert _changed(held, jvm_process_id=other.pid) == "another process has its port"
        other.communicate()


def test_a_token_that_others_can_read_is_none(held: Slot) -> None:
    held.token.chmod(0o644)
    assert misfit(look(held), configured()) == "its token is missing, or others can read it"


def test_variables_that_java_reads_count(held: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR", "blue")
    assert misfit(look(held), configured()) is None
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert misfit(look(held), configured()) == "it was started with other environment variables"


def test_jars_it_lacks_are_named(held: Slot) -> None:
    wanting = dataclasses.replace(configured(), jars=("delta",))
    lacking = "it was started without the connector jars of delta"
    assert misfit(look(held), wanting) == lacking
    assert not configured(["delta"]).warm
    assert configured(["postgres"]).warm


def test_local_means_local(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured().warm
    (Path.cwd() / ".ematix-flow.toml").write_text('[project]\nengine = "local"\n')
    assert not configured().warm
    monkeypatch.setenv("EMATIX_FLOW_ENGINE", "auto")
    assert configured().warm


def test_clients_are_told_from_departed_ones(slot: Slot) -> None:
    attached = Attachment(slot, "one", user="ada", session="s-1")
    gone = Attachment(slot, "two", user="ada", session="s-2")
    gone.close()
    (departed,) = departed_clients(slot)
    assert (departed.name, departed.user, departed.session) == ("two", "ada", "s-2")
    assert (slot.clients / "one").stat().st_mode & 0o077 == 0
    attached.close()
    assert {client.name for client in departed_clients(slot)} == {"one", "two"}


class _Server:
    """Stands in for a server that is busy a few times when asked."""

    process_id = -1
    alive = True

    def __init__(self, *, busy: int) -> None:
        self.busy = busy
        self.ended: list[tuple[str, str]] = []

    @property
    def is_busy(self) -> bool:
        self.busy -= 1
        return self.busy >= 0

    def end_session(self, user: str, session: str) -> None:
        self.ended.append((user, session))


def test_it_is_not_idle_while_at_work(slot: Slot) -> None:
    Attachment(slot, "two", user="ada", session="s-2").close()
    server = _Server(busy=5)
    watch(slot, server, idle=0.01, pause=0.02)
    assert server.busy < 0
    assert server.ended == [("ada", "s-2")]
    assert not list(slot.clients.iterdir())


def test_a_worker_takes_the_clients_variables_and_sparks_own() -> None:
    environment = {"SPARK_HOME": "s", "PYTHONPATH": "p", "COLOUR": "blue", "OLD": "1"}
    client = {"environment": {"COLOUR": "red", "SHOP": "north", "SPARK_HOME": "mine"}}
    expected = {"SPARK_HOME": "s", "PYTHONPATH": "p", "COLOUR": "red", "SHOP": "north"}
    assert become(client, environment) == expected


PANDAS = """
import sys
from ematix_flow.engine.late_pandas import pandas_when_needed
with pandas_when_needed():
    import pyspark.sql.connect.session as session
print("pandas" in sys.modules, session.is_datetime64_dtype("datetime64[ns]"))
import pandas
print(session.pd.DataFrame is pandas.DataFrame, pandas.__version__ == session.pd.__version__)
"""


def test_pandas_comes_when_it_is_needed(tmp_path: Path) -> None:
    cwd = tmp_path / "client"
    cwd.mkdir()
    assert child.run(PANDAS, cwd=cwd) == (0, "False True\nTrue True\n", "")


OTHERS = """
import threading
from ematix_flow.engine.late_pandas import pandas_when_needed
seen = []
def other():
    import pandas as pd
    from pandas import DataFrame
    seen.append(len(pd.DataFrame({"a": [1, 2]})) + len(DataFrame({"b": [3]})))
with pandas_when_needed():
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
print(seen)
"""


def test_another_thread_has_the_real_pandas(tmp_path: Path) -> None:
    cwd = tmp_path / "client"
    cwd.mkdir()
    assert child.run(OTHERS, cwd=cwd) == (0, "[3]\n", "")


def test_nothing_of_a_client_outlives_a_killed_engine(slot: Slot) -> None:
    slot.record.write_text("{}")
    slot.token.write_text(TOKEN)
    (slot.clients / "session").write_text("AWS_SECRET_ACCESS_KEY")
    (slot.path / ".half").write_text("AWS_SECRET_ACCESS_KEY")
    assert stop(look(slot)) is False
    left = [path for path in slot.path.rglob("*") if path.is_file()]
    assert left == []


def test_an_engine_that_cannot_be_understood_is_not_called_stopped(
    held: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_control, "_START_SECONDS", 0.1)
    held.record.write_text(held.record.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(EngineError, match="whose record cannot be read"):
        stop(look(held))
