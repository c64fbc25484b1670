"""A line to a database server that can be cut, go deaf, or break at a chosen message."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pymysql

from crash.child import Gate
from crash.life import Life
from crash.processes import holds_connection_to, siblings
from crash.racer import Racer
from ematix_flow.connections import Connection, MySQLConnection
from ematix_flow.connections.databases import ServerConnection
from oracle.state import Row

SESSIONS = {
    "postgres": "SELECT pid FROM pg_stat_activity WHERE client_port IN ({})",
    "mysql": "SELECT id FROM information_schema.processlist "
    "WHERE SUBSTRING_INDEX(host, ':', -1) IN ({})",
}
END = {"postgres": "SELECT pg_terminate_backend({}, 10000)", "mysql": "KILL CONNECTION {}"}


class Line:
    """Passes on what clients and the server say to each other, until it is told not to."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._word: bytes | None = None
        self._on_its_way = threading.Event()
        self._on_its_way.set()
        self._muted: set[socket.socket] = set()
        self._left = 0
        self._heard = False
        self._dead = False
        self._start(self._accept)

    def _start(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._dead:
                client.close()
                continue
            server = socket.create_connection(self._server)
            self._open += [client, server]
            self._start(self._listen_to_client, client, server)
            self._start(self._listen_to_server, server, client)

    def _listen_to_client(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := client.recv(65536):
                if self._word is not None and self._word in said:
                    self._word = None
                    self._muted.add(server)
                    if not self._on_its_way.is_set():
                        client.shutdown(socket.SHUT_RDWR)
                        self._on_its_way.wait()
                if not self._breaks():
                    server.sendall(said)
                    continue
                if self._heard:
                    self._muted.add(server)
                    server.sendall(said)
                break
        for end in (server, client):
            # A server that has heard something takes its time to do it, and only then looks up.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_WR if end is server else socket.SHUT_RDWR)

    def _listen_to_server(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := server.recv(65536):
                if server not in self._muted:
                    client.sendall(said)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _breaks(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == 0

    def mute_after(self, word: bytes) -> None:
        """Lose every reply on the connection whose client says a word next."""
        self._word = word

    def delay(self, word: bytes) -> None:
        """Cut the connection whose client says a word next, which the server hears only later."""
        self._on_its_way.clear()
        self._word = word

    def deliver(self) -> None:
        """Let the server hear what was delayed."""
        self._on_its_way.set()

    def break_at(self, number: int, *, heard: bool) -> None:
        """Cut one connection at a message of a client, counted from now on.

        The server has heard it, and its answer is lost, or it is lost itself.
        """
        self._heard = heard
        self._left = number

    @property
    def is_broken(self) -> bool:
        """Whether the message has come at which the line was to break."""
        return self._left <= 0

    def ports(self) -> list[int]:
        """The ports by which the server knows the open connections."""
        found = []
        for end in list(self._open):
            with contextlib.suppress(OSError):
                if end.getpeername() == self._server:
                    found.append(int(end.getsockname()[1]))
        return found

    def cut(self, *, dead: bool = False) -> None:
        """End all connections; a dead line ends new ones too, until it is mended."""
        self._dead = dead
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let new connections through again."""
        self._dead = False

    def close(self) -> None:
        """End everything."""
        self.deliver()
        self.cut(dead=True)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()
        for end in self._open:
            end.close()


def connect(connection: Connection) -> contextlib.closing[Any]:
    """A session of the test's own, past the line."""
    assert isinstance(connection, ServerConnection)
    given = {k: v for k, v in connection.address().items() if k != "options"}
    if isinstance(connection, MySQLConnection):
        return contextlib.closing(pymysql.connect(**given, autocommit=True))
    given["dbname"] = given.pop("database")
    return contextlib.closing(psycopg.connect(**given, autocommit=True))


@dataclass
class Wired(Life):
    """A life whose runs go through a line."""

    line: Line = field(kw_only=True)

    @property
    def kind(self) -> str:
        """The kind of server."""
        return self.world.backend.kind

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask the server, past the line."""
        with connect(self.world.target) as raw, raw.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def end_sessions(self) -> None:
        """Let the server end every session that came through the line."""
        ports = ", ".join(f"'{port}'" for port in self.line.ports())
        with connect(self.world.target) as raw, raw.cursor() as cursor:
            cursor.execute(SESSIONS[self.kind].format(ports))
            sessions = cursor.fetchall()
            assert sessions
            for (session,) in sessions:
                cursor.execute(END[self.kind].format(session))

    def loading(self, gate: Gate) -> int:
        """Wait until a worker of Spark's is about to write; its process id."""
        at_gate = gate.held()
        while True:
            for pid in siblings(at_gate):
                if holds_connection_to(pid, self.line.port):
                    return pid

    def race(self, rows: list[Row], *pauses: str, **details: Any) -> Racer:
        """A run in a thread of this process."""
        return Racer(self.pipeline(rows, **details), *pauses)

    def statuses(self) -> list[str]:
        """How the runs ended, oldest first."""
        return [record.status for record in self.world.records()]
