"""Which changes of a type keep every value, by the values themselves."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow import types as t
from ematix_flow.run.type_changes import convertible, type_change, widens

_LIMITS = {t.SmallInt(): 2**15, t.Integer(): 2**31, t.BigInt(): 2**63}


def holds(kind: t.ColumnType, value: Decimal) -> bool:
    """Whether an exact number is a value of a type, by arithmetic alone."""
    if kind in _LIMITS:
        return value == int(value) and -_LIMITS[kind] <= value < _LIMITS[kind]
    assert isinstance(kind, t.Numeric)
    scaled = value * 10**kind.scale
    return scaled == int(scaled) and abs(scaled) < 10**kind.precision


def extremes(kind: t.ColumnType) -> list[Decimal]:
    """The values of a type that another type is most likely not to hold."""
    if kind in _LIMITS:
        return [Decimal(_LIMITS[kind] - 1), Decimal(-_LIMITS[kind])]
    assert isinstance(kind, t.Numeric)
    most = Decimal(10**kind.precision - 1).scaleb(-kind.scale)
    return [most, -most, Decimal(1).scaleb(-kind.scale)]


numerics = st.integers(1, 24).flatmap(lambda p: st.integers(0, p).map(lambda s: t.Numeric(p, s)))
exact = st.one_of(numerics, st.sampled_from(list(_LIMITS)))


@given(exact, exact)
def test_a_wider_type_holds_the_extremes_of_the_narrower(
    old: t.ColumnType, new: t.ColumnType
) -> None:
    kept = all(holds(new, value) for value in extremes(old))
    # Digits are counted, not values: an integer is never wide enough for a fraction-less decimal.
    if new in _LIMITS and isinstance(old, t.Numeric):
        assert not widens(old, new)
    else:
        assert widens(old, new) == kept
    assert type_change(old, new) == ("widen" if widens(old, new) else "narrow")


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (t.String(3), t.String(5), "widen"),
        (t.String(3), t.Text(), "widen"),
        (t.Text(), t.String(5), "narrow"),
        (t.String(5), t.String(3), "narrow"),
        (t.Float(), t.Double(), "widen"),
        (t.Double(), t.Float(), "narrow"),
        (t.Array(t.Integer()), t.Array(t.BigInt()), "widen"),
        (t.Array(t.BigInt()), t.Array(t.Integer()), "narrow"),
        (t.Array(t.BigInt()), t.Array(t.Text()), "retype"),
        (t.Date(), t.Timestamp(), "retype"),
        (t.Integer(), t.Double(), "retype"),
        (t.BigInt(), t.Text(), "retype"),
        (t.JSON(), t.JSONB(), "retype"),
        (None, t.Text(), "retype"),
    ],
)
def test_changes(old: t.ColumnType | None, new: t.ColumnType, change: str) -> None:
    assert type_change(old, new) == change


@pytest.mark.parametrize(
    ("old", "new", "possible"),
    [
        (t.Text(), t.BigInt(), True),
        (t.BigInt(), t.Text(), True),
        (t.BigInt(), t.SmallInt(), True),
        (t.Numeric(8, 2), t.Integer(), True),
        (t.Double(), t.Timestamp(), False),
        (t.Bytes(), t.Text(), False),
        (t.Text(), t.Bytes(), False),
        (t.Array(t.BigInt()), t.Array(t.Integer()), False),
        (t.Array(t.Integer()), t.Text(), False),
        (None, t.Text(), False),
    ],
)
def test_conversions(old: t.ColumnType | None, new: t.ColumnType, possible: bool) -> None:
    assert convertible(old, new) is possible
