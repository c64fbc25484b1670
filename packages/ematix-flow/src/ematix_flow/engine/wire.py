"""Rows between the driver's disk and executors that cannot see it.

A file goes to executors by Spark's own file server, and rows come back in Arrow batches; both ways
are authenticated and encrypted as the cluster is, and neither needs more memory than a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

    from ematix_flow.engine.classic import ClassicEngine


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


def sent(engine: ClassicEngine, file: Path) -> DataFrame:
    """The rows of a Parquet file on this machine, read by executors."""
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import from_arrow_schema

    spark: Any = engine.spark
    with pq.ParquetFile(file) as opened:
        groups, schema = opened.num_row_groups, _signed(opened.schema_arrow)
    kinds = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if groups == 0:
        return spark.createDataFrame([], kinds)  # type: ignore[no-any-return]
    # A name of its own: executors keep what they were sent, by name.
    named = engine.workspace.folder("sent") / f"{uuid4().hex}.parquet"
    os.link(file, named) if _same_device(file, named.parent) else _copy(file, named)
    spark.sparkContext.addFile(str(named))
    numbers = spark.range(0, groups, 1, groups)
    return numbers.mapInArrow(_ReadGroups(named.name, schema), kinds)  # type: ignore[no-any-return]


def fetched(rows: DataFrame, folder: Path) -> None:
    """Write rows to a Parquet file on this machine, in the order of their partitions."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark import StorageLevel
    from pyspark.sql.pandas.types import to_arrow_schema

    folder.mkdir(mode=0o700)
    packed = rows.mapInArrow(_packed, "batch BINARY").persist(StorageLevel.DISK_ONLY)
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    try:
        # All partitions at once; afterwards they come here one by one.
        packed.count()
        with pq.ParquetWriter(folder / "part-0.parquet", schema) as writer:
            for row in packed.toLocalIterator():
                with pa.ipc.open_stream(row[0]) as stream:
                    for batch in stream:
                        writer.write_batch(batch.cast(schema))
    finally:
        packed.unpersist()


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


def _same_device(file: Path, folder: Path) -> bool:
    return file.stat().st_dev == folder.stat().st_dev


def _copy(file: Path, named: Path) -> None:
    import shutil

    shutil.copyfile(file, named)
