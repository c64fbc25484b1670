"""The markers of keys, nullability and former names are plain values."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, Text, ematix, natural_key, nullable, pk, renamed_from
from ematix_flow.errors import DeclarationError
from ematix_flow.markers import NaturalKey, Nullable, PrimaryKey, RenamedFrom


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


@ematix.table(schema="app")
class Renamed:
    id: Annotated[BigInt, pk()]
    title: Annotated[Text | None, renamed_from("name")]


def test_a_former_name_belongs_to_its_column() -> None:
    assert renamed_from("name") == RenamedFrom("name")
    former = {c.name: c.renamed_from for c in Renamed.__table__.columns}  # type: ignore[attr-defined]
    assert former == {"id": None, "title": "name"}


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_former_name_is_a_text(name: Any) -> None:
    with pytest.raises(DeclarationError, match="takes the column's former name"):
        renamed_from(name)
