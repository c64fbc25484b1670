"""What a comparison of two tables found, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ComparedType:
    """A column whose type is not of the same family on both sides."""

    column: str
    a: str
    b: str
    compared_as: str


@dataclass(frozen=True)
class ChangedRow:
    """A key that both tables have, with the values that differ: those of ``a``, those of ``b``."""

    key: Mapping[str, Any]
    values: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class TableDiff:
    """How two tables differ. Counts are exact, samples are the first rows by key.

    Whole numbers and booleans are shown as such, NULL as None, everything else as text.
    """

    a: str
    b: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    columns_only_in_a: tuple[str, ...]
    columns_only_in_b: tuple[str, ...]
    types: tuple[ComparedType, ...]
    rows_a: int
    rows_b: int
    only_in_a: int
    only_in_b: int
    different: int
    different_columns: Mapping[str, int]
    sample_only_in_a: tuple[Mapping[str, Any], ...]
    sample_only_in_b: tuple[Mapping[str, Any], ...]
    sample_different: tuple[ChangedRow, ...]
    buckets: int
    differing_buckets: int
    rows_read_again: int
    digested_by: Mapping[str, str]

    @property
    def equal(self) -> bool:
        """Whether both have the same columns and the same rows."""
        columns = self.columns_only_in_a or self.columns_only_in_b
        return not (columns or self.only_in_a or self.only_in_b or self.different)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = asdict(self)
        plain["sample_different"] = [
            {
                "key": dict(row.key),
                "values": {n: {"a": a, "b": b} for n, (a, b) in row.values.items()},
            }
            for row in self.sample_different
        ]
        return {"equal": self.equal, **plain}
