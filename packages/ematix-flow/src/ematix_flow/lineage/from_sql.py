"""Lineage of a SQL query of any dialect: every column's origins, and what decides about rows.

Where a query does not tell which of several tables an unqualified column belongs to, it is taken to
come from each that may have it: rather an edge too many than one that is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from ematix_flow.lineage.edges import (
    FILTER,
    GROUP,
    JOIN,
    SORT,
    WINDOW,
    Origin,
    Origins,
    indirectly,
)
from ematix_flow.lineage.relations import Relation, Rest, opaque
from ematix_flow.lineage.sources import Sources

# None for what is no table, such as a function that makes rows.
Lookup = Callable[[exp.Table], "Relation | None"]

_NONE: Origins = frozenset()
# Here a column of the same SELECT may be named before the SELECT is done.
_ALIASES_AT_ONCE = ("spark", "duckdb")
_ROUNDS = 10


class CannotTrace(Exception):
    """A statement whose lineage is not to be had, and why."""


def trace_sql(sql: str, *, dialect: str, tables: Lookup) -> Relation:
    """The relation that a query gives; ``tables`` says what each table in it is."""
    try:
        tree = parse_one(sql, dialect=dialect)
    except SqlglotError as error:
        raise CannotTrace("the SQL cannot be read") from error
    return _Tracer(dialect, tables).query(tree, _Surroundings())


def trace_expression(text: str, relation: Relation, *, dialect: str = "spark") -> Origins:
    """Where the value of an expression over the columns of a relation comes from."""
    held = trace_sql(f"SELECT {text} FROM given", dialect=dialect, tables=lambda _: relation)
    return held.every


@dataclass(frozen=True)
class _Surroundings:
    """What a query may name beside its own tables."""

    ctes: Mapping[str, Relation] = field(default_factory=dict)
    outer: tuple[Sources, ...] = ()

    def inside(self, sources: Sources) -> _Surroundings:
        return _Surroundings(self.ctes, (sources, *self.outer))


@dataclass(frozen=True)
class _Place:
    """Where an expression stands: the tables it sees, the names its SELECT has given."""

    sources: Sources
    around: _Surroundings
    aliases: Mapping[str, Origins] = field(default_factory=dict)
    aliases_first: bool = False
    windows: Mapping[str, exp.Expr] = field(default_factory=dict)


class _Tracer:
    def __init__(self, dialect: str, tables: Lookup) -> None:
        self.dialect = dialect
        self.tables = tables
        self.read: set[str] = set()

    # Queries

    def query(self, node: exp.Expr, around: _Surroundings) -> Relation:
        around = self._with_ctes(node, around)
        if isinstance(node, exp.Select):
            found = self._select(node, around)
        elif isinstance(node, exp.SetOperation):
            found = self._set_operation(node, around)
        elif isinstance(node, exp.Subquery | exp.Table | exp.Values | exp.Pivot):
            sources = Sources()
            rows = self._add(node, sources, around)
            found = sources.all_columns().narrowed(rows)
            found = self._ordered(node, found, around)
        else:
            raise CannotTrace(
                f"a {node.key.upper()} tells nothing about where its columns are from"
            )
        return dataclasses.replace(found, tables=frozenset(self.read))

    def _with_ctes(self, node: exp.Expr, around: _Surroundings) -> _Surroundings:
        given = node.args.get("with_")
        if given is None:
            return around
        ctes = dict(around.ctes)
        for cte in given.expressions:
            name = cte.alias.lower()
            names = [c.name for c in cte.args["alias"].args.get("columns") or ()]
            if given.args.get("recursive") and isinstance(cte.this, exp.SetOperation):
                start = self.query(cte.this.this, _Surroundings(ctes, around.outer))
                ctes[name] = start.renamed(names)
            for _ in range(_ROUNDS if given.args.get("recursive") else 1):
                found = self.query(cte.this, _Surroundings(ctes, around.outer)).renamed(names)
                settled = ctes.get(name) == found
                ctes[name] = found
                if settled:
                    break
        return _Surroundings(ctes, around.outer)

    def _set_operation(self, node: exp.SetOperation, around: _Surroundings) -> Relation:
        left, right = self.query(node.this, around), self.query(node.expression, around)
        rows = left.rows | right.rows
        if node.args.get("distinct") or isinstance(node, exp.Except | exp.Intersect):
            rows |= indirectly(left.every | right.every, GROUP)
        if isinstance(node, exp.Except | exp.Intersect):
            return self._ordered(node, Relation(left.columns, rows, rest=left.rest), around)
        rest = tuple(dict.fromkeys((*left.rest, *right.rest)))
        if node.args.get("by_name"):
            names = dict.fromkeys((*left.columns, *right.columns))
            columns = {name: left.get(name) | right.get(name) for name in names}
        elif left.is_open or right.is_open:
            # Which columns meet is not known where one side is not listed.
            columns = {name: o | right.every for name, o in left.columns.items()}
        else:
            pairs = zip(left.columns.items(), right.columns.values(), strict=False)
            columns = {name: ours | theirs for (name, ours), theirs in pairs}
        return self._ordered(node, Relation(columns, rows, rest=rest), around)

    def _ordered(self, node: exp.Expr, found: Relation, around: _Surroundings) -> Relation:
        order = node.args.get("order")
        if order is None:
            return found
        sources = Sources({"": found})
        place = _Place(sources, around, dict(found.columns), aliases_first=True)
        names = list(found.columns.values())
        return found.narrowed(self._listed(order.expressions, names, place, SORT))

    def _select(self, node: exp.Select, around: _Surroundings) -> Relation:
        sources = Sources()
        rows: set[Origin] = set()
        if node.args.get("from_"):
            rows |= self._add(node.args["from_"].this, sources, around)
        rows |= self._joined(node, sources, around)
        windows = {w.name.lower(): w for w in node.args.get("windows") or ()}
        place = _Place(sources, around, windows=windows)
        columns, rest = self._projected(node, place)
        place = dataclasses.replace(place, aliases={n.lower(): o for n, o in columns.items()})
        values = list(columns.values())
        every = Relation(columns, rest=rest).every

        for name in ("where", "prewhere", "having", "qualify", "connect"):
            if node.args.get(name):
                hidden = name == "where" and self.dialect not in _ALIASES_AT_ONCE
                seen = dataclasses.replace(place, aliases={}) if hidden else place
                rows |= indirectly(self._origins(node.args[name], seen), FILTER)
        group = node.args.get("group")
        if group is not None:
            rows |= self._listed(_grouped(group), values, place, GROUP)
            if group.args.get("all"):
                plain = [e for e in node.expressions if not e.find(exp.AggFunc)]
                rows |= self._listed(plain, values, place, GROUP)
        distinct = node.args.get("distinct")
        if distinct is not None:
            on = distinct.args.get("on")
            rows |= (
                self._listed(on.expressions, values, place, GROUP)
                if on
                else indirectly(every, GROUP)
            )
        ordered = dataclasses.replace(place, aliases_first=True)
        for name in ("order", "sort", "cluster", "distribute"):
            if node.args.get(name) is not None:
                rows |= self._listed(node.args[name].expressions, values, ordered, SORT)
        for name in ("limit", "offset"):
            if node.args.get(name) is not None:
                rows |= indirectly(self._origins(node.args[name], place), FILTER)
        return Relation(columns, frozenset(rows), rest=rest)

    def _listed(
        self, items: Iterable[exp.Expr], columns: Sequence[Origins], place: _Place, how: str
    ) -> Origins:
        """What GROUP BY and ORDER BY name: expressions, columns of the result or their numbers."""
        found: set[Origin] = set()
        for item in items:
            held = item.this if isinstance(item, exp.Ordered) else item
            if isinstance(held, exp.Literal) and held.is_int and 0 < int(held.name) <= len(columns):
                found |= columns[int(held.name) - 1]
            elif isinstance(held, exp.Column) and held.name.upper() == "ALL" and not held.table:
                found = found.union(*columns)
            else:
                found |= self._origins(held, place)
        return indirectly(found, how)

    def _projected(
        self, node: exp.Select, place: _Place
    ) -> tuple[dict[str, Origins], tuple[Rest, ...]]:
        columns: dict[str, Origins] = {}
        rest: list[Rest] = []
        for number, item in enumerate(node.expressions):
            if item.is_star and not isinstance(item, exp.Alias):
                given = self._star(item, place)
                columns |= given.columns
                rest += given.rest
                continue
            if isinstance(item, exp.Columns):
                rest += opaque(place.sources.all_columns().every).rest
                continue
            seen = place
            if self.dialect in _ALIASES_AT_ONCE:
                seen = dataclasses.replace(
                    place, aliases={n.lower(): o for n, o in columns.items()}
                )
            origins = self._origins(item, seen)
            if isinstance(item, exp.Aliases):
                columns |= {name.name: origins for name in item.expressions}
                continue
            name = item.alias_or_name or f"_{number}"
            columns[name if name not in columns else f"{name}:{number}"] = origins
        return columns, tuple(dict.fromkeys(rest))

    def _star(self, item: exp.Expr, place: _Place) -> Relation:
        star = item.this if isinstance(item, exp.Column) else item
        table = item.table if isinstance(item, exp.Column) else ""
        found = place.sources.all_columns(table)
        found = found.without([c.name for c in star.args.get("except_") or ()])
        for kept in star.args.get("replace") or ():
            lowered = kept.alias.lower()
            own = next((n for n in found.columns if n.lower() == lowered), kept.alias)
            changed = {**found.columns, own: self._origins(kept.this, place)}
            found = dataclasses.replace(found, columns=changed)
        for kept in star.args.get("rename") or ():
            moved = {
                **found.without([kept.this.name]).columns,
                kept.alias: found.get(kept.this.name),
            }
            found = dataclasses.replace(found, columns=moved)
        return found

    # What stands in FROM

    def _joined(self, node: exp.Expr, sources: Sources, around: _Surroundings) -> Origins:
        rows: set[Origin] = set()
        for lateral in node.args.get("laterals") or ():
            rows |= self._add(lateral, sources, around)
        for join in node.args.get("joins") or ():
            before = list(sources.relations)
            rows |= self._add(join.this, sources, around)
            place = _Place(sources, around)
            for name in ("on", "match_condition"):
                if join.args.get(name) is not None:
                    rows |= indirectly(self._origins(join.args[name], place), JOIN)
            names = [column.name for column in join.args.get("using") or ()]
            if join.args.get("method") == "NATURAL":
                names = sources.in_common(before)
            rows |= sources.merge(names, before, side=str(join.args.get("side") or ""))
        return frozenset(rows)

    def _add(self, node: exp.Expr, sources: Sources, around: _Surroundings) -> Origins:
        """Put what stands in FROM among the sources; what it says about rows."""
        alias = node.args.get("alias")
        named = alias.name if isinstance(alias, exp.TableAlias) else node.alias
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table) and not named:
            rows = self._add(node.this, sources, around)
            return rows | self._joined(node, sources, around)
        found = self._factor(node, sources, around)
        for pivot in node.args.get("pivots") or ():
            found = self._pivoted(pivot, found, around)
            named = pivot.alias or named
        if isinstance(alias, exp.TableAlias):
            found = found.renamed([c.name for c in alias.args.get("columns") or ()])
        sources.add(named or node.name, found)
        return found.rows | self._joined(node, sources, around)

    def _factor(self, node: exp.Expr, sources: Sources, around: _Surroundings) -> Relation:
        inside = around.inside(sources)
        if isinstance(node, exp.Lateral):
            held = node.this
            return (
                self._factor(held, sources, around)
                if isinstance(held, exp.Subquery)
                else self._function(held, inside, sources)
            )
        if isinstance(node, exp.Table):
            plain = isinstance(node.this, exp.Identifier) and not node.db
            known = around.ctes.get(node.name.lower()) if plain else None
            found = self.tables(node) if known is None else known
            if found is not None:
                self.read |= found.tables
                return found
        if isinstance(node, exp.Subquery):
            return self.query(node.this if not node.args.get("with_") else node, inside)
        if isinstance(node, exp.Values):
            return self._values(node, _Place(sources, around))
        if isinstance(node, exp.Pivot):
            before = Sources()
            rows = self._add(node.this, before, around)
            return self._pivoted(node, before.all_columns().narrowed(rows), around)
        if isinstance(node, exp.Query):
            return self.query(node, inside)
        return self._function(node, inside, sources)

    def _function(self, node: exp.Expr, inside: _Surroundings, sources: Sources) -> Relation:
        """A table function: rows and values are made of its arguments."""
        origins = self._children(node, _Place(sources, inside), skip=("alias", "joins", "pivots"))
        found = opaque(origins, indirectly(origins, JOIN))
        offset = node.args.get("offset")
        if isinstance(offset, exp.Identifier):
            return dataclasses.replace(found, columns={offset.name: origins})
        return found

    def _values(self, node: exp.Values, place: _Place) -> Relation:
        columns: dict[str, Origins] = {}
        for row in node.expressions:
            cells = row.expressions if isinstance(row, exp.Tuple) else [row]
            for number, cell in enumerate(cells):
                name = f"col{number}"
                columns[name] = columns.get(name, _NONE) | self._origins(cell, place)
        return Relation(columns)

    def _pivoted(self, pivot: exp.Expr, held: Relation, around: _Surroundings) -> Relation:
        """Rows become columns or columns rows: any of them may come from any."""
        place = _Place(Sources({"": held}), around)
        named = self._children(pivot, place, skip=("this", "alias"))
        every = held.every | named
        return Relation(rows=held.rows | indirectly(every, GROUP), rest=opaque(every).rest)

    # Expressions

    def _origins(self, node: exp.Expr, place: _Place) -> Origins:
        if isinstance(node, exp.Column):
            return self._column(node, place)
        if isinstance(node, exp.Window):
            return self._window(node, place)
        if isinstance(node, exp.Filter):
            return self._origins(node.this, place) | indirectly(
                self._origins(node.expression, place), FILTER
            )
        if isinstance(node, exp.Order) and node.args.get("this") is not None:
            ordering = self._children(node, place, skip=("this",))
            return self._origins(node.this, place) | indirectly(ordering, SORT)
        if isinstance(node, exp.Exists) and isinstance(node.this, exp.Query):
            found = self.query(node.this, place.around.inside(place.sources))
            return indirectly(found.rows, FILTER)
        if isinstance(node, exp.Query) or (
            isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query)
        ):
            found = self.query(node, place.around.inside(place.sources))
            return found.every | found.rows
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            return _NONE
        if isinstance(node, exp.Star | exp.Columns):
            return place.sources.all_columns().every
        return self._children(node, place)

    def _children(self, node: exp.Expr, place: _Place, skip: Sequence[str] = ()) -> Origins:
        found: set[Origin] = set()
        for name, value in node.args.items():
            if name in skip:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, exp.Expr):
                    found |= self._origins(child, place)
        return frozenset(found)

    def _window(self, node: exp.Window, place: _Place) -> Origins:
        around = self._children(node, place, skip=("this", "alias", "over"))
        named = node.args.get("alias")
        if named is not None and named.name.lower() in place.windows:
            base = place.windows[named.name.lower()]
            around |= self._children(base, place, skip=("this",))
        return self._origins(node.this, place) | indirectly(around, WINDOW)

    def _column(self, node: exp.Column, place: _Place) -> Origins:
        levels = (place.sources, *place.around.outer)
        if isinstance(node.this, exp.Star):
            return next(
                (s.all_columns(node.table).every for s in levels if s.named(node.table)), _NONE
            )
        if node.table:
            for sources in levels:
                found = sources.named(node.table)
                if found is not None:
                    return found.get(node.name)
        name = node.parts[0].name  # what looks like a table may be a column with fields
        alias = place.aliases.get(name.lower())
        if alias is not None and place.aliases_first:
            return alias
        possible: set[Origin] = set()
        for sources in levels:
            known = sources.listed(name)
            if known is not None:
                return known | possible
            if alias is not None and sources is place.sources:
                if not sources.is_open or self.dialect not in _ALIASES_AT_ONCE:
                    return alias
                possible |= alias
            if sources.is_open:
                possible |= sources.unlisted(name)
        # A column that we have added to a table of ours is listed nowhere.
        return frozenset(possible) or levels[0].unlisted(name)


def _grouped(group: exp.Group) -> list[exp.Expr]:
    """The expressions of a GROUP BY, those of its grouping sets included."""
    found: list[exp.Expr] = []
    for name in ("expressions", "grouping_sets", "cube", "rollup"):
        for item in group.args.get(name) or ():
            if isinstance(item, exp.Expr):
                found += item.expressions if isinstance(item, exp.Tuple) else [item]
    return found
