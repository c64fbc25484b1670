"""One run's way into a Delta table: staged as Parquet beside it, then one commit in its log."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.backends.base import Landing, Load, Staged
from ematix_flow.backends.delta_alterations import (
    HeldColumn,
    altered,
    altered_columns,
    is_only_wider,
    refuse_unfit,
)
from ematix_flow.backends.delta_changes import (
    Evaluation,
    Outcome,
    Revision,
    Rows,
    Spooled,
    spool,
)
from ematix_flow.backends.delta_log import (
    DeltaColumn,
    DeltaLog,
    Record,
    Snapshot,
    fence_name,
)
from ematix_flow.backends.delta_sources import found_table, load_version
from ematix_flow.backends.delta_writes import (
    Commit,
    create,
    delete,
    insert,
    merge,
    overwrite,
    restore,
    rewrite,
)
from ematix_flow.backends.file_sources import file_errors
from ematix_flow.backends.staging import StageFolder
from ematix_flow.change import CURRENT, SIDE, Counts, Insert
from ematix_flow.engine.failures import translate
from ematix_flow.errors import EmatixError, Fenced, RunError, Transient, Unsupported
from ematix_flow.model import Table
from ematix_flow.sql.spark import quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.session import Engine

SETTLED = "settled"
_LOCK = "lock"


@dataclass(frozen=True)
class StagedRows:
    """The incoming rows, and the engine that can read them."""

    engine: Engine
    rows: Spooled


@contextlib.contextmanager
def commit_lock(log: DeltaLog) -> Iterator[None]:
    """One writer of ours at a time: on a local disk Delta alone cannot tell two processes apart."""
    path = log.own_folder / _LOCK
    while True:
        log.own_folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever gave up creating the table has taken the file away with its folder.
            if _is_at(lock, path):
                yield
                return
        finally:
            os.close(lock)


def _is_at(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def epoch_of(pipeline: str, snapshot: Snapshot | None, record: Record) -> int:
    """How often a pipeline has committed, or been fenced off."""
    kept = snapshot.transactions.get(fence_name(pipeline), 0) if snapshot else 0
    return max(kept, record.fences.get(pipeline, 0))


class DeltaLanding(Landing):
    """From rows to Parquet in the stage, then to the table by one commit of Delta's."""

    def __init__(self, connection: str, load: Load, *, folder: Path, side_folder: Path) -> None:
        self.connection = connection
        self.load = load
        self.folder = folder
        self.log = DeltaLog(folder)
        self.side_folder = side_folder
        self.side_log = DeltaLog(side_folder)
        self.epoch = 0
        self.new_folders: list[Path] = []

    def __enter__(self) -> Landing:
        with file_errors(self.connection):
            lineage = (self.log.own_folder, self.folder, *self.folder.parents)
            self.new_folders = [p for p in lineage if not p.exists()]
            self.stage_folder = StageFolder(self.log.stage_root, self.load.run.run_id)
            try:
                StageFolder.sweep(self.log.stage_root)
                snapshot = self.log.snapshot()
                record = self.log.newest_record(snapshot)
                self.epoch = epoch_of(self.load.run.pipeline, snapshot, record)
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        with file_errors(self.connection):
            self.stage_folder.remove()
            if not self.log.versions():
                self._forget_folder()
        for folder in self.new_folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return

    def _forget_folder(self) -> None:
        """Of a table that never came to be, nothing of ours stays."""
        own = self.log.own_folder
        if not own.exists():
            return
        with commit_lock(self.log):
            if self.log.versions() or self.log.stage_root.exists():
                return
            for path in self.folder.iterdir() if self.folder in self.new_folders else ():
                if path != own:
                    shutil.rmtree(path, ignore_errors=True)
            (own / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            own.rmdir()

    def stage(self, engine: Engine, rows: DataFrame) -> Staged:
        """Write the incoming rows where no reader looks."""
        self.load.announce("staging")
        with file_errors(self.connection):
            names = [quote(name) for name in self.load.incoming_names]
            spooled = spool(rows.select(*names), self.stage_folder.path / "incoming")
        self.load.announce("staged")
        return Staged(spooled.rows, spooled.bytes, StagedRows(engine, spooled))

    def commit(self, staged: Staged, *, keep: bool) -> Counts:
        """Compute the change and hand it to Delta as one commit; ``keep=False`` only counts."""
        engine: Engine = staged.handle.engine
        what = f"{self.load.run.pipeline} → {self.load.name}: commit"
        with file_errors(self.connection), self._spark_errors():
            with contextlib.ExitStack() as stack:
                if keep:
                    self.load.announce("committing")
                    stack.enter_context(commit_lock(self.log))
                stack.enter_context(engine.job(what))
                spark = stack.enter_context(engine.delta_commit())
                counts = self._commit(spark, staged.handle.rows, keep=keep)
            if keep:
                self.load.announce("committed")
        return counts

    @contextlib.contextmanager
    def _spark_errors(self) -> Iterator[None]:
        try:
            yield
        except (EmatixError, OSError):
            raise
        except Exception as error:
            text = str(error)
            if "ConcurrentTransaction" in text or "DELTA_CONCURRENT_TRANSACTION" in text:
                raise self._fenced() from error
            if "DELTA_MULTIPLE_SOURCE_ROW_MATCHING" in text:
                raise RunError(
                    f"{self.load.name}: the table has several rows for one key, so that it cannot "
                    "be told which one to change; nothing was written",
                    fix="make the key unique in the table, then run it again",
                ) from error
            if "DELTA_CONCURRENT_" in text or "DELTA_METADATA_CHANGED" in text:
                raise self._moved() from error
            raise translate(error, connection=self.connection) from error

    def _moved(self) -> Transient:
        return Transient(
            f"table {self.folder} was changed by somebody else during the commit; this run wrote "
            "nothing",
            connection=self.connection,
            fix="run it again",
        )

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another run of pipeline {self.load.run.pipeline!r} has loaded {self.folder} since "
            "this one began; this one wrote nothing",
            fix="run it again if its rows are still missing",
        )

    def _commit(self, spark: SparkSession, rows: Spooled, *, keep: bool) -> Counts:
        load = self.load
        snapshot = self.log.snapshot()
        before = self.log.newest_record(snapshot)
        if load.batch is not None and load.batch in before.batches:
            return Counts()
        if (self.stage_folder.path / SETTLED).exists():
            raise Fenced(
                f"this run of pipeline {load.run.pipeline!r} was given up for dead before it could "
                f"commit to {self.folder}; it wrote nothing",
                fix="run it again if its rows are still missing",
            )
        if epoch_of(load.run.pipeline, snapshot, before) != self.epoch:
            raise self._fenced()
        self._check_existence(snapshot)
        side_version = side_version_of(self.side_log, before) if load.side else None
        held = {
            CURRENT: self._held(snapshot, CURRENT),
            SIDE: self._held(self._side_snapshot(side_version), SIDE),
        }
        outcome = Evaluation(
            spark,
            load,
            scratch=self.stage_folder.path,
            staged=rows,
            current=lambda: self._rows(spark, self.folder, snapshot, held[CURRENT]),
            side=lambda: self._rows(
                spark, self.side_folder, self._side_snapshot(side_version), held[SIDE]
            ),
            altered={
                name: columns
                for name, columns in held.items()
                if columns and not (name == CURRENT and self._only_adds())
            },
        ).outcome()
        if not keep:
            return outcome.counts
        record = self._record(before, outcome)
        if outcome.side is not None and outcome.side.acts and load.side is not None:
            version = self._revise_side(
                spark, load.side, outcome.side, side_version, anew=outcome.anew.get(SIDE)
            )
            record = replace(record, side=version)
        self._apply(spark, outcome, record, snapshot)
        if self.log.of_run(load.run.run_id) is None:
            # Delta has passed over the write: it knows a later epoch of this pipeline.
            raise self._fenced()
        self.new_folders = []
        return outcome.counts

    def _check_existence(self, snapshot: Snapshot | None) -> None:
        happened = "created" if self.load.creates else "removed"
        if self.load.creates == (snapshot is None):
            altered = bool(self.load.alterations) and snapshot is not None
            if not altered or (snapshot and found_table(snapshot) == self.load.found):
                return
            happened = "altered"
        raise Transient(
            f"table {self.folder} was {happened} by somebody else since this run began",
            connection=self.connection,
            fix="run it again",
        )

    def _held(self, snapshot: Snapshot | None, relation: str) -> list[HeldColumn]:
        """The columns of a table that is altered; none where it stays as it is."""
        alterations = [a for a in self.load.alterations if a.relation == relation]
        return altered_columns(snapshot.columns, alterations) if snapshot and alterations else []

    def _only_adds(self) -> bool:
        """Whether Delta can add the new columns with the new rows."""
        steps = self.load.change.steps
        alterations = [a for a in self.load.alterations if a.relation == CURRENT]
        return is_only_wider(alterations) and all(isinstance(s, Insert) for s in steps)

    def _side_snapshot(self, version: int | None) -> Snapshot | None:
        return None if version is None else self.side_log.snapshot(at=version)

    def _rows(
        self,
        spark: SparkSession,
        folder: Path,
        snapshot: Snapshot | None,
        columns: Sequence[HeldColumn],
    ) -> DataFrame | None:
        if snapshot is None:
            return None
        rows = load_version(spark, folder, snapshot.version)
        if not columns:
            return rows
        relation = CURRENT if folder == self.folder else SIDE
        alterations = [a for a in self.load.alterations if a.relation == relation]
        refuse_unfit(rows, alterations, str(self.folder))
        return altered(rows, columns)

    def _record(self, before: Record, outcome: Outcome) -> Record:
        run, move = self.load.run, self.load.watermark
        watermarks: dict[str, Mapping[str, str]] = dict(before.watermarks)
        if move is not None and outcome.watermark is not None:
            own = watermarks.get(run.pipeline, {})
            watermarks[run.pipeline] = {**own, move.column: outcome.watermark}
        return Record(
            run={
                "run_id": run.run_id,
                "pipeline": run.pipeline,
                "mode": run.mode,
                "path": run.path,
                "started_at": run.started_at.isoformat(),
                "loaded_at": run.loaded_at.isoformat(),
            },
            counts=outcome.counts,
            fences={**before.fences, run.pipeline: self.epoch + 1},
            watermarks=watermarks,
            batches=before.batches
            if self.load.batch is None
            else (*before.batches, self.load.batch),
            side=before.side,
        )

    def _apply(
        self, spark: SparkSession, outcome: Outcome, record: Record, snapshot: Snapshot | None
    ) -> None:
        commit = Commit(fence_name(self.load.run.pipeline), self.epoch + 1, record.to_json())
        rows, revision = outcome.added, outcome.current
        if revision is not None and not revision.acts - {"insert"}:
            rows, revision = revision.inserts, None
        if CURRENT in outcome.anew and snapshot is not None:
            columns = self._held(snapshot, CURRENT)
            parts = [c for c in snapshot.partitions if c in {h.name for h in columns}]
            rewrite(outcome.anew[CURRENT], self.folder, columns, commit, parts=parts)
        elif revision is not None:
            merge(spark, self.folder, revision, self.load.columns, commit)
        elif rows is None:
            raise Unsupported("a change without a step for the table itself")
        elif snapshot is None:
            create(rows, self.folder, self.load.table, self.load.columns, commit)
        elif not rows.count and not outcome.counts.deleted and not self.load.alterations:
            if not self.log.note(snapshot, record, fence=self.load.run.pipeline):
                raise self._moved()
        elif outcome.replaced is None:
            added = {a.column: a.type for a in self.load.alterations if a.type is not None}
            insert(rows, self.folder, commit, added=added)
        elif rows.count:
            overwrite(spark, rows, self.folder, commit, where=outcome.replaced)
        else:
            delete(spark, self.folder, commit, where=outcome.replaced)

    def _revise_side(
        self,
        spark: SparkSession,
        side: Table,
        revision: Revision,
        version: int | None,
        *,
        anew: Rows | None,
    ) -> int:
        """Write the side table first; it counts once the table's commit names its version."""
        columns = self.load.columns_of(SIDE)
        record = Record(run={"run_id": self.load.run.run_id, "side_of": str(self.folder)})
        commit = Commit(None, 0, record.to_json())
        found = self.side_log.snapshot()
        plain = altered_columns([DeltaColumn(n, k, spark_ddl(k)) for n, k in columns], ())
        if found is None:
            create(revision.inserts, self.side_folder, side, columns, commit)
        elif version is None:
            rewrite(revision.inserts, self.side_folder, plain, commit, parts=())
        else:
            if found.version != version:
                restore(spark, self.side_folder, version)
            if anew is None:
                merge(spark, self.side_folder, revision, columns, commit)
            else:
                rewrite(anew, self.side_folder, plain, commit, parts=())
        return self.side_log.versions()[0]


def side_version_of(log: DeltaLog, record: Record) -> int | None:
    """The version of a side table whose rows count: later ones of ours never committed."""
    if record.side is None:
        return None
    later = [v for v in log.versions() if v > record.side]
    if any(log.record_of(v) is not None for v in later):
        return record.side
    return max([record.side, *later])
