"""Lineage from Spark's analysed plan: DataFrames, SQL and user functions alike.

A plan names every column by a number that is its own in the whole plan, so nothing has to be
guessed; what a Python function over whole rows makes is taken to come from all it is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.engine.plans import AnalysedPlan, Leaf
from ematix_flow.lineage.edges import FILTER, GROUP, JOIN, SORT, WINDOW, Origin, Origins, indirectly
from ematix_flow.lineage.relations import Relation

# What a leaf of a plan is, by what Spark tells of it and its columns; None where nobody knows.
LeafLookup = Callable[["Leaf | None", "tuple[str, ...]"], "Relation | None"]

_NONE: Origins = frozenset()
_OPAQUE = "its rows came from a place that Spark's plan does not name"


@dataclass(frozen=True)
class PlanTrace:
    """The relation that a plan gives, and what it did not tell."""

    relation: Relation
    notes: tuple[str, ...] = ()


def trace_plan(plan: AnalysedPlan, leaves: LeafLookup) -> PlanTrace:
    """The relation of an analysed plan; ``leaves`` says what is read."""
    tracer = _Tracer(plan.leaves, leaves)
    seen = tracer.plan(_tree(json.loads(plan.json)), {})
    columns: dict[str, Origins] = {}
    for name, number in seen.output:
        columns[name] = columns.get(name, _NONE) | seen.values.get(number, _NONE)
    relation = Relation(columns, frozenset(seen.rows), frozenset(tracer.tables))
    return PlanTrace(relation, tuple(dict.fromkeys(tracer.notes)))


@dataclass
class _Node:
    """An operator or expression, with its children."""

    fields: Mapping[str, Any]
    children: list[_Node] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.fields["class"]).rpartition(".")[2]

    @property
    def number(self) -> int | None:
        held = self.fields.get("exprId")
        return int(held["id"]) if isinstance(held, dict) else None

    def expressions(self, *names: str) -> list[_Node]:
        """The expressions in some fields of an operator, or in all."""
        chosen = names or tuple(self.fields)
        return [tree for name in chosen for tree in _trees(self.fields.get(name))]


def _tree(listed: Sequence[Mapping[str, Any]]) -> _Node:
    """A tree out of its nodes, each before its children, however deep it is."""
    nodes = [_Node(fields) for fields in listed]
    open_nodes: list[_Node] = []
    for node in nodes:
        while open_nodes and len(open_nodes[-1].children) == open_nodes[-1].fields["num-children"]:
            open_nodes.pop()
        if open_nodes:
            open_nodes[-1].children.append(node)
        open_nodes.append(node)
    return nodes[0]


def _trees(value: Any) -> Iterator[_Node]:
    if not isinstance(value, list) or not value:
        return
    if isinstance(value[0], dict):
        if "class" in value[0] and "num-children" in value[0]:
            yield _tree(value)
        return
    for item in value:
        yield from _trees(item)


@dataclass
class _Seen:
    """What is known of an operator's result."""

    values: dict[int, Origins]
    rows: set[Origin]
    output: list[tuple[str, int]]

    @property
    def every(self) -> Origins:
        return frozenset().union(*(self.values.get(n, _NONE) for _, n in self.output))


class _Tracer:
    def __init__(self, known: Mapping[int, Leaf], leaves: LeafLookup) -> None:
        self.known = known
        self.leaves = leaves
        self.tables: set[str] = set()
        self.notes: list[str] = []
        self.ctes: dict[int, _Seen] = {}

    def plan(self, root: _Node, outer: Mapping[int, Origins]) -> _Seen:
        """What is known of a plan's result, from its leaves upwards."""
        done: list[_Seen] = []
        waiting = [(root, False)]
        while waiting:
            node, ready = waiting.pop()
            if not ready:
                waiting.append((node, True))
                waiting += [(child, False) for child in reversed(node.children)]
                continue
            first = len(done) - len(node.children)
            done[first:] = [self._operator(node, done[first:], outer)]
        return done[0]

    def _operator(self, node: _Node, below: list[_Seen], outer: Mapping[int, Origins]) -> _Seen:
        held = _Seen(dict(outer), set(), list(below[0].output) if below else [])
        for seen in below:
            held.values |= seen.values
            held.rows |= seen.rows
        rule = getattr(self, f"_{node.kind.lower()}", None)
        if rule is not None:
            rule(node, held, below)
        elif not below:
            self._leaf(node, held)
        else:
            self._otherwise(node, held)
        return held

    # Operators

    def _project(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        self._named(node.expressions("projectList"), held)

    def _aggregate(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        grouping = self._all(node.expressions("groupingExpressions"), held.values)
        self._named(node.expressions("aggregateExpressions"), held)
        held.rows |= indirectly(grouping, GROUP)

    def _window(self, node: _Node, held: _Seen, below: list[_Seen]) -> None:
        self._named(node.expressions("windowExpressions"), held)
        held.output = [*below[0].output, *held.output]

    def _filter(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        held.rows |= indirectly(self._all(node.expressions("condition"), held.values), FILTER)

    def _join(self, node: _Node, held: _Seen, below: list[_Seen]) -> None:
        held.rows |= indirectly(self._all(node.expressions("condition"), held.values), JOIN)
        kind = str((node.fields.get("joinType") or {}).get("object", ""))
        if not kind.endswith(("LeftSemi$", "LeftAnti$")):
            held.output = [pair for seen in below for pair in seen.output]

    def _lateraljoin(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        for lateral in node.expressions("right"):
            seen = self._inside(lateral, held.values)
            held.values |= seen.values
            held.rows |= seen.rows
            held.output = [*held.output, *seen.output]
        held.rows |= indirectly(self._all(node.expressions("condition"), held.values), JOIN)

    def _sort(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        held.rows |= indirectly(self._all(node.expressions("order"), held.values), SORT)

    def _distinct(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        held.rows |= indirectly(held.every, GROUP)

    def _deduplicate(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        # Which of the rows of a key stays decides about every other column.
        held.rows |= indirectly(self._all(node.expressions("keys"), held.values), GROUP)

    def _union(self, node: _Node, held: _Seen, below: list[_Seen]) -> None:
        for position, (_, number) in enumerate(held.output):
            held.values[number] = frozenset().union(
                *(s.values.get(s.output[position][1], _NONE) for s in below)
            )

    def _intersect(self, node: _Node, held: _Seen, below: list[_Seen]) -> None:
        for seen in below:
            held.rows |= indirectly(seen.every, GROUP)

    _except = _intersect

    def _generate(self, node: _Node, held: _Seen, below: list[_Seen]) -> None:
        given = self._all(node.expressions("generator"), held.values)
        made = list(_attributes(node.expressions("generatorOutput")))
        held.values |= {number: given for _, number in made}
        held.rows |= indirectly(given, JOIN)
        held.output = [*below[0].output, *made]

    def _expand(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        made = list(_attributes(node.expressions("output")))
        found: list[Origins] = [_NONE] * len(made)
        for projection in node.fields.get("projections") or ():
            for position, tree in enumerate(_trees(projection)):
                found[position] |= self._origins(tree, held.values)
        held.values |= {number: o for (_, number), o in zip(made, found, strict=True)}
        held.output = made

    def _cterelationdef(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        self.ctes[int(node.fields["id"])] = held

    def _withcte(self, node: _Node, held: _Seen, below: list[_Seen]) -> None:
        whole = below[int(node.fields.get("plan", len(below) - 1))]
        held.rows, held.output = whole.rows, whole.output

    def _cterelationref(self, node: _Node, held: _Seen, _: list[_Seen]) -> None:
        made = list(_attributes(node.expressions("output")))
        held.output = made
        source = self.ctes.get(int(node.fields["cteId"]))
        if source is not None:
            pairs = zip(made, source.output, strict=False)
            held.values |= {new: source.values.get(old, _NONE) for (_, new), (_, old) in pairs}
            held.rows |= source.rows

    def _leaf(self, node: _Node, held: _Seen) -> None:
        made = list(_attributes(node.expressions("output")))
        held.output = made
        if not made or node.kind in ("LocalRelation", "OneRowRelation", "Range"):
            return
        names = tuple(name for name, _ in made)
        relation = self.leaves(self.known.get(made[0][1]), names)
        if relation is None:
            self.notes.append(_OPAQUE)
            return
        self.tables |= relation.tables
        held.rows |= relation.rows
        held.values |= {number: relation.get(name) for name, number in made}

    def _otherwise(self, node: _Node, held: _Seen) -> None:
        """An operator that passes rows on, or makes new columns of all that it is given."""
        given = held.every | self._all(node.expressions(), held.values)
        made = list(_attributes(node.expressions("output", "serializer", "outputObjAttr")))
        new = [pair for pair in made if pair[1] not in held.values]
        held.values |= {number: given for _, number in new}
        if new:
            held.output = made

    def _named(self, expressions: Iterable[_Node], held: _Seen) -> None:
        output, values = [], {}
        for tree in expressions:
            number = tree.number
            if number is not None:
                values[number] = self._origins(tree, held.values)
                output.append((str(tree.fields.get("name", "")), number))
        held.values |= values
        held.output = output

    # Expressions

    def _all(self, trees: Iterable[_Node], values: Mapping[int, Origins]) -> Origins:
        return frozenset().union(*(self._origins(tree, values) for tree in trees))

    def _origins(self, node: _Node, values: Mapping[int, Origins]) -> Origins:
        if node.kind == "AttributeReference":
            return _NONE if node.number is None else values.get(node.number, _NONE)
        below = [self._origins(child, values) for child in node.children]
        if node.kind == "WindowExpression":
            return below[0] | indirectly(_united(below[1:]), WINDOW)
        if node.kind == "AggregateExpression":
            return below[0] | indirectly(_united(below[1:]), FILTER)
        if node.kind == "OuterReference":
            return self._all(node.expressions("e"), values)
        if "plan" in node.fields:
            seen = self._inside(node, values)
            rows = frozenset(seen.rows)
            return indirectly(rows, FILTER) if node.kind == "Exists" else seen.every | rows
        return _united(below)

    def _inside(self, node: _Node, values: Mapping[int, Origins]) -> _Seen:
        """The query inside an expression."""
        return self.plan(_tree(node.fields["plan"]), values)


def _united(origins: Iterable[Origins]) -> Origins:
    return frozenset().union(*origins)


def _attributes(trees: Iterable[_Node]) -> Iterator[tuple[str, int]]:
    for tree in trees:
        if tree.number is not None:
            yield str(tree.fields.get("name", "")), tree.number
