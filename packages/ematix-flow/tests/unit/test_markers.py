"""The markers of keys and nullability are plain values."""

from __future__ import annotations

import pytest

from ematix_flow import natural_key, nullable, pk
from ematix_flow.markers import NaturalKey, Nullable, PrimaryKey


def test_markers_are_values() -> None:
    assert pk() == PrimaryKey()
    assert nullable() == Nullable()
    assert natural_key() == NaturalKey("")
    assert natural_key("business") == natural_key(group="business") == NaturalKey("business")
    assert len({pk(), pk(), nullable(), natural_key("a"), natural_key("a")}) == 3


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError):
        pk(order=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        natural_key(name="business")  # type: ignore[call-arg]
