"""Where the scheduler's work is done: processes beside it, or services that it asks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ematix_flow.errors import ConfigError, NotAvailableYet

_SCHEMES = ("subprocess", "subprocess+python", "k8s", "lambda")


@dataclass(frozen=True)
class DispatchSpec:
    """One claimed slot for a worker: what it is told by arguments, and by its environment."""

    pipeline_name: str
    claim_token: str
    lease_seconds: float
    modules: tuple[str, ...] = ()
    previous: str | None = None
    lost: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """What follows ``flow``."""
        made = ["run", self.pipeline_name, "--claim-token", self.claim_token]
        made += ["--lease-seconds", f"{self.lease_seconds:g}"]
        for module in self.modules:
            made += ["--module", module]
        if self.previous is not None:
            made += ["--lost-run" if self.lost else "--previous-run", self.previous]
        return made


class Executor(Protocol):
    """Who starts workers."""

    def dispatch(self, spec: DispatchSpec) -> str:
        """Start a worker; a name for it."""

    def has_ended(self, worker: str) -> bool:
        """Whether a worker is known to have ended."""

    def cancel(self, worker: str) -> None:
        """Have a worker stop, leaving nothing half done."""


class SubprocessExecutor:
    """Starts each worker as a process of this machine."""

    def __init__(self) -> None:
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def dispatch(self, spec: DispatchSpec) -> str:
        """Start ``flow run`` in a session of its own, so that Ctrl-C here does not reach it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ematix_flow.cli.main", *spec.arguments()],
            env={**os.environ, **spec.env},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started[str(process.pid)] = process
        return str(process.pid)

    def has_ended(self, worker: str) -> bool:
        """Whether the process has ended."""
        process = self._started.get(worker)
        if process is None or process.poll() is None:
            return process is None
        del self._started[worker]
        return True

    def cancel(self, worker: str) -> None:
        """Ask it to stop, as Ctrl-C would."""
        process = self._started.get(worker)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)


def open_executor(url: str) -> Executor:
    """The executor that a URL names."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ConfigError(f"there is no executor {url!r}", fix="write subprocess://")
    if scheme in ("k8s", "lambda"):
        raise NotAvailableYet(f"an executor {scheme}://", fix="write subprocess:// meanwhile")
    if rest:
        raise ConfigError(f"{scheme}:// takes nothing after it, not {rest!r}", fix="leave it out")
    return SubprocessExecutor()
