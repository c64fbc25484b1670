"""Three machines on one table: network namespaces on a bridge, and certificates for them."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def run(*arguments: str) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Machine:
    """A namespace with one address; ``link`` is its end of the cable on the bridge."""

    namespace: str
    address: str
    link: str

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def unplug(self) -> None:
        run("ip", "link", "set", self.link, "down")

    def plug_in(self) -> None:
        run("ip", "link", "set", self.link, "up")


@dataclass(frozen=True)
class Network:
    """A bridge in the namespace of the tests, where the driver is, and machines on it."""

    driver: str
    machines: tuple[Machine, ...]


@contextlib.contextmanager
def network(machines: int) -> Iterator[Network]:
    """Made for this process alone: names and addresses hold its number."""
    number = os.getpid()
    bridge = f"ef{number}"
    base = f"10.{100 + number % 100}.{number // 100 % 250}"
    held = []
    try:
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "addr", "add", f"{base}.1/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for i in range(machines):
            machine = Machine(f"ef{number}n{i}", f"{base}.{10 + i}", f"ef{number}v{i}")
            inside = f"ef{number}i{i}"
            run("ip", "netns", "add", machine.namespace)
            held.append(machine)
            run("ip", "link", "add", machine.link, "type", "veth", "peer", "name", inside)
            run("ip", "link", "set", inside, "netns", machine.namespace)
            run("ip", "link", "set", machine.link, "master", bridge)
            machine.plug_in()
            run(*machine.command("ip", "addr", "add", f"{machine.address}/24", "dev", inside))
            run(*machine.command("ip", "link", "set", inside, "up"))
            run(*machine.command("ip", "link", "set", "lo", "up"))
        yield Network(f"{base}.1", tuple(held))
    finally:
        for machine in held:
            subprocess.run(["ip", "netns", "del", machine.namespace], check=False)
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


@dataclass(frozen=True)
class Credentials:
    """Files for one party."""

    cert: Path
    key: Path
    ca: Path

    def variables(self) -> dict[str, str]:
        return {
            "EMATIX_FLOW_TLS_CERT": str(self.cert),
            "EMATIX_FLOW_TLS_KEY": str(self.key),
            "EMATIX_FLOW_TLS_CA": str(self.ca),
        }

    def options(self) -> list[str]:
        return ["--cert", str(self.cert), "--key", str(self.key), "--ca", str(self.ca)]


class Authority:
    """Signs certificates by ``openssl``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.cert, self._key = folder / "ca.pem", folder / "ca.key"
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        self._curve = curve
        where = ("-keyout", str(self._key), "-out", str(self.cert))
        subject = ("-days", "2", "-subj", "/CN=test authority")
        # Python 3.13 asks for what RFC 5280 asks for.
        use = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        run("openssl", "req", "-x509", *curve, *where, *subject, *use)

    def sign(self, name: str, *, also: str = "") -> Credentials:
        """A certificate for an address; ``also`` is a host name that it holds beside it."""
        key, cert = self._folder / f"{name}.key", self._folder / f"{name}.pem"
        request, extra = self._folder / f"{name}.csr", self._folder / f"{name}.cnf"
        names = f"IP:{name}{f',DNS:{also}' if also else ''}"
        extra.write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n")
        where = ("-keyout", str(key), "-out", str(request))
        run("openssl", "req", *self._curve, *where, "-subj", f"/CN={name}")
        signing = ("-CA", str(self.cert), "-CAkey", str(self._key), "-CAcreateserial")
        files = ("-in", str(request), "-out", str(cert), "-extfile", str(extra))
        run("openssl", "x509", "-req", *files, *signing, "-days", "2")
        return Credentials(cert, key, self.cert)


class Forwarder:
    """Lets machines of the network reach a server, one on loopback or, by TLS, one without it."""

    def __init__(
        self, host: str, port: int, *, to: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self._to, self._tls = (to, port), tls
        self._listener = socket.create_server((host, 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for held in list(self._open):
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _accept(self) -> None:
        workers = []
        while True:
            try:
                came, _ = self._listener.accept()
            except OSError:
                break
            worker = threading.Thread(target=self._relay, args=(came,), daemon=True)
            worker.start()
            workers.append(worker)
        for worker in workers:
            worker.join()

    def _relay(self, came: socket.socket) -> None:
        if self._tls is not None:
            try:
                came = self._tls.wrap_socket(came, server_side=True)
            except OSError:
                came.close()
                return
        with came, socket.create_connection(self._to) as went:
            ends = {came: went, went: came}
            self._open |= set(ends)
            try:
                with selectors.DefaultSelector() as selector:
                    for end in ends:
                        selector.register(end, selectors.EVENT_READ)
                    while True:
                        for key, _ in selector.select():
                            here: socket.socket = key.fileobj  # type: ignore[assignment]
                            content = here.recv(1 << 16)
                            while isinstance(here, ssl.SSLSocket) and here.pending():
                                content += here.recv(1 << 16)
                            if not content:
                                return
                            ends[here].sendall(content)
            except OSError:
                return
            finally:
                self._open -= set(ends)
