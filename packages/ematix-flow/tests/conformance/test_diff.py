"""``diff_tables`` on every backend: exactly what a comparison in plain Python finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Annotated, Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from conformance.conftest import Loader
from ematix_flow import (
    BigInt,
    Boolean,
    Double,
    DuckDBConnection,
    Integer,
    Numeric,
    String,
    Text,
    TimestampTZ,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.run.diff import diff_tables
from harness.base import Harness

pytestmark = pytest.mark.needs("source", "replace")

COLUMNS = ("amount", "name", "whole", "part", "yes", "at")
SCHEMA = "amount decimal(10,2), name string, whole int, part double, yes boolean, at timestamp"
Values = tuple[Any, ...]
Held = Mapping[Any, Values]


@ematix.table(schema="app")
class Numbered:
    id: Annotated[BigInt, pk()]
    amount: Numeric[10, 2] | None
    name: Text | None
    whole: Integer | None
    part: Double | None
    yes: Boolean | None
    at: TimestampTZ | None


@ematix.table(schema="app")
class Named:
    id: Annotated[String[64], pk()]
    amount: Numeric[10, 2] | None
    name: Text | None
    whole: Integer | None
    part: Double | None
    yes: Boolean | None
    at: TimestampTZ | None


_START = datetime(2024, 1, 1, tzinfo=timezone.utc)
_VALUES: tuple[tuple[Any, ...], ...] = (
    (None, Decimal("0.00"), Decimal("1.50"), Decimal("-7.25")),
    (None, "", "a", "A", "a ", "é", "日付", "'\"\\"),
    (None, -2, 0, 2**31 - 1),
    (None, 0.0, 0.1, -1e300),
    (None, True, False),
    (None, *(_START + timedelta(microseconds=n) for n in range(3))),
)


def number(chance: Random) -> int:
    """Mostly near each other, sometimes as far apart as can be."""
    return chance.choice([chance.randint(-200, 200), chance.randint(-(2**63), 2**63 - 1)])


def name(chance: Random) -> str:
    return "".join(chance.choices("aAbé'\"\\日 ", k=chance.randint(0, 4)))


def two_tables(key: Callable[[Random], Any], case: tuple[int, int, int]) -> tuple[Held, Held]:
    """A table, and the same after some rows were removed, changed and added."""
    seed, size, changes = case
    chance = Random(seed)  # noqa: S311 - the same example, the same rows

    def values() -> Values:
        return tuple(chance.choice(choices) for choices in _VALUES)

    a = {key(chance): values() for _ in range(size)}
    b = dict(a)
    for known in chance.sample(sorted(a), min(changes, len(a))):
        if chance.random() < 0.5:
            del b[known]
        else:
            b[known] = values()
    b.update({key(chance): values() for _ in range(changes // 2)})
    return a, b


def written(file: Path, key_type: str, rows: Held) -> None:
    """The other table, written by DuckDB's own driver, each type wider or narrower."""
    with duckdb.connect(str(file)) as raw:
        raw.execute("SET TimeZone = 'UTC'")
        raw.execute(
            f"CREATE OR REPLACE TABLE other (id {key_type} PRIMARY KEY, name VARCHAR, amount "
            'DECIMAL(14,4), whole BIGINT, part DOUBLE, yes BOOLEAN, "at" TIMESTAMPTZ)'
        )
        columns = list(zip(*((key, *values) for key, values in rows.items()), strict=True))
        if not columns:
            return
        kind = pa.int64() if key_type == "BIGINT" else pa.string()
        kinds = (kind, pa.decimal128(10, 2), pa.string(), pa.int64(), pa.float64(), pa.bool_())
        arrays = [
            pa.array(column, kind)
            for column, kind in zip(columns, (*kinds, pa.timestamp("us", "UTC")), strict=True)
        ]
        raw.register("given", pa.table(arrays, names=["id", *COLUMNS]))
        raw.execute("INSERT INTO other BY NAME SELECT * FROM given")


def compare(a: Held, b: Held, columns: Sequence[str]) -> dict[str, Any]:
    """The oracle."""

    def differing(key: Any) -> set[str]:
        pairs = zip(COLUMNS, a[key], b[key], strict=True)
        return {name for name, old, new in pairs if name in columns and old != new}

    changed = {key: names for key in a.keys() & b.keys() if (names := differing(key))}
    return {
        "only_a": sorted(a.keys() - b.keys()),
        "only_b": sorted(b.keys() - a.keys()),
        "changed": changed,
        "by_column": {
            name: count
            for name in columns
            if (count := sum(name in names for names in changed.values()))
        },
    }


# Spark alone computes hashes of floats; without them databases do it themselves.
NO_FLOATS = tuple(name for name in COLUMNS if name != "part")


def check(load_into: tuple[Loader, Any], key_type: str, file: Path, a: Held, b: Held) -> None:
    loader, table = load_into
    spark_key = "bigint" if key_type == "BIGINT" else "string"
    rows = [(key, *values) for key, values in a.items()]
    load = loader(table, rows, f"id {spark_key}, {SCHEMA}", mode="truncate", allow_empty=True)
    load.sync()
    written(file, key_type, b)
    for columns in (COLUMNS, NO_FLOATS) if key_type == "BIGINT" else (NO_FLOATS,):
        found = diff_tables(load.name, "other:other", columns=columns, limit=1000)
        expected = compare(a, b, columns)
        assert (found.rows_a, found.rows_b) == (len(a), len(b))
        assert found.key == ("id",)
        assert found.columns == columns
        assert [row["id"] for row in found.sample_only_in_a] == expected["only_a"]
        assert [row["id"] for row in found.sample_only_in_b] == expected["only_b"]
        changed = {row.key["id"]: set(row.values) for row in found.sample_different}
        assert changed == expected["changed"]
        assert dict(found.different_columns) == expected["by_column"]
        counts = found.only_in_a, found.only_in_b, found.different
        assert counts == tuple(len(expected[k]) for k in ("only_a", "only_b", "changed"))
        assert found.digested_by["b"] == ("spark" if columns == COLUMNS else "database")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    file = tmp_path / "other.duckdb"
    register_connection(DuckDBConnection(name="other", path=str(file)))
    return file


# Each example is hundreds of rows, each of which is compared by itself.
_EXAMPLES = settings(
    max_examples=2,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Seed, rows, changes.
_CASES = st.tuples(st.integers(0, 2**32), st.integers(100, 400), st.integers(5, 40))


@_EXAMPLES
@given(_CASES)
def test_by_numbers(
    backend: Harness, loader: Loader, other: Path, case: tuple[int, int, int]
) -> None:
    check((loader, Numbered), "BIGINT", other, *two_tables(number, case))


@_EXAMPLES
@given(_CASES)
def test_by_names(
    backend: Harness, loader: Loader, other: Path, case: tuple[int, int, int]
) -> None:
    check((loader, Named), "VARCHAR", other, *two_tables(name, case))


def test_only_differing_buckets_are_read_again(
    backend: Harness, loader: Loader, other: Path
) -> None:
    size = 2500
    a = {n: (Decimal(n), f"n{n}", n, n / 7, n % 2 == 0, _START) for n in range(size)}
    b = {**a, 1200: (None, "n1200", None, None, None, None)}
    rows = [(n, *values) for n, values in a.items()]
    load = loader(Numbered, rows, f"id bigint, {SCHEMA}", mode="truncate")
    load.sync()
    written(other, "BIGINT", b)
    for key, columns in (("id", COLUMNS), ("name", NO_FLOATS)):
        found = diff_tables(load.name, "other:other", key=[key], columns=columns)
        assert (found.differing_buckets, found.buckets) == (1, 50)
        assert found.rows_read_again < 4 * size / 50
        (changed,) = found.sample_different
        assert changed.key == {key: {"id": 1200, "name": "n1200"}[key]}
        assert set(changed.values) == {*columns} - {"name"}
        assert all(new is None for _, new in changed.values.values())
