"""A driver's line to one ``flow-worker``: ask, begin a run, keep it alive, end it."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from ematix_flow.config import tls_files
from ematix_flow.engine.peer_protocol import Offer, Order, client_tls, own_versions
from ematix_flow.errors import EngineError
from ematix_flow.peers import Peer

_PAUSE = 0.3
_ASKING_SECONDS = 5.0


class PeerLost(EngineError):
    """A peer that does not know of the run any more."""


class PeerClient:
    """One peer; every request has a connection of its own, so that threads may share it."""

    def __init__(self, peer: Peer, tls: ssl.SSLContext | None, *, seconds: float) -> None:
        if not peer.tls and not peer.is_loopback:
            raise EngineError(
                f"peer {peer} would be sent the secrets of the run in clear text",
                fix="start flow-worker with --cert, --key and --ca, and write https://",
            )
        self.peer = peer
        self._tls = tls
        self._seconds = seconds

    def offer(self) -> Offer:
        """What the peer has, once it is known to be of the same kind as this process."""
        found = self._asked("GET", "/offer", seconds=self._seconds)
        try:
            offer = Offer.read(found)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"peer {self.peer} does not answer as a flow-worker does", fix="check the address"
            ) from error
        differences = own_versions().differences(offer.versions)
        if differences:
            raise EngineError(
                f"peer {self.peer} has {' and '.join(differences)}",
                fix="install there what is installed here",
            )
        return offer

    def begin(self, order: Order, *, seconds: float) -> str:
        """Have a Spark worker started; returns its host. A busy peer is waited for."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(deadline - time.monotonic(), 1.0)
            answer = self._request("POST", "/run", asdict(order), seconds=left)
            if answer[0] != http.client.CONFLICT:
                return str(_content(self.peer, *answer)["host"])
            if time.monotonic() > deadline:
                raise EngineError(
                    f"peer {self.peer} is busy with another run for {seconds:.0f} seconds",
                    fix="run again later, or name more peers",
                )
            time.sleep(_PAUSE)

    def beat(self, run: str) -> None:
        """Say that the driver is alive; ``PeerLost`` when the peer has ended the run."""
        status, body = self._request("POST", f"/run/{run}/beat", {}, seconds=self._seconds)
        if status == http.client.GONE:
            reason = json.loads(body).get("error", "it ended")
            raise PeerLost(f"peer {self.peer}: {reason}")
        _content(self.peer, status, body)

    def end(self, run: str) -> None:
        """Have the Spark worker stopped."""
        self._asked("DELETE", f"/run/{run}", seconds=self._seconds)

    def _asked(self, method: str, path: str, *, seconds: float) -> dict[str, Any]:
        return _content(self.peer, *self._request(method, path, None, seconds=seconds))

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, seconds: float
    ) -> tuple[int, bytes]:
        connection = self._connection(seconds)
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            trouble, fix = _trouble(error, tls=self.peer.tls)
            raise EngineError(f"peer {self.peer} {trouble}", fix=fix) from error
        finally:
            connection.close()

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        peer = self.peer
        if not peer.tls:
            return http.client.HTTPConnection(peer.host, peer.port, timeout=seconds)
        if self._tls is None:
            raise EngineError(
                f"peer {peer} asks for a certificate, and none is set",
                fix="set cert, key and ca in [project.tls], or EMATIX_FLOW_TLS_CERT, "
                "EMATIX_FLOW_TLS_KEY and EMATIX_FLOW_TLS_CA",
            )
        return _NamedConnection(peer, self._tls, seconds)


class _NamedConnection(http.client.HTTPSConnection):
    """Goes to an address and expects the certificate of a name."""

    def __init__(self, peer: Peer, tls: ssl.SSLContext, seconds: float) -> None:
        super().__init__(peer.host, peer.port, timeout=seconds, context=tls)
        self._peer, self._tls = peer, tls

    def connect(self) -> None:
        plain = socket.create_connection((self._peer.host, self._peer.port), self.timeout)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self._peer.name)
        except BaseException:
            plain.close()
            raise


def offers_of(peers: Sequence[Peer]) -> list[Offer]:
    """What each of some peers lends, asked at the same time and for a few seconds only."""
    files = tls_files()
    tls = None if files is None else client_tls(files)
    clients = [PeerClient(peer, tls, seconds=_ASKING_SECONDS) for peer in peers]
    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(lambda client: client.offer(), clients))


def _content(peer: Peer, status: int, body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except ValueError:
        content = {}
    if status != http.client.OK or not isinstance(content, dict):
        said = content.get("error") if isinstance(content, dict) else None
        raise EngineError(
            f"peer {peer} refused: {said or f'HTTP status {status}'}", fix="see its log"
        )
    return content


def _trouble(error: Exception, *, tls: bool) -> tuple[str, str]:
    """What is the matter with a peer, and what to do about it."""
    running, certificates = (
        "check that flow-worker runs there",
        "check cert, key and ca, here and there",
    )
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        return f"shows a certificate that is not accepted ({said})", (
            "let it show one of the same authority whose subjectAltName holds what stands in peers="
        )
    if isinstance(error, ssl.SSLError):
        why = f" ({error.reason})" if error.reason else ""
        return f"refuses the certificate of this driver, or speaks no TLS 1.3{why}", certificates
    if isinstance(error, TimeoutError):
        return "does not answer in time", running
    if isinstance(error, ConnectionRefusedError):
        return "cannot be reached (nothing listens there)", running
    if isinstance(error, ConnectionResetError | http.client.RemoteDisconnected):
        if not tls:
            return "hangs up: it may be one that speaks TLS only", "write https://"
        return (
            "hangs up: the certificate of this driver may not be one that it accepts",
            certificates,
        )
    return f"cannot be reached ({getattr(error, 'strerror', None) or error})", running
