"""One run's way into a table of files: staged, moved, and committed by a manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow.backends.base import Landing, Load, Staged
from ematix_flow.backends.file_formats import (
    count_rows,
    encode,
    encoded_ddl,
    read_encoded,
    write_encoded,
)
from ematix_flow.backends.file_options import FileFormat
from ematix_flow.backends.file_sources import Store, data_files, file_errors
from ematix_flow.backends.manifest import (
    TOUCHED,
    DataFile,
    Layout,
    Manifest,
    ManifestLog,
    StoredColumn,
    sync_file,
    sync_folder,
)
from ematix_flow.backends.staging import StageFolder
from ematix_flow.change import CURRENT, INCOMING, Change, Counts, Replace
from ematix_flow.errors import Fenced, Transient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.session import Engine

_GOOD_BYTES = 128 << 20
_POOR_BYTES = 32 << 20


@dataclass(frozen=True)
class StagedFiles:
    """Files in the stage, ready to be moved: ``current`` of what they were computed from."""

    files: tuple[DataFile, ...]
    adopted: tuple[DataFile, ...]
    replaces: bool
    computed_from: int | None
    read: int


class FilesLanding(Landing):
    """From rows to files in the stage, then to the table by one manifest."""

    def __init__(self, store: Store, load: Load, *, folder: Path, form: FileFormat) -> None:
        self.store = store
        self.load = load
        self.folder = folder
        self.form = form
        self.log = ManifestLog(self.folder)
        self.epoch = 0
        self.new_folders: list[Path] = []

    def __enter__(self) -> Landing:
        with file_errors(self.store.name):
            lineage = (self.log.folder, self.folder, *self.folder.parents)
            self.new_folders = [p for p in lineage if not p.exists()]
            self.stage_folder = StageFolder(self.log.stage_root, self.load.run.run_id)
            try:
                StageFolder.sweep(self.log.stage_root, settle=self._settle)
                self.epoch = self._epoch(self.log.newest())
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        with file_errors(self.store.name):
            self._settle(self.stage_folder.path)
            self.stage_folder.remove()
        for folder in self.new_folders:
            try:
                folder.rmdir()
            except OSError:
                return

    def _epoch(self, newest: Manifest | None) -> int:
        return newest.fences.get(self.load.run.pipeline, 0) if newest else 0

    def _settle(self, stage: Path) -> None:
        """Delete what a run that is over moved or replaced, unless the table needs it."""
        try:
            names = json.loads((stage / TOUCHED).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        newest = self.log.newest()
        live = {f.name for f in newest.files} if newest else set()
        for name in names["added"] if newest is None else (*names["added"], *names["replaced"]):
            if name not in live:
                (self.folder / name).unlink(missing_ok=True)

    def _touch(self, *, added: list[str], replaced: list[str]) -> None:
        scratch = self.stage_folder.path / "touched.tmp"
        with scratch.open("w", encoding="utf-8") as file:
            json.dump({"added": added, "replaced": replaced}, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(self.stage_folder.path / TOUCHED)

    def stage(self, engine: Engine, rows: DataFrame) -> Staged:
        """Write the new files where no reader looks."""
        self.load.announce("staging")
        with file_errors(self.store.name):
            staged = self._stage(engine.spark, rows)
        self.load.announce("staged")
        return Staged(staged.read, sum(f.bytes for f in staged.files), staged)

    def _stage(self, spark: SparkSession, rows: DataFrame) -> StagedFiles:
        newest = self.log.newest()
        needs_current = _mentions(self.load.change, CURRENT)
        relations: dict[str, DataFrame] = {}
        if needs_current:
            relations[CURRENT] = self._current(spark, newest)
        written: list[DataFile] = []
        replaces, read = False, 0
        for n, step in enumerate(self.load.change.steps):
            # Rows are computed once: the files of a plain copy are the incoming rows.
            plain = INCOMING not in relations and _copies(step.rows, self.load.column_names)
            if not plain and INCOMING not in relations:
                spooled = self._write(spark, rows, "incoming", FileFormat("parquet"))
                relations[INCOMING] = self._read_back(spark, spooled)
                read = sum(f.rows for f in spooled)
            result = rows if plain else _run(spark, step.rows, relations)
            files = self._write(spark, result, f"step-{n}", self.form)
            if plain:
                relations[INCOMING] = self._read_back(spark, files)
                read = sum(f.rows for f in files)
            if isinstance(step, Replace):
                replaces, written = True, []
            written += files
        for assertion in self.load.change.assertions:
            if _run(spark, assertion.violations, relations).collect()[0][0] != 0:
                raise assertion.error
        adopted = () if newest else self._adopted(spark)
        computed_from = (newest.number if newest else 0) if needs_current else None
        return StagedFiles(tuple(written), adopted, replaces, computed_from, read)

    def _current(self, spark: SparkSession, newest: Manifest | None) -> DataFrame:
        if newest is None:
            newest = Manifest(self._columns(), self._adopted(spark))
        return self.store.manifest(self.folder, newest).load(spark)

    def _write(
        self, spark: SparkSession, rows: DataFrame, name: str, form: FileFormat
    ) -> list[DataFile]:
        """Files in the stage, few and big; empty ones are left out."""
        folder = self.stage_folder.path / name
        write_encoded(encode(rows, self.load.columns, form), form, folder)
        found = _parts(folder)
        size = sum(p.stat().st_size for p in found)
        wanted = max(1, -(-size // _GOOD_BYTES))
        if len(found) > wanted and size < _POOR_BYTES * len(found):
            ddl = encoded_ddl(self.load.columns, form)
            folder = self.stage_folder.path / f"{name}-packed"
            packed = read_encoded(spark, form, found, ddl).coalesce(wanted)
            write_encoded(packed, form, folder)
            found = _parts(folder)
        layout = Layout(form.format, form.stored_options(), self.load.column_names)
        files = []
        for path in found:
            rows_in = self._count(spark, path, form)
            if rows_in:
                sync_file(path)
                size = path.stat().st_size
                files.append(DataFile(str(path.relative_to(self.folder)), rows_in, size, layout))
        return files

    def _count(self, spark: SparkSession, path: Path, form: FileFormat) -> int:
        counted = count_rows(path, form)
        if counted is not None:
            return counted
        return read_encoded(spark, form, [path], encoded_ddl(self.load.columns, form)).count()

    def _read_back(self, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        written = Manifest(self._columns(), tuple(files))
        return self.store.manifest(self.folder, written).load(spark)

    def _columns(self, newest: Manifest | None = None) -> tuple[StoredColumn, ...]:
        nullable = {c.name: c.nullable for c in self.load.table.columns}
        columns = {c.name: c for c in newest.columns} if newest else {}
        for name, kind in self.load.columns:
            columns[name] = StoredColumn(name, kind, nullable.get(name, False))
        return tuple(columns.values())

    def _adopted(self, spark: SparkSession) -> tuple[DataFile, ...]:
        """Files that were there before the first manifest: they are rows of the table too."""
        paths = data_files(self.folder) if self.folder.is_dir() else []
        if not paths:
            return ()
        form = self.store.reading(paths)
        files = []
        for path in paths:
            relation = self.store.plain([path])
            names = tuple(c.name for c in relation.columns)
            layout = Layout(form.format, form.stored_options(), names)
            size = path.stat().st_size
            count = relation.load(spark).count()
            files.append(DataFile(str(path.relative_to(self.folder)), count, size, layout))
        return tuple(files)

    def commit(self, staged: Staged, *, keep: bool) -> Counts:
        """Move the files and link the manifest; linking is the commit."""
        with file_errors(self.store.name):
            return self._commit(staged.handle, keep=keep)

    def _commit(self, staged: StagedFiles, *, keep: bool) -> Counts:
        if not keep:
            return self._next(staged, staged.files)[0].counts
        run_id = self.load.run.run_id
        moved = tuple(
            DataFile(f"{run_id}-{n:05}.{self.form.extension}", f.rows, f.bytes, f.layout)
            for n, f in enumerate(staged.files)
        )
        added = [f.name for f in moved]
        self._touch(added=added, replaced=[])
        for before, after in zip(staged.files, moved, strict=True):
            # A link, unlike a rename, never takes the place of another run's file.
            os.link(self.folder / before.name, self.folder / after.name)
            (self.folder / before.name).unlink()
        sync_folder(self.folder)
        self.load.announce("committing")
        while True:
            manifest, replaced = self._next(staged, moved)
            self._touch(added=added, replaced=replaced)
            if self.log.create(manifest, scratch=self.stage_folder.path / "manifest.tmp"):
                break
        self.load.announce("committed")
        self.new_folders = []
        for name in replaced:
            (self.folder / name).unlink(missing_ok=True)
        return manifest.counts

    def _next(self, staged: StagedFiles, files: tuple[DataFile, ...]) -> tuple[Manifest, list[str]]:
        """The manifest after the newest one, and the files that go away with it."""
        newest = self.log.newest()
        run = self.load.run
        if self._epoch(newest) != self.epoch:
            raise Fenced(
                f"another run of pipeline {run.pipeline!r} has loaded {self.folder} since this "
                "one began; this one wrote nothing",
                fix="run it again if its rows are still missing",
            )
        number = newest.number if newest else 0
        if staged.computed_from not in (None, number):
            raise Transient(
                f"table {self.folder} has changed since this run read it",
                connection=self.store.name,
                fix="run it again",
            )
        before = newest.files if newest else staged.adopted
        counts = Counts(
            read=staged.read,
            inserted=sum(f.rows for f in files),
            deleted=sum(f.rows for f in before) if staged.replaces else 0,
        )
        manifest = Manifest(
            columns=self._columns(newest),
            files=files if staged.replaces else (*before, *files),
            primary_key=self.load.table.primary_key,
            run={
                "run_id": run.run_id,
                "pipeline": run.pipeline,
                "mode": run.mode,
                "path": run.path,
                "started_at": run.started_at.isoformat(),
                "loaded_at": run.loaded_at.isoformat(),
            },
            counts=counts,
            fences={**(newest.fences if newest else {}), run.pipeline: self.epoch + 1},
            batches=newest.batches if newest else (),
            watermark=newest.watermark if newest else None,
            number=number + 1,
        )
        return manifest, [f.name for f in before] if staged.replaces else []


def _parts(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith((".", "_")))


def _copies(select: exp.Select, columns: tuple[str, ...]) -> bool:
    """Whether a step takes the incoming rows as they are."""
    plain = exp.select(*(exp.column(exp.to_identifier(c, quoted=True)) for c in columns))
    return bool(select == plain.from_(exp.table_(INCOMING)))


def _mentions(change: Change, relation: str) -> bool:
    queries = [s.rows for s in change.steps] + [a.violations for a in change.assertions]
    return any(t.name == relation and not t.db for q in queries for t in q.find_all(exp.Table))


def _run(spark: SparkSession, select: exp.Select, relations: dict[str, DataFrame]) -> DataFrame:
    marked = select.copy()
    used: dict[str, Any] = {}
    for table in marked.find_all(exp.Table):
        if not table.db and table.name in relations:
            name = f"ematix_{table.name}"
            used[name] = relations[table.name]
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name)))
            table.set("this", exp.to_identifier(name, quoted=True))
    text = marked.sql(dialect="spark").replace("{", "{{").replace("}", "}}")
    for name in used:
        text = text.replace(f"`{name}`", f"{{{name}}}")
    return spark.sql(text, **used)
