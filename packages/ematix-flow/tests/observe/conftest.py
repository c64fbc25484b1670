"""Certificates, and a process that no earlier test has set up."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cluster.network import Authority, Credentials
from ematix_flow import Pipeline
from ematix_flow.discovery import load_project
from ematix_flow.observe import alerts, observer


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the machine, and nothing that an earlier test has opened."""
    for name in list(os.environ):
        if name.startswith("EMATIX_FLOW_") and name.endswith(
            ("ALERTERS", "METRICS", "METRICS_URL", "TRACES", "ALERT_REPEAT_SECONDS")
        ):
            monkeypatch.delenv(name)
    monkeypatch.delenv("TRACEPARENT", raising=False)
    observer._kept.cache_clear()
    yield
    alerts.clear_alerters()
    observer._kept.cache_clear()


@pytest.fixture(scope="session")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """A certificate for this machine, and who has signed it."""
    authority = Authority(tmp_path_factory.mktemp("tls") / "authority")
    return authority.sign("127.0.0.1", also="localhost")


@pytest.fixture
def server_tls(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials.cert, credentials.key)
    return context


@pytest.fixture
def trusted(credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whoever makes a TLS connection trusts the authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(credentials.ca))
    return credentials.ca


PIPELINES = """
from typing import Annotated

from ematix_flow import BigInt, DuckDBConnection, ematix, pk, register_connection

register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))


@ematix.table(schema="shop")
class Numbers:
    number: Annotated[BigInt, pk()]


@ematix.pipeline(target=Numbers, target_connection="warehouse", mode="merge")
def load_numbers(conn):
    return "SELECT unnest(range(5)) AS number"


@ematix.pipeline(
    target=Numbers, target_connection="warehouse", mode="merge",
    retry={"max_attempts": 3, "retry_on": ["any"]},
)
def load_more(conn):
    import os

    return f"SELECT number FROM {os.environ.get('MORE', 'shop.missing')}"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pipelines inside one DuckDB file; the second fails unless ``MORE`` names a table."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "pipelines.py").write_text(PIPELINES)
    (work / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')
    monkeypatch.chdir(work)
    monkeypatch.setattr("sys.path", [str(work), *sys.path])
    monkeypatch.delenv("MORE", raising=False)
    return work


@pytest.fixture
def pipelines(project: Path) -> Iterator[Mapping[str, Pipeline]]:
    """The same, as Python sees them."""
    with load_project(()) as loaded:
        yield {p.name: p for p in loaded.pipelines}
