"""One run's way into a table of files: staged, moved, and committed by a manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sqlglot import exp

from ematix_flow.backends.base import Landing, Load, Staged
from ematix_flow.backends.file_evolution import (
    altered_columns,
    refuse_missing_values,
    rewrites,
    rewritten,
)
from ematix_flow.backends.file_formats import (
    count_rows,
    encode,
    encoded_ddl,
    read_encoded,
    spark_path,
    write_encoded,
)
from ematix_flow.backends.file_options import FileFormat
from ematix_flow.backends.file_sources import Store, data_files, file_errors, load_manifest
from ematix_flow.backends.manifest import (
    FOLDER,
    TOUCHED,
    DataFile,
    Layout,
    Manifest,
    ManifestLog,
    StoredColumn,
    sync_file,
    sync_folder,
)
from ematix_flow.backends.spark_changes import SparkChange
from ematix_flow.backends.staging import StageFolder
from ematix_flow.change import CURRENT, INCOMING, SIDE, Counts, Replace, Revise, Rewrite, Step
from ematix_flow.errors import Fenced, Transient
from ematix_flow.sql.spark import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.session import Engine
    from ematix_flow.model import Table
    from ematix_flow.types import ColumnType

    Columns = Sequence[tuple[str, ColumnType]]

PLACE = "_em_file"
_GOOD_BYTES = 128 << 20
# To pack bigger files would cost more than their readers ever save.
_POOR_BYTES = 8 << 20


@dataclass(frozen=True)
class StagedFiles:
    """Files in the stage, ready to be moved, and the names of those that they replace.

    ``removed`` is None where they take the place of the whole table, ``side`` is None where what
    is kept beside it stays; ``computed_from`` is the manifest that the rows depend on, if any.
    ``evolved`` tells that they are the table's own rows too, with other columns.
    """

    files: tuple[DataFile, ...]
    adopted: tuple[DataFile, ...]
    removed: frozenset[str] | None
    computed_from: int | None
    counts: Counts
    side: tuple[DataFile, ...] | None = None
    watermark: str | None = None
    evolved: bool = False


@dataclass
class _Made:
    """What the steps of a load have written so far."""

    files: list[DataFile] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    side: tuple[DataFile, ...] | None = None
    counted: dict[str, int] = field(default_factory=dict)


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
        self.undeclared: list[tuple[str, ColumnType]] = []

    def __enter__(self) -> Landing:
        with file_errors(self.store.name):
            lineage = (self.log.side, self.log.folder, self.folder, *self.folder.parents)
            self.new_folders = [p for p in lineage if not p.exists()]
            self.stage_folder = StageFolder(self.log.stage_root, self.load.run.run_id)
            try:
                StageFolder.sweep(self.log.stage_root, settle=self.log.settle)
                self.epoch = self._epoch(self.log.newest())
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        with file_errors(self.store.name):
            self.log.settle(self.stage_folder.path)
            self.stage_folder.remove()
        for folder in self.new_folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return

    def _epoch(self, newest: Manifest | None) -> int:
        return newest.fences.get(self.load.run.pipeline, 0) if newest else 0

    @contextlib.contextmanager
    def _while_ours(self) -> Iterator[None]:
        """Without its stage nothing goes right any more: that is told, not what went wrong."""
        try:
            yield
        except Exception as error:
            if self.stage_folder.is_ours() or self.log.of_run(self.load.run.run_id):
                raise
            raise self._given_up() from error

    def _given_up(self) -> Fenced:
        return Fenced(
            f"this run of pipeline {self.load.run.pipeline!r} was given up for dead before it "
            f"could commit to {self.folder}; it wrote nothing",
            fix="run it again if its rows are still missing",
        )

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
        with file_errors(self.store.name), self._while_ours():
            staged = self._stage(engine.spark, rows)
        self.load.announce("staged")
        return Staged(staged.counts.read, sum(f.bytes for f in staged.files), staged)

    def _stage(self, spark: SparkSession, rows: DataFrame) -> StagedFiles:
        newest = self.log.newest()
        adopted = () if newest else self._adopted(spark)
        before = newest or Manifest(self._found_columns(), adopted)
        refuse_missing_values(self.load, before, str(self.folder))
        first = self.load.change.steps[0]
        if isinstance(first, Replace) or not rewrites(self.load):
            current = dataclasses.replace(before, columns=self._columns(before))
            return self._changed(spark, rows, current, adopted)
        current = rewritten(
            spark,
            self.folder,
            before,
            self.load,
            lambda frame, name, columns: self._write(
                spark,
                frame,
                name,
                FileFormat("parquet") if name.startswith("side") else self.form,
                columns,
            ),
        )
        return self._evolved(self._changed(spark, rows, current, adopted), current)

    def _evolved(self, staged: StagedFiles, current: Manifest) -> StagedFiles:
        """The whole table takes the place of the one before: its rows, and what the load made."""
        kept = tuple(f for f in current.files if f.name not in (staged.removed or ()))
        return dataclasses.replace(
            staged,
            files=(*kept, *staged.files),
            removed=None,
            computed_from=current.number,
            side=current.side if staged.side is None else staged.side,
            evolved=True,
        )

    def _found_columns(self) -> tuple[StoredColumn, ...]:
        """The columns of plain files, as they were found before the first manifest."""
        found = self.load.found
        if found is None:
            return self._columns()
        return tuple(StoredColumn(c.name, c.type, c.nullable) for c in found.columns if c.type)

    def _changed(
        self,
        spark: SparkSession,
        rows: DataFrame,
        current: Manifest,
        adopted: tuple[DataFile, ...],
    ) -> StagedFiles:
        """The files that the load's steps make of the table as it is."""
        load = self.load
        declared = load.column_names
        self.undeclared = [(c.name, c.type) for c in current.columns if c.name not in declared]
        change = SparkChange(spark, load, lambda name, frame: self._spool(spark, name, frame))
        step = load.change.steps[0]
        if not isinstance(step, Rewrite) and _copies(step.rows, load.column_names):
            # Rows are computed once: the files of a plain copy are the incoming rows.
            change.arrive(rows)
            files = self._write(spark, change.query(step.rows), "rows", self.form)
            change.relations[INCOMING] = self._read_back(spark, files)
            change.check("incoming")
            if load.inspect is not None:
                change.relations[CURRENT] = load_manifest(spark, self.folder, current)
                change.show()
            read = sum(f.rows for f in files)
            removed = None if isinstance(step, Replace) else frozenset[str]()
            counts = Counts(read=read, inserted=read)
            seen = current.number if load.inspect is not None else None
            return StagedFiles(
                tuple(files), adopted, removed, seen, counts, watermark=change.watermark()
            )
        change.relations[CURRENT] = load_manifest(spark, self.folder, current, place=PLACE)
        if load.side is not None:
            beside = Manifest(_stored(load.side), current.side)
            change.relations[SIDE] = load_manifest(spark, self.folder, beside)
        spooled = self._spool(spark, INCOMING, rows)
        change.arrive(spooled)
        change.compute()
        counts = change.counts(spooled.count())
        made = _Made()
        for step in load.change.steps:
            self._apply(spark, change, step, made)
        change.check("result")
        counts = dataclasses.replace(counts, **made.counted)
        return StagedFiles(
            tuple(made.files),
            adopted,
            frozenset(made.removed),
            current.number,
            counts,
            made.side,
            change.watermark(),
        )

    def _apply(self, spark: SparkSession, change: SparkChange, step: Step, made: _Made) -> None:
        """Write what a step makes of the table, or of what is kept beside it."""
        current = change.relations[CURRENT]
        if isinstance(step, Rewrite):
            places, kept, gone = self._outside(change, step.where)
            made.removed |= {self._name(place) for place in places}
            new = change.query(step.rows)
            made.counted = {"inserted": new.count(), "deleted": gone}
            rows = kept.unionByName(new, allowMissingColumns=True)
            made.files += self._write(spark, rows, "rows", self.form, self._all_columns)
        elif not isinstance(step, Revise):
            made.files += self._write(spark, change.query(step.rows), "rows", self.form)
            made.counted = {"inserted": sum(f.rows for f in made.files)}
        elif step.relation == CURRENT:
            places = self._touched(spark, change, step)
            made.removed |= {self._name(place) for place in places}
            touched = current.where(current[PLACE].isin(places))
            rows = _revised(spark, change, step, touched, [n for n, _ in self.undeclared])
            made.files += self._write(spark, rows, "rows", self.form, self._all_columns)
            kept = current.where(~current[PLACE].isin(places)).drop(PLACE)
            change.relations[CURRENT] = kept.unionByName(self._read_back(spark, made.files))
        elif change.touches(step, "insert", "update", "delete"):
            rows = _revised(spark, change, step, change.relations[SIDE])
            columns = self.load.columns_of(SIDE)
            made.side = tuple(self._write(spark, rows, "side", FileFormat("parquet"), columns))

    @property
    def _all_columns(self) -> Columns:
        """The columns of the table, those that this load leaves alone included."""
        return (*self.load.columns, *self.undeclared)

    def _outside(
        self, change: SparkChange, where: exp.Expression
    ) -> tuple[list[str], DataFrame, int]:
        """The files with rows for which a condition holds, their other rows, and how many go."""
        holds = exp.Is(this=exp.paren(where.copy()), expression=exp.true())
        every = exp.select("*").from_(exp.table_(CURRENT))
        found = change.query(every.where(holds)).groupBy(PLACE).count().collect()
        places = [row[0] for row in found]
        kept = change.query(every.where(exp.not_(holds)))
        kept = kept.where(kept[PLACE].isin(places))
        columns = [quote(name) for name, _ in self._all_columns]
        return places, kept.selectExpr(*columns), sum(row[1] for row in found)

    def _touched(self, spark: SparkSession, change: SparkChange, step: Revise) -> list[str]:
        """The files that hold rows which are updated or deleted."""
        if not change.touches(step, "update", "delete"):
            return []
        found = spark.sql(
            f"SELECT DISTINCT c.{PLACE} FROM {{current}} AS c LEFT SEMI JOIN {{gone}} AS g "
            f"ON {_same(step.identity)}",
            current=change.relations[CURRENT],
            gone=change.rows_of(step, "update", "delete"),
        )
        return [row[0] for row in found.collect()]

    def _name(self, place: str) -> str:
        path = Path(unquote(place.removeprefix("file:").replace("///", "/", 1)))
        return str(path.relative_to(self.folder))

    def _spool(self, spark: SparkSession, name: str, rows: DataFrame) -> DataFrame:
        """Keep rows in the stage, so that they are computed once."""
        folder = spark_path(self.stage_folder.path / f"{name}-spool")
        # Numbered, because not every name of a column is one for Parquet.
        numbered = [f"{quote(c)} AS c{i}" for i, c in enumerate(rows.columns)]
        kept = rows.selectExpr(*numbered)
        kept.write.parquet(folder.replace("\\", ""))
        named = [f"c{i} AS {quote(c)}" for i, c in enumerate(rows.columns)]
        return spark.read.schema(kept.schema).parquet(folder).selectExpr(*named)

    def _write(
        self,
        spark: SparkSession,
        rows: DataFrame,
        name: str,
        form: FileFormat,
        columns: Columns | None = None,
    ) -> list[DataFile]:
        """Files in the stage, few and big; empty ones are left out."""
        columns = self.load.columns if columns is None else columns
        folder = self.stage_folder.path / name
        write_encoded(encode(rows, columns, form), form, folder)
        found = _parts(folder)
        size = sum(p.stat().st_size for p in found)
        wanted = max(1, -(-size // _GOOD_BYTES))
        if len(found) > wanted and size < _POOR_BYTES * len(found):
            ddl = encoded_ddl(columns, form)
            folder = self.stage_folder.path / f"{name}-packed"
            packed = read_encoded(spark, form, found, ddl).coalesce(wanted)
            write_encoded(packed, form, folder)
            found = _parts(folder)
        layout = Layout(form.format, form.stored_options(), tuple(n for n, _ in columns))
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
        written = Manifest(
            (*self._columns(), *(StoredColumn(n, kind) for n, kind in self.undeclared)),
            tuple(files),
        )
        return self.store.manifest(self.folder, written).load(spark)

    def _columns(self, newest: Manifest | None = None) -> tuple[StoredColumn, ...]:
        nullable = {c.name: c.nullable for c in self.load.table.columns}
        held = altered_columns(newest.columns if newest else (), self.load.alterations)
        columns = {c.name: c for c in held}
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
        with file_errors(self.store.name), self._while_ours():
            # Spark may have made a stage anew that was taken away meanwhile.
            if not self.stage_folder.is_ours():
                raise self._given_up()
            return self._commit(staged.handle, keep=keep)

    def _commit(self, staged: StagedFiles, *, keep: bool) -> Counts:
        if not keep:
            return self._next(staged, staged.files, staged.side)[0].counts
        run_id = self.load.run.run_id
        moved = _renamed(staged.files, f"{run_id}-{{:05}}.{self.form.extension}")
        side = staged.side
        if side is not None:
            self.log.side.mkdir(exist_ok=True)
            side = _renamed(side, f"{FOLDER}/{self.log.side.name}/{run_id}-{{:05}}.parquet")
        waiting = (*staged.files, *(staged.side or ()))
        pairs = list(zip(waiting, (*moved, *(side or ())), strict=True))
        added = [after.name for _, after in pairs]
        self._touch(added=added, replaced=[])
        for before, after in pairs:
            # A link, unlike a rename, never takes the place of another run's file.
            os.link(self.folder / before.name, self.folder / after.name)
            (self.folder / before.name).unlink()
        sync_folder(self.folder)
        self.load.announce("committing")
        while True:
            manifest, replaced = self._next(staged, moved, side)
            if self.load.batch is not None and self.load.batch in manifest.batches[:-1]:
                return Counts()
            self._touch(added=added, replaced=replaced)
            if self.log.create(manifest, scratch=self.stage_folder.path / "manifest.tmp"):
                break
        self.load.announce("committed")
        self.new_folders = []
        for name in replaced:
            (self.folder / name).unlink(missing_ok=True)
        return manifest.counts

    def _next(
        self,
        staged: StagedFiles,
        files: tuple[DataFile, ...],
        side: tuple[DataFile, ...] | None,
    ) -> tuple[Manifest, list[str]]:
        """The manifest after the newest one, and the files that go away with it."""
        newest = self.log.newest() or Manifest(self._found_columns(), staged.adopted)
        run = self.load.run
        if self._epoch(newest) != self.epoch:
            raise Fenced(
                f"another run of pipeline {run.pipeline!r} has loaded {self.folder} since this "
                "one began; this one wrote nothing",
                fix="run it again if its rows are still missing",
            )
        if staged.computed_from not in (None, newest.number):
            raise Transient(
                f"table {self.folder} has changed since this run read it",
                connection=self.store.name,
                fix="run it again",
            )
        everything = staged.removed is None
        gone = [f for f in newest.files if everything or f.name in (staged.removed or ())]
        kept = tuple(f for f in newest.files if f not in gone)
        counts = staged.counts
        if everything and not staged.evolved:
            counts = dataclasses.replace(counts, deleted=sum(f.rows for f in gone))
        batch = () if self.load.batch is None else (self.load.batch,)
        manifest = Manifest(
            columns=self._columns(newest),
            files=(*kept, *files),
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
            fences={**newest.fences, run.pipeline: self.epoch + 1},
            batches=(*newest.batches, *batch),
            watermarks=self._watermarks(newest, staged.watermark),
            side=newest.side if side is None else side,
            number=newest.number + 1,
        )
        replaced = [f.name for f in gone]
        return manifest, replaced if side is None else [*replaced, *(f.name for f in newest.side)]

    def _watermarks(self, newest: Manifest, value: str | None) -> dict[str, dict[str, str]]:
        held = {name: dict(values) for name, values in newest.watermarks.items()}
        move = self.load.watermark
        if move is not None and value is not None:
            held.setdefault(self.load.run.pipeline, {})[move.column] = value
        return held


def _renamed(files: Sequence[DataFile], pattern: str) -> tuple[DataFile, ...]:
    return tuple(dataclasses.replace(file, name=pattern.format(n)) for n, file in enumerate(files))


def _stored(table: Table) -> tuple[StoredColumn, ...]:
    return tuple(StoredColumn(c.name, c.type, c.nullable) for c in table.columns)


def _same(identity: Sequence[str]) -> str:
    """Whether a row and one of the change set are the same, for a query with braces in it."""
    pairs = (f"c.{quote(name)} = g.{quote(name)}" for name in identity)
    return " AND ".join(pairs).replace("{", "{{").replace("}", "}}")


def _revised(
    spark: SparkSession,
    change: SparkChange,
    step: Revise,
    rows: DataFrame,
    undeclared: Sequence[str] = (),
) -> DataFrame:
    """Rows after a change set: without those it deletes, with those it updates and inserts."""
    columns = [name for name, _ in change.load.columns_of(step.relation)]
    kept = spark.sql(
        f"SELECT {_listed('c', (*columns, *undeclared))} FROM {{rows}} AS c "
        f"LEFT ANTI JOIN {{gone}} AS g ON {_same(step.identity)}",
        rows=rows,
        gone=change.rows_of(step, "update", "delete"),
    )
    if not undeclared:
        return kept.unionByName(change.rows_of(step, "insert", "update"))
    updated = spark.sql(
        f"SELECT {_listed('g', columns)}, {_listed('c', undeclared)} FROM {{updates}} AS g "
        f"JOIN {{rows}} AS c ON {_same(step.identity)}",
        rows=rows,
        updates=change.rows_of(step, "update"),
    )
    inserted = change.rows_of(step, "insert")
    return kept.unionByName(updated).unionByName(inserted, allowMissingColumns=True)


def _listed(relation: str, columns: Sequence[str]) -> str:
    """Columns of a relation, for a query with braces in it."""
    text = ", ".join(f"{relation}.{quote(name)}" for name in columns)
    return text.replace("{", "{{").replace("}", "}}")


def _parts(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith((".", "_")))


def _copies(rows: exp.Query, columns: tuple[str, ...]) -> bool:
    """Whether a step takes the incoming rows as they are."""
    plain = exp.select(*(exp.column(exp.to_identifier(c, quoted=True)) for c in columns))
    return bool(rows == plain.from_(exp.table_(INCOMING)))
