"""The task that copies one partition into a Postgres staging table; it runs on executors."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow import types as t
from ematix_flow.backends.postgres_errors import translate

if TYPE_CHECKING:
    import pyarrow


def copied_value(column: str, kind: t.ColumnType) -> str:
    """Spark SQL for a value as Postgres reads it in text."""
    if isinstance(kind, t.Bytes):
        return f"concat('\\\\x', hex({column}))"
    if isinstance(kind, t.Array):
        return f"to_json(CAST({column} AS ARRAY<STRING>))"
    if isinstance(kind, t.TimestampTZ):
        return f"concat(CAST({column} AS STRING), '+00')"
    return f"CAST({column} AS STRING)"


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
            with psycopg.connect(
                **self.conninfo, application_name="ematix-flow", options="-c TimeZone=UTC"
            ) as connection:
                rows, size = self._copy(connection, part, batches)
        except psycopg.Error as error:
            raise (translate(error, self.connection, {}) or error) from None
        yield pa.record_batch({"rows": [rows], "bytes": [size]})

    def _copy(
        self, connection: Any, part: int, batches: Iterator[pyarrow.RecordBatch]
    ) -> tuple[int, int]:
        from pyarrow import csv

        # NULL is an empty field without quotes, so that an empty string stays one.
        options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
        first = connection.execute(
            f"INSERT INTO {self.parts} (part) VALUES (%s) ON CONFLICT DO NOTHING", (part,)
        )
        if first.rowcount == 0:
            # An earlier attempt at this partition committed and its answer was lost.
            return sum(batch.num_rows for batch in batches), 0
        rows = size = 0
        with connection.cursor().copy(f"COPY {self.stage} FROM STDIN (FORMAT csv)") as copy:
            for batch in batches:
                buffer = io.BytesIO()
                csv.write_csv(batch, buffer, options)
                copy.write(buffer.getvalue())
                rows += batch.num_rows
                size += buffer.tell()
        return rows, size
