"""Clusters on this machine: `flow-worker` processes of one core each, and Spark's own standalone.

A worker and all that it starts are bound to one core, in turn. All of them talk over loopback, by
mutual TLS and encrypted where the system does so.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measure import HERE

# The tests know how to start real workers.
sys.path.insert(0, str(HERE.parent / "packages" / "ematix-flow" / "tests"))
from cluster.crew import Worker, wait_until
from cluster.network import Authority, Machine
from ematix_flow.engine.java import find_java
from ematix_flow.engine.jvm import spark_jars
from services.process import free_port

ADDRESS = "127.0.0.1"
CORES = os.cpu_count() or 1
PACKAGE = "org.apache.spark.deploy"


@dataclass(frozen=True)
class Core(Machine):
    """One core of this machine instead of a machine."""

    number: int = 0

    def command(self, *arguments: str) -> list[str]:
        """Run something there."""
        return ["taskset", "-c", str(self.number % CORES), *arguments]


@dataclass(frozen=True)
class Crew:
    """Workers, and what a driver is told of them by its environment."""

    peers: tuple[str, ...]
    variables: dict[str, str]


@contextlib.contextmanager
def workers(folder: Path, authority: Authority, count: int) -> Iterator[Crew]:
    """That many of one core each, for one driver."""
    folder.mkdir()
    credentials = authority.sign(ADDRESS)
    held = [
        Worker(Core("", ADDRESS, "", number), credentials, folder / str(number), port=free_port())
        for number in range(count)
    ]
    try:
        for worker in held:
            worker.start()
        addresses = tuple(worker.address for worker in held)
        told = {"EMATIX_FLOW_PEERS": ",".join(addresses), "EMATIX_FLOW_ENGINE": "distributed"}
        yield Crew(addresses, {**credentials.variables(), **told})
    finally:
        for worker in held:
            worker.stop()


@dataclass(frozen=True)
class Standalone:
    """A cluster of Spark's own; ``settings`` is a file for whoever is to be let in."""

    master: str
    settings: Path


@contextlib.contextmanager
def standalone(folder: Path, *, count: int, secured: bool) -> Iterator[Standalone]:
    """A master and workers, each bound to one core, for drivers that take one slot of each."""
    folder.mkdir()
    settings = folder / "spark.conf"
    settings.write_text("".join(f"{k} {v}\n" for k, v in conf(secured=secured).items()))
    settings.chmod(0o600)
    jars = spark_jars()[0].parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(jars.parent),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": ADDRESS,
    }
    held: list[subprocess.Popen[bytes]] = []

    def start(name: str, core: int | None, *arguments: str) -> Path:
        java = [str(find_java().executable), "-Xmx512m", "-cp", f"{jars}/*"]
        bound = [] if core is None else ["taskset", "-c", str(core % CORES)]
        here = ("--host", ADDRESS, "--webui-port", "0", "--properties-file", str(settings))
        log = folder / f"{name}.log"
        with log.open("wb") as file:
            held.append(
                subprocess.Popen(
                    [*bound, *java, arguments[0], *here, *arguments[1:]],
                    env=environment,
                    cwd=folder,
                    stdout=file,
                    stderr=file,
                )
            )
        return log

    try:
        log = start("master", None, f"{PACKAGE}.master.Master", "--port", "0")
        told = "Starting Spark master at "
        wait_until(partial(_says, log, told), what="the master is up")
        url = log.read_text().partition(told)[2].split()[0]
        for number in range(count):
            lent = ("--cores", "4", "--memory", "8g", "--work-dir", str(folder / str(number)))
            log = start(f"worker{number}", number, f"{PACKAGE}.worker.Worker", *lent, url)
            joined = partial(_says, log, "Successfully registered")
            wait_until(joined, what="the worker has joined")
        yield Standalone(url, settings)
    finally:
        for process in reversed(held):
            process.kill()
            process.wait()


def _says(log: Path, text: str) -> bool:
    return text in log.read_text()


def conf(*, secured: bool) -> dict[str, str]:
    """Spark's settings for authentication and encryption, all of them or none."""
    if not secured:
        return {"spark.authenticate": "false"}
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_urlsafe(32),
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.saslFallback": "false",
        "spark.io.encryption.enabled": "true",
    }
