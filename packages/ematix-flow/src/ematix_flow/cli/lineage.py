"""``flow lineage`` and ``flow impact``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ematix_flow.cli.options import (
    common_options,
    examples,
    load,
    module_option,
    run_log_options,
)
from ematix_flow.cli.output import complain, say, say_json, warn
from ematix_flow.errors import UnknownName

if TYPE_CHECKING:
    from ematix_flow.lineage.edges import Lineage, Origins
    from ematix_flow.lineage.graph import Branch, LineageGraph
    from ematix_flow.run.log import RunLog

_ORIGINS = {"declaration": "its declaration", "query": "its query", "plan": "Spark's plan"}


@click.command(
    epilog=examples(
        "flow lineage warehouse.shop.orders",
        "flow lineage shop.orders.amount",
        "flow lineage shop.orders --format json",
    )
)
@click.argument("table", metavar="TABLE[.COLUMN]")
@module_option
@run_log_options
@common_options
def lineage(
    *, table: str, modules: tuple[str, ...], run_log: Callable[[], RunLog], output: str
) -> int:
    """Show which columns a table or a column comes from, and by which pipelines.

    Works from the declarations, without a run. What only a run can know, such as what a DataFrame
    is made of, comes from the last one that succeeded.
    """
    graph, code = _graph(modules, run_log)
    name, column = graph.find(table)
    columns = graph.tables[name] if column is None else (column,)
    if output == "json":
        _say_json(graph, name, column, graph.upstream(name, columns))
        return code
    if column is None:
        _say_tables(graph, name)
    else:
        _say_tree(graph, name, column, up=True, nothing="comes from no column of a table")
    return code


@click.command(
    epilog=examples("flow impact shop.orders.amount", "flow impact warehouse.shop.orders")
)
@click.argument("table", metavar="TABLE[.COLUMN]")
@module_option
@run_log_options
@common_options
def impact(
    *, table: str, modules: tuple[str, ...], run_log: Callable[[], RunLog], output: str
) -> int:
    """Show which columns of which tables depend on a column, through all pipelines."""
    graph, code = _graph(modules, run_log)
    name, column = graph.find(table)
    columns = graph.tables[name] if column is None else (column,)
    if output == "json":
        _say_json(graph, name, column, graph.downstream(name, columns))
        return code
    _say_tree(graph, name, column, up=False, nothing="feeds no other table")
    return code


def _graph(modules: tuple[str, ...], run_log: Callable[[], RunLog]) -> tuple[LineageGraph, int]:
    from ematix_flow.lineage.graph import LineageGraph
    from ematix_flow.lineage.names import Names
    from ematix_flow.run.lineage import project_lineage

    project = load(modules)
    for error in project.errors:
        complain(str(error))
    if not project.pipelines:
        raise UnknownName(
            f"no pipeline is declared in {', '.join(project.modules)}", fix="declare one"
        )
    names = Names()
    specs = [pipeline.spec for pipeline in project.pipelines]
    found = project_lineage(specs, names=names, run_log=run_log())
    return LineageGraph(found, names), 2 if project.errors else 0


def _say_json(graph: LineageGraph, table: str, column: str | None, links: list[Any]) -> None:
    involved = {link.pipeline for link in links}
    involved |= {held.pipeline for held in graph.loaded_by(table)}
    say_json(
        {
            "table": table,
            "column": column,
            "edges": [link.to_dict() for link in links],
            "pipelines": [
                {
                    "name": held.pipeline,
                    "target": held.target,
                    "sources": list(held.sources),
                    "known_from": held.origin,
                    "run_id": held.run_id,
                    "notes": list(held.notes),
                }
                for held in graph.lineages
                if held.pipeline in involved
            ],
        }
    )


def _say_tables(graph: LineageGraph, table: str) -> None:
    """A table with its columns, then those that it comes from."""
    waiting = [table]
    for position, name in enumerate(waiting):
        if position:
            say()
        loaded = graph.loaded_by(name)
        if not loaded:
            say(f"{name}, loaded by no pipeline of this project")
        for held in loaded:
            origin = _ORIGINS[held.origin]
            known = f"run {held.run_id}" if held.run_id else origin
            say(f"{name}, loaded by {held.pipeline} (known from {known})")
            _say_columns(graph, held)
            for source in held.sources:
                if (label := graph.label(source)) not in waiting:
                    waiting.append(label)


def _say_columns(graph: LineageGraph, held: Lineage) -> None:
    width = max(map(len, held.columns), default=0)
    for column, origins in held.columns.items():
        direct = sorted(
            {f"{graph.label(o.table)}.{o.column}" for o in origins if o.how == "projection"}
        )
        beside = _beside(graph, frozenset(o for o in origins if o.how != "projection"))
        said = "; ".join(filter(None, (", ".join(direct), beside))) or "no column"
        say(f"  {column:<{width}}  ← {said}")
    if held.rows:
        say(f"  which rows: {_beside(graph, held.rows)}")
    if held.sources:
        say(f"  reads: {', '.join(sorted({graph.label(s) for s in held.sources}))}")
    for note in held.notes:
        say(f"  note: {note}")


def _beside(graph: LineageGraph, origins: Origins) -> str:
    hows: dict[str, list[str]] = {}
    for origin in sorted(origins):
        hows.setdefault(f"{graph.label(origin.table)}.{origin.column}", []).append(origin.how)
    return ", ".join(f"{column} ({', '.join(held)})" for column, held in hows.items())


def _say_tree(
    graph: LineageGraph, table: str, column: str | None, *, up: bool, nothing: str
) -> None:
    columns = graph.tables[table] if column is None else (column,)
    branches = graph.tree(table, columns, up=up)
    say(table if column is None else f"{table}.{column}")
    for line in _lines(branches, up=up):
        say(line)
    notes = {
        f"{held.pipeline}: {note}"
        for held in graph.lineages
        for note in held.notes
        if not up or graph.label(held.target) == table
    }
    if not branches:
        say(f"  {nothing}")
    for note in sorted(notes):
        warn(note)


def _lines(branches: tuple[Branch, ...], *, up: bool, before: str = "") -> Iterator[str]:
    for position, branch in enumerate(branches):
        last = position == len(branches) - 1
        named = f"{branch.table}: {', '.join(branch.columns)}"
        if branch.every:
            named = f"{branch.table}: every column"
        elif len(branch.columns) == 1:
            named = f"{branch.table}.{branch.columns[0]}"
        by = f"{'by' if up else 'through'} {branch.pipeline}"
        how = ", ".join((branch.kind, *(h for h in branch.hows if h != "projection")))
        again = " …" if branch.again else ""
        yield f"{before}{'└─' if last else '├─'} {named}  ({how}) {by}{again}"
        yield from _lines(branch.branches, up=up, before=before + ("   " if last else "│  "))
