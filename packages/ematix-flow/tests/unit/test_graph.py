"""Order, cycles and unknown names among pipelines."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.errors import DependencyCycle, SourceLocation, UnknownName
from ematix_flow.graph import check_dependencies, run_order
from ematix_flow.model import PipelineSpec


def specs(**depends_on: str) -> dict[str, PipelineSpec]:
    """``a="b c"`` is a pipeline a that depends on b and c, declared in this order."""
    return {
        name: PipelineSpec(
            name=name,
            function=lambda: None,
            targets=(),
            location=SourceLocation("p.py", line),
            depends_on=dict.fromkeys(upstream.split(), "success"),
        )
        for line, (name, upstream) in enumerate(depends_on.items(), 1)
    }


def order(held: dict[str, PipelineSpec]) -> list[str]:
    return [spec.name for spec in run_order(list(held.values()))]


@pytest.mark.parametrize(
    ("depends_on", "expected"),
    [
        ({"a": "", "b": "", "c": ""}, "abc"),
        ({"a": "", "b": "a", "c": ""}, "abc"),
        ({"a": "b", "b": "c", "c": ""}, "cba"),
        ({"a": "c", "b": "", "c": ""}, "cab"),
        ({"d": "b c", "b": "a", "c": "a", "a": ""}, "abcd"),
        ({"a": "outside", "b": ""}, "ab"),
        ({"a": "b b", "b": ""}, "ba"),
        ({}, ""),
    ],
)
def test_order(depends_on: dict[str, str], expected: str) -> None:
    assert order(specs(**depends_on)) == list(expected)


@st.composite
def acyclic(draw: st.DrawFn) -> dict[str, PipelineSpec]:
    names = [f"p{i}" for i in range(draw(st.integers(0, 12)))]
    edges = {
        name: " ".join(draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else [])
        for i, name in enumerate(names)
    }
    shuffled = draw(st.permutations(names))
    return specs(**{name: edges[name] for name in shuffled})


@given(acyclic())
def test_order_respects_dependencies_and_loses_nothing(held: dict[str, PipelineSpec]) -> None:
    ordered = order(held)
    assert sorted(ordered) == sorted(held)
    place = {name: i for i, name in enumerate(ordered)}
    for spec in held.values():
        assert all(place[upstream] < place[spec.name] for upstream in spec.depends_on)
    assert check_dependencies(held) == []
    # An order that already holds is left as it is.
    assert order({name: held[name] for name in ordered}) == ordered


@given(acyclic(), st.data())
def test_any_closed_circle_is_found(held: dict[str, PipelineSpec], data: st.DataObject) -> None:
    ordered = order(held)
    if not ordered:
        return
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(ordered) - 1)] * 2)))
    circle = ordered[first : last + 1]
    edges = {name: list(spec.depends_on) for name, spec in held.items()}
    for name, upstream in zip(circle, [circle[-1], *circle[:-1]], strict=True):
        edges[name].append(upstream)
    closed = specs(**{name: " ".join(upstream) for name, upstream in edges.items()})
    assert any(isinstance(e, DependencyCycle) for e in check_dependencies(closed))
    with pytest.raises(DependencyCycle):
        order(closed)


def test_a_circle_is_shown_with_its_place() -> None:
    (error,) = check_dependencies(specs(a="b", b="c", c="a", d="a"))
    assert isinstance(error, DependencyCycle)
    shown = error.what.removeprefix("depends_on goes round in a circle: ").split(" → ")
    assert shown[0] == shown[-1]
    assert sorted(shown[1:]) == ["a", "b", "c"]
    turning = {"a": "b", "b": "c", "c": "a"}
    assert all(turning[one] == other for one, other in itertools.pairwise(shown))
    assert error.where in [SourceLocation("p.py", line) for line in (1, 2, 3)]
    assert error.fix == "remove one of these dependencies"


def test_a_pipeline_after_itself() -> None:
    (error,) = check_dependencies(specs(a="a"))
    assert str(error).startswith("p.py:1: depends_on goes round in a circle: a → a; ")


def test_every_circle_is_reported() -> None:
    errors = check_dependencies(specs(a="b", b="a", c="d", d="c", e="e", f=""))
    assert [type(e) for e in errors] == [DependencyCycle] * 3


def test_unknown_names() -> None:
    held = specs(load_orders="load_ordes nothing", load_lines="gone", x="load_orders")
    first, second = check_dependencies(held, broken=["gone"])
    assert isinstance(first, UnknownName)
    assert first.what == "pipeline 'load_orders' depends on 'load_ordes', which does not exist"
    assert first.where == SourceLocation("p.py", 1)
    assert isinstance(second, UnknownName)
    assert "'nothing'" in second.what
    assert second.fix == "known are: gone, load_lines, x"


def test_a_close_name_is_suggested_but_not_itself() -> None:
    (error,) = check_dependencies(specs(load_order="load_ordr", load_orders=""))
    assert error.fix == "did you mean 'load_orders'?"
    (error,) = check_dependencies(specs(load="lod"))
    assert error.fix == ""
