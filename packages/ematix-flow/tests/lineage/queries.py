"""Random queries over two tables of numbers, in SQL that DuckDB and Spark both understand."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import strategies as st

TABLES = {"t": ("id", "a", "b", "c"), "u": ("id", "x", "y")}

values = st.one_of(st.none(), st.integers(0, 3))


def rows_of(table: str) -> st.SearchStrategy[list[tuple[int | None, ...]]]:
    """A few rows, with gaps and repetitions."""
    return st.lists(st.tuples(*[values] * len(TABLES[table])), min_size=3, max_size=5)


@dataclass(frozen=True)
class Query:
    """A query and the names of its columns."""

    sql: str
    columns: tuple[str, ...]


@st.composite
def queries(draw: st.DrawFn, depth: int = 2) -> Query:
    """A SELECT, or two of them put together, perhaps over a CTE."""
    writer = _Writer(draw)
    return writer.query(depth)


class _Writer:
    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.numbers = itertools.count()

    def chance(self, percent: int = 50) -> bool:
        return self.draw(st.integers(1, 100)) <= percent

    def one(self, choices: list[str]) -> str:
        return self.draw(st.sampled_from(choices))

    def fresh(self, prefix: str) -> str:
        return f"{prefix}{next(self.numbers)}"

    def query(self, depth: int, width: int | None = None) -> Query:
        if depth > 0 and self.chance(20):
            wide = width or self.draw(st.integers(1, 3))
            left, right = self.query(depth - 1, wide), self.query(depth - 1, wide)
            word = self.one(["UNION ALL", "UNION", "EXCEPT", "INTERSECT"])
            return Query(f"({left.sql}) {word} ({right.sql})", left.columns)
        if depth > 0 and self.chance(20):
            inner, name = self.query(depth - 1), self.fresh("cte")
            outer = self.select(depth - 1, width, ctes={name: inner.columns})
            return Query(f"WITH {name} AS ({inner.sql}) {outer.sql}", outer.columns)
        return self.select(depth, width)

    def factor(
        self, depth: int, ctes: dict[str, tuple[str, ...]]
    ) -> tuple[str, str, tuple[str, ...]]:
        """Something to select from, the name it goes by, and its columns."""
        alias = self.fresh("r")
        if ctes and self.chance(60):
            name = self.one(list(ctes))
            return f"{name} AS {alias}", alias, ctes[name]
        if depth > 0 and self.chance(30):
            inner = self.query(depth - 1)
            return f"({inner.sql}) AS {alias}", alias, inner.columns
        name = self.one(list(TABLES))
        return f"{name} AS {alias}", alias, TABLES[name]

    def select(
        self, depth: int, width: int | None = None, ctes: dict[str, tuple[str, ...]] | None = None
    ) -> Query:
        source, alias, columns = self.factor(depth, ctes or {})
        seen = [f"{alias}.{c}" for c in columns]
        if self.chance(40):
            other, second, more = self.factor(depth - 1, ctes or {})
            theirs = [f"{second}.{c}" for c in more]
            word = self.one(["JOIN", "LEFT JOIN", "FULL JOIN"])
            source += f" {word} {other} ON {self.one(seen)} = {self.one(theirs)}"
            seen += theirs
        where = f" WHERE {self.condition(seen, depth)}" if self.chance(40) else ""
        if width is None and self.chance(15) and len(set(columns)) == len(seen):
            return Query(f"SELECT * FROM {source}{where}", columns)
        names = [self.fresh("k") for _ in range(width or self.draw(st.integers(1, 3)))]
        if self.chance(30):
            key = self.one(seen)
            items = [
                f"{key} AS {names[0]}",
                *(f"{self.aggregate(seen)} AS {name}" for name in names[1:]),
            ]
            having = f" HAVING {self.aggregate(seen)} > 1" if self.chance(30) else ""
            sql = f"SELECT {', '.join(items)} FROM {source}{where} GROUP BY {key}{having}"
            return Query(sql, tuple(names))
        items = [f"{self.value(seen, depth)} AS {name}" for name in names]
        word = "SELECT DISTINCT" if self.chance(20) else "SELECT"
        return Query(f"{word} {', '.join(items)} FROM {source}{where}", tuple(names))

    def aggregate(self, seen: list[str]) -> str:
        function = self.one(["sum", "min", "max", "count"])
        return f"{function}({self.one(seen)})" if self.chance(80) else "count(*)"

    def value(self, seen: list[str], depth: int) -> str:
        kind = self.draw(st.integers(0, 6))
        first, second = self.one(seen), self.one(seen)
        if kind == 0:
            return f"{first} + {second}"
        if kind == 1:
            return f"CASE WHEN {self.condition(seen, 0)} THEN {first} ELSE {second} END"
        if kind == 2:
            return f"coalesce({first}, {second}, 7)"
        if kind == 3:
            third = self.one(seen)
            return f"sum({first}) OVER (PARTITION BY {second} ORDER BY {third})"
        if kind == 4 and depth > 0:
            name = self.one(list(TABLES))
            inner = self.fresh("s")
            held, by = self.one(list(TABLES[name])), self.one(list(TABLES[name]))
            return (
                f"(SELECT max({inner}.{held}) FROM {name} AS {inner} WHERE {inner}.{by} = {first})"
            )
        return first

    def condition(self, seen: list[str], depth: int) -> str:
        first = self.one(seen)
        kind = self.draw(st.integers(0, 3)) if depth > 0 else 0
        if kind == 1:
            name, inner = self.one(list(TABLES)), self.fresh("s")
            held, by = self.one(list(TABLES[name])), self.one(list(TABLES[name]))
            return (
                f"EXISTS (SELECT 1 FROM {name} AS {inner} WHERE {inner}.{held} = {first} "
                f"AND {inner}.{by} > 0)"
            )
        if kind == 2:
            inner = self.query(0, width=1)
            return f"{first} IN ({inner.sql})"
        return f"{first} > {self.one(['0', '1', self.one(seen)])}"
