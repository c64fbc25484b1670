"""A digest of rows depends on every value and where it stands, and not on the order of the rows."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from ematix_flow.engine.session import Engine
from ematix_flow.run.fingerprints import frame_fingerprint

SCHEMA = (
    "a STRING, b STRING, c DECIMAL(10, 2), d BINARY, e TIMESTAMP, f ARRAY<STRING>, g DOUBLE, h DATE"
)
MOMENT = datetime(2026, 3, 1, tzinfo=timezone.utc)
ROW: tuple[Any, ...] = ("x", None, Decimal("1.50"), b"\0", MOMENT, ["p", None], 0.5, MOMENT.date())
NOTHING = (None,) * len(ROW)


def changed(place: int, value: Any) -> tuple[Any, ...]:
    return (*ROW[:place], value, *ROW[place + 1 :])


def found(engine: Engine, *rows: tuple[Any, ...]) -> list[int]:
    return frame_fingerprint(engine.spark.createDataFrame(list(rows), SCHEMA))


def test_order_does_not_matter(engine: Engine) -> None:
    rows = [ROW, changed(0, "y"), NOTHING, ROW]
    assert found(engine, *rows) == found(engine, *reversed(rows))


@pytest.mark.parametrize(
    "other",
    [
        [],
        [ROW, ROW],
        [NOTHING],
        [(None, "x", *ROW[2:])],
        [changed(0, "")],
        [changed(2, Decimal("1.51"))],
        [changed(3, b"")],
        [changed(5, ["p"])],
        [changed(5, [None, "p"])],
        [changed(6, None)],
    ],
)
def test_every_value_matters(engine: Engine, other: list[tuple[Any, ...]]) -> None:
    assert found(engine, ROW) != found(engine, *other)
