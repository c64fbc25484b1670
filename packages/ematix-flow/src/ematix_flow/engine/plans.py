"""The analysed plan of a DataFrame, as an in-process Spark tells it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Leaf:
    """Where a plan reads: ``files`` by their paths, ``jdbc`` by URL and table, or a ``table``."""

    kind: str
    places: tuple[str, ...]
    url: str = ""


@dataclass(frozen=True)
class AnalysedPlan:
    """A plan in Spark's own JSON; ``leaves`` by the id of each one's first attribute."""

    json: str
    leaves: Mapping[int, Leaf] = field(default_factory=dict)


def analysed_plan(frame: Any) -> AnalysedPlan:
    """The plan behind a DataFrame of this process."""
    plan = frame.select("*")._jdf.queryExecution().analyzed()
    leaves = {}
    for held in (plan, *_items(plan.subqueriesAll())):
        for leaf in _items(held.collectLeaves()):
            known = _known(leaf)
            if known is not None and leaf.output().size():
                leaves[int(leaf.output().apply(0).exprId().id())] = known
    return AnalysedPlan(plan.toJSON(), leaves)


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(number) for number in range(sequence.size()))


def _known(leaf: Any) -> Leaf | None:
    name = leaf.getClass().getSimpleName()
    if name in ("DataSourceV2Relation", "DataSourceV2ScanRelation"):
        return Leaf("table", (leaf.table().name(),))
    if name == "HiveTableRelation":
        return Leaf("table", (leaf.tableMeta().identifier().unquotedString(),))
    if name != "LogicalRelation":
        return None
    table = leaf.catalogTable()
    if table.isDefined():
        return Leaf("table", (table.get().identifier().unquotedString(),))
    relation = leaf.relation()
    kinds = _kinds(relation)
    if "HadoopFsRelation" in kinds:
        paths = _items(relation.location().rootPaths())
        return Leaf("files", tuple(str(path.toString()) for path in paths))
    if "JDBCRelation" in kinds:
        options = relation.jdbcOptions()
        return Leaf("jdbc", (options.tableOrQuery(),), url=options.url())
    return None


def _kinds(held: Any) -> set[str]:
    """The names of an object's class and of those above it: Delta's relation has no own name."""
    found, kind = set(), held.getClass()
    while kind is not None:
        found.add(kind.getName().rpartition(".")[2])
        kind = kind.getSuperclass()
    return found
