"""Lineage as plain data: edges between columns, and the compact form that the run log keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

PROJECTION, FILTER, JOIN, GROUP, SORT, WINDOW = HOWS = (
    *("projection", "filter", "join"),
    *("group", "sort", "window"),
)
DIRECT, INDIRECT = KINDS = ("direct", "indirect")
# Stands for whichever columns a table has, where they are not told one by one.
ANY = "*"
_FORMAT = 1


class Origin(NamedTuple):
    """A column that something comes from, and how it takes part in it."""

    table: str
    column: str
    how: str


Origins: TypeAlias = frozenset[Origin]


@dataclass(frozen=True, order=True)
class Edge:
    """One column of a target depends on one column of a source.

    ``direct`` edges carry values (``how`` is projection); ``indirect`` ones decide which rows there
    are or what stands beside them: filter, join, group, sort, window.
    """

    source_table: str
    source_column: str
    target_table: str
    target_column: str
    kind: str
    how: str


@dataclass(frozen=True)
class Lineage:
    """How the columns of one target come about in one pipeline.

    ``columns`` holds what is particular to a column, ``rows`` what decides about all of them.
    ``origin`` is where this is known from: ``declaration``, ``query`` or ``plan``; ``notes`` say
    what could not be found out.
    """

    pipeline: str
    target: str
    columns: Mapping[str, Origins]
    rows: Origins = frozenset()
    sources: tuple[str, ...] = ()
    origin: str = "declaration"
    notes: tuple[str, ...] = ()
    run_id: str | None = None

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge, in a fixed order."""
        return tuple(
            sorted(
                Edge(o.table, o.column, self.target, name, kind_of(o.how), o.how)
                for name, origins in self.columns.items()
                for o in origins | self.rows
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The compact form: tables by number, edges of all columns once."""
        tables = sorted({*self.sources, *(o.table for o in self._origins())})
        place = {table: number for number, table in enumerate(tables)}

        def short(origins: Iterable[Origin]) -> list[list[Any]]:
            return [[place[o.table], o.column, HOWS.index(o.how)] for o in sorted(origins)]

        held: dict[str, Any] = {
            "format": _FORMAT,
            "target": self.target,
            "origin": self.origin,
            "tables": tables,
            "columns": {name: short(origins) for name, origins in self.columns.items()},
        }
        if self.rows:
            held["rows"] = short(self.rows)
        if self.notes:
            held["notes"] = list(self.notes)
        return held

    def _origins(self) -> set[Origin]:
        return set(self.rows).union(*self.columns.values())

    @classmethod
    def from_dict(
        cls, held: Mapping[str, Any], *, pipeline: str, run_id: str | None = None
    ) -> Lineage | None:
        """What a run has kept; None where a newer version wrote it."""
        if held.get("format") != _FORMAT:
            return None
        tables = held["tables"]

        def long(short: Iterable[Any]) -> Origins:
            return frozenset(Origin(tables[t], str(c), HOWS[h]) for t, c, h in short)

        return cls(
            pipeline=pipeline,
            target=held["target"],
            columns={name: long(short) for name, short in held["columns"].items()},
            rows=long(held.get("rows", ())),
            sources=tuple(tables),
            origin=held["origin"],
            notes=tuple(held.get("notes", ())),
            run_id=run_id,
        )


def kind_of(how: str) -> str:
    """Whether a column that takes part like this gives its values."""
    return DIRECT if how == PROJECTION else INDIRECT


def indirectly(origins: Iterable[Origin], how: str) -> Origins:
    """The same columns, taking part only like this."""
    return frozenset(Origin(o.table, o.column, how) for o in origins)
