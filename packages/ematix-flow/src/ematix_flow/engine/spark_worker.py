"""A Spark standalone worker for one run: a JVM of our own that joins a driver's master.

It ends when told to, and with this process however that ends; its executors end with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

from ematix_flow.engine.classic import Host, plan_for, start_host
from ematix_flow.engine.connect_server import connected
from ematix_flow.engine.jvm import spark_jars
from ematix_flow.engine.peer_protocol import WORKER_PYTHON, Order
from ematix_flow.engine.settings import derive

_WORKER = "org.apache.spark.deploy.worker.Worker"
_HEAP = 512 << 20


class SparkWorker:
    """A worker that is joining, or has joined, the master of an order."""

    def __init__(self, order: Order, *, host: str, cores: int, memory_bytes: int) -> None:
        settings = derive(master=order.master, cores=cores)
        plan = plan_for(settings)
        environment = {
            **dict(plan.environment),
            "SPARK_HOME": str(spark_jars()[0].parent.parent),
            "JAVA_HOME": str(plan.java.home),
            "SPARK_LOCAL_IP": host,
            # Told, because an installed package has no folders to guess it from.
            "SPARK_SCALA_VERSION": _scala_version(),
        }
        plan = dataclasses.replace(
            plan, heap_bytes=_HEAP, environment=tuple(environment.items()), programs=programs()
        )
        self._host: Host = start_host(settings, plan)
        try:
            self._gateway: Any = connected(self._host.jvm.gateway())
            self._join(order, host=host, cores=cores, memory_bytes=memory_bytes)
        except BaseException:
            self._host.kill()
            raise

    def _join(self, order: Order, *, host: str, cores: int, memory_bytes: int) -> None:
        jvm = self._gateway.jvm
        conf = getattr(jvm, "org.apache.spark.SparkConf")(False)
        for key, value in order.conf.items():
            conf.set(key, value)
        masters = self._gateway.new_array(getattr(jvm, "java.lang.String"), 1)
        masters[0] = order.master
        none = getattr(jvm, "scala.Option").empty()
        work = str(self._host.workspace.folder("work"))
        getattr(jvm, _WORKER).startRpcEnvAndEndpoint(
            host, 0, 0, cores, memory_bytes >> 20, masters, work, none, conf, none
        )

    @property
    def alive(self) -> bool:
        """Whether the JVM is there."""
        return self._host.jvm.alive

    @property
    def log(self) -> Path:
        """What it wrote."""
        return self._host.jvm.log

    def stop(self) -> None:
        """End it and its executors."""
        with contextlib.suppress(Exception):
            self._gateway.close()
        self._host.close(seconds=5.0)


def _scala_version() -> str:
    core = next(jar.name for jar in spark_jars() if jar.name.startswith("spark-core_"))
    return core.removeprefix("spark-core_").partition("-")[0]


def programs() -> tuple[tuple[str, str], ...]:
    """A Python worker's Python, to be found by the same name on every machine."""
    return ((WORKER_PYTHON, f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'),)
