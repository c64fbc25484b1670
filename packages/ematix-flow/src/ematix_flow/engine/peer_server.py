"""The server behind ``flow-worker``: lends this machine to one driver at a time.

A run lasts as long as its driver says so at intervals; when it falls silent, or goes, the Spark
worker that was started for it goes too. Whoever shows no certificate of the authority gets no
further than the handshake.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import ssl
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, SHUT_RDWR, socket
from typing import Any, ClassVar

from ematix_flow.engine.failures import translate
from ematix_flow.engine.peer_protocol import LARGEST_BODY, Offer, Order, own_versions
from ematix_flow.engine.spark_worker import SparkWorker
from ematix_flow.errors import EmatixError

logger = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 10.0
_PAUSE = 0.1
_LONGEST_LEASE = 3600.0


class Busy(Exception):
    """Another run has the machine."""


class Lending:
    """The machine, and the run that has it."""

    def __init__(self, *, cores: int, memory_bytes: int) -> None:
        self._cores = cores
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._order: Order | None = None
        self._worker: SparkWorker | None = None
        self._due = 0.0
        self._ended: dict[str, str] = {}

    def offer(self) -> Offer:
        """What there is to lend."""
        return Offer(self._cores, self._memory_bytes, own_versions(), self._order is not None)

    def begin(self, order: Order, host: str) -> None:
        """Start a Spark worker for an order; ``Busy`` while another run is here."""
        with self._lock:
            if self._order is not None:
                raise Busy
            self._order = order
            self._due = float("inf")
        logger.info("run %s: starting a Spark worker for %s", order.run, order.master)
        try:
            worker = SparkWorker(
                order, host=host, cores=self._cores, memory_bytes=self._memory_bytes
            )
        except BaseException:
            with self._lock:
                self._order = None
            raise
        with self._lock:
            self._worker = worker
            self._due = time.monotonic() + order.lease_seconds

    def beat(self, run: str) -> str | None:
        """Note that the driver lives; otherwise why its run is over."""
        with self._lock:
            if self._order is None or not hmac.compare_digest(self._order.run, run):
                return self._ended.get(run, "it knows nothing of this run")
            self._due = time.monotonic() + self._order.lease_seconds
            return None

    def end(self, run: str | None, reason: str) -> None:
        """Stop the Spark worker of a run, or of any."""
        with self._lock:
            order, worker = self._order, self._worker
            if order is None or worker is None or run not in (None, order.run):
                return
            self._worker = None
            self._ended = {order.run: reason}
        logger.info("run %s: %s", order.run, reason)
        try:
            worker.stop()
        finally:
            with self._lock:
                self._order = None

    def watch(self, stopped: threading.Event) -> None:
        """End what nobody keeps alive, until told to stop."""
        while not stopped.wait(_PAUSE):
            with self._lock:
                order, worker, due = self._order, self._worker, self._due
            if order is None or worker is None:
                continue
            if not worker.alive:
                self.end(order.run, "its Spark worker has ended by itself")
            elif time.monotonic() > due:
                self.end(order.run, "its driver has fallen silent")
        self.end(None, "flow-worker was stopped")


class PeerServer(ThreadingHTTPServer):
    """Listens; the handshake is done by the thread of the connection, never by the listener."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None, lending: Lending):
        if ":" in address[0]:
            self.address_family = AF_INET6
        self.lending = lending
        self._tls = tls
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Agree on TLS first, within a time."""
        request.settimeout(_HANDSHAKE_SECONDS)
        if self._tls is not None:
            try:
                request = self._tls.wrap_socket(request, server_side=True)
            except (OSError, ssl.SSLError) as error:
                reason = getattr(error, "reason", None) or error
                logger.warning("a client at %s was refused: %s", client_address[0], reason)
                return
        try:
            super().finish_request(request, client_address)
        finally:
            if self._tls is not None:
                with contextlib.suppress(OSError):
                    request.shutdown(SHUT_RDWR)
                request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line in the log; a client that hangs up is no reason for a stack."""
        logger.warning("a request from %s came to nothing", client_address[0])
        logger.debug("its error", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: PeerServer
    server_version: ClassVar[str] = "flow-worker"  # type: ignore[misc]
    sys_version: ClassVar[str] = ""  # type: ignore[misc]

    def do_GET(self) -> None:
        if self.path != "/offer":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is nothing here"})
            return
        offer = self.server.lending.offer()
        self._answer(
            HTTPStatus.OK,
            {
                "cores": offer.cores,
                "memory_bytes": offer.memory_bytes,
                "versions": vars(offer.versions),
                "busy": offer.busy,
            },
        )

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/run":
            self._begin(body)
            return
        run = self._run(suffix="/beat")
        if run is None:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is nothing here"})
            return
        over = self.server.lending.beat(run)
        if over is None:
            self._answer(HTTPStatus.OK, {})
        else:
            self._answer(HTTPStatus.GONE, {"error": over})

    def do_DELETE(self) -> None:
        run = self._run()
        if run is not None:
            self.server.lending.end(run, "its driver has ended it")
        self._answer(HTTPStatus.OK, {})

    def _begin(self, body: bytes | None) -> None:
        try:
            order = Order.read(json.loads(body or b""))
            if not 0 < order.lease_seconds <= _LONGEST_LEASE:
                raise ValueError("not a lease")
        except (ValueError, KeyError, TypeError, AttributeError):
            self._answer(HTTPStatus.BAD_REQUEST, {"error": "this is not an order"})
            return
        connection: socket = self.connection
        # A JVM takes longer to start than a handshake.
        connection.settimeout(None)
        # The address by which the driver has come is one by which it can be reached.
        host = str(connection.getsockname()[0])
        try:
            self.server.lending.begin(order, host)
        except Busy:
            self._answer(HTTPStatus.CONFLICT, {"error": "another run is under way"})
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver is told in one line
            known = error if isinstance(error, EmatixError) else translate(error)
            logger.error("run %s: %s", order.run, known)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(known)})
        else:
            self._answer(HTTPStatus.OK, {"host": host})

    def _run(self, suffix: str = "") -> str | None:
        if not (self.path.startswith("/run/") and self.path.endswith(suffix)):
            return None
        return self.path.removeprefix("/run/").removesuffix(suffix)

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            return None
        return self.rfile.read(int(length))

    def _answer(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are no news."""
