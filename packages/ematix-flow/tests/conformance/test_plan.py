"""A plan foretells exactly what a run does, and is applied only to what it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given

from conformance.conftest import Loader
from conformance.story import assert_same, stored_rows
from conformance.strategies import KEYS, dice, examples, seeds
from ematix_flow import BigInt, Bytes, Double, Numeric, Text, TimestampTZ, ematix, natural_key, pk
from ematix_flow.errors import DataError
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.change_sets import Operation, apply_plan, plan_changes, read_plan_file
from harness.base import Harness
from oracle.merge import Merge
from oracle.state import Row, Run


@ematix.table(schema="app")
class Planned:
    k: Annotated[BigInt, pk()]
    a: Text | None
    b: BigInt | None


@ematix.table(schema="app")
class Versions:
    k: Annotated[BigInt, natural_key()]
    a: Text | None
    b: BigInt | None


COLUMNS = ("k", "a", "b")
SCHEMA = "k BIGINT, a STRING, b BIGINT"


def states(seed: int) -> list[Row]:
    chance = dice(seed)
    present = chance.sample(range(KEYS), KEYS * 4 // 5)
    return [
        {"k": k, "a": chance.choice((None, "", "x", "日")), "b": chance.choice((None, 0, 1))}
        for k in present
    ]


def by_key(rows: Sequence[Row]) -> dict[int, Row]:
    return {r["k"]: {c: r[c] for c in COLUMNS} for r in rows}


def operation(operations: Sequence[Operation], name: str) -> Operation:
    return next((o for o in operations if o.name == name), Operation(name, 0, ()))


@pytest.mark.needs("revise")
@examples(1)
@given(seed=seeds)
def test_a_plan_of_a_merge_is_what_happens(
    backend: Harness, loader: Loader, tmp_path: Path, seed: int
) -> None:
    def pipeline(rows: Sequence[Row]) -> Pipeline:
        given_rows = [tuple(r.values()) for r in rows]
        return loader(Planned, given_rows, SCHEMA, mode="merge", handle_deletes="hard")

    first, second = states(seed), states(seed + 1)
    pipeline(first).sync()
    before = stored_rows(backend, Planned.__table__)
    made = plan_changes(pipeline(second).spec, sample=KEYS, kept=True)
    assert_same(stored_rows(backend, Planned.__table__), before, ignoring=())

    old, new = by_key(first), by_key(second)
    (target,) = made.targets
    inserted = operation(target.operations, "insert")
    assert {c.key["k"]: dict(c.new) for c in inserted.sample} == {
        k: new[k] for k in new if k not in old
    }
    updated = operation(target.operations, "update")
    different = {k for k in new if k in old and old[k] != new[k]}
    assert {c.key["k"]: (dict(c.old), dict(c.new)) for c in updated.sample} == {
        k: tuple({c: r[c] for c in COLUMNS if old[k][c] != new[k][c]} for r in (old[k], new[k]))
        for k in different
    }
    gone = operation(target.operations, "absent")
    assert {c.key["k"]: dict(c.old) for c in gone.sample} == {
        k: old[k] for k in old if k not in new
    }
    rule = Merge(key=("k",), columns=COLUMNS, handle_deletes="hard")
    tally = rule.load([{**r} for r in first], second, Run(made.planned_at)).tally
    assert (target.counts.inserted, target.counts.updated, target.counts.deleted) == (
        tally.inserted,
        tally.updated,
        tally.deleted,
    )

    made.save(tmp_path / "plan.json")
    saved = read_plan_file(tmp_path / "plan.json")
    other = [{**second[0], "a": "other"}, *second[1:]]
    with pytest.raises(DataError, match="source"):
        apply_plan(saved, pipeline(other).spec)
    shuffled = dice(seed).sample(second, len(second))
    result = apply_plan(saved, pipeline(shuffled).spec)
    assert result.counts == target.counts
    assert_same(stored_rows(backend, Planned.__table__), second)
    with pytest.raises(DataError, match="has taken it already"):
        apply_plan(saved, pipeline(second).spec)
    assert backend.litter(backend.connection("target")) == []


@pytest.mark.needs("revise")
def test_a_plan_sees_a_target_that_has_moved(
    backend: Harness, loader: Loader, tmp_path: Path
) -> None:
    def pipeline(*rows: tuple[Any, ...]) -> Pipeline:
        return loader(Versions, rows, SCHEMA, mode="scd2")

    rows = [(1, "x", 1), (2, None, 2)]
    first = plan_changes(pipeline(*rows).spec, kept=True)
    first.save(tmp_path / "first.json")
    connection = backend.connection("target")
    assert not backend.exists(connection, Versions.__table__.name)
    assert backend.litter(connection) == []
    apply_plan(read_plan_file(tmp_path / "first.json"), pipeline(*rows).spec)

    changed = [(1, "y", 1), (2, None, 2)]
    plan_changes(pipeline(*changed).spec, kept=True).save(tmp_path / "second.json")
    plan_changes(pipeline(*changed).spec, kept=True).save(tmp_path / "third.json")
    result = apply_plan(read_plan_file(tmp_path / "second.json"), pipeline(*changed).spec)
    assert (result.counts.inserted, result.counts.closed) == (1, 1)
    before = stored_rows(backend, Versions.__table__)
    with pytest.raises(DataError, match=r"table app\.versions has changed"):
        apply_plan(read_plan_file(tmp_path / "third.json"), pipeline(*changed).spec)
    assert_same(stored_rows(backend, Versions.__table__), before, ignoring=())


@ematix.table(schema="app")
class Kinds:
    n: Numeric[20, 4] | None
    d: Double | None
    at: TimestampTZ | None
    raw: Bytes | None


@pytest.mark.parametrize("mode", ["append", "truncate"])
@pytest.mark.needs("replace", "every type")
def test_values_of_every_kind_are_told_apart(
    backend: Harness, loader: Loader, tmp_path: Path, mode: str
) -> None:
    """One changed value, in a column of any kind, and the plan is not applied."""
    moment = datetime(2024, 3, 31, 1, tzinfo=timezone.utc)
    row = (Decimal("1.5000"), 0.1, moment, b"\x00\xff")
    others = [
        (Decimal("1.5001"), *row[1:]),
        (row[0], 0.1000000001, *row[2:]),
        (*row[:2], moment.replace(microsecond=1), row[3]),
        (*row[:3], b"\x00\xfe"),
        (None, *row[1:]),
    ]

    def pipeline(*rows: tuple[Any, ...]) -> Pipeline:
        schema = "n DECIMAL(20, 4), d DOUBLE, at TIMESTAMP, raw BINARY"
        return loader(Kinds, rows, schema, mode=mode)

    pipeline(row).sync()
    made = plan_changes(pipeline(row, row).spec, kept=True)
    made.save(tmp_path / "plan.json")
    saved = read_plan_file(tmp_path / "plan.json")
    assert operation(made.targets[0].operations, "insert").rows == 2
    gone = operation(made.targets[0].operations, "delete").rows
    assert gone == (1 if mode == "truncate" else 0)
    for other in others:
        with pytest.raises(DataError, match="source"):
            apply_plan(saved, pipeline(row, other).spec)
    assert apply_plan(saved, pipeline(row, row).spec).counts == made.targets[0].counts
