"""The tables that one SELECT sees, and which of them a name in it belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ematix_flow.lineage.edges import JOIN, Origin, Origins, indirectly
from ematix_flow.lineage.relations import Relation, Rest


class Sources:
    """Relations by the name they go by, in the order of FROM."""

    def __init__(self, relations: Mapping[str, Relation] | None = None) -> None:
        self.relations = dict(relations or {})
        self._merged: dict[str, Origins] = {}

    def add(self, name: str, relation: Relation) -> None:
        """One more; a name that is taken already gets a number."""
        while name in self.relations:
            name = f"{name}:{len(self.relations)}"
        self.relations[name] = relation

    def named(self, name: str) -> Relation | None:
        """The relation of that name."""
        if name in self.relations:
            return self.relations[name]
        lowered = name.lower()
        return next((r for n, r in self.relations.items() if n.lower() == lowered), None)

    def listed(self, name: str) -> Origins | None:
        """Where a column comes from that one of them is known to have.

        The name of a relation stands for its whole row.
        """
        if name.lower() in self._merged:
            return self._merged[name.lower()]
        found = [o for o in (r.listed(name) for r in self.relations.values()) if o is not None]
        if found:
            return frozenset().union(*found)
        row = self.named(name)
        return None if row is None else row.every

    @property
    def is_open(self) -> bool:
        """Whether one of them may have columns that are not listed."""
        return any(r.is_open for r in self.relations.values())

    def unlisted(self, name: str) -> Origins:
        """Where a column comes from that nobody lists: if from here, then from any of these."""
        held = list(self.relations.values())
        return frozenset().union(
            *(r.unlisted(name) for r in [r for r in held if r.is_open] or held)
        )

    def all_columns(self, table: str = "") -> Relation:
        """What ``*`` stands for, of one of them or of all."""
        if table:
            found = self.named(table)
            return Relation() if found is None else Relation(found.columns, rest=found.rest)
        columns: dict[str, Origins] = {}
        rest: list[Rest] = []
        for relation in self.relations.values():
            for name, origins in relation.columns.items():
                merged = self._merged.get(name.lower())
                if merged is None:
                    columns[name] = columns.get(name, frozenset()) | origins
                else:
                    columns.setdefault(name, merged)
            rest += relation.rest
        return Relation(columns, rest=tuple(dict.fromkeys(rest)))

    def in_common(self, before: Collection[str]) -> list[str]:
        """The columns by which a NATURAL JOIN joins what was added last."""
        last = [r for name, r in self.relations.items() if name not in before]
        ours = [self.relations[name] for name in before]
        return [
            name
            for relation in last
            for name in relation.columns
            if any(r.listed(name) is not None for r in ours)
        ]

    def merge(self, names: Sequence[str], before: Collection[str], *, side: str) -> Origins:
        """Make one column of those that USING names on both sides; what that says about rows."""
        rows: set[Origin] = set()
        for name in names:
            left = self._of(name, [r for n, r in self.relations.items() if n in before])
            left = self._merged.get(name.lower(), left)
            right = self._of(name, [r for n, r in self.relations.items() if n not in before])
            kept = {"RIGHT": right, "FULL": left | right}.get(side.upper(), left)
            self._merged[name.lower()] = kept
            rows |= indirectly(left | right, JOIN)
        return frozenset(rows)

    def _of(self, name: str, relations: Sequence[Relation]) -> Origins:
        known = [o for o in (r.listed(name) for r in relations) if o is not None]
        return frozenset().union(*(known or [r.unlisted(name) for r in relations]))
