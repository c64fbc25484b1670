"""Real ends: servers that take what is sent and keep it for a test to read."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


def wait_for(condition: Callable[[], Any], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"ok"
    wait: threading.Event | None = None


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpEnd:
    """Answers as told, then with 200; keeps every request."""

    port: int
    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextlib.contextmanager
def http_end(*answers: Answer, tls: ssl.SSLContext | None = None) -> Iterator[HttpEnd]:
    end = HttpEnd(0, list(answers))
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                end.requests.append(Request(self.path, dict(self.headers), body))
                answer = end.answers.pop(0) if end.answers else Answer()
            if answer.wait is not None:
                answer.wait.wait(30)
            with contextlib.suppress(OSError):
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    end.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield end
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Mail:
    sender: str
    recipients: list[str]
    message: Message
    by_tls: bool
    user: str | None


@dataclass
class SmtpEnd:
    port: int = 0
    mails: list[Mail] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


@contextlib.contextmanager
def smtp_end(
    *, tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None
) -> Iterator[SmtpEnd]:
    """An SMTP server; with ``tls`` it insists on STARTTLS, with ``login`` on those words."""
    end = SmtpEnd()

    class Handler:
        async def handle_DATA(self, server: SMTP, session: Any, envelope: Any) -> str:
            if end.refusals:
                return end.refusals.pop(0)
            user = session.auth_data.login.decode() if session.auth_data else None
            parsed = message_from_bytes(envelope.content, policy=default)
            by_tls = session.ssl is not None
            end.mails.append(Mail(envelope.mail_from, envelope.rcpt_tos, parsed, by_tls, user))
            return "250 OK"

    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        assert login is not None
        right = (data.login.decode(), data.password.decode()) == login
        return AuthResult(success=right, auth_data=data, handled=False)

    class Server(Controller):
        def factory(self) -> SMTP:
            return SMTP(
                self.handler,
                hostname="localhost",
                tls_context=tls,
                require_starttls=tls is not None,
                auth_required=login is not None,
                authenticator=check if login is not None else None,
                auth_require_tls=tls is not None,
            )

    controller = Server(Handler(), hostname="127.0.0.1", port=free_port())
    controller.start()
    end.port = controller.port
    try:
        yield end
    finally:
        controller.stop()


@dataclass
class OtlpEnd:
    """A collector: what was exported, decoded from protobuf."""

    port: int
    metrics: list[metrics_service_pb2.ExportMetricsServiceRequest] = field(default_factory=list)
    traces: list[trace_service_pb2.ExportTraceServiceRequest] = field(default_factory=list)
    logins: list[str | None] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for export in self.traces
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def points(self) -> dict[str, list[Any]]:
        """The data points of the last export, by the name of the metric."""
        found: dict[str, list[Any]] = {}
        for resource in self.metrics[-1].resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    held = getattr(metric, metric.WhichOneof("data"))
                    found.setdefault(metric.name, []).extend(held.data_points)
        return found


@contextlib.contextmanager
def otlp_http_end() -> Iterator[OtlpEnd]:
    end = OtlpEnd(0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            end.logins.append(self.headers.get("Authorization"))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/metrics":
                decoded = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
                end.metrics.append(decoded)
            else:
                assert self.path == "/v1/traces"
                end.traces.append(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    end.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield end
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def otlp_grpc_end() -> Iterator[OtlpEnd]:
    end = OtlpEnd(0)

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            end.metrics.append(request)
            end.logins.append(dict(context.invocation_metadata()).get("authorization"))
            return metrics_service_pb2.ExportMetricsServiceResponse()

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            end.traces.append(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    end.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield end
    finally:
        server.stop(None).wait()
