"""What files say about their columns, asked without Spark.

Parquet and ORC are asked by their footers, CSV by its header, JSON lines by their first records.
Each column comes with its logical type, the type Spark must read it as, and the Spark SQL that
turns what was read into the Spark form of the logical type.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from ematix_flow import types as t
from ematix_flow.errors import DataError, Unsupported
from ematix_flow.sql.spark import literal, quote, spark_ddl

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.backends.file_options import FileFormat

_BIGGEST_INTEGER = 2**63
_JSON_DIGITS = 38
_HEAD_CHARACTERS = 1 << 20
_EMPTY_LIST = t.Array(t.Text())


@dataclass(frozen=True)
class FileColumn:
    """A column of a file: its logical type, and how Spark gets at it."""

    name: str
    type: t.ColumnType
    read_as: str
    decode: Callable[[str], str] | None = None

    def decoded(self) -> str:
        """Spark SQL for the column's value in the form of its logical type."""
        value = quote(self.name)
        return value if self.decode is None else self.decode(value)

    def missing(self) -> str:
        """Spark SQL for the column's value in a file that does not have it."""
        return f"CAST(NULL AS {self.read_as if self.decode is None else spark_ddl(self.type)})"

    def same_as(self, other: FileColumn) -> bool:
        """Whether two files agree on this column."""
        return (self.type, self.read_as) == (other.type, other.read_as)


def file_columns(path: Path, form: FileFormat) -> tuple[FileColumn, ...]:
    """The columns of one Parquet, ORC or CSV file."""
    readers = {"parquet": _parquet_columns, "orc": _orc_columns, "csv": _csv_columns}
    columns = readers[form.format](path, form)
    seen: set[str] = set()
    for column in columns:
        if column.name in seen:
            raise DataError(f"file {path} has two columns named {column.name!r}", fix="rename one")
        seen.add(column.name)
    return columns


def _parquet_columns(path: Path, form: FileFormat) -> tuple[FileColumn, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema, leaves = file.schema_arrow, file.schema
            old = {
                leaf.path
                for leaf in (leaves.column(i) for i in range(len(leaves)))
                if leaf.physical_type == "INT96"
            }
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, "Parquet") from error
    return tuple(
        FileColumn(field.name, t.TimestampTZ(), "TIMESTAMP")
        if field.name in old
        else _arrow_column(path, field.name, field.type)
        for field in schema
    )


def _orc_columns(path: Path, form: FileFormat) -> tuple[FileColumn, ...]:
    import pyarrow as pa
    from pyarrow import orc

    try:
        schema = orc.ORCFile(path).schema
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, "ORC") from error
    columns = []
    for field in schema:
        spark_type = (field.metadata or {}).get(b"spark.sql.catalyst.type", b"").decode()
        if spark_type == "timestamp_ntz":
            columns.append(FileColumn(field.name, t.Timestamp(), "TIMESTAMP_NTZ"))
        elif spark_type == "timestamp" or str(field.type).startswith("timestamp[ns, tz"):
            columns.append(FileColumn(field.name, t.TimestampTZ(), "TIMESTAMP"))
        elif pa.types.is_timestamp(field.type):
            local = FileColumn(field.name, t.Timestamp(), "TIMESTAMP", _cast_to("TIMESTAMP_NTZ"))
            columns.append(local)
        else:
            columns.append(_arrow_column(path, field.name, field.type))
    return tuple(columns)


def _damaged(path: Path, kind: str) -> DataError:
    return DataError(
        f"file {path} is not a readable {kind} file: it is damaged, cut off or of another format",
        fix="replace or remove it",
    )


def _arrow_column(path: Path, name: str, arrow_type: pa.DataType) -> FileColumn:
    form = _arrow_form(arrow_type)
    if form is None:
        raise Unsupported(
            f"file {path}: column {name!r} has type {arrow_type}, which cannot be read",
            fix="write the file with another type",
        )
    return FileColumn(name, *form)


_Form = tuple[t.ColumnType, str, "Callable[[str], str] | None"]


def _arrow_form(arrow_type: pa.DataType) -> _Form | None:
    """The logical type of an Arrow type, what Spark reads it as, and how that is decoded."""
    import pyarrow as pa

    simple = _simple_forms().get(str(arrow_type))
    if simple is not None:
        return simple
    is_ = pa.types
    if is_.is_dictionary(arrow_type):
        return _arrow_form(cast("pa.DictionaryType[Any, Any]", arrow_type).value_type)
    if is_.is_decimal(arrow_type):
        decimal = cast("pa.Decimal128Type[Any, Any]", arrow_type)
        precision, scale = decimal.precision, decimal.scale
        if not 0 <= scale <= precision <= t.Numeric.max_precision:
            return None
        return t.Numeric(precision, scale), f"DECIMAL({precision}, {scale})", None
    if is_.is_fixed_size_binary(arrow_type):
        return t.Bytes(), "BINARY", None
    if is_.is_timestamp(arrow_type):
        return _timestamp_form(arrow_type)
    lists = (is_.is_list, is_.is_large_list, is_.is_fixed_size_list)
    if any(is_list(arrow_type) for is_list in lists):
        return _list_form(cast("pa.ListType[Any]", arrow_type).value_type)
    if is_.is_struct(arrow_type) or is_.is_map(arrow_type):
        nested = _nested_ddl(arrow_type)
        return None if nested is None else (t.JSON(), nested, None)
    return None


def _simple_forms() -> dict[str, _Form]:
    text: _Form = (t.Text(), "STRING", None)
    binary: _Form = (t.Bytes(), "BINARY", None)
    day: _Form = (t.Date(), "DATE", None)
    return {
        "bool": (t.Boolean(), "BOOLEAN", None),
        "int8": (t.SmallInt(), "SMALLINT", None),
        "int16": (t.SmallInt(), "SMALLINT", None),
        "int32": (t.Integer(), "INT", None),
        "int64": (t.BigInt(), "BIGINT", None),
        "uint8": (t.SmallInt(), "SMALLINT", None),
        "uint16": (t.Integer(), "INT", None),
        "uint32": (t.BigInt(), "BIGINT", None),
        "uint64": (t.Numeric(20, 0), "DECIMAL(20, 0)", None),
        "float": (t.Float(), "FLOAT", None),
        "double": (t.Double(), "DOUBLE", None),
        "string": text,
        "large_string": text,
        "string_view": text,
        "binary": binary,
        "large_binary": binary,
        "binary_view": binary,
        "date32[day]": day,
        "date64[ms]": day,
        "null": (t.Text(), "INT", _cast_to("STRING")),
        "time32[ms]": (t.Time(), "INT", _time_of("{} * 1000L")),
        "time64[us]": (t.Time(), "BIGINT", _time_of("{}")),
        "time64[ns]": (t.Time(), "BIGINT", _time_of(_microseconds("{}"))),
        "extension<arrow.json>": (t.JSON(), "STRING", None),
        "extension<arrow.uuid>": (t.UUID(), "BINARY", _dashed_uuid),
    }


def _cast_to(ddl: str) -> Callable[[str], str]:
    return lambda value: f"CAST({value} AS {ddl})"


def _microseconds(nanoseconds: str) -> str:
    error = literal("a time has a fraction finer than a microsecond, which cannot be kept")
    return (
        f"CASE WHEN {nanoseconds} % 1000 <> 0 THEN raise_error({error}) "
        f"ELSE {nanoseconds} div 1000 END"
    )


def _time_of(microseconds: str) -> Callable[[str], str]:
    def decode(value: str) -> str:
        stamp = f"timestamp_micros({microseconds.format(value, value, value)})"
        return f"date_format({stamp}, 'HH:mm:ss.SSSSSS')"

    return decode


def _dashed_uuid(value: str) -> str:
    groups = "'^(.{8})(.{4})(.{4})(.{4})(.{12})$', '$1-$2-$3-$4-$5'"
    return f"regexp_replace(lower(hex({value})), {groups})"


def _timestamp_form(arrow_type: pa.TimestampType[Any, Any]) -> _Form:
    zoned = arrow_type.tz is not None
    logical: t.ColumnType = t.TimestampTZ() if zoned else t.Timestamp()
    ddl = spark_ddl(logical)
    if arrow_type.unit != "ns":
        return logical, ddl, None
    # Spark cannot read nanoseconds as a timestamp, only as the number they are stored as.
    return logical, "BIGINT", lambda v: f"CAST(timestamp_micros({_microseconds(v)}) AS {ddl})"


def _list_form(element_type: pa.DataType) -> _Form | None:
    element = _arrow_form(element_type)
    if element is None:
        return None
    logical, ddl, decode = element
    if logical.kind == "json":
        return t.JSON(), f"ARRAY<{ddl}>", None
    if decode is None:
        return t.Array(logical), f"ARRAY<{ddl}>", None
    return t.Array(logical), f"ARRAY<{ddl}>", lambda v: f"transform({v}, e -> {decode('e')})"


def _nested_ddl(arrow_type: pa.DataType) -> str | None:
    import pyarrow as pa

    if pa.types.is_struct(arrow_type):
        fields = []
        for i in range(arrow_type.num_fields):
            field = arrow_type.field(i)
            form = _arrow_form(field.type)
            if form is None:
                return None
            fields.append(f"{quote(field.name)}: {form[1]}")
        return f"STRUCT<{', '.join(fields)}>"
    map_type = cast("pa.MapType[Any, Any, Any]", arrow_type)
    key, item = _arrow_form(map_type.key_type), _arrow_form(map_type.item_type)
    return None if key is None or item is None else f"MAP<{key[1]}, {item[1]}>"


def _csv_columns(path: Path, form: FileFormat) -> tuple[FileColumn, ...]:
    with _open_text(path) as file:
        lines = (line for line in file if not (form.comment and line.startswith(form.comment)))
        records = csv.reader(
            lines,
            delimiter=form.delimiter,
            quotechar=form.quote,
            escapechar=form.escape,
            doublequote=form.escape is None,
        )
        try:
            if form.header:
                names = next((r for r in records if r), [])
            else:
                widths = (len(r) for r in itertools.islice(records, form.infer_records))
                names = [""] * max(widths, default=0)
        except UnicodeDecodeError as error:
            raise not_utf8(path) from error
        except csv.Error as error:
            raise DataError(
                f"file {path} is not a readable CSV file: {error}",
                fix="check the delimiter and quotes of its connection",
            ) from error
    return tuple(
        FileColumn(name or f"column_{n}", t.Text(), "STRING", _null_when(form.null_regex))
        for n, name in enumerate(names, start=1)
    )


def line_end(path: Path, form: FileFormat) -> str | None:
    """What ends the first record of a CSV file; None where it never ends."""
    with _open_text(path) as file:
        text = file.read(_HEAD_CHARACTERS)
    inside, position = False, 0
    while position < len(text):
        character = text[position]
        if character == form.escape:
            position += 1
        elif character == form.quote:
            inside = not inside
        elif character in "\r\n" and not inside:
            return "\r\n" if text[position : position + 2] == "\r\n" else character
        position += 1
    return None


def not_utf8(path: Path) -> DataError:
    """Text that Spark would garble without a word."""
    return DataError(f"file {path} is not UTF-8 text", fix="convert it, for example with iconv")


def _null_when(pattern: str | None) -> Callable[[str], str] | None:
    if pattern is None:
        return None
    return lambda value: f"CASE WHEN {value} RLIKE {literal(pattern)} THEN NULL ELSE {value} END"


def json_columns(files: Sequence[Path], form: FileFormat) -> tuple[FileColumn, ...]:
    """The columns of JSON lines files together: a field's type must hold what all of them say."""
    found: dict[str, t.ColumnType | None] = {}
    for path in files:
        with _open_text(path) as file:
            lines = (line for line in file if line.strip())
            for record in _json_records(path, itertools.islice(lines, form.infer_records), form):
                for name, value in record.items():
                    found[name] = _wider(found.get(name), _json_type(value))
    return tuple(
        FileColumn(name, kind or t.Text(), spark_ddl(kind or t.Text()))
        for name, kind in found.items()
    )


def _json_records(path: Path, lines: Iterator[str], form: FileFormat) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        while batch := list(itertools.islice(lines, form.batch_records)):
            for line in batch:
                number += 1
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("it is not an object")
                yield record
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    except ValueError as error:
        raise DataError(
            f"file {path}: record {number} is not a JSON object on one line ({error})",
            fix="correct or remove it",
        ) from error


def _json_type(value: object) -> t.ColumnType | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return t.Boolean()
    if isinstance(value, int):
        if -_BIGGEST_INTEGER <= value < _BIGGEST_INTEGER:
            return t.BigInt()
        return t.Numeric(_JSON_DIGITS, 0) if abs(value) < 10**_JSON_DIGITS else t.Text()
    if isinstance(value, float):
        return t.Double()
    if isinstance(value, str):
        return t.Text()
    if isinstance(value, dict):
        return t.JSON()
    element: t.ColumnType | None = None
    for item in cast("list[object]", value):
        element = _wider(element, _json_type(item))
    if element is None:
        return _EMPTY_LIST
    return t.JSON() if element.kind == "json" else t.Array(element)


def _wider(left: t.ColumnType | None, right: t.ColumnType | None) -> t.ColumnType | None:
    """The type that holds values of both; what differs in kind is kept as its own text."""
    if left is None or right is None or left == right:
        return left or right
    if isinstance(left, t.Array) and isinstance(right, t.Array):
        if left is _EMPTY_LIST or right is _EMPTY_LIST:
            return right if left is _EMPTY_LIST else left
        return t.Array(_wider(left.element, right.element) or t.Text())
    kinds = {left.kind, right.kind}
    if kinds <= {"big_int", "numeric"}:
        return t.Numeric(_JSON_DIGITS, 0)
    if kinds <= {"big_int", "double", "numeric"}:
        return t.Double()
    return t.JSON() if kinds <= {"json", "array"} else t.Text()


def _open_text(path: Path) -> TextIO:
    """A text file, decompressed by its extension; a byte order mark is not part of it."""
    suffix = path.suffix.lower()
    if suffix in (".snappy", ".lz4"):
        raise Unsupported(
            f"file {path} is compressed in a way that cannot be read here",
            fix="use .gz, .bz2 or .zst",
        )
    if suffix in (".zst", ".zstd"):
        import zstandard

        raw: Any = zstandard.open(path, "rb")
    else:
        opener: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(suffix, open)
        raw = opener(path, "rb")
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
