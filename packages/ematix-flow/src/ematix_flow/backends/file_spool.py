"""Files that this process reads for Sail: which these are, and how they get there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from ematix_flow.backends.spool import spool_folder
from ematix_flow.errors import DataError
from ematix_flow.sql.spark import quote

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.file_options import FileFormat

_BLOCK = 16 << 20


def why_spark(form: FileFormat, files: Sequence[Path]) -> str | None:
    """Why only Spark reads these files; None where there is but one way to read them."""
    if form.format == "parquet":
        return next(filter(None, map(_parquet, files)), None)
    if form.format != "csv":
        return f"the files are {form.format}"
    options = (form.escape, form.terminator, form.comment, form.null_regex)
    if any(option is not None for option in options) or form.truncated_rows_ok:
        return "the CSV files are read with options of their own"
    if len(form.delimiter.encode()) > 1:
        return "the CSV files are not separated by one ASCII character"
    return next(filter(None, (_csv(file, form) for file in files)), None)


def _parquet(file: Path) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as held:
            schema, leaves = held.schema_arrow, held.schema
            old = any(leaves.column(i).physical_type == "INT96" for i in range(len(leaves)))
    except (pa.ArrowInvalid, OSError):
        return None  # the run says what is wrong
    other = next((field for field in schema if not _is_plain(field.type)), None)
    if old or other is not None:
        return f"{file} has columns of type {'INT96' if other is None else other.type}"
    return None


def _is_plain(kind: pyarrow.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return kind.unit == "us" and kind.tz in (None, "UTC")
    return (
        kind in (pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
        or kind in (pa.string(), pa.binary(), pa.date32())
        or pa.types.is_decimal128(kind)
    )


def _csv(file: Path, form: FileFormat) -> str | None:
    """A file whose every line is a row and whose every field is what stands between separators."""
    if file.suffix.lower() not in (".csv", ".tsv"):
        return f"{file} may be compressed"
    ends: set[bytes] = set()
    mark, between = form.quote.encode(), re.escape(form.delimiter.encode())
    exponent = re.compile(
        rb"(?:^|%b)\s*[+-]?[0-9.]+[eE][+-]?[0-9]+\s*(?:$|%b)" % (between, between)
    )
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines):
                if mark in line:
                    return f"{file} has quoted fields"
                if number == 0 and line.startswith(b"\xef\xbb\xbf"):
                    return f"{file} begins with a byte order mark"
                fields = line.removesuffix(b"\n").removesuffix(b"\r")
                if number == 0 and form.header and not fields:
                    return f"{file} does not begin with its header"
                ends.add(line[len(fields) :])
                if exponent.search(fields):
                    return f"{file} has numbers with exponents"
                odd = b"\r" in fields or b"\0" in fields or (fields and not fields.strip())
                if odd or len(ends - {b""}) > 1:
                    return f"{file} has line ends or blank lines that Spark reads in its own way"
    except OSError:
        return None  # the run says what is wrong
    return None


def spooled_rows(
    spark: SparkSession, form: FileFormat, files: Sequence[Path], columns: Sequence[tuple[str, str]]
) -> DataFrame:
    """The rows of files, read by this process; ``columns`` are their names and Spark types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    spool = spool_folder() / f"{uuid4().hex}.parquet"
    numbered = [f"c{i}" for i in range(len(columns))]
    if form.format == "csv":
        schema = pa.schema([(name, pa.string()) for name in numbered])
        batches = _csv_batches(form, files, schema)
    else:
        names = [name for name, _ in columns]
        with pq.ParquetFile(files[0]) as first:
            kinds = [first.schema_arrow.field(name).type for name in names]
        schema = pa.schema(list(zip(numbered, kinds, strict=True)))
        batches = _parquet_batches(files, names)
    with pq.ParquetWriter(spool, schema) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch(batch.columns, schema=schema))
    rows = spark.read.parquet(spool.as_uri())
    return rows.selectExpr(
        *(f"CAST(c{i} AS {kind}) AS {quote(name)}" for i, (name, kind) in enumerate(columns))
    )


def _parquet_batches(files: Sequence[Path], names: list[str]) -> Iterator[pyarrow.RecordBatch]:
    """A damaged page is an error here, and would be wrong numbers to an engine that trusts it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files:
        try:
            with pq.ParquetFile(file, page_checksum_verification=True) as held:
                for batch in held.iter_batches(columns=names):
                    yield batch.select(names)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"file {file} is damaged: {str(error).splitlines()[0]}", fix="write it again"
            ) from error


def _csv_batches(
    form: FileFormat, files: Sequence[Path], schema: pyarrow.Schema
) -> Iterator[pyarrow.RecordBatch]:
    """The fields as text; an empty one is NULL, as it is to Spark."""
    import pyarrow as pa
    from pyarrow import csv

    empty = ["", form.null_value] if form.null_value else [""]
    for file in files:
        try:
            reader = csv.open_csv(
                file,
                read_options=csv.ReadOptions(
                    column_names=schema.names, skip_rows=int(form.header), block_size=_BLOCK
                ),
                parse_options=csv.ParseOptions(delimiter=form.delimiter, quote_char=False),
                convert_options=csv.ConvertOptions(
                    column_types=schema, null_values=empty, strings_can_be_null=True
                ),
            )
            yield from reader
        except pa.ArrowInvalid as error:
            if "Empty CSV file" not in str(error):
                raise DataError(
                    f"{file} is not a table: {str(error).splitlines()[0]}",
                    fix="give every row as many fields as the header",
                ) from error
