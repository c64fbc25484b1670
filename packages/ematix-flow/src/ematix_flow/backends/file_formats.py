"""How Spark writes and reads each file format.

Parquet and ORC hold every type natively. CSV holds text and JSON lines hold JSON values, so a
type either has no room for is written in a text form that is read back exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.file_options import FileFormat
from ematix_flow.sql.spark import literal, quote, spark_ddl
from ematix_flow.types import Array, ColumnType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_SPARK_FORMATS = {"parquet": "parquet", "csv": "csv", "orc": "orc", "json_lines": "json"}
# Spark gives a field with nothing in it, as opposed to "", this value: no text of a user is it.
_NOTHING = "\x01\x02ematix nothing\x02\x01"
_INSTANT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_SURPLUS = "_ematix_surplus"


def text_form(column_type: ColumnType, value: str) -> str:
    """Spark SQL that turns a value into the text a CSV field holds."""
    kind = column_type.kind
    if kind == "bytes":
        return f"translate(base64({value}), '\\r\\n', '')"
    if kind == "timestamp":
        shown = f"concat(replace(CAST({value} AS STRING), ' ', 'T'), '.')"
        return f"rpad(substring_index({shown}, '.', 2), instr({shown}, '.') + 6, '0')"
    if kind == "timestamp_tz":
        return f"date_format({value}, {literal(_INSTANT)})"
    if kind == "array":
        return f"to_json({json_form(column_type, value)})"
    return value if spark_ddl(column_type) == "STRING" else f"CAST({value} AS STRING)"


def from_text(column_type: ColumnType, value: str) -> str:
    """The inverse of ``text_form``."""
    kind = column_type.kind
    if kind == "bytes":
        return f"unbase64({value})"
    if kind == "array":
        parsed = f"from_json({value}, {literal(json_ddl(column_type))}, map('mode', 'FAILFAST'))"
        return from_json_form(column_type, parsed)
    return f"CAST({value} AS {spark_ddl(column_type)})"


_TEXT_IN_JSON = ("bytes", "date", "timestamp", "timestamp_tz")


def json_form(column_type: ColumnType, value: str, depth: int = 0) -> str:
    """Spark SQL that turns a value into one that Spark writes as JSON and reads back exactly."""
    if isinstance(column_type, Array):
        if json_ddl(column_type) == spark_ddl(column_type):
            return value
        element = json_form(column_type.element, f"e{depth}", depth + 1)
        return f"transform({value}, e{depth} -> {element})"
    return text_form(column_type, value) if column_type.kind in _TEXT_IN_JSON else value


def from_json_form(column_type: ColumnType, value: str, depth: int = 0) -> str:
    """The inverse of ``json_form``."""
    if isinstance(column_type, Array):
        if json_ddl(column_type) == spark_ddl(column_type):
            return value
        element = from_json_form(column_type.element, f"e{depth}", depth + 1)
        return f"transform({value}, e{depth} -> {element})"
    return from_text(column_type, value) if column_type.kind in _TEXT_IN_JSON else value


def json_ddl(column_type: ColumnType) -> str:
    """The Spark type of what ``json_form`` gives."""
    if isinstance(column_type, Array):
        return f"ARRAY<{json_ddl(column_type.element)}>"
    return "STRING" if column_type.kind in _TEXT_IN_JSON else spark_ddl(column_type)


def orc_ddl(column_type: ColumnType) -> str:
    """The Spark type that ORC files hold.

    Spark would store a timestamp without zone as a bare number, which only Spark understands.
    """
    return spark_ddl(column_type).replace("TIMESTAMP_NTZ", "TIMESTAMP")


def _orc_form(name: str, column_type: ColumnType) -> str:
    value = f"CAST({quote(name)} AS {orc_ddl(column_type)})"
    moved = _is_moved(column_type, quote(name))
    if moved is None:
        return value
    error = literal(
        f"column {name!r}: ORC files cannot hold the days from 1582-10-05 to 1582-10-14, nor "
        "fractions of the last second of 1969"
    )
    return f"CASE WHEN {moved} THEN raise_error({error}) ELSE {value} END"


def _is_moved(column_type: ColumnType, value: str, depth: int = 0) -> str | None:
    """Whether a value is one that ORC would read back as another.

    Its calendar leaves days out, and its writer rounds the second before 1970 the wrong way.
    """
    if isinstance(column_type, Array):
        inner = _is_moved(column_type.element, f"e{depth}", depth + 1)
        return inner and f"exists({value}, e{depth} -> coalesce({inner}, false))"
    if column_type.kind not in ("date", "timestamp", "timestamp_tz"):
        return None
    skipped = f"CAST({value} AS DATE) BETWEEN DATE'1582-10-05' AND DATE'1582-10-14'"
    if column_type.kind == "date":
        return skipped
    instant = f"CAST({value} AS TIMESTAMP_NTZ)"
    last = (
        f"{instant} > TIMESTAMP_NTZ'1969-12-31 23:59:59' AND {instant} < TIMESTAMP_NTZ'1970-01-01'"
    )
    return f"({skipped} OR ({last}))"


def encode(
    rows: DataFrame, columns: Sequence[tuple[str, ColumnType]], form: FileFormat
) -> DataFrame:
    """Rows as they are written in a format."""
    return rows.selectExpr(*(_encoded(name, kind, form) for name, kind in columns))


def _encoded(name: str, column_type: ColumnType, form: FileFormat) -> str:
    value = quote(name)
    if form.format == "json_lines":
        value = json_form(column_type, value)
    elif form.format == "orc":
        value = _orc_form(name, column_type)
    elif form.format == "csv":
        value = text_form(column_type, value)
        if form.null_value is not None:
            clash = literal(
                f"column {name!r}: a value is the text {form.null_value!r}, which is how these "
                "CSV files write NULL; choose another csv_null_value"
            )
            taken = f"{value} = {literal(form.null_value)}"
            value = f"CASE WHEN {taken} THEN raise_error({clash}) ELSE {value} END"
    return f"{value} AS {quote(name)}"


def encoded_ddl(columns: Iterable[tuple[str, ColumnType]], form: FileFormat) -> str:
    """The Spark schema of encoded rows."""
    forms = {"csv": lambda _: "STRING", "json_lines": json_ddl, "orc": orc_ddl}
    ddl = forms.get(form.format, spark_ddl)
    return ", ".join(f"{quote(name)} {ddl(kind)}" for name, kind in columns)


def decoded(column_type: ColumnType, value: str, form: FileFormat) -> str:
    """Spark SQL that turns an encoded value back into the Spark form of its type."""
    if form.format == "csv":
        return from_text(column_type, value)
    if form.format == "orc" and orc_ddl(column_type) != spark_ddl(column_type):
        return f"CAST({value} AS {spark_ddl(column_type)})"
    return from_json_form(column_type, value) if form.format == "json_lines" else value


def write_encoded(rows: DataFrame, form: FileFormat, folder: Path) -> None:
    """Write encoded rows as files of a new folder."""
    options: dict[str, Any] = {}
    if form.format == "parquet":
        # Of zstd the first level: on columns it is about as small as the usual third, and faster.
        options = {"compression": form.compression, "parquet.compression.codec.zstd.level": 1}
    elif form.format == "csv":
        options = {
            **_csv_marks(form),
            "nullValue": form.null_value or "",
            "emptyValue": form.quote * 2,
            "lineSep": "\n",
        }
    elif form.format == "json_lines":
        options = {"ignoreNullFields": False}
    writer = rows.write.options(**options).format(_SPARK_FORMATS[form.format])
    writer.save(f"file://{folder}")


def _csv_marks(form: FileFormat) -> dict[str, Any]:
    return {
        "header": form.header,
        "sep": form.delimiter,
        "quote": form.quote,
        "escape": form.escape or form.quote,
        # Left unset it is NUL, and Spark would drop every NUL inside quotes.
        "charToEscapeQuoteEscaping": form.escape or form.quote,
        "ignoreLeadingWhiteSpace": False,
        "ignoreTrailingWhiteSpace": False,
        "encoding": "UTF-8",
    }


def read_encoded(
    spark: SparkSession,
    form: FileFormat,
    files: Sequence[Path],
    ddl: str,
    *,
    split_lines: bool = False,
) -> DataFrame:
    """Read files with a schema; a record that does not fit it stops the read.

    ``split_lines`` promises that no field of these CSV files spans lines.
    """
    reader = spark.read.format(_SPARK_FORMATS[form.format]).option("recursiveFileLookup", True)
    paths = [spark_path(file) for file in files]
    if form.format == "csv":
        return _read_csv(reader, form, paths, ddl, split_lines=split_lines)
    if form.format == "json_lines":
        reader = reader.option("mode", "FAILFAST")
    elif form.format == "parquet":
        # Without it Spark turns a damaged page into wrong numbers.
        reader = reader.option("parquet.page.verify-checksum.enabled", True)
    return reader.schema(ddl).load(paths)


def _read_csv(
    reader: DataFrameReader, form: FileFormat, paths: list[str], ddl: str, *, split_lines: bool
) -> DataFrame:
    options = {
        **_csv_marks(form),
        "nullValue": _NOTHING if form.null_value is None else form.null_value,
        "emptyValue": "",
        "multiLine": not split_lines,
        "columnPruning": False,
        "enforceSchema": True,
        "mode": "PERMISSIVE" if form.truncated_rows_ok else "FAILFAST",
    }
    if form.terminator is not None:
        options["lineSep"] = form.terminator
    if form.comment is not None:
        options["comment"] = form.comment
    if not form.truncated_rows_ok:
        return reader.options(**options).schema(ddl).load(paths)
    # PERMISSIVE also lets rows with too many fields pass; one column more tells them apart.
    rows = reader.options(**options).schema(f"{ddl}, {_SURPLUS} STRING").load(paths)
    error = literal("a row of a CSV file has more fields than its header")
    guard = f"CASE WHEN {_SURPLUS} IS NOT NULL THEN raise_error({error}) END"
    names = [name for name in rows.columns if name != _SURPLUS]
    first, *others = names
    return rows.selectExpr(
        f"coalesce(CAST({guard} AS STRING), {quote(first)}) AS {quote(first)}",
        *(quote(name) for name in others),
    )


def spark_path(path: Path) -> str:
    """A path as Spark takes it: local, and none of its characters a wildcard."""
    return "file://" + re.sub(r"([\\\[\]{}*?,])", r"\\\1", str(path))


def count_rows(path: Path, form: FileFormat) -> int | None:
    """The rows of a file this system wrote, from its footer or its line ends.

    None where only a full parse could tell.
    """
    if form.format == "parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)
    if form.format == "orc":
        from pyarrow import orc

        return int(orc.ORCFile(path).nrows)
    if form.format == "json_lines":
        return sum(chunk.count(b"\n") for chunk in chunks(path))
    if form.escape is not None:
        return None
    # A doubled quote leaves and enters the quoted text again, so every other piece between
    # quotes is outside, and only the line ends there end a row.
    mark, inside, lines = form.quote.encode(), False, 0
    for chunk in chunks(path):
        pieces = chunk.split(mark)
        lines += sum(piece.count(b"\n") for piece in pieces[int(inside) :: 2])
        inside ^= len(pieces) % 2 == 0
    return lines - 1 if form.header and lines else lines


def chunks(path: Path) -> Iterator[bytes]:
    """A file's bytes, a megabyte at a time."""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk
