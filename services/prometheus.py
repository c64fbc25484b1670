"""Prometheus, from the distribution's packages; it scrapes what tests name, again and again."""

from __future__ import annotations

import json
import shutil
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

from services.process import wait_until
from services.service import Endpoint, Service, ServiceError, apt_install

SETTINGS = """
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
scrape_configs:
  - job_name: tests
    honor_labels: true
    file_sd_configs: [{files: [targets/*.json], refresh_interval: 1s}]
"""


@dataclass(frozen=True)
class PrometheusServer:
    """A running server, as tests see it."""

    host: str
    port: int
    home: Path

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    def scrape(self, target: str, *, timeout: float = 30) -> None:
        """Scrape ``host:port`` from now on; returns when it was reached."""
        folder = self.home / "targets"
        beside = folder / f"{target.replace(':', '-')}.new"
        beside.write_text(json.dumps([{"targets": [target]}]))
        beside.rename(beside.with_suffix(".json"))
        seen = f'up{{instance="{target}"}} == 1'
        wait_until(lambda: bool(self.query(seen)), timeout=timeout)
        if not self.query(seen):
            raise ServiceError(f"prometheus does not reach {target}")

    def forget(self, target: str) -> None:
        """Scrape it no more."""
        (self.home / "targets" / f"{target.replace(':', '-')}.json").unlink(missing_ok=True)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that a query gives now; an error if it is no query."""
        url = f"{self.url}/api/v1/query?{urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


class Prometheus(Service):
    """The server itself."""

    name: ClassVar[str] = "prometheus"

    def install(self) -> None:
        """Install Debian's package unless some version is there."""
        if not shutil.which("prometheus"):
            apt_install("prometheus")
        if not shutil.which("prometheus"):
            raise ServiceError("prometheus is installed but its program was not found")

    def prepare(self, endpoint: Endpoint) -> None:
        """Write the settings; which targets there are is said later."""
        (endpoint.home / "targets").mkdir()
        (endpoint.home / "prometheus.yml").write_text(SETTINGS)

    def command(self, endpoint: Endpoint) -> list[str]:
        """Return the server in the foreground."""
        return [
            "prometheus",
            f"--config.file={endpoint.home}/prometheus.yml",
            f"--storage.tsdb.path={endpoint.home}/data",
            f"--web.listen-address={endpoint.host}:{endpoint.port}",
        ]

    def client(self, endpoint: Endpoint) -> PrometheusServer:
        """Return the address and ways to scrape and to ask."""
        return PrometheusServer(endpoint.host, endpoint.port, endpoint.home)

    def check(self, endpoint: Endpoint) -> None:
        """Ask for something that is always there."""
        if not self.client(endpoint).query("vector(1)"):
            raise ServiceError("prometheus gives no answer")
