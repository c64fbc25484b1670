"""The log of a table made of files: one numbered manifest per commit.

``_ematix/<n>.json`` lists the files that are the table after commit ``n``, and how often each
pipeline has committed. It is created only if its number is free and never changes, so creating
it *is* the commit, and whoever committed in between is always seen.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ematix_flow.change import Counts
from ematix_flow.errors import DataError, Unsupported
from ematix_flow.types import Array, ColumnType

FOLDER = "_ematix"
FORMAT_VERSION = 1
TOUCHED = "touched.json"
_DIGITS = 12


@dataclass(frozen=True)
class StoredColumn:
    """A column with its logical type, which the files themselves may not be able to say."""

    name: str
    type: ColumnType
    nullable: bool = True


@dataclass(frozen=True)
class Layout:
    """How a group of files is laid out: format, its options, the columns in file order."""

    format: str
    options: Mapping[str, Any]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class DataFile:
    """One live file; ``name`` is relative to the table's folder."""

    name: str
    rows: int
    bytes: int
    layout: Layout


@dataclass(frozen=True)
class Manifest:
    """The table after one commit."""

    columns: tuple[StoredColumn, ...]
    files: tuple[DataFile, ...]
    primary_key: tuple[str, ...] = ()
    run: Mapping[str, str] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    fences: Mapping[str, int] = field(default_factory=dict)
    batches: tuple[str, ...] = ()
    watermark: str | None = None
    number: int = 0

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return sum(f.rows for f in self.files)

    def to_json(self) -> str:
        """The manifest as it is stored."""
        layouts = list(dict.fromkeys(_frozen(f.layout) for f in self.files))
        known = {_frozen(f.layout): f.layout for f in self.files}
        document = {
            "version": FORMAT_VERSION,
            "columns": [
                {"name": c.name, "type": type_to_spec(c.type), "nullable": c.nullable}
                for c in self.columns
            ],
            "primary_key": self.primary_key,
            "layouts": [dataclasses.asdict(known[key]) for key in layouts],
            "files": [
                {
                    "name": f.name,
                    "rows": f.rows,
                    "bytes": f.bytes,
                    "layout": layouts.index(_frozen(f.layout)),
                }
                for f in self.files
            ],
            "run": dict(self.run),
            "counts": dataclasses.asdict(self.counts),
            "fences": dict(self.fences),
            "batches": self.batches,
            "watermark": self.watermark,
        }
        return json.dumps(document, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, *, number: int) -> Manifest:
        """A stored manifest."""
        document = json.loads(text)
        version = document["version"]
        if version > FORMAT_VERSION:
            raise Unsupported(
                f"its manifest {number} has format {version}, and this version of ematix-flow "
                f"knows formats up to {FORMAT_VERSION}",
                fix="upgrade ematix-flow",
            )
        layouts = [
            Layout(entry["format"], entry["options"], tuple(entry["columns"]))
            for entry in document["layouts"]
        ]
        return cls(
            columns=tuple(
                StoredColumn(c["name"], type_from_spec(c["type"]), c["nullable"])
                for c in document["columns"]
            ),
            files=tuple(
                DataFile(f["name"], f["rows"], f["bytes"], layouts[f["layout"]])
                for f in document["files"]
            ),
            primary_key=tuple(document["primary_key"]),
            run=document["run"],
            counts=Counts(**document["counts"]),
            fences=document["fences"],
            batches=tuple(document["batches"]),
            watermark=document["watermark"],
            number=number,
        )


def _frozen(layout: Layout) -> str:
    return json.dumps(dataclasses.asdict(layout), sort_keys=True)


def type_to_spec(column_type: ColumnType) -> dict[str, Any]:
    """A column type as plain data, element types included."""
    spec = column_type.to_spec()
    if isinstance(column_type, Array):
        spec["element"] = type_to_spec(column_type.element)
    return spec


def type_from_spec(spec: Mapping[str, Any]) -> ColumnType:
    """The column type that plain data describes."""
    kinds = {cls.kind: cls for cls in ColumnType.__subclasses__()}
    parameters = {name: value for name, value in spec.items() if name != "kind"}
    if "element" in parameters:
        parameters["element"] = type_from_spec(parameters["element"])
    return kinds[spec["kind"]](**parameters)


class ManifestLog:
    """The manifests of one table's folder."""

    def __init__(self, table_folder: Path) -> None:
        self.table_folder = table_folder
        self.folder = table_folder / FOLDER
        self.stage_root = self.folder / "stage"

    def numbers(self) -> list[int]:
        """The numbers of all manifests, newest first."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)

    def read(self, number: int) -> Manifest:
        """One manifest."""
        path = self._path(number)
        try:
            return Manifest.from_json(path.read_text(encoding="utf-8"), number=number)
        except Unsupported as error:
            raise Unsupported(f"table {self.table_folder}: {error.what}", fix=error.fix) from error
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(
                f"manifest {path} is damaged",
                fix="restore it from a backup; the data files beside it are untouched",
            ) from error

    def newest(self) -> Manifest | None:
        """The table as it is now, or None where no manifest was ever written."""
        numbers = self.numbers()
        return self.read(numbers[0]) if numbers else None

    def of_run(self, run_id: str) -> Manifest | None:
        """The manifest that a run committed, or None."""
        for number in self.numbers():
            manifest = self.read(number)
            if manifest.run.get("run_id") == run_id:
                return manifest
        return None

    def in_flight(self) -> set[str]:
        """Names of files that runs have moved here but not committed; they are nobody's rows."""
        names: set[str] = set()
        for stage in self.stage_root.glob(f"*/{TOUCHED}"):
            try:
                names.update(json.loads(stage.read_text(encoding="utf-8"))["added"])
            except FileNotFoundError:
                continue
        return names

    def create(self, manifest: Manifest, *, scratch: Path) -> bool:
        """Commit a manifest under its number; False when another commit has that number.

        ``scratch`` is a file name on the same file system that this run alone uses.
        """
        with scratch.open("w", encoding="utf-8") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(scratch, self._path(manifest.number))
        except FileExistsError:
            return False
        finally:
            scratch.unlink()
        sync_folder(self.folder)
        return True

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:0{_DIGITS}}.json"


def sync_folder(folder: Path) -> None:
    """Make names that were added to a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(file: Path) -> None:
    """Make a file's content survive a power cut."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
