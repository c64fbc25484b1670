"""The task that copies one partition into a Postgres staging table; it runs on executors."""

from __future__ import annotations

import hashlib
import itertools
import select
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow import types as t
from ematix_flow.backends.postgres_errors import translate

if TYPE_CHECKING:
    import pyarrow


# A machine that goes without a word is missed by the other side in minutes, not in the hours that
# its locks would be held: what the server is told, and libpq here.
WATCHFUL = (
    "SET tcp_keepalives_idle = 60; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 6"
)
WATCHFUL_HERE = {"keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 6}
# Around the tuples, of which there may be none.
_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
# How long rows are sent before the server is asked what it thinks of them.
_STATEMENT_SECONDS = 1.0
# How often another attempt is looked at, and how long it may send nothing.
_LOOK_SECONDS = 3
_SILENT_SECONDS = 12.0
_OTHERS = (
    "SELECT a.pid, coalesce(p.bytes_processed, 0) FROM pg_stat_activity a "
    "LEFT JOIN pg_stat_progress_copy p ON p.pid = a.pid "
    "WHERE a.application_name = %s AND a.usename = current_user AND a.pid <> pg_backend_pid() "
    "AND a.xact_start IS NOT NULL AND cardinality(pg_blocking_pids(a.pid)) = 0"
)
# Binary ``jsonb`` begins with the number of its version.
_JSONB = "chr(1)"


def copied_value(column: str, kind: t.ColumnType) -> str:
    """Spark SQL for a value that is written in the bytes Postgres reads."""
    if isinstance(kind, t.JSONB):
        return f"concat({_JSONB}, {column})"
    if isinstance(kind, t.Array):
        return f"concat({_JSONB}, to_json(CAST({column} AS ARRAY<STRING>)))"
    if isinstance(kind, t.UUID):
        return f"unhex(replace({column}, '-', ''))"
    if isinstance(kind, t.Time):
        hours, minutes, seconds = (f"split_part({column}, ':', {i})" for i in (1, 2, 3))
        whole = f"CAST({hours} AS BIGINT) * 3600 + CAST({minutes} AS BIGINT) * 60"
        return f"({whole}) * 1000000 + CAST(CAST({seconds} AS DECIMAL(8, 6)) * 1000000 AS BIGINT)"
    return column


def send_all(connection: Any) -> None:
    """Wait until the server has what was written: it would pile up here otherwise."""
    line = connection.pgconn
    ready = select.poll()
    ready.register(line.socket, select.POLLIN | select.POLLOUT)
    while line.flush():
        if any(event & select.POLLIN for _, event in ready.poll()):
            line.consume_input()


def copy_pieces(cursor: Any, statement: str, pieces: Iterator[bytes]) -> tuple[int, int]:
    """Copy what another ``COPY`` sends, in pieces of whole rows; how many rows and bytes.

    A server refuses a row at once, but libpq tells so only at the end of a statement. So there are
    several, and what is refused is not sent to its end.
    """
    rows = size = 0
    header = b""
    piece: bytes | None = next(pieces)
    while piece is not None:
        with cursor.copy(statement) as copy:
            until = time.monotonic() + _STATEMENT_SECONDS
            copy.write(header)
            while True:
                copy.write(piece)
                send_all(cursor.connection)
                size += len(piece)
                piece = next(pieces, None)
                if piece is None or time.monotonic() >= until:
                    break
            if piece is not None:
                copy.write(_TRAILER)
        rows += cursor.rowcount
        header = _HEADER
    return rows, size


@dataclass(frozen=True, repr=False)
class CopyTask:
    """Copies a partition in one transaction; a second attempt at it changes nothing."""

    conninfo: Mapping[str, Any]
    stage: str
    parts: str
    connection: str

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Copy all batches; one row with the number of rows and bytes."""
        import psycopg
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context else 0
        try:
            named = {**WATCHFUL_HERE, **self.conninfo, "application_name": self._mark(part)}
            with psycopg.connect(**named) as connection:
                # Whatever the database or the user prefers: what follows is UTF-8.
                connection.execute(
                    f"SET TIME ZONE 'UTC'; SET client_encoding TO 'UTF8'; {WATCHFUL}"
                )
                rows, size = self._copy(connection, part, batches)
        except psycopg.Error as error:
            raise (translate(error, self.connection, {}) or error) from None
        yield pa.record_batch({"rows": [rows], "bytes": [size]})

    def _mark(self, part: int) -> str:
        """By which attempts at one partition know each other on the server."""
        return f"ematix-flow {hashlib.sha256(self.stage.encode()).hexdigest()[:24]} {part}"

    def _claimed(self, connection: Any, part: int) -> bool:
        """Whether this attempt is the one that counts; another that is under way is waited for.

        One that has sent nothing for a while is of a machine that is gone or stands still: nothing
        else would tell the server so.
        """
        import psycopg

        seen: dict[int, tuple[object, float]] = {}
        while True:
            connection.execute(f"SET LOCAL lock_timeout = '{_LOOK_SECONDS}s'")
            try:
                claimed = connection.execute(
                    f"INSERT INTO {self.parts} (part) VALUES (%s) ON CONFLICT DO NOTHING", (part,)
                )
            except psycopg.errors.LockNotAvailable:
                connection.rollback()
            else:
                connection.execute("SET LOCAL lock_timeout = 0")
                return bool(claimed.rowcount)
            found = connection.execute(_OTHERS, (self._mark(part),)).fetchall()
            now = time.monotonic()
            # Who has moved on since the last look is given all the time again.
            seen = {
                pid: seen[pid] if seen.get(pid, (None, 0))[0] == sent else (sent, now)
                for pid, sent in found
            }
            for pid, (_, since) in seen.items():
                if now - since > _SILENT_SECONDS:
                    connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            connection.rollback()

    def _copy(
        self, connection: Any, part: int, batches: Iterator[pyarrow.RecordBatch]
    ) -> tuple[int, int]:
        from pgpq import ArrowToPostgresBinaryEncoder

        # Who has claimed a partition must have something to send: others take silence for death.
        batches = itertools.chain([first] if (first := next(batches, None)) else (), batches)
        if not self._claimed(connection, part):
            # An earlier attempt at this partition committed and its answer was lost.
            return sum(batch.num_rows for batch in batches), 0
        rows = size = 0
        encoder = None
        with connection.cursor().copy(f"COPY {self.stage} FROM STDIN (FORMAT binary)") as copy:
            for batch in batches:
                if encoder is None:
                    encoder = ArrowToPostgresBinaryEncoder(batch.schema)
                    copy.write(encoder.write_header())
                written = encoder.write_batch(batch)
                copy.write(written)
                send_all(connection)
                rows += batch.num_rows
                size += len(written)
            # The encoder keeps back what is too little to send.
            rest = _HEADER + _TRAILER if encoder is None else encoder.finish()
            copy.write(rest)
        return rows, size + len(rest)
