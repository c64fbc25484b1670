"""One connection to a SQL database: for the write path, and for a user's own queries."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import LiveConnection
from ematix_flow.errors import EmatixError, Transient

if TYPE_CHECKING:
    from ematix_flow.backends.sql import SqlBackend


class Session:
    """One driver connection, with what the write path needs of it."""

    def __init__(self, backend: SqlBackend, raw: Any, *, read_only: bool = False) -> None:
        self.backend = backend
        self.raw = raw
        self.read_only = read_only
        # Whether the bookkeeping tables were seen in the version of this code.
        self.books_current = False

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it touched, or -1."""
        with self.backend.translated():
            return self.backend.run(self.raw, sql, parameters)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self.backend.translated():
            return self.backend.rows(self.raw, sql, parameters)

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first value of the first row, or None."""
        found = self.rows(sql, parameters)
        return found[0][0] if found else None

    @contextlib.contextmanager
    def transaction(self, *, keep: bool = True) -> Iterator[None]:
        """One transaction; rolled back on any error, and where it is not to be kept."""
        with self.backend.translated():
            self.backend.begin(self.raw)
        try:
            yield
        except BaseException:
            self.books_current = False
            with contextlib.suppress(EmatixError), self.backend.translated():
                self.backend.finish(self.raw, keep=False)
            raise
        self.books_current = self.books_current and keep
        try:
            with self.backend.translated():
                self.backend.finish(self.raw, keep=keep)
        except Transient as error:
            error.unanswered = keep
            raise

    def allow_writes(self) -> None:
        """Let it write although it was opened for reading."""
        with self.backend.translated():
            self.backend.allow_writes(self.raw)
        self.read_only = False

    def leave(self) -> bool:
        """Leave the driver's connection to the next run; False if it is to be closed."""
        try:
            with self.backend.translated():
                return self.backend.left_behind(self.raw)
        except EmatixError:
            return False

    def close(self) -> None:
        """Close the driver's connection."""
        with contextlib.suppress(EmatixError), self.backend.translated():
            self.backend.disconnect(self.raw)


class IdleSession:
    """The place for a connection between two questions of one run; only what has read is kept."""

    def __init__(self) -> None:
        self._coming: Future[Session] | None = None
        self._session: Session | None = None
        self._wanted = False

    @contextlib.contextmanager
    def kept(self, opened: Callable[[], Session]) -> Iterator[None]:
        """While it lasts, connections are kept; the first is opened while others are, too.

        After it, they are left to the next run of this process where that is possible.
        """
        self._wanted, self._coming = True, _begun(opened)
        try:
            yield
        except BaseException:
            self._wanted = False
            raise
        finally:
            if self._coming is not None:
                self._coming.add_done_callback(_closed)
            session, self._session = self._session, None
            if session is not None:
                self._part(session)
            self._wanted = False

    def take(self, *, read_only: bool) -> Session | None:
        """The connection that waits here, if it is of use."""
        if self._coming is not None:
            coming, self._coming = self._coming, None
            self._session = coming.result()
        if self._session is None:
            return None
        session, self._session = self._session, None
        try:
            if read_only:
                session.one("SELECT 1")
            else:
                session.allow_writes()
        except EmatixError:
            # It was cut off while it waited.
            session.close()
            return None
        return session

    def give(self, session: Session) -> None:
        """Keep a connection for the next question, or close it."""
        if self._wanted and session.read_only and self._session is None:
            self._session = session
        else:
            self._part(session)

    def _part(self, session: Session) -> None:
        if not self._wanted or not session.leave():
            session.close()


def _begun(opened: Callable[[], Session]) -> Future[Session]:
    coming: Future[Session] = Future()

    def connect() -> None:
        try:
            coming.set_result(opened())
        except Exception as error:  # noqa: BLE001 - told to whoever asks for the connection
            coming.set_exception(error)

    threading.Thread(target=connect, name="ematix-connect", daemon=True).start()
    return coming


def _closed(coming: Future[Session]) -> None:
    if coming.exception() is None:
        coming.result().close()


class SqlConnection(LiveConnection):
    """A live connection to a SQL database.

    It connects when first used, so that a misspelt path creates no empty file.
    """

    def __init__(self, backend: SqlBackend) -> None:
        self._backend = backend
        self._session: Session | None = None

    def session(self) -> Session:
        """The driver's connection, opened if it is not."""
        if self._session is None:
            with self._backend.translated():
                self._session = Session(self._backend, self._backend.connect())
        return self._session

    def query(self, sql: str, max_rows: int | None = None) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries."""
        session = self.session()
        with self._backend.translated():
            names, rows = self._backend.fetch(session.raw, sql, max_rows)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def execute(self, sql: str) -> int:
        """Run a statement and commit it."""
        return self.session().run(sql)

    def ping(self) -> None:
        """Ask the database for a 1."""
        self.session().one("SELECT 1")

    def info(self) -> dict[str, Any]:
        """Where it leads, without secrets."""
        return self._backend.info()

    def close(self) -> None:
        """Give the connection back."""
        if self._session is not None:
            self._session.close()
            self._session = None
