"""One connection to a SQL database: for the write path, and for a user's own queries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import LiveConnection
from ematix_flow.errors import EmatixError, Transient

if TYPE_CHECKING:
    from ematix_flow.backends.sql import SqlBackend


class Session:
    """One driver connection, with what the write path needs of it."""

    def __init__(self, backend: SqlBackend, raw: Any) -> None:
        self.backend = backend
        self.raw = raw

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
            with contextlib.suppress(EmatixError), self.backend.translated():
                self.backend.finish(self.raw, keep=False)
            raise
        try:
            with self.backend.translated():
                self.backend.finish(self.raw, keep=keep)
        except Transient as error:
            error.unanswered = keep
            raise

    def close(self) -> None:
        """Close the driver's connection."""
        with contextlib.suppress(EmatixError), self.backend.translated():
            self.raw.close()


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
