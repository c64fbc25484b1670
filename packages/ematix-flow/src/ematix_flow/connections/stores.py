"""Object stores and lakes: files in a folder or a bucket."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from ematix_flow.connections.base import Connection, check_choice
from ematix_flow.errors import ConfigError
from ematix_flow.model import FileOptions

FILE_FORMATS = ("parquet", "csv", "orc", "json_lines")


@dataclass(frozen=True, repr=False, kw_only=True)
class StoredFiles(Connection):
    """What every object store says about its files."""

    format: str = "parquet"
    parquet_compression: str | None = None
    csv_delimiter: str | None = None
    csv_header: bool | None = None
    csv_quote: str | None = None
    csv_escape: str | None = None
    csv_null_value: str | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Refuse formats that do not exist, and options of another format."""
        check_choice(self, "format", FILE_FORMATS)
        self.check_options(self.file_options())

    def check_options(self, options: FileOptions) -> None:
        """Refuse options that belong to another file format than this store's."""
        for name in options.set_fields():
            owner = next(f for f in FILE_FORMATS if f.startswith(name.partition("_")[0]))
            # A store of text files may hold both kinds; each file is read by its own options.
            read_as_text = name.endswith("_read_options") and self.format in ("csv", "json_lines")
            if self.format in FILE_FORMATS and owner != self.format and not read_as_text:
                raise ConfigError(
                    f"connection {self.name!r}: {name} is an option of {owner} files, and its "
                    f"files are {self.format}",
                    fix=f'remove it, or set format = "{owner}"',
                )

    def file_options(self) -> FileOptions:
        """The options as they are handed to readers and writers."""
        names = [f.name for f in dataclasses.fields(FileOptions)]
        return FileOptions(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, repr=False, kw_only=True)
class S3Bucket(Connection):
    """Where an S3 bucket is, and who may use it."""

    bucket: str | None = None
    region: str | None = None
    endpoint: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    prefix: str = ""
    required: ClassVar[tuple[str, ...]] = ("bucket",)


@dataclass(frozen=True, repr=False, kw_only=True)
class ObjectStoreLocalConnection(StoredFiles):
    """Files in a local folder."""

    path: str | None = None
    shared: bool | None = None
    kind: ClassVar[str] = "object_store_local"
    required: ClassVar[tuple[str, ...]] = ("path",)


@dataclass(frozen=True, repr=False, kw_only=True)
class ObjectStoreS3Connection(StoredFiles, S3Bucket):
    """Files in an S3 bucket."""

    kind: ClassVar[str] = "object_store_s3"


@dataclass(frozen=True, repr=False, kw_only=True)
class DeltaLocalConnection(Connection):
    """Delta tables in a local folder."""

    path: str | None = None
    shared: bool | None = None
    kind: ClassVar[str] = "delta_local"
    required: ClassVar[tuple[str, ...]] = ("path",)


@dataclass(frozen=True, repr=False, kw_only=True)
class DeltaS3Connection(S3Bucket):
    """Delta tables in an S3 bucket."""

    kind: ClassVar[str] = "delta_s3"


_COMPRESSIONS = (".gz", ".bz2", ".zst", ".zstd", ".snappy", ".lz4")
_EXTENSIONS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json_lines",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".orc": "orc",
}


def format_from_path(path: str) -> str | None:
    """The file format an extension stands for, compression aside."""
    pure = PurePosixPath(path.lower())
    if pure.suffix in _COMPRESSIONS:
        pure = pure.with_suffix("")
    return _EXTENSIONS.get(pure.suffix)
