"""Compares two tables by key, on any two connections.

Each side is read once and reduced to one digest per bucket of keys; only the rows of buckets
whose digests differ are read again and compared column by column.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.spool import spooling
from ematix_flow.engine.failures import translate
from ematix_flow.engine.session import configured, prepare_engine, run_session, shared_engine
from ematix_flow.errors import ConfigError, EmatixError, Transient
from ematix_flow.run.diff_buckets import Buckets
from ematix_flow.run.diff_digests import (
    Digests,
    asked_digests,
    expressions,
    query_of,
    spark_digests,
)
from ematix_flow.run.diff_plan import DiffPlan, Side, plan_diff
from ematix_flow.run.diff_result import ChangedRow, TableDiff
from ematix_flow.run.reference import named_table
from ematix_flow.sql.comparing import as_shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine

_MOST_BUCKETS = 1 << 14
_SHOWN_DUPLICATES = 3


@run_session()
def diff_tables(
    a: str,
    b: str,
    *,
    key: Sequence[str] = (),
    columns: Sequence[str] = (),
    limit: int = 20,
    with_bookkeeping: bool = False,
) -> TableDiff:
    """How table ``a`` differs from table ``b``; each is named as on the command line.

    Without ``key`` it is the primary key that both tables report; ``columns`` are those to
    compare, without it all that both have. ``limit`` bounds the samples, never the counts.
    """
    sides = named_table(a), named_table(b)
    with spooling(), contextlib.ExitStack() as stack:
        plan = plan_diff(sides, key, columns, with_bookkeeping=with_bookkeeping)
        if plan.a.texts is None or plan.b.texts is None:
            prepare_engine(configured())
        try:
            return _Comparison(plan, stack).run(limit)
        except EmatixError:
            raise
        except Exception as error:
            raise translate(error, connection=sides[0].backend.name) from error


class _Comparison:
    """One comparison under way; what it keeps in Spark goes with the stack."""

    def __init__(self, plan: DiffPlan, stack: contextlib.ExitStack) -> None:
        self.plan = plan
        self.stack = stack
        self.buckets = _choose_buckets(plan)
        self.sides = {"a": plan.a, "b": plan.b}

    @cached_property
    def engine(self) -> Engine:
        """Spark, which two databases with equal tables do not need."""
        engine = shared_engine()
        what = f"diff {self.plan.a.table.label} {self.plan.b.table.label}"
        self.stack.enter_context(engine.job(what))
        return engine

    def run(self, limit: int) -> TableDiff:
        """Both readings, and what they show."""
        plan = self.plan
        first = self._first_digests()
        a, b = first["a"], first["b"]
        differing = sorted(n for n in {*a, *b} if a.get(n) != b.get(n))
        found = self._found(self._read_again(differing, first), limit) if differing else _Found()
        return TableDiff(
            a=plan.a.table.label,
            b=plan.b.table.label,
            key=plan.key,
            columns=plan.columns,
            columns_only_in_a=plan.only_a,
            columns_only_in_b=plan.only_b,
            types=plan.types,
            rows_a=sum(rows for rows, _, _ in a.values()),
            rows_b=sum(rows for rows, _, _ in b.values()),
            only_in_a=found.only_a,
            only_in_b=found.only_b,
            different=found.different,
            different_columns=found.by_column,
            sample_only_in_a=found.sample_a,
            sample_only_in_b=found.sample_b,
            sample_different=found.sample,
            buckets=self.buckets.count,
            differing_buckets=len(differing),
            rows_read_again=sum(side[n][0] for side in (a, b) for n in differing if n in side),
            digested_by={
                name: "database" if self._is_asked(side) else "spark"
                for name, side in self.sides.items()
            },
        )

    def _is_asked(self, side: Side) -> bool:
        return self.buckets.shared and side.texts is not None

    def _first_digests(self) -> dict[str, Digests]:
        read = {n: s for n, s in self.sides.items() if not self._is_asked(s)}
        found = self._asked()
        if read:
            rows = _union(
                [
                    _of(name, side.rows(self.engine, side.table.query(side.columns)))
                    for name, side in read.items()
                ]
            )
            digests = spark_digests(rows, self.plan, self.buckets)
            found |= {name: digests[name] for name in read}
        return found

    def _asked(self, differing: Sequence[int] = ()) -> dict[str, Digests]:
        return {
            name: asked_digests(side, self.plan, self.buckets, differing)
            for name, side in self.sides.items()
            if self._is_asked(side)
        }

    def _read_again(self, differing: Sequence[int], first: Mapping[str, Digests]) -> DataFrame:
        """The rows of the differing buckets, and proof that they are those of the first reading."""
        plan, buckets = self.plan, self.buckets
        numbers = ", ".join(map(str, differing))
        rows = [
            _of(name, side.rows(self.engine, query_of(side, plan, buckets, differing)))
            for name, side in self.sides.items()
        ]
        inside = _union(rows).filter(f"{buckets.expression()} IN ({numbers})")
        held = self.stack.enter_context(_kept(inside))
        again = spark_digests(held, plan, buckets) | self._asked(differing)
        for name, side in self.sides.items():
            before = first[name]
            if again[name] != {n: before[n] for n in differing if n in before}:
                raise Transient(
                    f"{side.table.label} changed while it was compared",
                    connection=side.table.backend.name,
                    fix="compare again when nothing writes to it",
                )
        return held

    def _found(self, rows: DataFrame, limit: int) -> _Found:
        plan = self.plan
        unequal = [f"NOT (a{name} <=> b{name})" for name in plan.values]
        by_key = rows.groupBy(*plan.keys).agg(
            *expressions("count_if(side = 'a') AS in_a", "count_if(side = 'b') AS in_b"),
            *expressions(
                *(
                    f"any_value({name}) FILTER (WHERE side = '{side}') AS {side}{name}"
                    for side in self.sides
                    for name in plan.values
                )
            ),
        )
        kind = (
            "CASE WHEN in_a > 1 OR in_b > 1 THEN 'twice' WHEN in_b = 0 THEN 'a' "
            f"WHEN in_a = 0 THEN 'b' WHEN {' OR '.join(unequal) or 'false'} THEN 'different' END"
        )
        changed = self.stack.enter_context(
            _kept(by_key.selectExpr("*", f"{kind} AS kind").filter("kind IS NOT NULL"))
        )
        twice, a, b, different, *by_column = changed.selectExpr(
            *(f"count_if(kind = '{kind}')" for kind in ("twice", "a", "b", "different")),
            *(f"count_if(kind = 'different' AND {test})" for test in unequal),
        ).collect()[0]
        if twice:
            raise _no_key(plan, changed)
        columns = {name: n for name, n in zip(plan.columns, by_column, strict=True) if n}
        return _Found(a, b, different, columns, *_samples(plan, changed, unequal, limit))


@contextlib.contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    held = rows.persist()
    try:
        yield held
    finally:
        held.unpersist()


def _of(side: str, rows: DataFrame) -> DataFrame:
    return rows.selectExpr(f"'{side}' AS side", "*")


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])


@dataclass(frozen=True)
class _Found:
    only_a: int = 0
    only_b: int = 0
    different: int = 0
    by_column: Mapping[str, int] = field(default_factory=dict)
    sample_a: tuple[Mapping[str, Any], ...] = ()
    sample_b: tuple[Mapping[str, Any], ...] = ()
    sample: tuple[ChangedRow, ...] = ()


def _first(
    changed: DataFrame, plan: DiffPlan, limit: int, shown: Sequence[str]
) -> list[tuple[str, Mapping[str, Any], Sequence[Any]]]:
    """The first rows of each kind, by key: the kind, the key, and what else is to be shown."""
    order = ", ".join(plan.keys)
    placed = changed.selectExpr(
        "*", f"row_number() OVER (PARTITION BY kind ORDER BY {order}) AS place"
    )
    keys = [as_shown(name, kind) for name, kind in plan.keys.items()]
    rows = placed.filter(f"place <= {limit}").orderBy("kind", "place")
    width = len(keys)
    return [
        (row[0], dict(zip(plan.key, row[1:], strict=False)), row[1 + width :])
        for row in rows.selectExpr("kind", *keys, *shown).collect()
    ]


def _no_key(plan: DiffPlan, changed: DataFrame) -> ConfigError:
    twice = _first(changed.filter("kind = 'twice'"), plan, _SHOWN_DUPLICATES, ["in_a > 1"])
    in_a = twice[0][2][0]
    side = plan.a if in_a else plan.b
    examples = "; ".join(
        ", ".join(f"{name}={value}" for name, value in key.items())
        for _, key, (also_a,) in twice
        if also_a == in_a
    )
    return ConfigError(
        f"({', '.join(plan.key)}) is not a key of {side.table.label}: several rows have {examples}",
        fix="name more columns with --key",
    )


_Rows = tuple[Mapping[str, Any], ...]


def _samples(
    plan: DiffPlan, changed: DataFrame, unequal: Sequence[str], limit: int
) -> tuple[_Rows, _Rows, tuple[ChangedRow, ...]]:
    if not limit:
        return (), (), ()
    old = [as_shown(f"a{name}", kind) for name, kind in plan.values.items()]
    new = [as_shown(f"b{name}", kind) for name, kind in plan.values.items()]
    whole: dict[str, list[Mapping[str, Any]]] = {"a": [], "b": []}
    different = []
    width = len(plan.columns)
    for kind, key, shown in _first(changed, plan, limit, [*old, *new, *unequal]):
        was, now, differs = shown[:width], shown[width : 2 * width], shown[2 * width :]
        if kind in whole:
            values = was if kind == "a" else now
            whole[kind].append({**key, **dict(zip(plan.columns, values, strict=True))})
        else:
            pairs = {n: (was[i], now[i]) for i, n in enumerate(plan.columns) if differs[i]}
            different.append(ChangedRow(key, pairs))
    return tuple(whole["a"]), tuple(whole["b"]), tuple(different)


def _choose_buckets(plan: DiffPlan) -> Buckets:
    """About as many buckets as each of them has rows."""
    sizes = [_size(side, plan) for side in (plan.a, plan.b)]
    count = min(max(1, isqrt(max(rows for rows, _, _ in sizes))), _MOST_BUCKETS)
    lows = [low for _, low, _ in sizes if low is not None]
    highs = [high for _, _, high in sizes if high is not None]
    return Buckets(
        count,
        plan.keys,
        low=min(lows) if lows else None,
        high=max(highs) if highs else None,
        shared=plan.a.texts is not None or plan.b.texts is not None,
    )


def _size(side: Side, plan: DiffPlan) -> tuple[int, int | None, int | None]:
    """Rows, and the range of a key that is a whole number: asked of the database itself."""
    table = side.table
    column = table.quoted(plan.key[0])
    items = [f"count(*) AS {table.quoted('n')}"]
    if plan.whole_key:
        items += [f"min({column}) AS {table.quoted('low')}"]
        items += [f"max({column}) AS {table.quoted('high')}"]
    inner = table.query([plan.key[0]]).sql
    with table.backend.open() as live:
        (row,) = live.query(f"SELECT {', '.join(items)} FROM ({inner}) AS {table.quoted('sized')}")
    low, high = row.get("low"), row.get("high")
    return int(row["n"]), None if low is None else int(low), None if high is None else int(high)
