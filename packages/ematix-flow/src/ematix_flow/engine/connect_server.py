"""A private Spark Connect server: our own JVM start, on loopback, behind a token."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ematix_flow.engine.classic import Host, plan_for, start_host
from ematix_flow.engine.settings import EngineSettings, context_conf

_PACKAGE = "org.apache.spark.sql.connect.service"
_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105


# Little work of the common kinds, after which the same kinds start at once.
_WARMING = (
    "INSERT OVERWRITE DIRECTORY '{folder}/csv' USING csv "
    "SELECT id, CAST(id AS STRING) AS name, CAST(id AS DECIMAL(12, 2)) AS amount FROM range(500)",
    "INSERT OVERWRITE DIRECTORY '{folder}/rows' USING parquet "
    "SELECT CAST(_c0 AS BIGINT) AS id, trim(_c1) AS name, CAST(_c2 AS DECIMAL(12, 2)) AS amount "
    "FROM csv.`{folder}/csv` WHERE _c0 IS NOT NULL",
    "SELECT name, count(*), sum(amount), max(current_timestamp()) FROM parquet.`{folder}/rows` "
    "GROUP BY name ORDER BY name LIMIT 5",
    "SELECT count(*) FROM parquet.`{folder}/rows` JOIN range(50) USING (id)",
)


class ConnectServer:
    """A running server; ``remote`` holds its token and stays out of ``repr``."""

    def __init__(self, host: Host, jvm: Any, session: Any, token: str) -> None:
        self._host = host
        self._jvm = jvm
        self._session = session
        port = int(self._service.localPort())
        self.port = port
        # Spelled localhost: for any other name the client insists on TLS.
        self.remote = f"sc://localhost:{port}/;token={token}"

    @property
    def process_id(self) -> int:
        """The JVM's."""
        return self._host.jvm.process.pid

    @property
    def alive(self) -> bool:
        """Whether the JVM is still there."""
        return self._host.jvm.alive

    @property
    def is_busy(self) -> bool:
        """Whether it works for any client right now."""
        return bool(self._service.executionManager().listActiveExecutions().isRight())

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return int(self._service.sessionManager().listActiveSessions().size())

    def end_session(self, user: str, session: str) -> None:
        """Stop all that a session runs and forget it; nothing happens if it is gone."""
        key = getattr(self._jvm, f"{_PACKAGE}.SessionKey")(user, session)
        self._service.sessionManager().closeSession(key, False)

    def warm_up(self) -> None:
        """Let Spark load and compile what most runs need, in a session that nobody else sees."""
        session = self._session.newSession()
        for statement in _WARMING:
            folder = self._host.workspace.folder("warming")
            session.sql(statement.format(folder=folder)).collectAsList()

    @property
    def _service(self) -> Any:
        return getattr(getattr(self._jvm, f"{_PACKAGE}.SparkConnectService$"), "MODULE$")


@contextlib.contextmanager
def connect_server(
    settings: EngineSettings,
    *,
    token: str | None = None,
    conf: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[ConnectServer]:
    """Run a server for the length of the block; it dies with this process in any case."""
    secret = token or secrets.token_urlsafe(32)
    plan = plan_for(settings)
    variables = (*plan.environment, *(environment or {}).items(), (_TOKEN_VARIABLE, secret))
    host = start_host(settings, replace(plan, environment=variables), log=log)
    try:
        gateway = connected(host.jvm.gateway())
        try:
            whole = context_conf(settings, warehouse=host.workspace.path / "warehouse")
            session = _serve(gateway.jvm, {**whole, **(conf or {})})
            yield ConnectServer(host, gateway.jvm, session, secret)
        finally:
            gateway.close()
    finally:
        host.kill()


def connected(address: tuple[int, str]) -> Any:
    """A line to the gateway of a JVM, beside PySpark's own."""
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

    port, secret = address
    return ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )


def _serve(jvm: Any, settings: Mapping[str, str]) -> Any:
    """Start to serve; returns the session behind it."""
    conf = getattr(jvm, "org.apache.spark.SparkConf")(False)
    for key, value in settings.items():
        conf.set(key, value)
    conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
    conf.set("spark.connect.grpc.binding.port", "0")
    builder = getattr(jvm, "org.apache.spark.sql.classic.SparkSession").builder()
    session = builder.config(conf).getOrCreate()
    service = getattr(getattr(jvm, f"{_PACKAGE}.SparkConnectService$"), "MODULE$")
    service.start(session.sparkContext())
    return session
