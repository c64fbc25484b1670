"""Digests of a table's buckets: by its own database where it can, else by Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import SourceQuery
from ematix_flow.run.diff_buckets import Buckets, hashed
from ematix_flow.run.diff_plan import DiffPlan, Side
from ematix_flow.sql.digests import hash_of, part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# By bucket: how many rows it has, and two sums over their hashes.
Digests = Mapping[int, tuple[int, int, int]]


def asked_digests(
    side: Side, plan: DiffPlan, buckets: Buckets, differing: Sequence[int] = ()
) -> Digests:
    """The digests, all or some, as the table's own database computes them."""
    dialect = side.table.backend.dialect
    chosen = _texts(side, plan, buckets, differing)
    digest = hash_of({**plan.keys, **plan.values}, dialect)
    # Without it Postgres would compute the hash for each of its parts.
    fence = " OFFSET 0" if dialect == "postgres" else ""
    digested = f"SELECT {buckets.expression(dialect)} AS b, {digest} AS h FROM {chosen}{fence}"
    numbers = f"SELECT b, {part('h', 0, dialect)} AS x, {part('h', 1, dialect)} AS y"
    where = f" WHERE b IN ({', '.join(map(str, differing))})" if differing else ""
    with side.table.backend.open() as live:
        rows = live.query(
            f"SELECT b, count(*) AS n, sum(x) AS x, sum(y) AS y FROM "
            f"({numbers} FROM ({digested}) AS digested{where}) AS numbered GROUP BY b"
        )
    return {int(r["b"]): (int(r["n"]), int(r["x"]), int(r["y"])) for r in rows}


def _texts(
    side: Side, plan: DiffPlan, buckets: Buckets, differing: Sequence[int], also: str = ""
) -> str:
    """The rows as texts k0, k1… and c0, c1…; of ranges that are asked for, no others."""
    condition = ""
    if differing:
        condition = buckets.condition(differing, side.table.quoted(plan.key[0]))
    items = ", ".join(f"{sql} AS {name}" for name, sql in (side.texts or {}).items())
    query = side.table.query(side.columns, condition).sql
    return f"(SELECT {also}{items} FROM ({query}) AS chosen) AS texts"


def query_of(side: Side, plan: DiffPlan, buckets: Buckets, differing: Sequence[int]) -> SourceQuery:
    """The rows of some buckets; perhaps more, where only Spark can tell which are in them."""
    condition = buckets.condition(differing, side.table.quoted(plan.key[0]))
    if condition or side.texts is None or not buckets.shared:
        return side.table.query(side.columns, condition)
    columns = ", ".join(map(side.table.quoted, side.columns))
    texts = _texts(side, plan, buckets, differing, also=f"{columns}, ")
    bucket = buckets.expression(side.table.backend.dialect)
    numbers = ", ".join(map(str, differing))
    return SourceQuery(f"SELECT {columns} FROM {texts} WHERE {bucket} IN ({numbers})")


def spark_digests(rows: DataFrame, plan: DiffPlan, buckets: Buckets) -> dict[str, Digests]:
    """The digests of rows in comparable form, by the side that each is of."""
    columns = {**plan.keys, **plan.values}
    if buckets.shared:
        digested = rows.selectExpr(
            "side", f"{buckets.expression()} AS b", f"{hash_of(columns, 'spark')} AS h"
        )
        parts = digested.selectExpr(
            "side", "b", f"{part('h', 0, 'spark')} AS x", f"{part('h', 1, 'spark')} AS y"
        )
    else:
        whole = hashed(columns)
        parts = rows.selectExpr(
            "side",
            f"{buckets.expression()} AS b",
            f"xxhash64({whole}) AS x",
            f"xxhash64('other', {whole}) AS y",
        )
    sums = [f"sum(CAST({name} AS DECIMAL(20, 0))) AS {name}" for name in ("x", "y")]
    summed = parts.groupBy("side", "b").agg(*expressions("count(*) AS n", *sums))
    found: dict[str, dict[int, tuple[int, int, int]]] = {"a": {}, "b": {}}
    for row in summed.collect():
        found[row["side"]][int(row["b"])] = (row["n"], int(row["x"]), int(row["y"]))
    return dict(found)


def expressions(*texts: str) -> list[Any]:
    """Spark columns from SQL."""
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]
