"""Normalizers that compare with, or fill in, a constant of the column's own type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ematix_flow.normalize.base import Normalizer, Step
from ematix_flow.normalize.constants import checked_constant, fitted
from ematix_flow.types import ColumnType


@dataclass(frozen=True, repr=False)
class _Constant(Normalizer):
    value: object

    def __post_init__(self) -> None:
        checked_constant(f"{self.name}()", self.value)

    def resolve(self, source: ColumnType) -> Step:
        """This step on a column of type ``source``, or the reason why it cannot be."""
        return Step(type(self)(fitted(repr(self), self.value, source)), source, source)


@dataclass(frozen=True, repr=False)
class Default(_Constant):
    """NULL becomes the value."""

    name: ClassVar[str] = "default"

    def apply(self, value: object) -> object:
        """The value, also for NULL."""
        return self.value if value is None else value


@dataclass(frozen=True, repr=False)
class NotNullOr(Default):
    """The same as default(), under its other name."""

    name: ClassVar[str] = "not_null_or"


@dataclass(frozen=True, repr=False)
class NullIf(_Constant):
    """The value becomes NULL; NaN counts as equal to NaN."""

    name: ClassVar[str] = "nullif"

    def _meaning(self, value: object) -> object:
        both_nan = self.value != self.value and value != value  # noqa: PLR0124 - NaN
        return None if both_nan or value == self.value else value


def default(value: object) -> Default:
    """Replace NULL by a value."""
    return Default(value)


def not_null_or(value: object) -> NotNullOr:
    """Replace NULL by a value; the same as ``default()``."""
    return NotNullOr(value)


def nullif(value: object) -> NullIf:
    """Turn one value into NULL."""
    return NullIf(value)
