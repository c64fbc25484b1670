"""``master=``: a standalone cluster of Spark's own that was there before and stays after."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ematix_flow.connections import PostgresConnection
from ematix_flow.engine.java import find_java
from ematix_flow.engine.jvm import spark_jars
from ematix_flow.engine.session import current_engine
from ematix_flow.errors import EngineError
from ematix_flow.registry import register_connection
from quick_java import quick_java

from . import work
from .crew import wait_until
from .work import Gate

pytestmark = [pytest.mark.slow, pytest.mark.soak]

PACKAGE = "org.apache.spark.deploy"


SECRET = "not for everybody"


@contextlib.contextmanager
def standalone(folder: Path, conf: Mapping[str, str]) -> Iterator[str]:
    """A master and one worker, started as Spark's own scripts do."""
    jars = spark_jars()[0].parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(jars.parent),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    java = find_java()
    held: list[subprocess.Popen[bytes]] = []
    settings = folder / "spark.conf"
    settings.write_text("".join(f"{key} {value}\n" for key, value in conf.items()))

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        command = [str(java.executable), "-Xmx512m", "-cp", f"{jars}/*", *arguments]
        with log.open("wb") as file:
            held.append(
                subprocess.Popen(command, env=environment, cwd=folder, stdout=file, stderr=file)
            )
        return log

    try:
        here = ("--host", "127.0.0.1", "--webui-port", "0", "--properties-file", str(settings))
        log = start("master", f"{PACKAGE}.master.Master", *here, "--port", "0")
        told = "Starting Spark master at "
        wait_until(lambda: told in log.read_text(), what="the master is up")
        url = log.read_text().partition(told)[2].split()[0]
        lent = ("--cores", "2", "--memory", "1g")
        log = start("worker", f"{PACKAGE}.worker.Worker", *here, *lent, url)
        wait_until(lambda: "Successfully registered" in log.read_text(), what="the worker is up")
        yield url
    finally:
        for process in held:
            process.kill()
            process.wait()


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    yield from work.user_module(tmp_path)


@pytest.fixture
def databases(postgres: Any) -> Iterator[list[str]]:
    """A filled origin and an empty warehouse."""
    urls: list[str] = [postgres.create_database() for _ in range(2)]
    for name, url in zip(("origin", "warehouse"), urls, strict=True):
        register_connection(PostgresConnection(name=name, url=url))
    yield urls
    engine = current_engine()
    if engine is not None:
        engine.stop()
    for url in urls:
        postgres.drop_database(url.rsplit("/", 1)[1])


def test_a_load_on_a_cluster_that_is_there(
    databases: list[str], module: ModuleType, tmp_path: Path
) -> None:
    expected = work.fill(databases[0])
    gate = Gate(tmp_path / "gate")
    gate.open()
    with quick_java(), standalone(tmp_path, {}) as master:
        result = work.pipeline(module, gate, [], master=master).sync()
        engine: Any = current_engine()
        assert engine.settings.master == master
        assert engine.distributed
        assert result.counts.inserted == work.ROWS
        assert work.loaded(databases[1]) == expected
        engine.stop()


@pytest.mark.parametrize("encrypted", ["true", "false"])
def test_a_cluster_that_asks_for_a_secret(
    *,
    databases: list[str],
    module: ModuleType,
    tmp_path: Path,
    encrypted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": SECRET,
        "spark.network.crypto.enabled": encrypted,
    }
    expected = work.fill(databases[0])
    gate = Gate(tmp_path / "gate")
    gate.open()
    (tmp_path / ".ematix-flow.toml").write_text(
        '[project]\nmaster_secret = "${file:' + str(tmp_path / "secret") + '}"\n'
    )
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    monkeypatch.chdir(tmp_path)
    with quick_java(), standalone(tmp_path, asks) as master:
        pipeline = work.pipeline(module, gate, [], master=master)
        assert pipeline.sync().counts.inserted == work.ROWS
        engine: Any = current_engine()
        shown = subprocess.run(
            ["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True
        ).stdout
        assert "CoarseGrainedExecutorBackend" in shown
        logs = [engine.log, *tmp_path.glob("*.log"), *(tmp_path / "work").rglob("std*")]
        told = [shown, repr(engine.settings), *(log.read_text() for log in logs)]
        assert not any(SECRET in text for text in told)
        assert work.loaded(databases[1]) == expected
        engine.stop()
        # Whoever does not know it is not let in.
        (tmp_path / "secret").write_text("guessed wrong\n")
        with pytest.raises(EngineError) as caught:
            pipeline.sync()
        said = str(caught.value)
        assert f"the master at {master.removeprefix('spark://')} does not let this process" in said
        assert "guessed" not in said
    with pytest.raises(EngineError, match="cannot be reached; check its address"):
        pipeline.sync()
