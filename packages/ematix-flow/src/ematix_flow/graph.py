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
    try:
        tuple(_sorter(specs.values()).static_order())
    except CycleError as error:
        cycle: list[str] = error.args[1]
        errors.append(
            DependencyCycle(
                f"depends_on goes round in a circle: {' → '.join(reversed(cycle))}",
                fix="remove one of these dependencies",
                where=specs[cycle[0]].location,
            )
        )
    return errors


def run_order(specs: Sequence[PipelineSpec]) -> list[PipelineSpec]:
    """The pipelines, each after those it depends on; otherwise in order of declaration."""
    by_name = {spec.name: spec for spec in specs}
    return [by_name[name] for name in _sorter(specs).static_order() if name in by_name]


def _sorter(specs: Iterable[PipelineSpec]) -> TopologicalSorter[str]:
    held = list(specs)
    names = {spec.name for spec in held}
    return TopologicalSorter(
        {spec.name: [u for u in spec.depends_on if u in names] for spec in held}
    )
