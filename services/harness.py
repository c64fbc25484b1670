"""Starts servers, shares them between processes, stops them when nobody needs them.

State lives in ``.services/<name>/``, or where ``SERVICES_STATE`` says: ``state.json`` (readable by
its owner only) says where the server is and who leases it, ``server.log`` keeps its output. Data is
thrown away on stop.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from inspect import isabstract
from pathlib import Path

import services
from services import process
from services.service import ROOT, Endpoint, Service, ServiceError, exclusive

STATE = Path(os.environ.get("SERVICES_STATE", ROOT / ".services")).resolve()
KEEP = 0
"""The lease of ``services start``: the server stays until it is told to stop."""


@dataclass(frozen=True)
class State:
    """What ``state.json`` records about a running server."""

    pid: int
    born: str
    port: int
    home: str
    secret: str
    leases: tuple[int, ...] = ()

    def endpoint(self) -> Endpoint:
        """Return the address part."""
        return Endpoint(port=self.port, home=Path(self.home), secret=self.secret)

    def __repr__(self) -> str:
        return f"State(pid={self.pid}, port={self.port}, leases={self.leases})"


class Harness:
    """Runs one service, alone or together with other processes of this checkout."""

    def __init__(self, service: Service, *, root: Path = STATE) -> None:
        self.service = service
        self.folder = root / service.name
        self.log = self.folder / "server.log"
        self._state_file = self.folder / "state.json"

    def acquire(self, lease: int | None = None) -> Endpoint:
        """Start the server unless it runs, and keep it running until ``release``."""
        lease = os.getpid() if lease is None else lease
        with exclusive(self.folder / "lock"):
            state = self._running() or self._start()
            self._write(replace(state, leases=(*self._live(state.leases), lease)))
            return state.endpoint()

    def release(self, lease: int | None = None) -> None:
        """Give the lease back; the last one stops the server."""
        lease = os.getpid() if lease is None else lease
        with exclusive(self.folder / "lock"):
            state = self._read()
            if state is None:
                return
            leases = list(self._live(state.leases))
            if lease in leases:
                leases.remove(lease)
            if leases:
                self._write(replace(state, leases=tuple(leases)))
            else:
                self._stop(state)

    def stop(self) -> bool:
        """Stop the server whoever uses it; return whether there was one."""
        with exclusive(self.folder / "lock"):
            state = self._read()
            if state is None:
                return False
            self._stop(state)
            return True

    def status(self) -> Endpoint | None:
        """Return where the server answers, or nothing."""
        with exclusive(self.folder / "lock"):
            state = self._running()
            return None if state is None else state.endpoint()

    def _running(self) -> State | None:
        """Return the recorded server if it lives and answers; clear away one that does not."""
        state = self._read()
        if state is None:
            return None
        if process.birth(state.pid) == state.born and self._answers(state.endpoint()):
            return state
        self._stop(state)
        return None

    def _start(self) -> State:
        service = self.service
        service.install()
        account = service.run_as()
        # Not below the checkout: the server's account may be unable to enter that folder.
        home = Path(tempfile.mkdtemp(prefix=f"ematix-{service.name}-"))
        if account is not None:
            shutil.chown(home, account, account)
        endpoint = Endpoint(process.free_port(), home, secrets.token_hex(16))
        try:
            service.prepare(endpoint)
            command = service.command(endpoint)
            pid = process.launch(command, home=home, log=self.log, account=account)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        state = State(pid, process.birth(pid), endpoint.port, str(home), endpoint.secret)

        def settled() -> bool:
            return not process.birth(pid) or self._answers(endpoint)

        process.wait_until(settled, timeout=service.start_timeout)
        if not (process.birth(pid) and self._answers(endpoint)):
            self._stop(state)
            raise ServiceError(
                f"{service.name} did not start; {self.log} ends with: {self._tail()}"
            )
        return state

    def _stop(self, state: State) -> None:
        process.stop(state.pid, state.born)
        shutil.rmtree(state.home, ignore_errors=True)
        self._state_file.unlink(missing_ok=True)

    def _answers(self, endpoint: Endpoint) -> bool:
        try:
            self.service.check(endpoint)
        except Exception:  # noqa: BLE001 - whatever a client raises, the server is not ready
            return False
        return True

    def _tail(self) -> str:
        if not self.log.exists():
            return "nothing"
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:])

    def _live(self, leases: Sequence[int]) -> tuple[int, ...]:
        """Drop the leases of processes that ended without giving them back."""
        return tuple(lease for lease in leases if lease == KEEP or process.birth(lease))

    def _read(self) -> State | None:
        try:
            fields = json.loads(self._state_file.read_text())
        except FileNotFoundError:
            return None
        return State(**{**fields, "leases": tuple(fields["leases"])})

    def _write(self, state: State) -> None:
        fresh = self._state_file.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(asdict(state)))
        fresh.replace(self._state_file)


def available() -> dict[str, Service]:
    """Find every service: the ``Service`` subclasses defined in this package's modules."""
    found: dict[str, Service] = {}
    for info in pkgutil.iter_modules(services.__path__):
        if info.name.startswith("_") or info.name == "pytest_services":
            continue
        module = importlib.import_module(f"services.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Service) and not isabstract(value):
                found[value.name] = value()
    return dict(sorted(found.items()))


def start_all(names: Sequence[str], *, lease: int | None = None) -> dict[str, Endpoint | Exception]:
    """Start servers side by side; a name leads to its address or to what went wrong."""
    chosen = available()

    def start(name: str) -> Endpoint | Exception:
        try:
            return Harness(chosen[name]).acquire(lease)
        except Exception as error:  # noqa: BLE001 - reported by the caller, per server
            return error

    with ThreadPoolExecutor(max_workers=max(len(names), 1)) as pool:
        return dict(zip(names, pool.map(start, names), strict=True))
