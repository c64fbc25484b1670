"""The order in which pipelines run: ``depends_on`` as a graph, its cycles and unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from ematix_flow.connections import nearest
from ematix_flow.errors import DeclarationError, DependencyCycle, UnknownName
from ematix_flow.model import PipelineSpec


def check_dependencies(
    specs: Mapping[str, PipelineSpec], *, broken: Iterable[str] = ()
) -> list[DeclarationError]:
    """What is wrong with the ``depends_on`` of these pipelines."""
    errors: list[DeclarationError] = []
    known = {*specs, *broken}
    for spec in specs.values():
        for upstream in spec.depends_on:
            if upstream not in known:
                errors.append(
                    UnknownName(
                        f"pipeline {spec.name!r} depends on {upstream!r}, which does not exist",
                        fix=nearest(upstream, known - {spec.name}) if len(known) > 1 else "",
                        where=spec.location,
                    )
                )
    remaining = dict(specs)
    while cycle := _cycle(remaining.values()):
        errors.append(
            DependencyCycle(
                f"depends_on goes round in a circle: {' → '.join(cycle)}",
                fix="remove one of these dependencies",
                where=specs[cycle[-1]].location,
            )
        )
        for name in cycle[1:]:
            del remaining[name]
    return errors


def run_order(specs: Sequence[PipelineSpec]) -> list[PipelineSpec]:
    """The pipelines, each after those it depends on; otherwise in order of declaration."""
    cycle = _cycle(specs)
    if cycle:
        raise DependencyCycle(
            f"depends_on goes round in a circle: {' → '.join(cycle)}",
            fix="remove one of these dependencies",
        )
    by_name = {spec.name: spec for spec in specs}
    ordered: dict[str, PipelineSpec] = {}
    for spec in specs:
        waiting = [spec]
        while waiting:
            upstream = [by_name[u] for u in waiting[-1].depends_on if u in by_name]
            missing = [u for u in upstream if u.name not in ordered]
            if missing:
                waiting.append(missing[0])
            else:
                done = waiting.pop()
                ordered[done.name] = done
    return list(ordered.values())


def _cycle(specs: Iterable[PipelineSpec]) -> list[str]:
    """The names of one circle, each depending on the next; none, if there is no circle."""
    try:
        _sorter(specs).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def _sorter(specs: Iterable[PipelineSpec]) -> TopologicalSorter[str]:
    held = list(specs)
    names = {spec.name for spec in held}
    return TopologicalSorter(
        {spec.name: [u for u in spec.depends_on if u in names] for spec in held}
    )
