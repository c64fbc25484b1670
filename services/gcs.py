"""Google Cloud Storage as fake-gcs-server plays it, built from its Go module."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.request import ProxyHandler, Request, build_opener
from uuid import uuid4

from services.golang import built
from services.service import Endpoint, Service

VERSION = "1.56.1"
_PACKAGE = "github.com/fsouza/fake-gcs-server"


@dataclass(frozen=True)
class GcsServer:
    """A running server, as tests see it; it lets everybody in."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What the usual clients look for."""
        return {"STORAGE_EMULATOR_HOST": self.url, "GOOGLE_CLOUD_PROJECT": "test"}

    def create_bucket(self) -> str:
        """Make an empty bucket with a fresh name; return it."""
        name = f"bucket-{uuid4().hex[:12]}"
        self.call("POST", "/storage/v1/b?project=test", {"name": name})
        return name

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request to its JSON interface, with the answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.url}{path}", data, headers, method=method)  # noqa: S310 - http
        with build_opener(ProxyHandler({})).open(request, timeout=10) as answer:
            return json.loads(answer.read())


class Gcs(Service):
    """The server itself."""

    name: ClassVar[str] = "gcs"

    def install(self) -> None:
        """Build it unless that has been done."""
        built(_PACKAGE, VERSION)

    def prepare(self, endpoint: Endpoint) -> None:
        """Nothing: everything is kept in memory."""

    def command(self, endpoint: Endpoint) -> list[str]:
        """Return the server, which must be told its own address."""
        address = f"{endpoint.host}:{endpoint.port}"
        return [
            *(str(built(_PACKAGE, VERSION)), "-scheme", "http", "-backend", "memory"),
            *("-host", endpoint.host, "-port", str(endpoint.port)),
            *("-public-host", address, "-external-url", f"http://{address}"),
        ]

    def client(self, endpoint: Endpoint) -> GcsServer:
        """Return the address."""
        return GcsServer(endpoint.host, endpoint.port)

    def check(self, endpoint: Endpoint) -> None:
        """Ask for all buckets."""
        self.client(endpoint).call("GET", "/storage/v1/b?project=test")
