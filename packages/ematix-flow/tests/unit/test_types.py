"""Column types: how they are written, what they refuse, which fits into which."""

from __future__ import annotations

import itertools
import typing
from typing import Annotated, Any, Optional

import pytest

from ematix_flow import types as t
from ematix_flow.errors import DeclarationError
from ematix_flow.types import ColumnType, assignable, parse_annotation

PLAIN = [
    t.SmallInt, t.Integer, t.BigInt, t.Float, t.Double, t.Boolean, t.Text, t.Date, t.Time,
    t.Timestamp, t.TimestampTZ, t.JSON, t.JSONB, t.UUID, t.Bytes,
]  # fmt: skip
ALL: list[ColumnType] = [
    *(cls() for cls in PLAIN),
    t.String[8],
    t.Numeric[12, 2],
    t.Array[t.Text],
]


@pytest.mark.parametrize("cls", PLAIN)
def test_classes_and_instances_mean_the_same(cls: type[ColumnType]) -> None:
    assert parse_annotation(cls) == (cls(), False)
    assert parse_annotation(cls()) == (cls(), False)
    assert str(cls()) == cls.__name__
    assert cls().to_spec() == {"kind": cls.kind}


@pytest.mark.parametrize("held", ALL, ids=str)
def test_nullable_in_every_spelling(held: ColumnType) -> None:
    spellings: list[Any] = [held | None, None | held, Optional[held]]  # noqa: UP045 - under test
    for spelling in spellings:
        assert parse_annotation(spelling) == (held, True)


@pytest.mark.parametrize("cls", PLAIN)
def test_nullable_classes(cls: type[ColumnType]) -> None:
    for spelling in (cls | None, Optional[cls], typing.Union[cls, None]):  # noqa: UP007, UP045
        assert parse_annotation(spelling) == (cls(), True)


def test_parameters() -> None:
    assert (t.String[256], str(t.String[256])) == (t.String(256), "String[256]")
    assert (t.Numeric[12, 2], str(t.Numeric[12, 2])) == (t.Numeric(12, 2), "Numeric[12, 2]")
    assert str(t.Array[t.Numeric[5, 0]]) == "Array[Numeric[5, 0]]"
    assert t.Numeric[12, 2].to_spec() == {"kind": "numeric", "precision": 12, "scale": 2}
    assert t.String[256].to_spec() == {"kind": "string", "length": 256}


def test_types_are_values() -> None:
    assert len({t.String[8], t.String[8], t.String[9], t.Text(), t.Text()}) == 3
    assert t.Text() != t.Date()
    with pytest.raises(AttributeError):
        t.String[8].length = 9  # type: ignore[misc, attr-defined]


def test_parameterised_types_stand_in_annotated() -> None:
    hint = Annotated[t.String[256] | None, "marker"]
    assert typing.get_args(hint)[0] == (t.String[256] | None)


@pytest.mark.parametrize("length", [0, -1, True, 1.5, "8", None])
def test_bad_lengths(length: Any) -> None:
    with pytest.raises(DeclarationError, match=r"String length must be .* above 0") as caught:
        t.String[length]
    assert repr(length) in str(caught.value)
    assert "String[256]" in caught.value.fix


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ((0, 0), "precision must be from 1 to 38, not 0"),
        ((39, 2), "precision must be from 1 to 38, not 39"),
        ((5, 6), "scale must be from 0 to the precision 5, not 6"),
        ((5, -1), "scale must be from 0 to the precision 5, not -1"),
        ((True, 0), "precision must be"),
        (("12", 2), "precision must be"),
        ((12,), "takes a precision and a scale"),
        (12, "takes a precision and a scale"),
        ((1, 2, 3), "takes a precision and a scale"),
    ],
)
def test_bad_numerics(parameters: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says) as caught:
        t.Numeric[parameters]
    assert "Numeric[12, 2]" in caught.value.fix


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        (int, "int is not a column type"),
        ("BigInt", "'BigInt' is not a column type"),
        (t.BigInt | t.Text, "is not a column type"),
        (t.BigInt | t.Text | None, "is not a column type"),
        (int | None, "int is not a column type"),
        (None, "None is not a column type"),
        (t.String, r"String needs its parameters; write for example String\[256\]"),
        (t.Numeric, r"Numeric needs its parameters; write for example Numeric\[12, 2\]"),
        (t.Array, r"Array needs its parameters; write for example Array\[Text\]"),
        (t.String | None, "String needs its parameters"),
        (t.AnyNumeric, r"AnyNumeric cannot be declared; write for example Numeric\[38, 10\]"),
    ],
)
def test_what_is_no_column_type(annotation: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        parse_annotation(annotation)


def test_arrays_of_what_is_no_type() -> None:
    with pytest.raises(DeclarationError, match="int is not a column type"):
        t.Array[int]


def test_a_type_joins_with_none_only() -> None:
    with pytest.raises(TypeError):
        t.String[8] | int  # type: ignore[operator]


def test_assignment_is_decided_for_every_pair() -> None:
    for source, target in itertools.product([*ALL, t.AnyNumeric()], ALL):
        assert assignable(source, target) in (True, False), (source, target)


def test_every_type_fits_into_itself() -> None:
    for held in ALL:
        assert assignable(held, held), held


def test_text_is_read_as_anything_and_nearly_everything_as_text() -> None:
    for held in ALL:
        assert assignable(t.Text(), held)
        assert assignable(t.String[8], held)
    unreadable = {h.kind for h in ALL if not assignable(h, t.Text())}
    assert unreadable == {"bytes", "array"}


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        (t.Integer(), t.BigInt(), True),
        (t.BigInt(), t.Integer(), True),  # narrowing is checked value by value
        (t.BigInt(), t.Numeric[38, 0], True),
        (t.Double(), t.BigInt(), False),
        (t.Numeric[12, 2], t.BigInt(), False),
        (t.AnyNumeric(), t.BigInt(), True),
        (t.Date(), t.TimestampTZ(), True),
        (t.Timestamp(), t.Date(), False),
        (t.TimestampTZ(), t.Timestamp(), False),
        (t.JSON(), t.JSONB(), True),
        (t.UUID(), t.BigInt(), False),
        (t.Boolean(), t.Integer(), False),
        (t.Array[t.Integer], t.Array[t.BigInt], True),
        (t.Array[t.Integer], t.Array[t.Date], False),
        (t.Array[t.Integer], t.JSONB(), True),
        (t.Array[t.Integer], t.BigInt(), False),
        (t.Bytes(), t.JSON(), False),
    ],
    ids=str,
)
def test_assignment_loses_nothing(source: ColumnType, target: ColumnType, fits: bool) -> None:
    assert assignable(source, target) is fits
