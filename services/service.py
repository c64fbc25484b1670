"""What a server must say about itself so that the harness can run it.

To add one: subclass ``Service`` in a new file of this package. Nothing else is edited; the
command line and the pytest fixture of the same name appear by themselves.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "services"


class ServiceError(RuntimeError):
    """A server could not be installed, started or reached."""


@dataclass(frozen=True)
class Endpoint:
    """Where a started server listens and what is needed to talk to it."""

    port: int
    home: Path
    secret: str
    host: str = "127.0.0.1"

    def __repr__(self) -> str:
        return f"Endpoint({self.host}:{self.port})"


class Service(ABC):
    """One kind of server."""

    name: ClassVar[str]
    account: ClassVar[str | None] = None
    """The account to run as when we are root, for servers that refuse root."""
    start_timeout: ClassVar[float] = 60
    """Seconds until a start counts as failed; generous, because CI machines stall."""

    @abstractmethod
    def install(self) -> None:
        """Put the programs on the machine; quick when they are there already."""

    @abstractmethod
    def prepare(self, endpoint: Endpoint) -> None:
        """Write configuration and empty data into ``endpoint.home``."""

    @abstractmethod
    def command(self, endpoint: Endpoint) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def client(self, endpoint: Endpoint) -> Any:
        """Return what tests receive: the address, and ways to make a clean place in it."""

    @abstractmethod
    def check(self, endpoint: Endpoint) -> None:
        """Do one real round trip as a client would; raise any exception if it fails."""

    def run_as(self) -> str | None:
        """Return the account to switch to, or nothing to stay who we are."""
        return self.account if os.geteuid() == 0 else None


def apt_install(*packages: str) -> None:
    """Install Debian packages without letting them start servers of their own."""
    line = f"apt-get install {' '.join(packages)}"
    if not shutil.which("apt-get"):
        raise ServiceError(f"{' '.join(packages)} is missing and this is not Debian; install it")
    if os.geteuid() != 0:
        raise ServiceError(f"{' '.join(packages)} is missing; install it with: sudo {line}")
    archives = CACHE / "apt"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    # RUNLEVEL=1 keeps the packages' scripts from starting a server on its usual port.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    patient = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    cached = ["-o", f"Dir::Cache::Archives={archives}", "-o", "APT::Sandbox::User=root"]
    keep = ["-o", "Binary::apt-get::APT::Keep-Downloaded-Packages=true"]
    install = [*patient, *cached, *keep, "install", "-y", "--no-install-recommends", *packages]
    with exclusive(CACHE / "apt.lock"):
        for command in ([*patient, "update"], install):
            result = subprocess.run(
                command, check=False, capture_output=True, text=True, env=environment
            )
            if result.returncode:
                raise ServiceError(f"`{line}` failed: {result.stderr.strip()[-500:]}")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock that every process using this checkout respects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
