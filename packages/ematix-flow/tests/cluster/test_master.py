"""``master=``: a standalone cluster of Spark's own that was there before and stays after."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ematix_flow.connections import PostgresConnection
from ematix_flow.engine.java import find_java
from ematix_flow.engine.jvm import spark_jars
from ematix_flow.engine.session import current_engine
from ematix_flow.registry import register_connection
from quick_java import quick_java

from . import work
from .crew import wait_until
from .work import Gate

pytestmark = [pytest.mark.slow, pytest.mark.soak]

PACKAGE = "org.apache.spark.deploy"


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
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

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [str(java.executable), "-Xmx512m", "-cp", f"{jars}/*", *arguments]
        with log.open("wb") as file:
            held.append(
                subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=file, stderr=file)
            )
        return log

    try:
        here = ("--host", "127.0.0.1", "--webui-port", "0")
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


def test_a_load_on_a_cluster_that_is_there(
    master: str, module: ModuleType, tmp_path: Path, postgres: Any
) -> None:
    urls = [postgres.create_database() for _ in range(2)]
    for name, url in zip(("origin", "warehouse"), urls, strict=True):
        register_connection(PostgresConnection(name=name, url=url))
    expected = work.fill(urls[0])
    gate = Gate(tmp_path / "gate")
    gate.open()
    with quick_java():
        result = work.pipeline(module, gate, [], master=master).sync()
    engine: Any = current_engine()
    try:
        assert engine.settings.master == master
        assert engine.distributed
        assert result.counts.inserted == work.ROWS
        assert work.loaded(urls[1]) == expected
    finally:
        engine.stop()
        for url in urls:
            postgres.drop_database(url.rsplit("/", 1)[1])
