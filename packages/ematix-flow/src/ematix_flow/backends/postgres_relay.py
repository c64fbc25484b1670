"""Rows from one PostgreSQL database straight into another: ``COPY`` to ``COPY``, in binary.

Nobody looks at the rows on the way. asyncpg hands on whatever has arrived, many rows at once, where
libpq would give them out one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ematix_flow.sql.normalizers import CannotMatch

if TYPE_CHECKING:
    from ematix_flow.errors import EmatixError

Translate = Callable[[Exception], "EmatixError | None"]

_PLAIN = ("host", "port", "user", "password")
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_KNOWN = (*_PLAIN, *_TLS, "dbname", "connect_timeout", "application_name")
# As many pieces as may wait for the slower side; each is a quarter of a megabyte at most.
_WAITING = 16
_PATIENCE = 10.0
_READ_ONLY = "SET default_transaction_read_only = on"
_EAGER = "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0"


def require_known(conninfo: Mapping[str, Any]) -> None:
    """Refuse what only libpq understands: the rows then go through Spark."""
    strange = sorted(set(conninfo) - set(_KNOWN))
    if strange:
        raise CannotMatch(f"rows cannot be copied over a connection with {', '.join(strange)}=")


class Relay:
    """One copy, from a query of one database into a table of another.

    It has a thread and a loop of its own: the caller may be inside one, as in a notebook. Both
    sides are connected to from the start, while the caller prepares the table.
    """

    def __init__(
        self,
        source: Mapping[str, Any],
        target: Mapping[str, Any],
        *,
        source_error: Translate,
        target_error: Translate,
    ) -> None:
        self._addresses = (source, target)
        self._source_error, self._target_error = source_error, target_error
        self._size = 0

    def __enter__(self) -> Relay:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="ematix-copy", daemon=True
        )
        self._thread.start()
        self._source, self._target = (
            asyncio.run_coroutine_threadsafe(_connected(address), self._loop)
            for address in self._addresses
        )
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._closed(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def copy(
        self, query: str, schema: str, table: str, *, parallel: bool = False
    ) -> tuple[int, int]:
        """All rows of the query into the table, or none; how many rows and bytes they were."""
        before = f"{_READ_ONLY}; {_EAGER}" if parallel else _READ_ONLY
        ended = threading.Event()

        async def told() -> tuple[int, int]:
            try:
                return await self._copied(before, query, schema, table)
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(told(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            ended.wait(_PATIENCE)
            raise

    async def _copied(self, before: str, query: str, schema: str, table: str) -> tuple[int, int]:
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)
        read = asyncio.ensure_future(self._read(before, query, pieces))
        written = asyncio.ensure_future(self._write(schema, table, pieces))
        try:
            done, _ = await asyncio.wait((read, written), return_when=asyncio.FIRST_EXCEPTION)
            for task in (read, written):
                if task in done:
                    task.result()
            return written.result(), self._size
        finally:
            for task in (read, written):
                task.cancel()
            await asyncio.gather(read, written, return_exceptions=True)

    async def _read(self, before: str, query: str, pieces: asyncio.Queue[bytes | None]) -> None:
        try:
            raw = await asyncio.wrap_future(self._source)
            await raw.execute(before)
            await raw.copy_from_query(query, output=pieces.put, format="binary")
        except Exception as error:
            raise (self._source_error(error) or error) from error
        await pieces.put(None)

    async def _write(self, schema: str, table: str, pieces: asyncio.Queue[bytes | None]) -> int:
        async def arriving() -> AsyncIterator[bytes]:
            while (piece := await pieces.get()) is not None:
                self._size += len(piece)
                yield piece

        try:
            raw = await asyncio.wrap_future(self._target)
            told: str = await raw.copy_to_table(
                table, schema_name=schema, source=arriving(), format="binary"
            )
        except Exception as error:
            raise (self._target_error(error) or error) from error
        return int(told.rpartition(" ")[2])

    async def _closed(self) -> None:
        for side in (self._source, self._target):
            side.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                (await asyncio.wrap_future(side)).terminate()


async def _connected(conninfo: Mapping[str, Any]) -> Any:
    import asyncpg

    options = {k: conninfo[k] for k in _PLAIN if k in conninfo}
    tls = {k: str(conninfo[k]) for k in _TLS if k in conninfo}
    return await asyncpg.connect(
        f"postgresql:///?{urlencode(tls)}" if tls else None,
        database=conninfo.get("dbname"),
        timeout=float(conninfo.get("connect_timeout", 10)),
        # No other settings: a connection pool in between would refuse them at this point.
        server_settings={"application_name": "ematix-flow", "timezone": "UTC"},
        **options,
    )
