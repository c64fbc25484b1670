"""The options of file formats: checked, with nothing accepted that is not used."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.model import FileOptions

EXTENSIONS = {"parquet": "parquet", "csv": "csv", "orc": "orc", "json_lines": "jsonl"}
COMPRESSIONS = ("uncompressed", "snappy", "gzip", "zstd")
_CSV_READ = {
    "has_header": bool,
    "delimiter": str,
    "quote": str,
    "escape": str,
    "terminator": str,
    "comment": str,
    "null_regex": str,
    "truncated_rows_ok": bool,
    "schema_infer_max_records": int,
}
_JSON_READ = {"schema_infer_max_records": int, "batch_size": int}
_TERMINATORS = ("\n", "\r\n", "\r")


@dataclass(frozen=True)
class FileFormat:
    """One format with all its options settled."""

    format: str
    compression: str = "zstd"
    delimiter: str = ","
    header: bool = True
    quote: str = '"'
    escape: str | None = None
    null_value: str | None = None
    terminator: str | None = None
    comment: str | None = None
    null_regex: str | None = None
    truncated_rows_ok: bool = False
    infer_records: int = 10_000
    batch_records: int = 1_000

    @property
    def extension(self) -> str:
        """The extension of files in this format."""
        return EXTENSIONS[self.format]

    def stored_options(self) -> dict[str, Any]:
        """What a reader must know of files that this format wrote."""
        if self.format != "csv":
            return {}
        names = ("delimiter", "header", "quote", "escape", "null_value", "terminator")
        return {name: getattr(self, name) for name in names}


def stored_format(name: str, options: Mapping[str, Any]) -> FileFormat:
    """The format that ``stored_options`` describes."""
    return FileFormat(name, **options)


def writing_format(name: str, options: FileOptions, columns: Sequence[str]) -> FileFormat:
    """How files are written."""
    check_file_options(name, options)
    if name != "csv":
        return FileFormat(name, compression=options.parquet_compression or "zstd")
    null_value = options.csv_null_value
    if null_value is None and len(columns) == 1:
        # A row whose only field has nothing in it would be an empty line, which is no row.
        null_value = "\\N"
    return dataclasses.replace(_csv(options), null_value=null_value, terminator="\n")


def reading_format(name: str, options: FileOptions) -> FileFormat:
    """How files that this system did not write are read."""
    check_file_options(name, options)
    if name == "csv":
        given = dict(options.csv_read_options or {})
        renamed = {"has_header": "header", "schema_infer_max_records": "infer_records"}
        return dataclasses.replace(
            _csv(options), **{renamed.get(key, key): value for key, value in given.items()}
        )
    given = dict(options.json_read_options or {}) if name == "json_lines" else {}
    renamed = {"schema_infer_max_records": "infer_records", "batch_size": "batch_records"}
    return FileFormat(name, **{renamed[key]: value for key, value in given.items()})


def _csv(options: FileOptions) -> FileFormat:
    return FileFormat(
        "csv",
        delimiter=options.csv_delimiter or ",",
        header=options.csv_header is not False,
        quote=options.csv_quote or '"',
        escape=options.csv_escape,
        null_value=options.csv_null_value,
    )


def merged_options(connection: FileOptions, target: FileOptions) -> FileOptions:
    """A target's options over those of its connection."""
    return dataclasses.replace(connection, **target.set_fields())


def check_file_options(format: str, options: FileOptions) -> None:
    """Refuse options that this format does not have, or values they cannot take."""
    for name in options.set_fields():
        owner = {"p": "parquet", "c": "csv", "j": "json_lines"}[name[0]]
        if owner != format:
            raise ConfigError(
                f"{name} is an option of {owner} files, and these are {format}",
                fix=f'remove it, or set format = "{owner}"',
            )
    compression = options.parquet_compression
    if compression is not None and compression not in COMPRESSIONS:
        raise ConfigError(
            f"parquet_compression={compression!r} is not known",
            fix=nearest(compression, COMPRESSIONS),
        )
    for name in ("csv_delimiter", "csv_quote", "csv_escape"):
        _check_character(name, getattr(options, name))
    _check_read_options("csv_read_options", options.csv_read_options, _CSV_READ)
    _check_read_options("json_read_options", options.json_read_options, _JSON_READ)
    _check_csv_values(options)


def _check_read_options(
    name: str, options: Mapping[str, Any] | None, known: Mapping[str, type]
) -> None:
    for key, value in (options or {}).items():
        if key not in known:
            raise UnknownName(f"{name} has no option {key!r}", fix=nearest(key, known))
        right = isinstance(value, known[key]) and (known[key] is bool or value is not True)
        if known[key] is int:
            right = right and not isinstance(value, bool) and value > 0
        if not right:
            wanted = {bool: "True or False", int: "a whole number above 0", str: "text"}
            raise ConfigError(
                f"{name}: {key}={value!r} is not {wanted[known[key]]}", fix="correct it"
            )


def _check_csv_values(options: FileOptions) -> None:
    given = dict(options.csv_read_options or {})
    for key in ("delimiter", "quote", "escape", "comment"):
        _check_character(f"csv_read_options: {key}", given.get(key))
    terminator = given.get("terminator")
    if terminator is not None and terminator not in _TERMINATORS and len(terminator) != 1:
        raise ConfigError(
            f"csv_read_options: terminator={terminator!r} is neither one character nor CR LF",
            fix="leave it out: line ends are found by themselves",
        )
    if "null_regex" in given:
        try:
            re.compile(given["null_regex"])
        except re.error as error:
            raise ConfigError(
                f"csv_read_options: null_regex is not a regular expression: {error}",
                fix="correct it",
            ) from error
    written = _csv(options)
    if written.delimiter in (written.quote, written.escape):
        raise ConfigError(
            f"csv_delimiter and another option are both {written.delimiter!r}",
            fix="give each its own character",
        )


def _check_character(name: str, value: str | None) -> None:
    if value is not None and (len(value) != 1 or not value.isascii() or value in "\r\n\0"):
        raise ConfigError(
            f"{name}={value!r} is not a single character", fix="use one ASCII character"
        )
