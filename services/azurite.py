"""Azure Blob Storage as Microsoft's azurite plays it, from its npm package."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from services.golang import user_cache
from services.service import Endpoint, Service, ServiceError, apt_install, exclusive

VERSION = "3.37.0"
ACCOUNT = "testaccount"


@dataclass(frozen=True)
class AzuriteServer:
    """A running server, as tests see it."""

    host: str
    port: int
    key: str = field(repr=False)
    account: str = ACCOUNT

    @property
    def url(self) -> str:
        """Where its one account answers."""
        return f"http://{self.host}:{self.port}/{self.account}"

    @property
    def environment(self) -> dict[str, str]:
        """What the usual clients look for."""
        return {"AZURE_STORAGE_KEY": self.key}

    def create_container(self) -> str:
        """Make an empty container with a fresh name; return it."""
        name = f"container-{uuid4().hex[:12]}"
        with self.open() as client:
            client.create_container(name)
        return name

    def open(self) -> Any:
        """A client that may do everything."""
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient(
            self.url, credential=self.key, retry_total=0, connection_timeout=2, read_timeout=10
        )


class Azurite(Service):
    """The server itself."""

    name: ClassVar[str] = "azurite"

    def install(self) -> None:
        """Install the package unless that has been done."""
        with exclusive(user_cache() / "azurite.lock"):
            if not program().exists():
                install()

    def prepare(self, endpoint: Endpoint) -> None:
        """Nothing: everything is kept in memory."""

    def command(self, endpoint: Endpoint) -> list[str]:
        """Return the part of it that serves blobs; its key stands in the environment."""
        return [
            *("env", f"AZURITE_ACCOUNTS={ACCOUNT}:{key_of(endpoint)}"),
            *("node", str(program()), "--silent", "--inMemoryPersistence"),
            # New clients ask for versions of the interface that it does not know yet.
            "--skipApiVersionCheck",
            "--disableTelemetry",
            *("--blobHost", endpoint.host, "--blobPort", str(endpoint.port)),
        ]

    def client(self, endpoint: Endpoint) -> AzuriteServer:
        """Return the address and the key."""
        return AzuriteServer(endpoint.host, endpoint.port, key_of(endpoint))

    def check(self, endpoint: Endpoint) -> None:
        """Ask for all containers."""
        with self.client(endpoint).open() as client:
            next(iter(client.list_containers()), None)


def key_of(endpoint: Endpoint) -> str:
    """A key as long as Azure's are."""
    return base64.b64encode(hashlib.sha512(endpoint.secret.encode()).digest()).decode()


def program() -> Path:
    """The script that serves blobs, kept for all checkouts of this user."""
    modules = user_cache() / f"azurite-{VERSION}" / "node_modules"
    return modules / "azurite" / "dist" / "src" / "blob" / "main.js"


def install() -> None:
    """Fetch it with all it needs."""
    if shutil.which("npm") is None:
        apt_install("npm")
    folder = user_cache() / f"azurite-{VERSION}"
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    command = ["npm", "install", *quiet, "--prefix", str(fresh), f"azurite@{VERSION}"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise ServiceError(f"azurite could not be installed: {result.stderr.strip()[-500:]}")
    shutil.rmtree(folder, ignore_errors=True)
    fresh.replace(folder)
