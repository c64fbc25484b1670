"""Rows from one PostgreSQL database straight into another: ``COPY`` to ``COPY``, in binary.

Nobody looks at the rows on the way. asyncpg hands on whatever has arrived, many rows at once, where
libpq would give them out one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FuturesTimeout
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from ematix_flow.backends.postgres_copy import WATCHFUL, WATCHFUL_HERE
from ematix_flow.errors import BadValue
from ematix_flow.sql.normalizers import CannotMatch

if TYPE_CHECKING:
    from ematix_flow.errors import EmatixError

Translate = Callable[[Exception], "EmatixError | None"]
_T = TypeVar("_T")

_PLAIN = ("host", "port", "user", "password")
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_KNOWN = (*_PLAIN, *_TLS, "dbname", "connect_timeout", "application_name")
# As many pieces as may wait for the slower side; each is a quarter of a megabyte at most.
_WAITING = 16
_SMALL = 1 << 16
_PAUSE = 0.004
_PATIENCE = 10.0
_SILENCE = 1.0
# All of it each time: what a pool in between was told by somebody else is not known.
_READER = (
    "SET default_transaction_read_only = on; SET datestyle = 'ISO'; SET TIME ZONE 'UTC'; "
    "SET client_encoding TO 'UTF8'"
)
_KEEPALIVE = {
    "TCP_KEEPIDLE": "keepalives_idle",
    "TCP_KEEPINTVL": "keepalives_interval",
    "TCP_KEEPCNT": "keepalives_count",
}
_EAGER = "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0"


def require_known(conninfo: Mapping[str, Any]) -> None:
    """Refuse what only libpq understands: the rows then go through Spark."""
    strange = sorted(set(conninfo) - set(_KNOWN))
    if strange:
        raise CannotMatch(f"rows cannot be copied over a connection with {', '.join(strange)}=")
    plain = conninfo.get("sslmode") == "disable" or str(conninfo.get("host", "")).startswith("/")
    if sys.version_info < (3, 11) and not plain:
        # Its TLS hands on several pieces at once, which asyncpg does not expect.
        raise CannotMatch("on Python 3.10 rows are copied with sslmode=disable only")


class Line:
    """A connection to either database, for one copy after the other.

    It has a thread and a loop of its own: whoever copies may be inside one, as in a notebook.
    """

    def __init__(self, source: Mapping[str, Any], target: Mapping[str, Any]) -> None:
        self._addresses = (source, target)
        self._held: list[Any] = [None, None]
        self._loop = asyncio.new_event_loop()
        self._closing: Future[None] | None = None
        threading.Thread(target=self._serve, name="ematix-copy", daemon=True).start()

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def begun(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Let work begin on the line's own thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def source(self) -> Future[Any]:
        """To read from, soon: the connection of the copy before, if it answers, or a new one."""
        return self.begun(self._answering(0))

    def target(self) -> Future[Any]:
        """To write to, likewise."""
        return self.begun(self._answering(1))

    async def _answering(self, side: int) -> Any:
        raw, self._held[side] = self._held[side], None
        if raw is not None:
            try:
                await raw.reset(timeout=_PATIENCE)
                await raw.execute(WATCHFUL, timeout=_PATIENCE)
            except BaseException as error:
                raw.terminate()
                # Cut off while it waited: a new one will tell why.
                if not isinstance(error, Exception):
                    raise
            else:
                self._held[side] = raw
                return raw
        self._held[side] = await _connected(self._addresses[side])
        return self._held[side]

    def close(self) -> None:
        """Hang up on both sides."""
        if self._closing is None:
            self._closing = self.begun(self._closed())
        # Whoever waits here has more to say than that a server does not answer.
        with contextlib.suppress(FuturesTimeout):
            self._closing.result(_PATIENCE)

    async def _closed(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await _ended(*others)
        # The server is told to leave off, which it would not notice before it has rows to send.
        cancels = asyncio.all_tasks() - {asyncio.current_task()}
        if cancels:
            await asyncio.wait(cancels, timeout=_SILENCE)
        for raw in self._held:
            if raw is not None:
                raw.terminate()
        self._loop.call_soon(self._loop.stop)


class Relay:
    """One copy, from a query of one database into a table of another.

    The source is connected to from the start, while the caller decides what to copy; it is read
    from ``begin`` on, while the caller makes the table and the target is connected to.
    """

    def __init__(self, line: Line, *, source_error: Translate, target_error: Translate) -> None:
        self._line = line
        self._source = line.source()
        self._source_error, self._target_error = source_error, target_error
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)
        self._size = 0
        self.done = False

    def begin(self, query: str, *, parallel: bool = False) -> None:
        """Start to read the rows of the query; a few pieces of them may wait for the table."""
        self._target = self._line.target()
        self._read_from(query, parallel=parallel)

    def _read_from(self, query: str, *, parallel: bool = False) -> None:
        before = f"{_READER}; {_EAGER}" if parallel else _READER

        async def begun() -> None:
            self._reading = asyncio.ensure_future(self._read(before, query))
            # Nobody will ask for its error if there never is a table.
            self._reading.add_done_callback(lambda read: read.cancelled() or read.exception())

        self._line.begun(begun())

    def arriving(self, query: str) -> Iterator[bytes]:
        """The rows of a query, for somebody who writes them himself; the first are there.

        A piece is of whole rows, and empty where there was none for a while.
        """
        self._read_from(query)
        while (first := self._line.begun(self._next()).result()) == b"":
            pass
        return self._from(first)

    def _from(self, piece: bytes | None) -> Iterator[bytes]:
        while piece is not None:
            yield piece
            piece = self._line.begun(self._next()).result()
        self.done = True

    async def _next(self) -> bytes | None:
        piece = asyncio.ensure_future(self._pieces.get())
        try:
            either = (piece, self._reading)
            done, _ = await asyncio.wait(
                either, timeout=_SILENCE, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return b""
            if not piece.done():
                self._reading.result()
            return await piece
        finally:
            await _ended(piece)

    def copy(self, schema: str, table: str, columns: Sequence[str]) -> tuple[int, int]:
        """All rows of the query into the table, or none; how many rows and bytes they were."""
        ended = threading.Event()

        async def told() -> tuple[int, int]:
            try:
                return await self._copied(schema, table, columns)
            finally:
                ended.set()

        future = self._line.begun(told())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            ended.wait(_PATIENCE)
            # What was being written may hold locks on the table, which is to be dropped now.
            self._line.close()
            raise

    async def _copied(self, schema: str, table: str, columns: Sequence[str]) -> tuple[int, int]:
        read = self._reading
        written = asyncio.ensure_future(self._write(schema, table, columns))
        try:
            done, _ = await asyncio.wait((read, written), return_when=asyncio.FIRST_EXCEPTION)
            for task in (read, written):
                if task in done:
                    task.result()
            self.done = True
            return written.result(), self._size
        finally:
            await _ended(read, written)

    async def _read(self, before: str, query: str) -> None:
        try:
            raw = await asyncio.wrap_future(self._source)
            await raw.execute(before)
            await raw.copy_from_query(query, output=self._take, format="binary")
        except Exception as error:
            known = self._source_error(error)
            if isinstance(known, BadValue):
                known.from_source = True
            raise (known or error) from error
        await self._pieces.put(None)

    async def _take(self, piece: bytes) -> None:
        await self._pieces.put(piece)
        if len(piece) < _SMALL:
            # The source is slow: let more come together, or its every packet is an errand.
            await asyncio.sleep(_PAUSE)

    async def _write(self, schema: str, table: str, columns: Sequence[str]) -> int:
        async def arriving() -> AsyncIterator[bytes]:
            while (piece := await self._pieces.get()) is not None:
                self._size += len(piece)
                yield piece

        try:
            raw = await asyncio.wrap_future(self._target)
            told: str = await raw.copy_to_table(
                table, schema_name=schema, columns=columns, source=arriving(), format="binary"
            )
        except Exception as error:
            raise (self._target_error(error) or error) from error
        return int(told.rpartition(" ")[2])


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _connected(conninfo: Mapping[str, Any]) -> Any:
    import asyncpg

    options = {k: conninfo[k] for k in _PLAIN if k in conninfo}
    tls = {k: str(conninfo[k]) for k in _TLS if k in conninfo}
    raw = await asyncpg.connect(
        f"postgresql:///?{urlencode(tls)}" if tls else None,
        database=conninfo.get("dbname"),
        timeout=float(conninfo.get("connect_timeout", 10)),
        # No other settings: a connection pool in between would refuse them at this point.
        server_settings={"application_name": conninfo["application_name"], "timezone": "UTC"},
        **options,
    )
    try:
        _watch(raw._transport.get_extra_info("socket"))
        await raw.execute(WATCHFUL)
    except BaseException:
        raw.terminate()
        raise
    return raw


def _watch(line: Any) -> None:
    """What libpq does by itself: miss a server that has gone without a word."""
    if line.family == socket.AF_UNIX:
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, name in _KEEPALIVE.items():
        # Not every system has them.
        if hasattr(socket, option):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), WATCHFUL_HERE[name])
