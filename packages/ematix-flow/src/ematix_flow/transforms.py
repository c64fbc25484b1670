"""Steps around a load: ``transforms_pre`` on the incoming rows, ``transforms_post`` after them.

They are declared and checked here; nothing here executes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ematix_flow.errors import DeclarationError

_WHOLE = 100


@dataclass(frozen=True)
class RowTransform:
    """Base of the steps that ``transforms_pre=`` takes."""


@dataclass(frozen=True)
class DeduplicateBy(RowTransform):
    """One row per key: the first in the given order."""

    keys: tuple[str, ...]
    order_by: str | None = None

    def __str__(self) -> str:
        order = f", order_by={self.order_by!r}" if self.order_by else ""
        return f"deduplicate_by({', '.join(map(repr, self.keys))}{order})"


@dataclass(frozen=True)
class FilterWhere(RowTransform):
    """Only the rows for which the SQL condition is true."""

    condition: str

    def __str__(self) -> str:
        return f"filter_where({self.condition!r})"


@dataclass(frozen=True)
class Limit(RowTransform):
    """At most so many rows."""

    rows: int

    def __str__(self) -> str:
        return f"limit({self.rows})"


@dataclass(frozen=True)
class SamplePercent(RowTransform):
    """About so many rows out of a hundred."""

    percent: float

    def __str__(self) -> str:
        return f"sample_pct({self.percent})"


@dataclass(frozen=True)
class TransformRef:
    """A named transform, looked up when it is needed."""

    name: str


def deduplicate_by(
    *columns: str, keys: Sequence[str] | None = None, order_by: str | None = None
) -> DeduplicateBy:
    """Keep one row per key, the first by ``order_by``.

    Rows that are equal there are told apart by all their columns, so that the same rows always
    leave the same ones.
    """
    chosen = columns if keys is None else keys
    if (keys is not None and columns) or not chosen or isinstance(chosen, str):
        raise DeclarationError(
            "deduplicate_by() takes the key columns",
            fix='write for example deduplicate_by(keys=("event_id",), order_by="received_at desc")',
        )
    for column in chosen:
        _text("deduplicate_by()", "a key", column)
    if order_by is not None:
        _text("deduplicate_by()", "order_by", order_by)
    return DeduplicateBy(tuple(chosen), order_by)


def filter_where(condition: str) -> FilterWhere:
    """Keep the rows for which a condition in Spark SQL is true."""
    return FilterWhere(_text("filter_where()", "the condition", condition))


def limit(rows: int) -> Limit:
    """Keep at most so many rows, any of them: for trying a pipeline out."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise DeclarationError(
            f"limit() takes a whole number from 1 upwards, not {rows!r}", fix="write limit(1000)"
        )
    return Limit(rows)


def sample_pct(percent: float) -> SamplePercent:
    """Keep about so many rows out of a hundred, chosen by their content: the same every time."""
    if isinstance(percent, bool) or not isinstance(percent, int | float):
        raise DeclarationError(f"sample_pct() takes a number, not {percent!r}", fix="write 5")
    if not 0 < percent <= _WHOLE:
        raise DeclarationError(
            f"sample_pct() takes a number above 0 and up to 100, not {percent!r}", fix="write 5"
        )
    return SamplePercent(percent)


def transform_ref(name: str) -> TransformRef:
    """Name a transform that is declared elsewhere."""
    return TransformRef(_text("transform_ref()", "the name", name))


def _text(who: str, what: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DeclarationError(f"{who}: {what} must be a text, not {value!r}", fix="correct it")
    return value
