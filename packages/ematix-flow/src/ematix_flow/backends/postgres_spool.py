"""Rows of PostgreSQL as a Parquet file, copied in one stream by this process."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow import types as t
from ematix_flow.errors import DataError
from ematix_flow.sql.spark import spark_ddl

if TYPE_CHECKING:
    import pyarrow

_BLOCK = 16 << 20
# Of two texts for one number the exact one, and none that depends on where the server stands.
_SESSION = {
    "extra_float_digits": "1",
    "datestyle": "ISO, MDY",
    "timezone": "UTC",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
}


def copied_text(value: str, kind: t.ColumnType | None) -> str:
    """SQL for a value whose text in a ``COPY`` says all of it."""
    return f"encode({value}, 'hex')" if isinstance(kind, t.Bytes) else value


def spool_copy(raw: Any, select: str, kinds: Sequence[t.ColumnType | None], file: Path) -> None:
    """Copy the rows of a query; the columns are called ``c0``, ``c1`` and so on."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = [_arrow_type(kind) for kind in kinds]
    names = [f"c{i}" for i in range(len(types))]
    schema = pa.schema(list(zip(names, types, strict=True)))
    read = [pa.string() if pa.types.is_binary(held) else held for held in types]
    statement = f"COPY ({select}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')"
    with raw.cursor() as cursor:
        # The connection is kept for others, who have settings of their own.
        cursor.execute("BEGIN READ ONLY")
        try:
            for name, value in _SESSION.items():
                cursor.execute("SELECT set_config(%s, %s, true)", (name, value))
            with cursor.copy(statement) as copy, pq.ParquetWriter(file, schema) as writer:
                for batch in _read(iter(copy), dict(zip(names, read, strict=True))):
                    writer.write_batch(_in_types(batch, schema))
        except pa.ArrowInvalid as error:
            raise DataError(
                f"a value of the source is none for Sail: {str(error).splitlines()[0]}",
                fix="run it on Spark, with --engine local",
            ) from error
        finally:
            cursor.execute("ROLLBACK")


def _read(
    pieces: Iterator[Any], types: dict[str, pyarrow.DataType]
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a ``COPY``; what is not quoted and empty is NULL, as Postgres writes it."""
    from pyarrow import csv

    stream = io.BufferedReader(_Copied(pieces), _BLOCK)
    if not stream.peek(1):
        return
    yield from csv.open_csv(
        stream,
        read_options=csv.ReadOptions(column_names=list(types), block_size=_BLOCK),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )


def _arrow_type(kind: t.ColumnType | None) -> pyarrow.DataType:
    """The Arrow type of a column on its way; what Spark would get as text is text."""
    import pyarrow as pa

    if isinstance(kind, t.Numeric):
        return pa.decimal128(kind.precision, kind.scale)
    known: dict[str, pyarrow.DataType] = {
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "TIMESTAMP_NTZ": pa.timestamp("us"),
        "BINARY": pa.binary(),
    }
    if kind is None or isinstance(kind, t.Array):
        return pa.string()
    return known.get(spark_ddl(kind), pa.string())


def _in_types(batch: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow as pa

    columns = []
    for field, held in zip(schema, batch.columns, strict=True):
        column: Any = held
        if pa.types.is_binary(field.type):
            texts = held.to_pylist()
            column = pa.array([None if x is None else bytes.fromhex(x) for x in texts], pa.binary())
        columns.append(column)
    return pa.record_batch(columns, schema=schema)


class _Copied(io.RawIOBase):
    """The pieces of a ``COPY`` as one stream of bytes."""

    def __init__(self, pieces: Iterator[Any]) -> None:
        super().__init__()
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is for nothing else."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As much as fits of what has come."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(bytes(piece))
        taken = min(len(buffer), len(self._rest))
        buffer[:taken] = self._rest[:taken]
        self._rest = self._rest[taken:]
        return taken
