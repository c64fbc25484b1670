"""Certificates, and a process that no earlier test has set up."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.network import Authority, Credentials
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
