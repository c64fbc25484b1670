"""The lineage of a whole project: up to where a column comes from, down to what depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.connections import nearest
from ematix_flow.errors import UnknownName
from ematix_flow.lineage.edges import ANY, Edge, Lineage
from ematix_flow.lineage.names import Names


@dataclass(frozen=True)
class Link:
    """An edge, and the pipeline that makes it."""

    edge: Edge
    pipeline: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**self.edge.__dict__, "pipeline": self.pipeline}


@dataclass(frozen=True)
class Branch:
    """Columns of one table that stand in the same relation to the columns above them in a tree.

    ``every`` says that they are all columns of the table; ``again`` that what is behind them
    stands elsewhere in the tree.
    """

    table: str
    columns: tuple[str, ...]
    kind: str
    hows: tuple[str, ...]
    pipeline: str
    every: bool = False
    again: bool = False
    branches: tuple[Branch, ...] = ()


@dataclass
class LineageGraph:
    """Every edge of a project."""

    lineages: Sequence[Lineage]
    names: Names = field(default_factory=Names)

    def __post_init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._columns: dict[str, dict[str, None]] = {}
        for lineage in self.lineages:
            table = self.label(lineage.target)
            self._columns.setdefault(table, {}).update(dict.fromkeys(lineage.columns))
        targets = set(self._columns)
        links: dict[Link, None] = {}
        for lineage in self.lineages:
            for edge in lineage.edges:
                for settled in self._settled(edge, targets):
                    links[Link(settled, lineage.pipeline)] = None
            for source in lineage.sources:
                self._columns.setdefault(self.label(source), {})
        self.links = tuple(links)
        for link in self.links:
            if link.edge.source_column != ANY:
                self._columns[link.edge.source_table].setdefault(link.edge.source_column)
        self._into: dict[tuple[str, str], list[Link]] = {}
        self._from: dict[tuple[str, str], list[Link]] = {}
        for link in self.links:
            edge = link.edge
            self._into.setdefault((edge.target_table, edge.target_column), []).append(link)
            self._from.setdefault((edge.source_table, edge.source_column), []).append(link)

    def label(self, table: str) -> str:
        """One name for a table that goes by several."""
        return self._shown.setdefault(self.names.key(table), table)

    def _settled(self, edge: Edge, targets: set[str]) -> Iterable[Edge]:
        """An edge between tables as they are shown, its columns as they are declared."""
        source, target = self.label(edge.source_table), self.label(edge.target_table)
        held = self._columns.setdefault(source, {})
        columns = [edge.source_column]
        if source in targets and edge.source_column == ANY:
            columns = list(held)
        elif edge.source_column not in held:
            lowered = edge.source_column.lower()
            columns = [next((c for c in held if c.lower() == lowered), edge.source_column)]
        return [
            Edge(source, column, target, edge.target_column, edge.kind, edge.how)
            for column in columns
        ]

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Every table that is read or loaded, with the columns that are known of it."""
        return {table: tuple(columns) for table, columns in self._columns.items()}

    def loaded_by(self, table: str) -> list[Lineage]:
        """What the pipelines that load a table make of it."""
        return [lineage for lineage in self.lineages if self.label(lineage.target) == table]

    def find(self, text: str) -> tuple[str, str | None]:
        """The table, and the column if one is named, behind what a user wrote."""
        given = text.replace(":", ".", 1) if ":" in text.partition("/")[0] else text
        table = self._table(given)
        if table is not None:
            return table, None
        name, dot, column = given.rpartition(".")
        table = self._table(name) if dot else None
        if table is None:
            raise UnknownName(
                f"no pipeline of this project reads or loads {text!r}",
                fix=nearest(text, [*self._columns, *self._short()])
                if self._columns
                else "no pipeline is declared here",
            )
        lowered = column.lower()
        found = next((c for c in self._columns[table] if c.lower() == lowered), None)
        # Of a table that no pipeline loads, not every column need be known.
        open_ended = (table, ANY) in self._from
        if found is None and not open_ended:
            raise UnknownName(
                f"no column {column!r} of {table} is read or loaded by a pipeline",
                fix=nearest(column, self._columns[table])
                if self._columns[table]
                else "none of its columns is known",
            )
        return table, found or column

    def _short(self) -> list[str]:
        return [table.partition(".")[2] for table in self._columns if "/" not in table]

    def _table(self, text: str) -> str | None:
        lowered = text.lower()
        exact = [t for t in self._columns if t.lower() == lowered]
        exact += [t for t in (self._shown.get(self.names.key(text)),) if t in self._columns]
        if exact:
            return exact[0]
        found = [t for t in self._columns if t.lower().endswith((f".{lowered}", f"/{lowered}"))]
        if len(found) > 1:
            raise UnknownName(
                f"{text!r} may be any of {', '.join(sorted(found))}", fix="write all of its name"
            )
        return found[0] if found else None

    def into(self, table: str, column: str) -> list[Link]:
        """The edges that end at a column."""
        return self._into.get((table, column), [])

    def out_of(self, table: str, column: str) -> list[Link]:
        """The edges that begin at a column."""
        return [*self._from.get((table, column), ()), *self._from.get((table, ANY), ())]

    def upstream(self, table: str, columns: Iterable[str]) -> list[Link]:
        """Every edge that leads to some columns, however far away."""
        return self._reached(table, columns, self.into, up=True)

    def downstream(self, table: str, columns: Iterable[str]) -> list[Link]:
        """Every edge that some columns lead to, however far away."""
        return self._reached(table, columns, self.out_of, up=False)

    def _reached(
        self,
        table: str,
        columns: Iterable[str],
        step: Callable[[str, str], list[Link]],
        *,
        up: bool,
    ) -> list[Link]:
        found: dict[Link, None] = {}
        waiting = [(table, column) for column in columns]
        seen = set(waiting)
        for place in waiting:
            for link in step(*place):
                found[link] = None
                end = _end(link.edge, up=up)
                if end not in seen:
                    seen.add(end)
                    waiting.append(end)
        return list(found)

    def tree(self, table: str, columns: Iterable[str], *, up: bool) -> tuple[Branch, ...]:
        """The same as a tree; what has been shown in it is not shown again."""
        return self._branches([(table, c) for c in columns], set(), up=up)

    def _branches(
        self, places: Sequence[tuple[str, str]], seen: set[tuple[str, str]], *, up: bool
    ) -> tuple[Branch, ...]:
        step = self.into if up else self.out_of
        hows: dict[tuple[str, str, str], dict[str, None]] = {}
        for place in places:
            for link in step(*place):
                at = (*_end(link.edge, up=up), link.pipeline)
                hows.setdefault(at, {})[link.edge.how] = None
        grouped: dict[tuple[Any, ...], list[str]] = {}
        for (table, column, pipeline), held in hows.items():
            grouped.setdefault((table, pipeline, tuple(sorted(held))), []).append(column)
        made = []
        # Direct edges first: they carry the values.
        for table, pipeline, held in sorted(grouped, key=lambda g: ("projection" not in g[2], g)):
            columns = grouped[table, pipeline, held]
            fresh = [(table, c) for c in columns if (table, c) not in seen]
            seen.update(fresh)
            known = self._columns.get(table, {})
            made.append(
                Branch(
                    table,
                    tuple(sorted(columns)),
                    "direct" if "projection" in held else "indirect",
                    held,
                    pipeline,
                    every=len(columns) > 1 and set(columns) == set(known),
                    again=not fresh and any(step(table, c) for c in columns),
                    branches=self._branches(fresh, seen, up=up) if fresh else (),
                )
            )
        return tuple(made)


def _end(edge: Edge, *, up: bool) -> tuple[str, str]:
    if up:
        return edge.source_table, edge.source_column
    return edge.target_table, edge.target_column
