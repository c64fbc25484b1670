"""The task that sends one partition to a MySQL staging table; it runs on executors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.mysql_errors import refuses_local_files, translate
from ematix_flow.backends.mysql_session import connected
from ematix_flow.sql.identifiers import quoted

if TYPE_CHECKING:
    import pyarrow

_FILE_BYTES = 32 * 1024 * 1024
_INSERT_BYTES = 512 * 1024

_LOCK_WAIT = 1205
# Each of them waits for as long as the server lets one wait for a lock.
_PATIENT_ATTEMPTS = 10


@dataclass(frozen=True, repr=False)
class LoadTask:
    r"""Loads a partition in one transaction; a second attempt at it changes nothing.

    Its rows are lines as ``LOAD DATA`` reads them: tabs between values, ``\N`` for NULL.
    """

    arguments: Mapping[str, Any]
    stage: str
    parts: str
    columns: tuple[str, ...]
    hexadecimal: frozenset[str]
    connection: str

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Load all batches; one row with the number of rows and bytes."""
        import pyarrow as pa
        import pymysql
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context else 0
        try:
            raw = connected(self.arguments, sends_files=True)
            try:
                rows, size = self._load(raw, part, batches)
            finally:
                raw.close()
        except pymysql.Error as error:
            raise (translate(error, self.connection, self.arguments) or error) from None
        yield pa.record_batch({"rows": [rows], "bytes": [size]})

    def _load(self, raw: Any, part: int, batches: Iterator[pyarrow.RecordBatch]) -> tuple[int, int]:
        with raw.cursor() as cursor:
            # Known at once, so that whoever sweeps this stage can end this connection.
            cursor.execute(f"INSERT INTO {self.parts} (session) VALUES (CONNECTION_ID())")
            if not self._claimed(raw, cursor, part):
                # An earlier attempt at this partition committed and its answer was lost.
                return sum(batch.num_rows for batch in batches), 0
            rows = size = 0
            for count, lines in _gathered(batches):
                self._send(cursor, lines, count)
                rows += count
                size += len(lines)
            raw.commit()
            return rows, size

    def _claimed(self, raw: Any, cursor: Any, part: int) -> bool:
        """Whether this attempt is the one that counts; another that is under way is waited for."""
        import pymysql

        for attempt in range(_PATIENT_ATTEMPTS):
            raw.begin()
            try:
                cursor.execute(f"INSERT IGNORE INTO {self.parts} (part) VALUES (%s)", (part,))
            except pymysql.OperationalError as error:
                if error.args[0] != _LOCK_WAIT or attempt == _PATIENT_ATTEMPTS - 1:
                    raise
                raw.rollback()
            else:
                break
        return bool(cursor.rowcount)

    def _send(self, cursor: Any, lines: bytes, count: int) -> None:
        import pymysql

        try:
            self._send_file(cursor, lines, count)
        except pymysql.Error as error:
            if not refuses_local_files(error):
                raise
            self._insert(cursor, lines)

    def _send_file(self, cursor: Any, lines: bytes, count: int) -> None:
        import pymysql

        # The file has no name, so that nothing of it stays when this process is killed.
        with tempfile.TemporaryFile() as file:
            file.write(lines)
            file.flush()
            file.seek(0)
            loaded = cursor.execute(self._statement(), (f"/dev/fd/{file.fileno()}",))
        # What would stop any other statement is only a warning when a client sends the file.
        cursor.execute("SHOW WARNINGS LIMIT 1")
        for _, number, text in cursor.fetchall():
            raise pymysql.DataError(number, text)
        if loaded != count:
            raise pymysql.OperationalError(0, f"{count} rows were sent and {loaded} arrived")

    def _statement(self) -> str:
        fields = [
            f"@v{i}" if name in self.hexadecimal else quoted(name, "mysql").replace("%", "%%")
            for i, name in enumerate(self.columns)
        ]
        decoded = [
            f"{quoted(name, 'mysql').replace('%', '%%')} = UNHEX(@v{i})"
            for i, name in enumerate(self.columns)
            if name in self.hexadecimal
        ]
        settings = f" SET {', '.join(decoded)}" if decoded else ""
        return (
            f"LOAD DATA LOCAL INFILE %s INTO TABLE {self.stage} CHARACTER SET utf8mb4 "
            rf"FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' "
            f"({', '.join(fields)}){settings}"
        )

    def _insert(self, cursor: Any, lines: bytes) -> None:
        """Rows as literals, for servers that take no files: the escapes are the same."""
        head = f"INSERT INTO {self.stage} ({', '.join(quoted(c, 'mysql') for c in self.columns)})"
        waiting: list[str] = []
        size = 0
        for line in lines.decode("utf-8").split("\n")[:-1]:
            row = f"({', '.join(self._literals(line.split(chr(9))))})"
            if size + len(row) > _INSERT_BYTES and waiting:
                cursor.execute(f"{head} VALUES {', '.join(waiting)}")
                waiting, size = [], 0
            waiting.append(row)
            size += len(row)
        if waiting:
            cursor.execute(f"{head} VALUES {', '.join(waiting)}")

    def _literals(self, fields: Sequence[str]) -> Iterator[str]:
        for name, field in zip(self.columns, fields, strict=True):
            if field == r"\N":
                yield "NULL"
            elif name in self.hexadecimal:
                yield f"x'{field}'"
            else:
                yield "'" + field.replace("'", r"\'") + "'"


def _gathered(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Lines and how many they are, in pieces that one file can hold."""
    held: list[bytes] = []
    rows = size = 0
    for batch in batches:
        lines = _data(batch.column(0))
        held.append(lines)
        rows += batch.num_rows
        size += len(lines)
        if size >= _FILE_BYTES:
            yield rows, b"".join(held)
            held, rows, size = [], 0, 0
    if rows:
        yield rows, b"".join(held)


def _data(texts: Any) -> bytes:
    """All texts of an array, end to end; Arrow keeps them so."""
    import pyarrow as pa

    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return b""
    width = 8 if pa.types.is_large_string(texts.type) else 4

    def offset(index: int) -> int:
        start = (texts.offset + index) * width
        return int.from_bytes(offsets[start : start + width].to_pybytes(), "little")

    first, last = offset(0), offset(len(texts))
    return bytes(data[first:last])
