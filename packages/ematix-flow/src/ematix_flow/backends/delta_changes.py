"""What a load comes to on a Delta table, checked and spooled before a commit is made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sqlglot import exp

from ematix_flow.backends.base import Load
from ematix_flow.backends.delta_alterations import HeldColumn
from ematix_flow.backends.file_formats import read_encoded, write_encoded
from ematix_flow.backends.file_options import FileFormat
from ematix_flow.backends.spark_changes import SparkChange, SparkText
from ematix_flow.change import (
    CURRENT,
    INCOMING,
    OPERATION,
    SIDE,
    Counts,
    Insert,
    Replace,
    Revise,
    Rewrite,
)
from ematix_flow.sql.spark import quote, spark_ddl
from ematix_flow.types import ColumnType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING = "TRUE"
_PARQUET = FileFormat("parquet")


@dataclass(frozen=True)
class Spooled:
    """Rows in Parquet files of a folder of their own."""

    folder: Path
    rows: int
    bytes: int

    def load(self, spark: SparkSession, ddl: str) -> DataFrame:
        """The rows."""
        if not self.rows:
            return spark.createDataFrame([], ddl)
        return read_encoded(spark, _PARQUET, _parts(self.folder), ddl)


def spool(frame: DataFrame, folder: Path) -> Spooled:
    """Write rows out, so that they are computed once."""
    import pyarrow.parquet as pq

    write_encoded(frame, _PARQUET, folder)
    rows = size = 0
    for file in _parts(folder):
        count = int(pq.read_metadata(file).num_rows)
        rows += count
        if count:
            size += file.stat().st_size
        else:
            # What is read from it would be an empty part, of which Delta makes an empty file.
            file.unlink()
    return Spooled(folder, rows, size)


def _parts(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith((".", "_")))


def ddl_of(columns: Sequence[tuple[str, ColumnType]]) -> str:
    """Columns as a Spark schema."""
    return ", ".join(f"{quote(name)} {spark_ddl(kind)}" for name, kind in columns)


@dataclass(frozen=True)
class Rows:
    """Rows to write: how many, and how many bytes they were when they were spooled."""

    frame: DataFrame
    count: int
    bytes: int


@dataclass(frozen=True)
class Revision:
    """A computed change set and what it does to its table."""

    step: Revise
    changes: DataFrame
    inserts: Rows
    acts: frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """All that a commit needs: rows to add or to put in the place of others, or change sets.

    ``replaced`` is Spark SQL for the rows whose place is taken; ``anew`` are all rows of a table
    that is written again because its columns change.
    """

    counts: Counts
    watermark: str | None
    added: Rows | None = None
    replaced: str | None = None
    current: Revision | None = None
    side: Revision | None = None
    anew: Mapping[str, Rows] = field(default_factory=dict)


Reader = Callable[[], "DataFrame | None"]


class Evaluation:
    """One load over its relations; tables are only read where the change looks at them.

    ``scratch`` is a folder of its own, ``current`` and ``side`` give None for what is not there.
    ``altered`` are the columns of relations that change them.
    """

    def __init__(
        self,
        spark: SparkSession,
        load: Load,
        *,
        scratch: Path,
        staged: Spooled,
        current: Reader,
        side: Reader,
        altered: Mapping[str, Sequence[HeldColumn]],
    ) -> None:
        self.load = load
        self.altered = altered
        self.spark = spark
        self.scratch = scratch
        self.staged = staged
        self.spools: dict[str, Spooled] = {}
        self.change = SparkChange(spark, load, self._spool)
        self.change.arrive(staged.load(spark, ddl_of([(c.name, c.type) for c in load.incoming])))
        for name, reader in ((CURRENT, current), (SIDE, side)):
            if name in altered or _looks_at(load, name):
                found = reader()
                self.change.relations[name] = self._empty(name) if found is None else found

    def _empty(self, relation: str) -> DataFrame:
        return self.spark.createDataFrame([], ddl_of(self.load.columns_of(relation)))

    def _spool(self, name: str, frame: DataFrame) -> DataFrame:
        fields = [(f.name, f.dataType.simpleString()) for f in frame.schema.fields]
        for step in self.load.change.revisions:
            if step.changes == name:
                columns = self.load.columns_of(step.relation)
                fields = [(OPERATION, "STRING"), *((n, spark_ddl(kind)) for n, kind in columns)]
        casts = [f"CAST({quote(n)} AS {ddl}) AS {quote(n)}" for n, ddl in fields]
        self.spools[name] = spool(frame.selectExpr(*casts), self.scratch / name)
        ddl = ", ".join(f"{quote(n)} {ddl}" for n, ddl in fields)
        return self.spools[name].load(self.spark, ddl)

    def outcome(self) -> Outcome:
        """Check, compute and spool everything; nothing is applied."""
        change = self.change
        change.compute()
        if self.load.inspect is not None:
            self.load.inspect(self.load, self._ask)
        outcome = Outcome(change.counts(self.staged.rows), change.watermark())
        for step in self.load.change.steps:
            if not isinstance(step, Revise):
                outcome = self._taken(step, outcome)
            elif step.relation == CURRENT:
                outcome = dataclasses.replace(outcome, current=self._revision(step))
            else:
                outcome = dataclasses.replace(outcome, side=self._revision(step))
        anew = {name: self._anew(name, outcome) for name in self.altered}
        outcome = dataclasses.replace(outcome, anew=anew)
        if any(a.when == "result" for a in self.load.change.assertions):
            for name in (CURRENT, SIDE):
                if name in change.relations:
                    change.relations[name] = self._after(name)
            change.check("result")
        return outcome

    def _ask(self, query: exp.Query) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.change.query(query).collect()]

    def _taken(self, step: Insert | Replace | Rewrite, outcome: Outcome) -> Outcome:
        columns = self.load.columns
        # A column of the table may have stayed wider than what arrives for it.
        casts = [f"CAST({quote(n)} AS {spark_ddl(kind)}) AS {quote(n)}" for n, kind in columns]
        if _copies(step.rows, self.load.column_names):
            spooled, frame = self.staged, self.change.relations[INCOMING].selectExpr(*casts)
        else:
            rows = self.change.query(step.rows).selectExpr(*casts)
            spooled = spool(rows, self.scratch / step.verb)
            frame = spooled.load(self.spark, ddl_of(columns))
        counts = dataclasses.replace(outcome.counts, inserted=spooled.rows)
        replaced = None
        if not isinstance(step, Insert):
            replaced = EVERYTHING
            if isinstance(step, Rewrite):
                replaced = SparkText(self.load, {}).text(cast("exp.Query", step.where))
            gone = self.change.relations[CURRENT].where(replaced).count()
            counts = dataclasses.replace(counts, deleted=gone)
        added = Rows(frame, spooled.rows, spooled.bytes)
        return dataclasses.replace(outcome, counts=counts, added=added, replaced=replaced)

    def _revision(self, step: Revise) -> Revision:
        acts = frozenset(
            act for act in ("insert", "update", "delete") if self.change.touches(step, act)
        )
        frame, count = self.change.rows_of(step, "insert"), self.change.touches(step, "insert")
        inserts = Rows(frame, count, self.spools[step.changes].bytes)
        return Revision(step, self.change.relations[step.changes], inserts, acts)

    def _after(self, relation: str) -> DataFrame:
        """A relation as it will be."""
        rows = self.change.relations[relation]
        for step in self.load.change.revisions:
            if step.relation == relation:
                names = [quote(name) for name, _ in self.load.columns_of(relation)]
                gone = self.change.rows_of(step, "update", "delete")
                identity = list(step.identity)
                kept = rows.join(gone.select(*map(quote, identity)), identity, "left_anti")
                rows = kept.select(*names).unionAll(self.change.rows_of(step, "insert", "update"))
        return rows

    def _anew(self, relation: str, outcome: Outcome) -> Rows:
        """All rows of a relation as they will be, in its altered columns."""
        rows = self.change.relations[relation]
        for step in self.load.change.revisions:
            if step.relation == relation:
                rows = self._revised(step, rows)
        if relation == CURRENT and outcome.added is not None:
            if outcome.replaced is not None:
                rows = rows.where(f"NOT coalesce({outcome.replaced}, false)")
            rows = rows.unionByName(outcome.added.frame, allowMissingColumns=True)
        columns = [(c.name, c.stored) for c in self.altered[relation]]
        casts = [f"CAST({quote(n)} AS {ddl}) AS {quote(n)}" for n, ddl in columns]
        spooled = spool(rows.selectExpr(*casts), self.scratch / f"{relation}-anew")
        ddl = ", ".join(f"{quote(n)} {ddl}" for n, ddl in columns)
        return Rows(spooled.load(self.spark, ddl), spooled.rows, spooled.bytes)

    def _revised(self, step: Revise, rows: DataFrame) -> DataFrame:
        """Rows after a change set; what it does not know of an updated row stays."""
        known = {name for name, _ in self.load.columns_of(step.relation)}
        identity = list(step.identity)
        extra = [quote(c) for c in (*identity, *(c for c in rows.columns if c not in known))]
        gone = self.change.rows_of(step, "update", "delete").select(*map(quote, identity))
        kept = rows.join(gone, identity, "left_anti")
        updated = self.change.rows_of(step, "update").join(rows.select(*extra), identity)
        inserted = self.change.rows_of(step, "insert")
        both = updated.unionByName(inserted, allowMissingColumns=True)
        return kept.unionByName(both, allowMissingColumns=True)


def _looks_at(load: Load, relation: str) -> bool:
    change = load.change
    if load.inspect is not None and (relation == CURRENT or load.side is not None):
        return True
    if relation == CURRENT and any(isinstance(s, Replace | Rewrite) for s in change.steps):
        return True  # the rows that go are counted
    queries = [s.rows for s in change.steps] + [a.violations for a in change.assertions]
    queries += [*change.derived.values(), *([change.considered] if change.considered else [])]
    named = any(t.name == relation and not t.db for q in queries for t in q.find_all(exp.Table))
    return named or any(step.relation == relation for step in change.revisions)


def _copies(query: exp.Query, columns: tuple[str, ...]) -> bool:
    """Whether a step takes the incoming rows as they are."""
    plain = exp.select(*(exp.column(exp.to_identifier(c, quoted=True)) for c in columns))
    return bool(query == plain.from_(exp.table_(INCOMING)))
