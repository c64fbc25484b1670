"""What ``on_drift=`` and ``allow=`` take, and what they permit."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow.drift import (
    KINDS,
    Difference,
    Permits,
    check_allow,
    check_on_drift,
    remedy,
)
from ematix_flow.errors import EmatixError


@pytest.mark.parametrize(
    "value", ["error", "warn", "evolve", {}, {"add": "evolve", "drop": "warn", "narrow": "error"}]
)
def test_policies(value: Any) -> None:
    check_on_drift(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("ignore", "on_drift='ignore' is not known; use one of 'error', 'warn', 'evolve'"),
        (None, "on_drift=None is not known"),
        (["error"], "on_drift=['error'] is not known"),
        ({"ad": "evolve"}, "on_drift= names 'ad', which is no kind of change; did you mean"),
        ({"add": "alter"}, "on_drift['add']='alter' is not known; use one of"),
        ({"add": None}, "on_drift['add']=None is not known"),
    ],
)
def test_wrong_policies(value: Any, says: str) -> None:
    with pytest.raises(EmatixError) as caught:
        check_on_drift(value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("allow", "says"),
    [
        (("drp:note",), "allow= names 'drp:note', which is no change of a table"),
        (("note",), "allow= names 'note', which is no change of a table; write \"kind:column\""),
        (("drop:",), "allow= names 'drop:'; write \"drop:column\""),
        (("drop:a->b",), "allow= names 'drop:a->b'; write \"drop:column\""),
        (("rename:a",), "allow= names 'rename:a'; write \"rename:old->new\""),
        (("rename:->b",), 'write "rename:old->new"'),
    ],
)
def test_wrong_allowances(allow: tuple[str, ...], says: str) -> None:
    with pytest.raises(EmatixError) as caught:
        check_allow(allow, "evolve")
    assert says in str(caught.value)


@pytest.mark.parametrize("on_drift", ["error", "warn", {"add": "warn"}, {}])
def test_an_allowance_without_evolution_is_a_mistake(on_drift: Any) -> None:
    check_allow((), on_drift)
    with pytest.raises(EmatixError, match='add on_drift="evolve"'):
        check_allow(("drop:note",), on_drift)
    check_allow(("drop:note",), {"drop": "evolve"})


def test_one_policy_is_for_every_kind_and_a_kind_that_is_not_named_is_an_error() -> None:
    assert {Permits("warn").policy(kind) for kind in KINDS} == {"warn"}
    chosen = Permits({"add": "evolve"})
    assert (chosen.policy("add"), chosen.policy("widen")) == ("evolve", "error")


def test_what_is_named_is_allowed_and_nothing_else() -> None:
    permits = Permits("evolve", ("drop:a", "rename:old->new", "narrow:b"))
    assert permits.allows("drop", "a")
    assert not permits.allows("drop", "b")
    assert not permits.allows("narrow", "a")
    assert permits.renames() == {"new": "old"}


ADDED = Difference("a", "add", evolves=True, tolerable=True)
NARROWED = Difference("b", "narrow", evolves=True, allowance="narrow:b")
KEYED = Difference("c", None)


@pytest.mark.parametrize(
    ("differences", "on_drift", "ways"),
    [
        ([ADDED], "error", ['on_drift="evolve"', 'on_drift="warn"']),
        ([ADDED], {"drop": "warn"}, ['on_drift={"add": "evolve"}', 'on_drift={"add": "warn"}']),
        ([ADDED, NARROWED], "error", ['on_drift="evolve" and allow=("narrow:b",)']),
        ([NARROWED], "evolve", ['table with allow=("narrow:b",)']),
        ([NARROWED], "warn", ['on_drift="evolve" and allow=("narrow:b",)']),
        ([ADDED, KEYED], "error", []),
    ],
)
def test_only_ways_out_are_named_that_are_one(
    differences: list[Difference], on_drift: Any, ways: list[str]
) -> None:
    named = remedy(differences, Permits(on_drift)).split(", or ")
    assert named[0] == "change the declaration or the table until they agree"
    assert len(named) == len(ways) + 1
    for found, way in zip(named[1:], ways, strict=True):
        assert found.endswith(way)
