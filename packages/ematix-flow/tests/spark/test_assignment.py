"""A value that its declared column cannot hold stops the load, with column, value and type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from conformance.test_types import SCHEMA, Everything
from ematix_flow import DuckDBConnection, ematix, register_connection
from ematix_flow.errors import DataError


def _tables(file: Path) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(file)) as raw:
        return raw.execute("SELECT table_name FROM information_schema.tables").fetchall()


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("short", "nine char", "longer than 8"),
        ("small", "40000", "SmallInt"),
        ("whole", "1.5", "Integer"),
        ("day", "2024-02-30", "Date"),
        ("clock", "24:00:01", "Time"),
        ("identity", "not-a-uuid", "UUID"),
        ("document", "{bad", "JSON"),
        ("exact", "1e40", "Numeric"),
        ("exact", "0.12345678901", "exact Numeric"),
        ("exact", "1.5e-11", "exact Numeric"),
        ("day", "2026-01-01 10:00:00", "Date"),
        ("day", "2026", "Date"),
        ("naive", "2026-01-01T00:00:00+02:00", "Timestamp"),
        ("naive", "2026-01-01 00:00:00.1234567", "Timestamp"),
        ("instant", "2026", "TimestampTZ"),
        ("flag", "maybe", "Boolean"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_column(
    engine: object, tmp_path: Path, column: str, value: str, says: str
) -> None:
    register_connection(DuckDBConnection(name="target", path=str(tmp_path / "t.duckdb")))
    types = dict(part.split(" ", 1) for part in SCHEMA.replace("38, 10", "38;10").split(", "))
    types[column] = "STRING"
    schema = ", ".join(f"{n} {k}" for n, k in types.items()).replace("38;10", "38, 10")
    names = Everything.__table__.column_names
    row = tuple({**dict.fromkeys(names), "id": 1, column: value}[n] for n in names)

    @ematix.pipeline(target=Everything, target_connection="target")
    def load(spark: Any) -> Any:
        return spark.createDataFrame([row], schema)

    with pytest.raises(DataError) as caught:
        load.sync()
    assert column in str(caught.value)
    assert value in str(caught.value)
    assert says in str(caught.value)
    assert not (tmp_path / "t.duckdb").exists() or not _tables(tmp_path / "t.duckdb")
