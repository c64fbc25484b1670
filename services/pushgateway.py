"""Prometheus' push gateway, from the distribution's packages."""

from __future__ import annotations

import shutil
import urllib.request
from dataclasses import dataclass
from typing import ClassVar

from services.service import Endpoint, Service, ServiceError, apt_install


@dataclass(frozen=True)
class PushGateway:
    """A running gateway, as tests see it."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    def metrics(self) -> str:
        """All that was pushed, as Prometheus would scrape it."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:  # noqa: S310 - our own server
            return str(answer.read().decode())


class PrometheusPushGateway(Service):
    """The gateway itself."""

    name: ClassVar[str] = "pushgateway"

    def install(self) -> None:
        """Install Debian's package unless some version is there."""
        if not shutil.which("prometheus-pushgateway"):
            apt_install("prometheus-pushgateway")
        if not shutil.which("prometheus-pushgateway"):
            raise ServiceError("prometheus-pushgateway is installed but was not found")

    def prepare(self, endpoint: Endpoint) -> None:
        """It keeps everything in memory."""

    def command(self, endpoint: Endpoint) -> list[str]:
        """Return the gateway in the foreground."""
        return ["prometheus-pushgateway", f"--web.listen-address={endpoint.host}:{endpoint.port}"]

    def client(self, endpoint: Endpoint) -> PushGateway:
        """Return the address."""
        return PushGateway(endpoint.host, endpoint.port)

    def check(self, endpoint: Endpoint) -> None:
        """Fetch its own page of metrics."""
        self.client(endpoint).metrics()
