"""What a name or path in a query stands for: a table with a manifest, or plain files."""

from __future__ import annotations

import codecs
import contextlib
import errno
import glob
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.backends.base import SourceColumn
from ematix_flow.backends.file_formats import chunks, decoded, encoded_ddl, read_encoded
from ematix_flow.backends.file_options import FileFormat, reading_format, stored_format
from ematix_flow.backends.file_schemas import (
    FileColumn,
    file_columns,
    json_columns,
    line_end,
    not_utf8,
)
from ematix_flow.backends.file_spool import spooled_rows, why_spark
from ematix_flow.backends.manifest import FOLDER, Manifest, ManifestLog
from ematix_flow.connections import format_from_path
from ematix_flow.engine.session import on_sail
from ematix_flow.errors import DataError, EmatixError, Permanent, Transient, Unsupported
from ematix_flow.sql.spark import quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.model import FileOptions, TableName

_WILDCARDS = "*?["
_SMALL_BYTES = 32 << 20
_COMPRESSED = (".gz", ".bz2", ".zst", ".zstd")


@contextlib.contextmanager
def file_errors(connection: str) -> Iterator[None]:
    """What the file system refuses, as one sentence."""
    try:
        yield
    except (EmatixError, ConnectionError):
        # A connection that is refused is Spark's: it has ended.
        raise
    except OSError as error:
        place = error.filename or "a file"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "free some space, then run again"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            fix = "make it accessible for this user"
        else:
            fix = "check the path of the connection"
        reason = (error.strerror or type(error).__name__).lower()
        raise Permanent(f"{place}: {reason}", connection=connection, fix=fix) from error


@dataclass(frozen=True)
class Relation:
    """Rows that can be described without Spark and loaded with it."""

    columns: tuple[SourceColumn, ...]
    load: Callable[[SparkSession], DataFrame]
    needs_spark: Callable[[], str | None] = lambda: "only Spark loads it"
    has_plain_numbers: bool = False


@dataclass(frozen=True)
class Store:
    """The folder behind a connection, and how its files are read."""

    name: str
    root: Path
    format: str
    options: FileOptions

    def table_folder(self, parts: Sequence[str]) -> Path:
        """The folder of a table."""
        return self.root.joinpath(*parts)

    def target_folder(self, name: TableName, prefix: str | None, *, called: str) -> Path:
        """Where a load puts a table; ``called`` says what its folder is, for messages."""
        if prefix is not None:
            folder = Path(os.path.normpath(self.root / prefix.strip("/")))
            if self.root not in (folder, *folder.parents):
                raise DataError(
                    f"prefix={prefix!r} leads out of the folder {self.root}",
                    fix="use a path below it",
                )
            return folder
        parts = [part for part in (name.schema, name.name) if part]
        for part in parts:
            if "/" in part or part.startswith((".", "_")):
                raise Unsupported(
                    f"{part!r} cannot be the name of {called}",
                    fix="rename the table, or set prefix=",
                )
        return self.table_folder(parts)

    def table(self, parts: Sequence[str]) -> Relation:
        """A table, by its name."""
        folder = self.table_folder(parts)
        if not folder.is_dir():
            raise Permanent(
                f"there is no table {'.'.join(parts)}: the folder {folder} does not exist",
                connection=self.name,
                fix=self._hint(folder.parent),
            )
        return self.folder(folder)

    def _hint(self, folder: Path) -> str:
        if not folder.is_dir():
            return f"check the name; {folder} does not exist either"
        names = sorted(p.name for p in folder.iterdir() if not p.name.startswith((".", "_")))
        there = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")  # noqa: PLR2004 - a glance
        return f"in {folder} there is: {there or 'nothing'}"

    def path(self, text: str, *, format: str | None = None) -> Relation:
        """A file, a folder or a glob, absolute or below the root."""
        path = self.root / text
        if path.is_dir():
            return self.folder(path, format=format)
        if path.is_file():
            return self.plain([path], format=format)
        found = sorted(Path(p) for p in glob.glob(str(path), recursive=True))
        files = [f for f in found if f.is_file() and _is_visible(f.name)]
        if files:
            return self.plain(files, format=format)
        folders = [f for f in found if f.is_dir() and _is_visible(f.name)]
        if len(folders) == 1:
            return self.folder(folders[0], format=format)
        below = [file for folder in folders for file in data_files(folder)]
        if any(ManifestLog(folder).numbers() for folder in folders):
            raise DataError(f"{path} matches several tables", fix="name one of them")
        if below:
            return self.plain(below, format=format)
        is_glob = any(c in text for c in _WILDCARDS)
        what = "no file matches" if is_glob else "there is no file or folder"
        raise Permanent(f"{what} {path}", connection=self.name, fix=self._hint(path.parent))

    def folder(self, folder: Path, *, format: str | None = None) -> Relation:
        """The table in a folder: what its newest manifest lists, else the files in it."""
        log = ManifestLog(folder)
        # The files first: what a run commits after this line, its manifest shows.
        files = [] if log.numbers() else data_files(folder)
        manifest = log.newest()
        if manifest is not None:
            return self.manifest(folder, manifest)
        if not files:
            raise Permanent(
                f"the folder {folder} has no data files", connection=self.name, fix="check the name"
            )
        return self.plain(files, format=format)

    def manifest(self, folder: Path, manifest: Manifest) -> Relation:
        """Exactly the live files of a manifest, with its logical types."""
        columns = tuple(SourceColumn(c.name, c.type) for c in manifest.columns)
        layouts = {file.layout.format for file in manifest.files}
        other = next(iter(layouts - {"parquet"}), None)
        reason = f"the files in {folder} are {other}" if other else None
        load = partial(self._load, folder=folder, manifest=manifest)
        return Relation(columns, load, lambda: reason)

    def _load(self, spark: SparkSession, *, folder: Path, manifest: Manifest) -> DataFrame:
        try:
            return load_manifest(spark, folder, manifest)
        except Exception:
            gone = [f.name for f in manifest.files if not (folder / f.name).is_file()]
            if gone and ManifestLog(folder).numbers()[:1] > [manifest.number]:
                raise Transient(
                    f"{folder / gone[0]} was removed by a load of its table while it was read",
                    connection=self.name,
                    fix="run again, to read what is there now",
                ) from None
            raise

    def plain(self, files: Sequence[Path], *, format: str | None = None) -> Relation:
        """Files without a manifest, all of one format."""
        parts = self._parts(files, self.reading(files, format))
        columns = {c.name: c for part in parts for c in part.columns}
        listed = tuple(columns.values())
        return Relation(
            tuple(SourceColumn(c.name, c.type) for c in listed),
            lambda spark: _load_parts(spark, parts, listed),
            lambda: next(filter(None, (why_spark(p.form, p.files) for p in parts)), None),
            has_plain_numbers=all(part.form.format == "csv" for part in parts),
        )

    def reading(self, files: Sequence[Path], format: str | None = None) -> FileFormat:
        """How these files are read; a ``.tsv`` file is separated by tabs."""
        named = {format or format_from_path(f.name) or self.format: f for f in files}
        if len(named) > 1:
            (one, a), (other, b) = list(named.items())[:2]
            raise DataError(
                f"files of different formats cannot be read as one table: {a} is {one}, "
                f"{b} is {other}",
                fix="name the files of one format with a glob",
            )
        (name,) = named
        options = self.options if name == self.format else type(self.options)()
        form = reading_format(name, options)
        given = options.csv_delimiter or (options.csv_read_options or {}).get("delimiter")
        if name == "csv" and given is None and all(".tsv" in f.suffixes for f in files):
            form = replace(form, delimiter="\t")
        return form

    def _parts(self, files: Sequence[Path], form: FileFormat) -> list[_Part]:
        """Files grouped by their columns, which must agree where they share a name."""
        if form.format == "json_lines":
            columns = json_columns(files, form)
            if not columns:
                raise DataError(f"file {files[0]} has no records", fix="check the path")
            return [_Part(form, columns, list(files))]
        parts: dict[tuple[str, ...], _Part] = {}
        known: dict[str, tuple[Path, FileColumn]] = {}
        for file in files:
            columns = file_columns(file, form)
            if not columns and file.stat().st_size == 0 and len(files) > 1:
                continue
            if not columns:
                raise DataError(f"file {file} has no columns", fix="remove it, or give it a header")
            for column in columns:
                first, same = known.setdefault(column.name, (file, column))
                if not column.same_as(same):
                    raise DataError(
                        f"column {column.name!r} is {same.type} in {first} and {column.type} in "
                        f"{file}",
                        fix="read them apart, each with its own glob",
                    )
            names = tuple(c.name for c in columns)
            part = parts.setdefault(names, _Part(form, columns, []))
            part.files.append(file)
        _check_same_columns(list(parts.values()), form)
        return list(parts.values())


@dataclass(frozen=True)
class _Part:
    form: FileFormat
    columns: tuple[FileColumn, ...]
    files: list[Path]


def _check_same_columns(parts: list[_Part], form: FileFormat) -> None:
    if form.format != "csv":
        return
    for part in parts[1:]:
        first = {c.name for c in parts[0].columns}
        differs = first ^ {c.name for c in part.columns}
        if differs:
            raise DataError(
                f"{parts[0].files[0]} and {part.files[0]} have different columns: "
                f"{', '.join(sorted(differs))} is in one of them only",
                fix="read them apart, each with its own glob",
            )


def _is_visible(name: str) -> bool:
    return not name.startswith((".", "_"))


def data_files(folder: Path) -> list[Path]:
    """The files of a folder without a manifest; those of a run under way are left out."""
    found = _listed(folder)
    moving = ManifestLog(folder).in_flight()
    return [file for file in found if str(file.relative_to(folder)) not in moving]


def _listed(folder: Path) -> list[Path]:
    """The files of a folder and its subfolders, hidden names left out."""
    found: list[Path] = []
    for path, folders, names in os.walk(folder):
        if FOLDER in folders and path != str(folder):
            raise DataError(
                f"the folder {folder} holds tables of its own, such as {path}",
                fix="name one of them",
            )
        folders[:] = sorted(f for f in folders if _is_visible(f))
        partitions = [f for f in folders if "=" in f]
        if partitions:
            raise Unsupported(
                f"the folder {folder} is partitioned ({partitions[0]}), and columns that are "
                "only in folder names cannot be read",
                fix=f"name the files of one partition, such as `{path}/{partitions[0]}/*`",
            )
        found.extend(Path(path) / name for name in sorted(names) if _is_visible(name))
    return found


def load_manifest(
    spark: SparkSession, folder: Path, manifest: Manifest, *, place: str | None = None
) -> DataFrame:
    """The rows of a manifest's files; ``place`` names a column that says which file is a row's."""
    types = {c.name: c.type for c in manifest.columns}
    frames = []
    for layout, group in itertools.groupby(
        sorted(manifest.files, key=lambda f: repr(f.layout)), key=lambda f: f.layout
    ):
        files = [folder / f.name for f in group]
        for file in files:
            if not file.is_file():
                raise DataError(
                    f"file {file} is listed in manifest {manifest.number} of its table but is gone",
                    fix="restore it, or load the table again with mode='truncate'",
                )
        form = stored_format(layout.format, layout.options)
        held = [(name, types[name]) for name in layout.columns if name in types]
        if on_sail():
            given = [(name, spark_ddl(kind)) for name, kind in held]
            rows = spooled_rows(spark, form, files, given)
        else:
            rows = read_encoded(spark, form, files, encoded_ddl(held, form))
        frames.append(
            rows.selectExpr(
                *(
                    f"{decoded(c.type, quote(c.name), form)} AS {quote(c.name)}"
                    if c.name in layout.columns
                    else f"CAST(NULL AS {spark_ddl(c.type)}) AS {quote(c.name)}"
                    for c in manifest.columns
                ),
                *([f"_metadata.file_path AS {quote(place)}"] if place else []),
            )
        )
    if not frames:
        ddl = ", ".join(f"{quote(c.name)} {spark_ddl(c.type)}" for c in manifest.columns)
        ddl += f", {quote(place)} STRING" if place else ""
        return spark.createDataFrame([], ddl)
    return _union(frames)


def _union(frames: list[DataFrame]) -> DataFrame:
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _load_parts(
    spark: SparkSession, parts: Sequence[_Part], listed: Sequence[FileColumn]
) -> DataFrame:
    return _union([_load_part(spark, part, listed) for part in parts])


def _load_part(spark: SparkSession, part: _Part, listed: Sequence[FileColumn]) -> DataFrame:
    here = {c.name: c for c in part.columns}
    ddl = ", ".join(f"{quote(c.name)} {c.read_as}" for c in part.columns)
    form, split = part.form, False
    if form.format == "json_lines":
        for file in part.files:
            _scan_text(file)
    elif form.format == "csv":
        split = _lines_are_rows(part.files, form)
        ends = {line_end(file, form) for file in part.files}
        if form.terminator is None and len(ends) == 1 and not split:
            # Left to find it, Spark would also turn line ends inside quotes into one kind.
            form = replace(form, terminator=ends.pop())
    if on_sail():
        given = [(c.name, c.read_as) for c in part.columns]
        rows = spooled_rows(spark, form, part.files, given)
    else:
        rows = read_encoded(spark, form, part.files, ddl, split_lines=split)
    return rows.selectExpr(
        *(
            f"{here[c.name].decoded() if c.name in here else c.missing()} AS {quote(c.name)}"
            for c in listed
        )
    )


def _lines_are_rows(files: Sequence[Path], form: FileFormat) -> bool:
    """Whether Spark may split these files at line ends: they are big and quote nothing."""
    quoted, size = False, 0
    for file in files:
        size = max(size, file.stat().st_size)
        quoted = _scan_text(file, form.quote) or quoted
    return size > _SMALL_BYTES and not quoted and form.terminator is None


def _scan_text(file: Path, mark: str = "") -> bool:
    """Whether a character occurs. Text that is not UTF-8 is refused: Spark would garble it."""
    if file.suffix.lower() in _COMPRESSED:
        return True
    decode, found = codecs.getincrementaldecoder("utf-8")().decode, False
    try:
        for chunk in chunks(file):
            text = decode(chunk)
            found = found or (bool(mark) and mark in text)
        decode(b"", True)
    except UnicodeDecodeError as error:
        raise not_utf8(file) from error
    return found
