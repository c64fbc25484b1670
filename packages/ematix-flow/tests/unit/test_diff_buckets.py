"""Buckets of keys: what a database is asked for covers every differing bucket, and little more."""

from __future__ import annotations

import re
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow import BigInt
from ematix_flow.run.diff_buckets import Buckets

KEY = {"k0": BigInt()}
_KEYS = st.integers(-(2**63), 2**63 - 1)


@given(st.sets(_KEYS, min_size=1, max_size=30), st.integers(1, 300), st.data())
def test_the_condition_covers_exactly_the_buckets_asked_for(
    keys: set[int], count: int, data: st.DataObject
) -> None:
    buckets = Buckets(count, KEY, low=min(keys), high=max(keys))
    number = {key: (key - min(keys)) // buckets.width for key in keys}
    assert all(0 <= n < count for n in number.values())
    asked = data.draw(st.sets(st.sampled_from(sorted(number.values())), min_size=1))
    condition = buckets.condition(sorted(asked), "k")
    ranges = [(int(a), int(b)) for a, b in re.findall(r"BETWEEN (-?\d+) AND (-?\d+)", condition)]
    inside = {key for key in keys if any(a <= key <= b for a, b in ranges)}
    assert inside == {key for key, n in number.items() if n in asked}


def test_too_many_ranges_are_joined_over_the_narrowest_gaps() -> None:
    buckets = Buckets(10_000, KEY, low=0, high=9_999)
    differing = [*range(0, 1000, 2), *range(9_000, 9_100)]
    condition = buckets.condition(differing, "k")
    assert condition.count("BETWEEN") == 100
    with sqlite3.connect(":memory:") as raw:
        raw.execute("CREATE TABLE t (k INTEGER)")
        raw.executemany("INSERT INTO t VALUES (?)", ((n,) for n in range(10_000)))
        found = {k for (k,) in raw.execute(f"SELECT k FROM t WHERE {condition}")}
    raw.close()
    assert found >= set(differing)
    assert not found & set(range(1000, 9_000))


def test_keys_that_are_null_are_asked_for_by_name() -> None:
    buckets = Buckets(4, KEY, low=1, high=8)
    assert buckets.condition([-1, 2], "k") == "k BETWEEN 5 AND 6 OR k IS NULL"


@pytest.mark.parametrize("shared", [True, False])
def test_hash_buckets_have_no_condition(shared: bool) -> None:
    assert Buckets(4, KEY, shared=shared).condition([1], "k") == ""
