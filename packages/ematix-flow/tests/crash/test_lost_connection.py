"""A database server that goes away in the middle of a commit: certain, or honestly uncertain."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from crash.child import Events
from crash.life import Life
from crash.racer import Racer, loading
from crash.tales import tale
from crash.world import Found, World
from ematix_flow.connections import PostgresConnection
from ematix_flow.errors import RunError, Transient
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.log import open_run_log

pytestmark = pytest.mark.usefixtures("engine")

OTHER_TALES = ("append", "truncate", "scd2", "incremental")


class Line:
    """A line to the server that can go deaf after a word, and be cut."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._word: bytes | None = None
        self._muted: set[socket.socket] = set()
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
            self._start(self._pass_on, client, server, False)
            self._start(self._pass_on, server, client, True)

    def _pass_on(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not replies and self._word is not None and self._word in data:
                    self._word = None
                    self._muted.add(sink)
                if source not in self._muted:
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def mute_after(self, word: bytes) -> None:
        """Lose every reply on the connection whose client says a word next."""
        self._word = word

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
        self.cut(dead=True)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()
        for end in self._open:
            end.close()


class Target:
    """A database behind a line, and a direct view of it."""

    def __init__(self, url: str, home: Path) -> None:
        self._url, self._home = url, home
        address = urlsplit(url)
        self.line = Line(str(address.hostname), address.port or 5432)
        through = url.replace(f":{address.port}/", f":{self.line.port}/")
        self._connection = PostgresConnection(name="target", url=through)

    def pipeline(self, number: int, mode: str = "append") -> Pipeline:
        return loading(self._connection, self._home, rows=[(number, "x")], mode=mode)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, autocommit=True) as raw:
            return raw.execute(sql).fetchall()

    def rows(self) -> Found:
        name = Events.__table__.name
        return sorted(self.ask(f"SELECT event_id, name FROM {name.schema}.{name.name}"))

    def stages(self) -> list[tuple[Any, ...]]:
        return self.ask("SELECT tablename FROM pg_tables WHERE tablename LIKE 'stage%'")

    def runs(self) -> int:
        return int(self.ask("SELECT count(*) FROM ematix_flow.run_history")[0][0])

    def end_sessions(self) -> None:
        ended = self.ask(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE "
            "application_name = 'ematix-flow' AND datname = current_database()"
        )
        assert ended

    def recorded(self) -> list[tuple[str, int]]:
        log = open_run_log(str(self._home / "run_log.db"))
        found = [(r.status, r.rows_inserted) for r in log.list()[::-1]]
        log.close()
        return found


@pytest.fixture
def target(postgres: Any, private_home: Path) -> Iterator[Target]:
    url = postgres.create_database()
    held = Target(url, private_home)
    held.pipeline(1).sync()
    yield held
    held.line.close()
    postgres.drop_database(url.rsplit("/", 1)[1])


@pytest.mark.services("postgres")
@pytest.mark.parametrize("mode", ["append", "truncate"])
def test_a_session_ended_inside_the_commit_changes_nothing(target: Target, mode: str) -> None:
    run = Racer(target.pipeline(2, mode), "applied")
    assert run.reach() == "applied"
    target.end_sessions()
    run.end()
    assert isinstance(run.error, Transient), run.error
    assert "terminat" in str(run.error)
    assert target.rows() == [(1, "x")]
    target.pipeline(3).sync()
    assert target.rows() == [(1, "x"), (3, "x")]
    assert target.stages() == []
    assert target.recorded() == [("succeeded", 1), ("failed", 0), ("succeeded", 1)]


@pytest.mark.services("postgres")
def test_a_session_ended_after_the_commit_does_not_fail_the_run(target: Target) -> None:
    run = Racer(target.pipeline(2), "committed")
    assert run.reach() == "committed"
    target.end_sessions()
    run.end()
    assert run.result is not None, run.error
    assert target.rows() == [(1, "x"), (2, "x")]
    assert target.recorded() == [("succeeded", 1), ("succeeded", 1)]
    target.pipeline(3).sync()
    assert target.stages() == []


def commit_unheard(target: Target, run: Racer) -> None:
    """Let a run commit without hearing the answer."""
    runs = target.runs()
    assert run.reach() == "applied"
    target.line.mute_after(b"COMMIT")
    run.go_on()
    while target.runs() == runs:
        assert run.error is None


@pytest.mark.services("postgres")
def test_a_commit_whose_answer_is_lost_is_looked_up(target: Target) -> None:
    run = Racer(target.pipeline(2), "applied")
    commit_unheard(target, run)
    target.line.cut()
    run.end()
    assert run.result is not None, run.error
    assert run.result.counts.inserted == 1
    assert target.recorded() == [("succeeded", 1), ("succeeded", 1)]


@pytest.mark.services("postgres")
def test_a_commit_that_cannot_be_looked_up_is_called_neither(target: Target) -> None:
    run = Racer(target.pipeline(2), "applied")
    commit_unheard(target, run)
    target.line.cut(dead=True)
    run.end()
    assert isinstance(run.error, RunError), run.error
    assert "does not answer whether it took place" in str(run.error)
    assert target.recorded() == [("succeeded", 1), ("lost", 0)]
    with pytest.raises(Transient):
        target.pipeline(3).sync()
    assert target.recorded() == [("succeeded", 1), ("lost", 0), ("failed", 0)]
    target.line.mend()
    target.pipeline(4).sync()
    assert target.rows() == [(1, "x"), (2, "x"), (4, "x")]
    assert target.recorded() == [
        ("succeeded", 1),
        ("succeeded", 1),
        ("failed", 0),
        ("succeeded", 1),
    ]
    assert target.stages() == []


@dataclasses.dataclass
class Wired(Life):
    """A life whose runs go through a line."""

    line: Line = dataclasses.field(kw_only=True)

    def statuses(self) -> list[str]:
        return [record.status for record in self.world.records()]


Begin = Callable[[str], Wired]


@pytest.fixture
def life(place: World) -> Iterator[Begin]:
    """Starts the life of a table behind a line, by the name of its tale."""
    address = urlsplit(str(getattr(place.target, "url", "")))
    line = Line(str(address.hostname), address.port or 0)
    through = dataclasses.replace(
        place.target, url=address.geturl().replace(f":{address.port}/", f":{line.port}/")
    )

    def begun(name: str) -> Wired:
        told = Wired(place, tale(name), through=through, line=line)
        told.sync()
        return told

    yield begun
    line.close()


@pytest.mark.servers
@pytest.mark.parametrize(
    "name",
    ["merge", "events", *(pytest.param(n, marks=pytest.mark.soak) for n in OTHER_TALES)],
)
def test_a_line_cut_inside_the_commit_changes_nothing(life: Begin, name: str) -> None:
    told = life(name)
    run = Racer(told.pipeline(told.arriving()), "applied")
    assert run.reach() == "applied"
    told.line.cut()
    run.end()
    assert isinstance(run.error, Transient), run.error
    told.untouched()
    told.sync()
    assert told.world.litter() == []
    assert told.statuses() == ["succeeded", "failed", "succeeded"]


@pytest.mark.servers
@pytest.mark.parametrize(
    "name",
    ["scd2", *(pytest.param(n, marks=pytest.mark.soak) for n in ("merge", "events"))],
)
def test_a_commit_of_changes_whose_answer_is_lost_is_looked_up(life: Begin, name: str) -> None:
    told = life(name)
    before = told.world.stored(told.table)
    rows = told.arriving()
    run = Racer(told.pipeline(rows), "applied")
    assert run.reach() == "applied"
    told.line.mute_after(b"COMMIT")
    run.pause_no_more()
    run.go_on()
    while told.world.stored(told.table) == before:
        assert run.error is None
    told.line.cut()
    run.end()
    assert run.result is not None, run.error
    told.took(rows, run.result.run_id)
    told.sync()
    assert told.world.litter() == []
    assert told.statuses() == ["succeeded"] * 3
