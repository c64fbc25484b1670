"""How a table that exists differs from its declaration, and what is done about it.

``on_drift=`` decides by kind of change. What could lose something is done only where ``allow=``
names it, and then no value is cut, rounded or turned into NULL: one that does not fit stops it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from ematix_flow.backends.base import ADDED_TYPES, Alteration, Backend, FoundColumn, FoundTable
from ematix_flow.change import CURRENT, SIDE
from ematix_flow.drift import Difference, Permits, remedy
from ematix_flow.errors import SchemaDrift, Unsupported
from ematix_flow.model import Column, Table, TargetSpec
from ematix_flow.modes.base import Shape
from ematix_flow.run.type_changes import convertible, type_change, widens
from ematix_flow.types import ColumnType, Numeric

logger = logging.getLogger(__name__)

# A column is renamed before anything else names it, and required once it has been added.
_ORDER = ("rename", "drop", "retype", "relax", "add", "require")


@dataclass(frozen=True)
class Evolution:
    """What a load does about the differences: alterations, and how it lives with the rest."""

    alterations: tuple[Alteration, ...] = ()
    left_out: frozenset[str] = frozenset()
    kept_types: Mapping[str, ColumnType] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def declared(self, table: Table) -> Table:
        """The declared table without the columns that are not loaded."""
        columns = tuple(c for c in table.columns if c.name not in self.left_out)
        return dataclasses.replace(table, columns=columns)

    def held(self, shape: Shape) -> Shape:
        """The load's tables with the types that stay wider than declared."""
        side = None if shape.side is None else self._with_kept_types(shape.side)
        return dataclasses.replace(shape, table=self._with_kept_types(shape.table), side=side)

    def _with_kept_types(self, table: Table) -> Table:
        columns = tuple(
            dataclasses.replace(c, type=self.kept_types.get(c.name, c.type)) for c in table.columns
        )
        return dataclasses.replace(table, columns=columns)


def reconcile(
    sink: Backend, target: TargetSpec, shape: Shape, found: FoundTable | None
) -> Evolution:
    """Decide about every difference, or refuse the load with all that stand in its way."""
    if found is None:
        return Evolution()
    where = sink.locate(target.table.name, target.prefix)
    comparison = _Comparison(sink, target, shape, CURRENT)
    comparison.compare(shape.table, found)
    comparison.refuse(where)
    alterations = comparison.alterations
    if shape.side is not None:
        beside = sink.inspect_side(shape.side, target.table.name, target.prefix)
        if beside is not None:
            side = _Comparison(sink, target, shape, SIDE)
            left = Evolution(left_out=frozenset(comparison.left_out))
            side.compare(left.declared(shape.side), beside)
            side.refuse(str(shape.side.name))
            alterations += side.alterations
    _check_able(sink, alterations)
    for note in comparison.notes:
        logger.warning("table %s: %s", where, note)
    return Evolution(
        tuple(sorted(alterations, key=lambda a: (a.relation, _ORDER.index(a.act)))),
        frozenset(comparison.left_out),
        comparison.kept_types,
        tuple(comparison.notes),
    )


def _check_able(sink: Backend, alterations: list[Alteration]) -> None:
    for alteration in alterations:
        if alteration.act not in sink.capabilities.alterations:
            raise Unsupported(
                f"{sink.kind} cannot {alteration.act} column {alteration.column!r} of a table "
                "that exists",
                fix="change the table by hand, or load into a new one",
            )


class _Comparison:
    """One table against its declaration, column by column."""

    def __init__(self, sink: Backend, target: TargetSpec, shape: Shape, relation: str) -> None:
        self.sink = sink
        self.target = target
        self.options = target.options
        self.key = shape.key
        self.permits = Permits(self.options.on_drift, self.options.allow)
        self.relation = relation
        self.alterations: list[Alteration] = []
        self.notes: list[str] = []
        self.left_out: set[str] = set()
        self.kept_types: dict[str, ColumnType] = {}
        self.differences: list[Difference] = []

    def compare(self, table: Table, found: FoundTable) -> None:
        """Look at every column of both, and at the primary key."""
        held = {c.name: c for c in found.columns}
        renamed = self._renames(table, held)
        for column in table.columns:
            existing = held.get(renamed.get(column.name, column.name))
            if existing is None:
                self._missing(column)
                continue
            if existing.name != column.name:
                self._alter("rename", column.name, existing)
            self._compare_types(column, existing)
            if self.sink.capabilities.constraints and existing.nullable != column.nullable:
                self._compare_nullability(column, existing)
        known = {*table.column_names, *renamed.values(), *ADDED_TYPES}
        for existing in found.columns:
            if existing.name not in known:
                self._undeclared(existing)
        self._compare_keys(table, found, {old: new for new, old in renamed.items()})

    def _renames(self, table: Table, held: Mapping[str, FoundColumn]) -> dict[str, str]:
        """The columns that stand in the table under another name, which was told."""
        hints = {c.name: c.renamed_from for c in table.columns if c.renamed_from}
        told = {**hints, **self.permits.renames()}
        renamed = {}
        for new, old in told.items():
            if new not in table.column_names or new in held or old not in held:
                continue
            if old in table.column_names:
                continue
            if self.permits.policy("rename") == "evolve":
                renamed[new] = old
            else:
                said = f"column {old!r} is declared {new!r}, renamed from it"
                self._refuse(said, "rename", evolves=True)
        return renamed

    def _missing(self, column: Column) -> None:
        said = f"column {column.name!r}{self._origin(column)} does not exist"
        policy = self.permits.policy("add")
        optional = not self._is_used(column)
        if policy == "evolve":
            self.alterations.append(
                Alteration("add", column.name, column.type, True, relation=self.relation)
            )
            if not column.nullable:
                self.alterations.append(
                    Alteration("require", column.name, column.type, False, relation=self.relation)
                )
        elif policy == "warn" and optional:
            self.left_out.add(column.name)
            self.notes.append(f"{said}; it is not loaded")
        else:
            self._refuse(said, "add", evolves=True, tolerable=optional)

    def _origin(self, column: Column) -> str:
        """Where a column of the load comes from."""
        if column.name in self.target.table.column_names:
            return " is declared but"
        if column.name == self.options.soft_delete_column:
            return ', in which handle_deletes="soft" marks the rows that are gone,'
        return f', which mode="{self.target.mode}" adds,'

    def _is_used(self, column: Column) -> bool:
        options = self.options
        named = (
            *(options.compare_columns or ()),
            *(options.update_columns or ()),
            options.event_timestamp_column,
            options.watermark_column,
        )
        added = column.name not in self.target.table.column_names
        return added or column.primary_key or column.name in (*self.key, *named)

    def _compare_types(self, column: Column, existing: FoundColumn) -> None:
        wanted = self.sink.stored_type(column.type)
        if existing.declared.upper() == wanted.upper():
            return
        was = self.sink.exact_type(existing)
        kind = type_change(was, column.type)
        said = f"column {column.name!r} is {existing.declared}, declared {wanted}"
        policy = self.permits.policy(kind)
        wider = was is not None and self._stays_wider(column, was)
        if policy == "evolve" and (kind == "widen" or self.permits.allows(kind, column.name)):
            if kind != "widen" and not convertible(was, column.type):
                self._refuse(f"{said}, and its values cannot be converted", kind)
                return
            self._alter("retype", column.name, existing, column.type, risky=kind != "widen")
        elif policy == "warn" and was is not None and wider:
            self.kept_types[column.name] = was
            self.notes.append(f"{said}; it stays as it is")
        else:
            able = kind == "widen" or convertible(was, column.type)
            named = None if kind == "widen" else f"{kind}:{column.name}"
            self._refuse(said, kind, evolves=able, allowance=named, tolerable=wider)

    def _stays_wider(self, column: Column, was: ColumnType) -> bool:
        # A key of other digits may be spelled otherwise where numbers are kept as text.
        spelled = isinstance(column.type, Numeric) and column.name in self.key
        return widens(column.type, was) and not spelled

    def _compare_nullability(self, column: Column, existing: FoundColumn) -> None:
        was = "allows NULL" if existing.nullable else "is NOT NULL"
        wanted = "NULL" if column.nullable else "NOT NULL"
        said = f"column {column.name!r} {was}, declared {wanted}"
        policy = self.permits.policy("nullability")
        if policy == "warn":
            self.notes.append(f"{said}; it stays as it is")
        elif policy == "evolve" and column.nullable:
            self._alter("relax", column.name, existing, column.type)
        elif policy == "evolve" and self.permits.allows("not_null", column.name):
            self._alter("require", column.name, existing, column.type)
        else:
            named = None if column.nullable else f"not_null:{column.name}"
            self._refuse(said, "nullability", evolves=True, allowance=named, tolerable=True)

    def _undeclared(self, existing: FoundColumn) -> None:
        said = f"column {existing.name!r} exists but is not declared"
        policy = self.permits.policy("drop")
        fillable = existing.nullable or existing.has_default
        if policy == "evolve" and self.permits.allows("drop", existing.name):
            self._alter("drop", existing.name, existing)
        elif policy != "error" and fillable:
            self.notes.append(f"{said}; it is kept, and the load leaves it alone")
        else:
            named = None if fillable else f"drop:{existing.name}"
            said = said if fillable else f"{said}, and it is NOT NULL"
            self._refuse(said, "drop", evolves=True, allowance=named, tolerable=fillable)

    def _compare_keys(self, table: Table, found: FoundTable, renamed: Mapping[str, str]) -> None:
        stored = [renamed.get(name, name) for name in found.primary_key]
        if self.sink.capabilities.constraints and set(stored) != set(table.primary_key):
            was = ", ".join(stored) or "none"
            wanted = ", ".join(table.primary_key) or "none"
            self._refuse(f"its primary key is {was}, declared {wanted}", None)

    def _alter(
        self,
        act: str,
        column: str,
        existing: FoundColumn,
        wanted: ColumnType | None = None,
        *,
        risky: bool = False,
    ) -> None:
        nullable = {"relax": True, "require": False}.get(act, existing.nullable)
        was = self.sink.exact_type(existing)
        made = Alteration(act, column, wanted, nullable, existing, was, risky, self.relation)
        self.alterations.append(made)

    def _refuse(
        self,
        said: str,
        kind: str | None,
        *,
        evolves: bool = False,
        allowance: str | None = None,
        tolerable: bool = False,
    ) -> None:
        self.differences.append(Difference(said, kind, evolves, allowance, tolerable))

    def refuse(self, where: str) -> None:
        """Raise with all that stands in the way, if anything does."""
        if self.differences:
            said = [d.said for d in self.differences]
            raise SchemaDrift(where, said, fix=remedy(self.differences, self.permits))
