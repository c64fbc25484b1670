"""What a driver and a worker say to each other; no Spark is started."""

from __future__ import annotations

import dataclasses
import http.client
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ematix_flow.engine import shipping
from ematix_flow.engine.cluster import peer_timeout
from ematix_flow.engine.peer_client import PeerClient, PeerLost
from ematix_flow.engine.peer_protocol import Offer, Order, own_versions
from ematix_flow.engine.peer_server import Lending, PeerServer
from ematix_flow.engine.spread import own_address
from ematix_flow.errors import EngineError
from ematix_flow.peers import Peer


def client_of(server: ThreadingHTTPServer) -> PeerClient:
    port = int(server.server_address[1])
    return PeerClient(Peer("127.0.0.1", port, "127.0.0.1", tls=False), None, seconds=5)


@pytest.fixture
def serving() -> Iterator[list[ThreadingHTTPServer]]:
    """Servers that are put here are run until the test ends."""
    held: list[ThreadingHTTPServer] = []
    yield held
    for server in held:
        server.shutdown()
        server.server_close()


def served(server: ThreadingHTTPServer, held: list[ThreadingHTTPServer]) -> PeerClient:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    held.append(server)
    return client_of(server)


@pytest.fixture
def client(serving: list[ThreadingHTTPServer]) -> PeerClient:
    lending = Lending(cores=3, memory_bytes=2 << 30)
    return served(PeerServer(("127.0.0.1", 0), None, lending), serving)


def test_an_offer(client: PeerClient) -> None:
    assert client.offer() == Offer(3, 2 << 30, own_versions(), busy=False)


class OfAnotherVersion(Lending):
    def offer(self) -> Offer:
        versions = dataclasses.replace(own_versions(), pyspark="4.1.1", python="3.9")
        return dataclasses.replace(super().offer(), versions=versions)


def test_another_version_is_refused_by_name(serving: list[ThreadingHTTPServer]) -> None:
    lending = OfAnotherVersion(cores=1, memory_bytes=1 << 30)
    client = served(PeerServer(("127.0.0.1", 0), None, lending), serving)
    with pytest.raises(EngineError) as caught:
        client.offer()
    here = own_versions()
    assert str(caught.value).startswith(
        f"peer {client.peer} has python 3.9 instead of {here.python} and pyspark 4.1.1 instead "
        f"of {here.pyspark}; "
    )


class _Other(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_what_is_no_worker_is_not_taken_for_one(serving: list[ThreadingHTTPServer]) -> None:
    client = served(ThreadingHTTPServer(("127.0.0.1", 0), _Other), serving)
    with pytest.raises(EngineError, match=f"peer {client.peer} refused: HTTP status 200"):
        client.offer()


def test_a_run_that_the_peer_does_not_know(client: PeerClient) -> None:
    with pytest.raises(PeerLost, match="it knows nothing of this run"):
        client.beat("abc")
    client.end("abc")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/run", b"{}", 400),
        ("POST", "/run", b"not json", 400),
        ("POST", "/run", b'{"run": 1, "master": "m", "lease_seconds": 1, "conf": {}}', 400),
        ("POST", "/run", b'{"run": "r", "master": "m", "lease_seconds": -1, "conf": {}}', 400),
        ("POST", "/other", b"{}", 404),
        ("GET", "/", None, 404),
    ],
)
def test_requests_that_make_no_sense(
    client: PeerClient, method: str, path: str, body: bytes | None, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.peer.port, timeout=5)
    try:
        connection.request(method, path, body)
        assert connection.getresponse().status == status
    finally:
        connection.close()
    assert not client.offer().busy


def test_an_order_does_not_show_its_secrets() -> None:
    order = Order("r", "spark://m:1", 5.0, {"spark.authenticate.secret": "hidden"})
    assert "hidden" not in repr(order)


def test_the_own_address_is_that_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_address("127.0.0.1", 9000) == "127.0.0.1"
    monkeypatch.setenv("EMATIX_FLOW_DRIVER_HOST", "driver.example")
    assert own_address("127.0.0.1", 9000) == "driver.example"


@pytest.mark.parametrize("text", ["1", "601", "soon"])
def test_patience_has_bounds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peer_timeout() == 30.0
    monkeypatch.setenv("EMATIX_FLOW_PEER_TIMEOUT", text)
    with pytest.raises(EngineError, match="give seconds, from 2 to 600"):
        peer_timeout()


def test_modules_of_the_project_travel_and_installed_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lone_module_of_mine.py").write_text("VALUE = 1\n")
    for folder in ("package_of_mine", "bare_folder_of_mine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "inner.py").write_text("VALUE = 2\n")
    (tmp_path / "package_of_mine" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("lone_module_of_mine", "package_of_mine", "bare_folder_of_mine.inner")
    try:
        for name in names:
            __import__(name)
        found = shipping.own_files()
    finally:
        for name in [n for n in sys.modules if "_of_mine" in n]:
            del sys.modules[name]
    mine = {name for name in found if "_of_mine" in name}
    assert mine == {
        "lone_module_of_mine.py",
        "package_of_mine/__init__.py",
        "package_of_mine/inner.py",
        "bare_folder_of_mine/inner.py",
    }
    assert not [name for name in found if name.startswith(("ematix_flow", "pytest", "json"))]
    before = shipping.digest_of(found)
    (tmp_path / "lone_module_of_mine.py").write_text("VALUE = 11\n")
    assert shipping.digest_of(found) != before
