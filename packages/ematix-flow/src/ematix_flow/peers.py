"""Where a pipeline's Spark runs: the words of ``engine=``, ``peers=`` and ``master=``.

An address is that of a ``flow-worker``: ``https://host:port``, ``dns://host:port`` (every address
behind the name, asked anew for each run) or ``k8s://service.namespace:port`` (the same, for a
headless service). Nothing is contacted here but the name service.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from ematix_flow.errors import ConfigError, EngineError

_ADDRESS = re.compile(
    r"(?P<scheme>https?|dns|k8s)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})/?"
)
_HOST_AND_PORT = re.compile(r":\d+(,.+:\d+)*/?$")
_MASTERS = ("spark://", "sc://", "k8s://https://")
_HIGHEST_PORT = 65_535
_FORMS = 'write "https://host:port", "dns://host:port" or "k8s://service.namespace:port"'

Lookup = Callable[[str, int], Sequence[str]]


@dataclass(frozen=True)
class Placement:
    """What a pipeline says of where it runs; unset means as the project says."""

    engine: str | None = None
    peers: tuple[str, ...] = ()
    # Either may hold a secret, or a reference to one.
    master: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    # In words, who named the engine.
    engine_by: str = field(default="", compare=False)


@dataclass(frozen=True)
class Peer:
    """One ``flow-worker``: where it is reached, and the name that its certificate must hold."""

    host: str
    port: int
    name: str
    tls: bool = True

    def __str__(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        known = "" if self.name == self.host else f" ({self.name})"
        return f"{'https' if self.tls else 'http'}://{shown}:{self.port}{known}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def check_peers(addresses: Iterable[object]) -> tuple[str, ...]:
    """The addresses, if all are written as addresses are."""
    checked = []
    for address in addresses:
        found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if found is None or not 0 < int(found["port"]) <= _HIGHEST_PORT:
            shown = repr(address) if isinstance(address, str) else type(address).__name__
            raise ConfigError(f"peers= cannot hold {shown}", fix=_FORMS)
        if found["scheme"] == "k8s" and found["host"].count(".") != 1:
            raise ConfigError(
                f"peers= cannot hold {address!r}", fix='write it as "k8s://service.namespace:port"'
            )
        checked.append(str(address))
    return tuple(checked)


def check_master(master: str) -> str:
    """The address of an existing cluster, if it is written as one."""
    if master != "yarn" and not (master.startswith(_MASTERS) and master not in _MASTERS):
        raise ConfigError(
            "master= is not the address of a cluster",
            fix='write "spark://host:port", "sc://host:port", "k8s://https://host:port" or "yarn"',
        )
    if master.startswith("spark://") and not _HOST_AND_PORT.search(master):
        raise ConfigError(
            f"master={master!r} does not say at which port", fix='write "spark://host:7077"'
        )
    if "@" in master:
        raise ConfigError(
            "master= may not hold a user or password",
            fix="use master_secret, or a file of [spark] for Kubernetes",
        )
    return master


def is_server(master: str | None) -> bool:
    """Whether it is the address of a Spark Connect server."""
    return master is not None and master.startswith("sc://")


def shown_master(master: str) -> str:
    """The address without anything that may be secret."""
    return master if master == "yarn" else master.partition(";")[0].rstrip("/")


def resolved(addresses: Sequence[str], lookup: Lookup | None = None) -> tuple[Peer, ...]:
    """Every peer behind the addresses, as the name service knows them now, each once."""
    found: dict[tuple[str, int], Peer] = {}
    for address in addresses:
        parts = _ADDRESS.fullmatch(address)
        assert parts is not None, address  # noqa: S101 - checked when it was declared
        host, port = parts["host"].strip("[]"), int(parts["port"])
        if parts["scheme"] in ("http", "https"):
            peers = [Peer(host, port, host, tls=parts["scheme"] == "https")]
        else:
            name = f"{host}.svc.cluster.local" if parts["scheme"] == "k8s" else host
            peers = [Peer(ip, port, name) for ip in _all_addresses(address, name, port, lookup)]
        for peer in peers:
            found.setdefault((peer.host, peer.port), peer)
    return tuple(found.values())


def _all_addresses(address: str, name: str, port: int, lookup: Lookup | None) -> list[str]:
    try:
        return sorted(set((lookup or _ask_name_service)(name, port)))
    except OSError as error:
        raise EngineError(
            f"peer {address}: the name {name} is not known ({error.strerror or error})",
            fix="check the name, and that its workers run",
        ) from error


def _ask_name_service(name: str, port: int) -> list[str]:
    found = socket.getaddrinfo(name, port, socket.AF_INET, socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
