"""Rows between the driver's disk and executors that cannot see it.

A file goes to executors by Spark's own file server, and rows come back in Arrow batches; both ways
are authenticated and encrypted as the cluster is, and neither needs more memory than a batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

    from ematix_flow.engine.remote import RemoteEngine
    from ematix_flow.engine.spread import SpreadEngine

    FarEngine: TypeAlias = RemoteEngine | SpreadEngine


@dataclass(frozen=True)
class _ReadGroups:
    """Reads row groups of a file that was sent to the machine of the task."""

    name: str
    schema: pyarrow.Schema

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow.parquet as pq
        from pyspark import SparkFiles

        with pq.ParquetFile(SparkFiles.get(self.name)) as file:
            for batch in batches:
                for group in batch.column(0).to_pylist():
                    for rows in file.iter_batches(row_groups=[group]):
                        yield rows.cast(self.schema)


def sent(engine: FarEngine, file: Path) -> DataFrame:
    """The rows of a Parquet file on this machine, read by executors."""
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import from_arrow_schema

    spark: Any = engine.spark
    with pq.ParquetFile(file) as opened:
        groups, schema = opened.num_row_groups, _signed(opened.schema_arrow)
    kinds = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if groups == 0:
        return spark.createDataFrame([], kinds)  # type: ignore[no-any-return]
    name = engine.send_file(file)
    numbers = spark.range(0, groups, 1, groups)
    return numbers.mapInArrow(_ReadGroups(name, schema), kinds)  # type: ignore[no-any-return]


def fetched(engine: FarEngine, rows: DataFrame, folder: Path) -> None:
    """Write rows to a Parquet file on this machine, in the order of their partitions."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema

    folder.mkdir(mode=0o700)
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    packed = engine.bring(rows.mapInArrow(_packed, "batch BINARY"))
    with contextlib.closing(packed), pq.ParquetWriter(folder / "part-0.parquet", schema) as writer:
        for content in packed:
            with pa.ipc.open_stream(content) as stream:
                for batch in stream:
                    writer.write_batch(batch.cast(schema))


def _packed(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.record_batch({"batch": [sink.getvalue().to_pybytes()]})


def _signed(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Spark has no unsigned numbers: the next larger ones hold them."""
    import pyarrow as pa

    larger = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
    }
    return pa.schema([pa.field(f.name, larger.get(f.type, f.type), f.nullable) for f in schema])
