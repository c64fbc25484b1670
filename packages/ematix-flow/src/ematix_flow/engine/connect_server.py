"""A private Spark Connect server: our own JVM start, on loopback, behind a token."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ematix_flow.engine.classic import plan_for, start_host
from ematix_flow.engine.settings import EngineSettings, context_conf

_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"
_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105


@dataclass(frozen=True)
class ConnectServer:
    """Where a server listens; ``remote`` holds its token and stays out of ``repr``."""

    port: int
    process_id: int
    remote: str = field(repr=False)


@contextlib.contextmanager
def connect_server(settings: EngineSettings) -> Iterator[ConnectServer]:
    """Run a server for the length of the block; it dies with this process in any case."""
    token = secrets.token_urlsafe(32)
    plan = plan_for(settings)
    host = start_host(
        settings, replace(plan, environment=(*plan.environment, (_TOKEN_VARIABLE, token)))
    )
    try:
        port = _serve(host.jvm.gateway(), settings, warehouse=host.workspace.path / "warehouse")
        # Spelled localhost: for any other name the client insists on TLS.
        remote = f"sc://localhost:{port}/;token={token}"
        yield ConnectServer(port=port, process_id=host.jvm.process.pid, remote=remote)
    finally:
        host.kill()


def _serve(address: tuple[int, str], settings: EngineSettings, *, warehouse: Any) -> int:
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

    port, secret = address
    gateway = ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    try:
        jvm = gateway.jvm
        conf = getattr(jvm, "org.apache.spark.SparkConf")(False)
        for key, value in context_conf(settings, warehouse=warehouse).items():
            conf.set(key, value)
        conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
        conf.set("spark.connect.grpc.binding.port", "0")
        builder = getattr(jvm, "org.apache.spark.sql.classic.SparkSession").builder()
        session = builder.config(conf).getOrCreate()
        service = getattr(getattr(jvm, _SERVICE), "MODULE$")
        service.start(session.sparkContext())
        return int(service.localPort())
    finally:
        gateway.close()
