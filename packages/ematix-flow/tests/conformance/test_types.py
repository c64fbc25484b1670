"""Every type goes in, and comes out of the backend as a source, as the very same value."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID as Uuid

import duckdb
import pytest

from conformance.conftest import Loader
from ematix_flow import (
    JSON,
    UUID,
    Array,
    BigInt,
    Boolean,
    Bytes,
    Date,
    Double,
    DuckDBConnection,
    EmatixError,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Time,
    Timestamp,
    TimestampTZ,
    ematix,
    register_connection,
)
from ematix_flow.backends.loading import load_backend
from harness.base import Harness

pytestmark = [pytest.mark.needs("every type"), pytest.mark.every_harness]


@ematix.table(schema="types")
class Everything:
    id: BigInt
    small: SmallInt | None
    whole: Integer | None
    big: BigInt | None
    single: Float | None
    double: Double | None
    exact: Numeric[38, 10] | None
    flag: Boolean | None
    words: Text | None
    short: String[8] | None
    day: Date | None
    clock: Time | None
    naive: Timestamp | None
    instant: TimestampTZ | None
    document: JSON | None
    identity: UUID | None
    raw: Bytes | None
    numbers: Array[BigInt] | None
    labels: Array[Text] | None


SCHEMA = (
    "id BIGINT, small SMALLINT, whole INT, big BIGINT, single FLOAT, double DOUBLE, "
    "exact DECIMAL(38, 10), flag BOOLEAN, words STRING, short STRING, day DATE, clock STRING, "
    "naive TIMESTAMP_NTZ, instant TIMESTAMP, document STRING, identity STRING, raw BINARY, "
    "numbers ARRAY<BIGINT>, labels ARRAY<STRING>"
)
UTC = timezone.utc
NULLS = (None,) * 18
ROWS: list[tuple[Any, ...]] = [
    (1, *NULLS),
    (
        2,
        -32768,
        -(2**31),
        -(2**63),
        1.5,
        0.1,
        Decimal("-1234567890123456789012345678.0123456789"),
        False,
        "",
        "",
        date(1600, 1, 1),
        "00:00:00",
        datetime(1900, 1, 1),
        datetime(1900, 1, 1, tzinfo=UTC),
        "{}",
        "00000000-0000-0000-0000-000000000000",
        b"",
        [],
        [],
    ),
    (
        3,
        32767,
        2**31 - 1,
        2**63 - 1,
        -0.0,
        1.7976931348623157e308,
        Decimal("0.0000000001"),
        True,
        "日付 😀 \"quoted\", 'single' \\ back \t tab\nnew\r\nline ",
        "ünïcode",
        date(9999, 12, 31),
        "23:59:59.999999",
        datetime(2024, 2, 29, 12, 34, 56, 123456),
        datetime(2038, 1, 19, 3, 14, 8, 1, tzinfo=UTC),
        '{"a": [1, 2.5, null, "x"]}',
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        bytes(range(256)),
        [1, None, -(2**63)],
        ["", None, "a,b", 'q"q', "{}", "\\"],
    ),
    (
        4,
        0,
        0,
        0,
        math.inf,
        math.nan,
        Decimal(0),
        True,
        "NULL",
        "\\N",
        date(2024, 2, 29),
        "12:34:56.1",
        datetime(2024, 3, 31, 2, 30),
        datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        "null",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        b"\x00",
        [0],
        ["NULL"],
    ),
    (
        5,
        1,
        1,
        1,
        math.nan,
        -math.inf,
        Decimal("1.5"),
        None,
        " padded ",
        "x" * 8,
        date(1970, 1, 1),
        "01:02:03",
        datetime(1970, 1, 1),
        datetime(1970, 1, 1, tzinfo=UTC),
        '"text"',
        "6BA7B810-9DAD-11D1-80B4-00C04FD430C8",
        b"abc",
        None,
        None,
    ),
]


def rows_for(backend: Harness) -> list[tuple[Any, ...]]:
    """The rows, without NaN and infinity where the backend says that it cannot hold them."""
    declared = load_backend(backend.connection("target")).capabilities

    def held(value: Any) -> Any:
        if not isinstance(value, float) or math.isfinite(value):
            return value
        can = declared.nan_in_floats if math.isnan(value) else declared.infinity_in_floats
        return value if can else None

    return [tuple(held(value) for value in row) for row in ROWS]


def expected(backend: Harness) -> list[dict[str, Any]]:
    names = Everything.__table__.column_names
    rows = [dict(zip(names, row, strict=True)) for row in rows_for(backend)]
    for row in rows:
        for name, read in (
            ("clock", time.fromisoformat),
            ("document", json.loads),
            ("identity", Uuid),
        ):
            if row[name] is not None:
                row[name] = read(_whole_time(row[name]) if name == "clock" else row[name])
    return rows


def _whole_time(text: str) -> str:
    head, _, fraction = text.partition(".")
    return f"{head}.{fraction:0<6}" if fraction else head


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    def value(v: Any) -> Any:
        if isinstance(v, float) and math.isnan(v):
            return "NaN"
        if isinstance(v, Decimal):
            return v.normalize()
        if isinstance(v, (bytearray, memoryview)):
            return bytes(v)
        return list(v) if isinstance(v, (list, tuple)) else v

    return {k: value(v) for k, v in row.items() if not k.startswith("_")}


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((comparable(r) for r in rows), key=lambda r: r["id"])


def test_every_value_lands_as_it_is(backend: Harness, loader: Loader) -> None:
    loader(Everything, rows_for(backend), SCHEMA).sync()
    found = by_id(backend.rows(backend.connection("target"), Everything.__table__))
    assert found == by_id(expected(backend))


@pytest.mark.needs("source")
def test_every_value_reads_back_as_it_was(backend: Harness, loader: Loader, tmp_path: Path) -> None:
    loader(Everything, rows_for(backend), SCHEMA).sync()
    register_connection(DuckDBConnection(name="copy", path=str(tmp_path / "copy.duckdb")))

    @ematix.pipeline(
        target=Everything,
        source_connection="target",
        target_connection="copy",
        source_table="types.everything",
        mode="truncate",
    )
    def read_back() -> None:
        pass

    read_back.sync()
    with duckdb.connect(str(tmp_path / "copy.duckdb")) as raw:
        raw.execute("SET TimeZone = 'UTC'")
        result = raw.execute("SELECT * FROM types.everything")
        names = [d[0] for d in result.description]
        rows = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    for row in rows:
        row["document"] = None if row["document"] is None else json.loads(row["document"])
    assert by_id(rows) == by_id(expected(backend))


def test_text_with_a_nul_lands_or_is_refused(backend: Harness, loader: Loader) -> None:
    row = list(ROWS[0])
    row[8] = "a\x00b"
    pipeline = loader(Everything, [tuple(row)], SCHEMA)
    if not load_backend(backend.connection("target")).capabilities.nul_in_text:
        with pytest.raises(EmatixError, match="NUL"):
            pipeline.sync()
        assert not backend.exists(backend.connection("target"), Everything.__table__.name)
    else:
        pipeline.sync()
        found = backend.rows(backend.connection("target"), Everything.__table__)
        assert found[0]["words"] == "a\x00b"


def test_nan_lands_or_is_refused(backend: Harness, loader: Loader) -> None:
    pipeline = loader(Everything, ROWS, SCHEMA)
    if load_backend(backend.connection("target")).capabilities.nan_in_floats:
        assert pipeline.sync().counts.inserted == len(ROWS)
    else:
        with pytest.raises(EmatixError, match="NaN"):
            pipeline.sync()
        assert not backend.exists(backend.connection("target"), Everything.__table__.name)
