"""The log of a table made of files: one numbered manifest per commit.

``_ematix/<n>.json`` lists the files that are the table after commit ``n``, and how often each
pipeline has committed. It is created only if its number is free and never changes, so creating
it *is* the commit, and whoever committed in between is always seen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from ematix_flow.change import Counts
from ematix_flow.errors import DataError, Transient, Unsupported
from ematix_flow.types import Array, ColumnType

FOLDER = "_ematix"
FORMAT_VERSION = 2
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
    watermarks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    side: tuple[DataFile, ...] = ()
    number: int = 0

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return sum(f.rows for f in self.files)

    def to_json(self) -> str:
        """The manifest as it is stored."""
        every = (*self.files, *self.side)
        layouts = list(dict.fromkeys(_frozen(f.layout) for f in every))
        known = {_frozen(f.layout): f.layout for f in every}
        document = {
            "version": FORMAT_VERSION,
            "columns": [
                {"name": c.name, "type": type_to_spec(c.type), "nullable": c.nullable}
                for c in self.columns
            ],
            "primary_key": self.primary_key,
            "layouts": [dataclasses.asdict(known[key]) for key in layouts],
            "files": _files(self.files, layouts),
            "run": dict(self.run),
            "counts": dataclasses.asdict(self.counts),
            "fences": dict(self.fences),
            "batches": self.batches,
            "watermarks": {name: dict(held) for name, held in self.watermarks.items()},
            "side": _files(self.side, layouts),
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
            files=_listed(document["files"], layouts),
            primary_key=tuple(document["primary_key"]),
            run=document["run"],
            counts=Counts(**document["counts"]),
            fences=document["fences"],
            batches=tuple(document["batches"]),
            watermarks=document.get("watermarks", {}),
            side=_listed(document.get("side", []), layouts),
            number=number,
        )


def _files(files: tuple[DataFile, ...], layouts: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": f.name,
            "rows": f.rows,
            "bytes": f.bytes,
            "layout": layouts.index(_frozen(f.layout)),
        }
        for f in files
    ]


def _listed(entries: list[dict[str, Any]], layouts: list[Layout]) -> tuple[DataFile, ...]:
    return tuple(DataFile(f["name"], f["rows"], f["bytes"], layouts[f["layout"]]) for f in entries)


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
        self.side = self.folder / "side"

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

    def fence_off(self, run_id: str) -> Manifest | None:
        """Let a run that was declared dead never commit; its manifest if it has done so by now.

        A manifest is linked from the run's stage. Renaming the stage is one step, so either the
        link came before it and is found, or it never comes.
        """
        taken = self.stage_root / f"{run_id}-{uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            (self.stage_root / run_id).rename(taken)
        manifest = self.of_run(run_id)
        if manifest is None:
            self.settle(taken)
            shutil.rmtree(taken, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.stage_root.rmdir()
        return manifest

    def settle(self, stage: Path) -> None:
        """Delete what a run that is over moved or replaced, unless the table needs it."""
        try:
            names = json.loads((stage / TOUCHED).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        newest = self.newest()
        live = {f.name for f in (*newest.files, *newest.side)} if newest else set()
        for name in names["added"] if newest is None else (*names["added"], *names["replaced"]):
            if name not in live:
                (self.table_folder / name).unlink(missing_ok=True)

    def set_watermark(self, pipeline: str, column: str, value: str | None) -> None:
        """Commit another watermark over the same files; None forgets it."""
        newest = self.newest()
        if newest is None:
            return
        held = {name: dict(values) for name, values in newest.watermarks.items()}
        values = held.setdefault(pipeline, {})
        values.pop(column, None)
        if value is not None:
            values[column] = value
        self._amend(newest, watermarks=held)

    def _amend(self, newest: Manifest, **changes: Any) -> None:
        """A manifest of the same files with something else said about them."""
        amended = dataclasses.replace(
            newest, run={}, counts=Counts(), number=newest.number + 1, **changes
        )
        scratch = self.folder / f"amended-{uuid4().hex}.tmp"
        if not self.create(amended, scratch=scratch):
            raise Transient(
                f"table {self.table_folder} was loaded at the same moment",
                connection=self.table_folder.name,
                fix="run it again",
            )

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
            # The stage may have been taken away right after the link.
            scratch.unlink(missing_ok=True)
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
