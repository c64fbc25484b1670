"""Rows from one PostgreSQL database straight into another: ``COPY`` to ``COPY``, in binary.

Nobody looks at the rows on the way. asyncpg hands on whatever has arrived, many rows at once, where
libpq would give them out one by one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from ematix_flow.sql.normalizers import CannotMatch

if TYPE_CHECKING:
    from ematix_flow.errors import EmatixError

Translate = Callable[[Exception], "EmatixError | None"]
_Result = TypeVar("_Result")

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
    """One copy, from a query of one database into a table of another."""

    def __init__(
        self,
        source: Mapping[str, Any],
        target: Mapping[str, Any],
        *,
        source_error: Translate,
        target_error: Translate,
        parallel: bool = False,
    ) -> None:
        self._source, self._target = source, target
        self._before = f"{_READ_ONLY}; {_EAGER}" if parallel else _READ_ONLY
        self._source_error, self._target_error = source_error, target_error
        self._size = 0

    def copy(self, query: str, schema: str, table: str) -> tuple[int, int]:
        """All rows of the query into the table, or none; how many rows and bytes they were."""
        return _apart(self._copied(query, schema, table))

    async def _copied(self, query: str, schema: str, table: str) -> tuple[int, int]:
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)
        read = asyncio.ensure_future(self._read(query, pieces))
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

    async def _read(self, query: str, pieces: asyncio.Queue[bytes | None]) -> None:
        try:
            raw = await _connected(self._source)
            try:
                await raw.execute(self._before)
                await raw.copy_from_query(query, output=pieces.put, format="binary")
            finally:
                raw.terminate()
        except Exception as error:
            raise (self._source_error(error) or error) from error
        await pieces.put(None)

    async def _write(self, schema: str, table: str, pieces: asyncio.Queue[bytes | None]) -> int:
        async def arriving() -> AsyncIterator[bytes]:
            while (piece := await pieces.get()) is not None:
                self._size += len(piece)
                yield piece

        try:
            raw = await _connected(self._target)
            try:
                told: str = await raw.copy_to_table(
                    table, schema_name=schema, source=arriving(), format="binary"
                )
            finally:
                raw.terminate()
        except Exception as error:
            raise (self._target_error(error) or error) from error
        return int(told.rpartition(" ")[2])


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


def _apart(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Wait for work that has a loop of its own: the caller may be inside one, as in a notebook."""
    loop, ended = asyncio.new_event_loop(), threading.Event()

    async def told() -> _Result:
        try:
            return await work
        finally:
            ended.set()

    thread = threading.Thread(target=loop.run_forever, name="ematix-copy", daemon=True)
    thread.start()
    future = asyncio.run_coroutine_threadsafe(told(), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        ended.wait(_PATIENCE)
        raise
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
