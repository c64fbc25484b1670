"""Lineage of a pipeline: its source, and everything that happens to rows before they land."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ematix_flow.declaring_transforms import shown
from ematix_flow.lineage.edges import FILTER, GROUP, SORT, Lineage, Origin, Origins, indirectly
from ematix_flow.lineage.from_sql import CannotTrace, trace_expression, trace_sql
from ematix_flow.lineage.names import Names
from ematix_flow.lineage.relations import Relation, base_table, opaque
from ematix_flow.model import VALID_FROM_COLUMN, PipelineSpec, TargetSpec, merge_key
from ematix_flow.normalize.expressions import Derive, Sql
from ematix_flow.transforms import DeduplicateBy, FilterWhere, RowTransform, SamplePercent

if TYPE_CHECKING:
    from sqlglot import exp

    from ematix_flow.engine.plans import AnalysedPlan, Leaf
    from ematix_flow.model import Column

# The columns that are declared of a table, by its name in lineage.
Declared = Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class Traced:
    """A pipeline's source as a relation, and what could not be found out about it."""

    relation: Relation
    notes: tuple[str, ...] = ()
    origin: str = "query"


@dataclass(frozen=True)
class PipelineTracer:
    """Works lineage out for one pipeline."""

    spec: PipelineSpec
    names: Names = field(default_factory=Names)
    declared: Declared = lambda table: ()

    # Where rows come from

    def source(self, sql: str | None) -> Traced:
        """The rows of a query, or of ``source_table=`` without one, after ``transform_sql=``."""
        spec = self.spec
        if sql is None:
            label = self.names.source_table(spec.source, spec.source_table or "")
            return self._transformed(Traced(self._table(label)))
        dialect = self.names.dialect(spec.source)
        try:
            relation = trace_sql(sql, dialect=dialect, tables=self._in_query)
        except CannotTrace as reason:
            return self._transformed(Traced(opaque(frozenset()), (f"its query: {reason}",)))
        return self._transformed(Traced(relation))

    def frame(self, plan: AnalysedPlan) -> Traced:
        """The rows of a DataFrame, by its analysed plan, after ``transform_sql=``."""
        from ematix_flow.lineage.from_plan import trace_plan

        found = trace_plan(plan, lambda leaf, _: self._leaf(leaf))
        return self._transformed(Traced(found.relation, found.notes, "plan"))

    def staged(self, plan: AnalysedPlan, sql: str | None) -> Traced:
        """The rows as they are staged, by their plan; those of ``sql`` are recognised in it."""
        from ematix_flow.lineage.from_plan import trace_plan

        read = None if sql is None and self.spec.source_table is None else self._read(sql)

        def leaf(told: Leaf | None, columns: tuple[str, ...]) -> Relation | None:
            # What was fetched for Spark stands in the plan as rows of nobody.
            ours = read is not None and all(read.get(c) for c in columns)
            spooled = told is None or "ematix" in "".join(told.places)
            return read if ours and spooled else self._leaf(told)

        found = trace_plan(plan, leaf)
        return Traced(found.relation, found.notes, "plan")

    def unknown(self, why: str) -> Traced:
        """A source that cannot be looked into."""
        return self._transformed(Traced(opaque(frozenset()), (why,)))

    def _read(self, sql: str | None) -> Relation:
        plain = dataclasses.replace(self.spec, transform_sql=None)
        return dataclasses.replace(self, spec=plain).source(sql).relation

    def _leaf(self, leaf: Leaf | None) -> Relation | None:
        if leaf is None:
            return None
        connections = (self.spec.source, *(t.connection for t in self.spec.targets))
        return self._table(self.names.leaf(leaf, tuple(dict.fromkeys(connections))))

    def _in_query(self, table: exp.Table) -> Relation | None:
        label = self.names.in_query(self.spec.source, table)
        return None if label is None else self._table(label)

    def _table(self, label: str) -> Relation:
        return base_table(label, self.declared(label))

    def _transformed(self, traced: Traced) -> Traced:
        text, given = self.spec.transform_sql, traced.relation
        if text is None:
            return traced

        def look_up(table: exp.Table) -> Relation | None:
            if table.name.lower() == "source" and not table.db:
                return given
            return base_table(f"spark.{table.name}")

        try:
            relation = trace_sql(text, dialect="spark", tables=look_up)
        except CannotTrace as reason:
            note = f"its transform_sql=: {reason}"
            return Traced(opaque(given.every, given.rows), (*traced.notes, note), traced.origin)
        return dataclasses.replace(traced, relation=relation)

    # What happens to them

    def landed(
        self, target: TargetSpec, traced: Traced, *, unseen: str = "is known after a run"
    ) -> Lineage:
        """The columns of a target, out of the rows of the source.

        ``unseen`` is what to say of functions that cannot be looked into.
        """
        relation, notes = traced.relation, list(traced.notes)
        if target.column_map:
            columns = dict(relation.columns)
            columns |= {new: relation.get(old) for new, old in target.column_map.items()}
            relation = dataclasses.replace(relation, columns=columns)
        relation = _normalized(relation, target.table.columns)
        for entry in self.spec.transforms_pre:
            if not isinstance(entry, RowTransform):
                notes.append(f"what {shown(entry)} in transforms_pre= does {unseen}")
                continue
            relation = relation.narrowed(_kept_by(entry, relation))
        relation = relation.narrowed(_kept_by_load(target, relation))
        return self._lineage(target, relation, traced.origin, notes)

    def landed_as_staged(self, target: TargetSpec, traced: Traced) -> Lineage:
        """The columns of a target, where the plan is that of the staged rows themselves."""
        relation = traced.relation.narrowed(_kept_by_load(target, traced.relation))
        return self._lineage(target, relation, traced.origin, traced.notes)

    def _lineage(
        self, target: TargetSpec, relation: Relation, origin: str, notes: Iterable[str]
    ) -> Lineage:
        columns: dict[str, Origins] = {}
        for column in target.table.columns:
            columns[column.name] = relation.get(column.name)
        event = target.options.event_timestamp_column
        if target.mode == "scd2" and event is not None:
            columns.setdefault(VALID_FROM_COLUMN, relation.get(event))
        return Lineage(
            pipeline=self.spec.name,
            target=self.target(target),
            columns=columns,
            rows=relation.rows,
            sources=tuple(sorted(relation.tables)),
            origin=origin,
            notes=tuple(dict.fromkeys(notes)),
        )

    def target(self, target: TargetSpec) -> str:
        """The name of a target's table."""
        return self.names.table(target.connection, target.table.name, target.prefix)


def _normalized(relation: Relation, declared: Sequence[Column]) -> Relation:
    columns = dict(relation.columns)
    for column in declared:
        value = relation.get(column.name)
        for step in column.normalizers:
            if isinstance(step, Derive):
                value = _expression(step.expression, relation, {})
            elif isinstance(step, Sql):
                value = _expression(step.expression, relation, {"col": value})
        columns[column.name] = value
    return dataclasses.replace(relation, columns=columns)


def _expression(text: str, relation: Relation, more: Mapping[str, Origins]) -> Origins:
    seen = dataclasses.replace(relation, columns={**relation.columns, **more}, rows=frozenset())
    try:
        return trace_expression(text, seen)
    except CannotTrace:
        return seen.every


def _kept_by(entry: RowTransform, relation: Relation) -> Origins:
    """What decides which rows a step of ``transforms_pre`` leaves."""
    if isinstance(entry, FilterWhere):
        return indirectly(_expression(entry.condition, relation, {}), FILTER)
    if isinstance(entry, DeduplicateBy):
        keys = _columns(entry.keys, relation)
        order = _ordered(entry.order_by, relation) if entry.order_by else relation.every
        return indirectly(keys, GROUP) | indirectly(order, SORT)
    if isinstance(entry, SamplePercent):
        return indirectly(relation.every, FILTER)
    return frozenset()


def _kept_by_load(target: TargetSpec, relation: Relation) -> Origins:
    """What decides which rows a load takes, or takes away."""
    options = target.options
    found: set[Origin] = set()
    if options.delete_when is not None:
        found |= indirectly(_expression(options.delete_when, relation, {}), FILTER)
    if options.watermark_column is not None:
        found |= indirectly(relation.get(options.watermark_column), FILTER)
    if options.duplicate_keys != "error":
        keys = merge_key(target.table, options.keys)
        found |= indirectly(_columns(keys, relation), GROUP)
        if options.order_by is not None:
            found |= indirectly(_ordered(options.order_by, relation), SORT)
    return frozenset(found)


def _columns(names: Iterable[str], relation: Relation) -> Origins:
    return frozenset().union(*(relation.get(name) for name in names))


def _ordered(text: str, relation: Relation) -> Origins:
    seen = dataclasses.replace(relation, rows=frozenset())
    try:
        query = f"SELECT 1 AS n FROM given ORDER BY {text}"
        return trace_sql(query, dialect="spark", tables=lambda _: seen).rows
    except CannotTrace:
        return seen.every
