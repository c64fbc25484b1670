"""Stored values of one type as those of another, in SQLite's own forms."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow.backends.sqlite_alterations import converted, exact_type, fits
from ematix_flow.types import BigInt, Double, Float, Integer, SmallInt, String


@pytest.mark.parametrize(
    ("value", "old", "new", "becomes"),
    [
        (None, "text", "big_int", None),
        (12, "integer", "numeric 8 2", "12.00"),
        ("1.25", "numeric 8 2", "numeric 12 4", "1.2500"),
        ("9" * 38, "numeric 38 0", "numeric 38 0", "9" * 38),
        ("7.00", "numeric 8 2", "integer", 7),
        (0.5, "double", "float", 0.5),
        (1, "boolean", "text", "true"),
        (0, "boolean", "string 5", "false"),
        ("12", "text", "small_int", 12),
        ("true", "text", "boolean", 1),
        ("2024-02-29", "text", "date", "2024-02-29"),
        ("2024-02-29", "date", "timestamp", "2024-02-29 00:00:00.000000"),
        ("2024-02-29", "date", "timestamp_tz", "2024-02-29 00:00:00.000000+00:00"),
        (
            "2024-02-29 01:02:03.000004",
            "timestamp",
            "timestamp_tz",
            "2024-02-29 01:02:03.000004+00:00",
        ),
        ("2024-02-29T01:00:00+01:00", "text", "timestamp_tz", "2024-02-29 00:00:00.000000+00:00"),
        ("[1]", "text", "json", "[1]"),
        ("AB" * 16, "text", "uuid", "abababab-abab-abab-abab-abababababab"),
        ("01:02", "text", "time", "01:02:00.000000"),
    ],
)
def test_conversions(value: Any, old: str, new: str, becomes: Any) -> None:
    assert fits(value, old, new)
    assert converted(value, old, new) == becomes


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        (2**15, "big_int", "small_int"),
        ("1.255", "numeric 8 3", "numeric 8 2"),
        ("123.00", "numeric 8 2", "numeric 4 2"),
        ("7.50", "numeric 8 2", "integer"),
        (0.1, "double", "float"),
        ("toolong", "text", "string 3"),
        ("twelve", "text", "big_int"),
        ("maybe", "text", "boolean"),
        ("2024-02-30", "text", "date"),
        ("2024-02-29 00:00:00+00:00", "text", "timestamp"),
        ("{", "text", "json"),
        ("x", "text", "uuid"),
        (b"x", "text", "date"),
    ],
)
def test_what_does_not_fit_stays(value: Any, old: str, new: str) -> None:
    assert not fits(value, old, new)
    assert converted(value, old, new) == value


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("SMALLINT", SmallInt()),
        ("integer", Integer()),
        ("BIGINT", BigInt()),
        ("FLOAT", Float()),
        ("DOUBLE", Double()),
        ("VARCHAR(12)", String(12)),
        ("TEXT", None),
    ],
)
def test_declared_types(declared: str, kind: Any) -> None:
    assert exact_type(declared, None) == kind
