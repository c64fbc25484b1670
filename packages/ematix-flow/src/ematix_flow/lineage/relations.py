"""A relation while its lineage is worked out: its columns, and what decides about its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ematix_flow.lineage.edges import ANY, PROJECTION, Origin, Origins


class Rest(NamedTuple):
    """Columns nobody has listed: each is a table's own of that name, and comes from ``origins``.

    ``complete`` says that such a column would be one which this system has added.
    """

    table: str | None
    origins: Origins = frozenset()
    complete: bool = False


@dataclass(frozen=True)
class Relation:
    """Where every column of a table or query comes from.

    ``rest`` is there where it may have more columns than are listed in ``columns``.
    """

    columns: Mapping[str, Origins] = field(default_factory=dict)
    rows: Origins = frozenset()
    tables: frozenset[str] = frozenset()
    rest: tuple[Rest, ...] = ()

    def listed(self, name: str) -> Origins | None:
        """Where a column comes from that is known to be there."""
        if name in self.columns:
            return self.columns[name]
        lowered = name.lower()
        return next((o for held, o in self.columns.items() if held.lower() == lowered), None)

    def unlisted(self, name: str) -> Origins:
        """Where a column comes from that may be there."""
        found: set[Origin] = set()
        for rest in self.rest:
            found |= rest.origins
            if rest.table is not None and not (rest.complete and name == ANY):
                found.add(Origin(rest.table, name, PROJECTION))
        return frozenset(found)

    def get(self, name: str) -> Origins:
        """Where a column comes from; from nowhere, if there is none."""
        found = self.listed(name)
        return self.unlisted(name) if found is None else found

    @property
    def is_open(self) -> bool:
        """Whether it may have columns of the user's own that are not listed."""
        return any(not rest.complete for rest in self.rest)

    @property
    def every(self) -> Origins:
        """Where all columns come from together."""
        return self.unlisted(ANY).union(*self.columns.values())

    def without(self, names: Collection[str]) -> Relation:
        """The same, some columns left out."""
        gone = {name.lower() for name in names}
        kept = {name: o for name, o in self.columns.items() if name.lower() not in gone}
        return dataclasses.replace(self, columns=kept)

    def renamed(self, names: Sequence[str]) -> Relation:
        """The same under other names, as far as there are some."""
        if not names:
            return self
        held = list(self.columns.values())
        if not held and self.rest:
            return dataclasses.replace(self, columns=dict.fromkeys(names, self.every), rest=())
        own = [*names, *list(self.columns)[len(names) :]]
        return dataclasses.replace(self, columns=dict(zip(own, held, strict=False)))

    def narrowed(self, rows: Iterable[Origin]) -> Relation:
        """The same, with more that decides about its rows."""
        return dataclasses.replace(self, rows=self.rows | frozenset(rows))


def base_table(name: str, columns: Iterable[str] = ()) -> Relation:
    """A table, with the columns that are known of it."""
    held = {column: frozenset({Origin(name, column, PROJECTION)}) for column in columns}
    return Relation(held, tables=frozenset({name}), rest=(Rest(name, complete=bool(held)),))


def opaque(origins: Origins, rows: Origins = frozenset()) -> Relation:
    """What a function makes of its arguments: any column may come from all of them."""
    return Relation(rows=rows, rest=(Rest(None, origins),))
