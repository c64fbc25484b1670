"""A mode's change over Spark DataFrames: what stores of files and lakes compute and then apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.change import (
    COMPARABLE,
    INCOMING,
    LATER,
    MISSING,
    MOMENT,
    OPERATION,
    RUN,
    VALUE,
    Counts,
    Revise,
)
from ematix_flow.errors import Unsupported
from ematix_flow.model import LOADED_AT_COLUMN, RUN_ID_COLUMN
from ematix_flow.sql.spark import literal, quote, spark_ddl
from ematix_flow.watermark import greater_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.base import Load

Spool = Callable[[str, "DataFrame"], "DataFrame"]


class SparkText:
    """A mode's queries as Spark SQL, with names in the place of the load's relations."""

    def __init__(self, load: Load, places: Mapping[str, str]) -> None:
        self.load = load
        self.places = places

    def text(self, query: exp.Query) -> str:
        """A query as it would run."""

        def place(node: exp.Expression) -> exp.Expression:
            if isinstance(node, exp.Table) and not node.db and node.name in self.places:
                node.set("this", exp.Var(this=self.places[node.name]))
                return node
            if isinstance(node, exp.Anonymous) and str(node.this).startswith("EMATIX_"):
                return exp.Var(this=spark_stand_in(node, self.load))
            return node

        return query.transform(place).sql(dialect="spark")


class SparkChange:
    """One load's relations and change sets.

    ``spool`` keeps a relation under a name, so that it is computed once, and gives it back.
    """

    def __init__(self, spark: SparkSession, load: Load, spool: Spool) -> None:
        self.spark = spark
        self.load = load
        self.spool = spool
        self.relations: dict[str, DataFrame] = {}
        self.operations: dict[str, dict[str, int]] = {}

    def arrive(self, rows: DataFrame) -> None:
        """Take the staged rows as ``incoming``, with the columns this system adds."""
        stamps = stamp_values(self.load)
        added = [f"{value} AS {quote(name)}" for name, value in stamps.items()]
        self.relations[INCOMING] = rows.selectExpr(
            *(quote(name) for name in self.load.incoming_names), *added
        )

    def query(self, query: exp.Query) -> DataFrame:
        """The rows of a mode's query."""
        marked = query.transform(self._place)
        used: dict[str, Any] = {}
        for table in marked.find_all(exp.Table):
            if not table.db and table.name in self.relations:
                name = f"ematix_{table.name}"
                used[name] = self.relations[table.name]
                if not table.alias:
                    table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name)))
                table.set("this", exp.to_identifier(name, quoted=True))
        text = marked.sql(dialect="spark").replace("{", "{{").replace("}", "}}")
        for name in used:
            text = text.replace(f"`{name}`", f"{{{name}}}")
        return self.spark.sql(text, **used)

    def _place(self, node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Anonymous) or not str(node.this).startswith("EMATIX_"):
            return node
        return exp.Var(this=spark_stand_in(node, self.load))

    def compute(self) -> None:
        """Everything the commit needs to know, from the state as it is: nothing is applied."""
        self.check("incoming")
        for name, query in self.load.change.derived.items():
            self.relations[name] = self.spool(name, self.query(query))
        for step in self.load.change.revisions:
            changes = self.spool(step.changes, self.query(step.rows))
            self.relations[step.changes] = changes
            counted = changes.groupBy(OPERATION).count().collect()
            self.operations[step.changes] = {row[0]: int(row[1]) for row in counted}
        self.check("changes")
        self.show()

    def show(self) -> None:
        """Let an onlooker ask about the relations and the change sets."""
        if self.load.inspect is not None:
            self.load.inspect(self.load, self.ask)

    def ask(self, query: exp.Query) -> list[tuple[Any, ...]]:
        """The rows of a query, as plain values."""
        return [tuple(row) for row in self.query(query).collect()]

    def check(self, when: str) -> None:
        """Refuse where an assertion finds something wrong."""
        for assertion in self.load.change.assertions:
            if assertion.when == when:
                found = self.ask(assertion.violations)
                if found:
                    raise assertion.refuse(found)

    def rows_of(self, step: Revise, *acts: str) -> DataFrame:
        """The rows of a change set that insert, update or delete, without their operation."""
        names = [name for act in acts for name in step.operations(act)]
        listed = ", ".join(literal(name) for name in names) or "''"
        columns = [quote(name) for name, _ in self.load.columns_of(step.relation)]
        changes = self.relations[step.changes].where(f"{OPERATION} IN ({listed})")
        return changes.selectExpr(*columns)

    def touches(self, step: Revise, *acts: str) -> int:
        """How many rows of a change set do any of these."""
        known = self.operations[step.changes]
        return sum(known.get(name, 0) for act in acts for name in step.operations(act))

    def counts(self, read: int) -> Counts:
        """What the change sets do."""
        done: dict[str, int] = {}
        for step in self.load.change.revisions:
            for name, effect in step.effects.items():
                if effect.counted:
                    rows = self.operations[step.changes].get(name, 0)
                    done[effect.counted] = done.get(effect.counted, 0) + rows
        if self.load.change.considered is not None:
            considered = self.query(self.load.change.considered).collect()[0][0]
            done["unchanged"] = considered - done.get("inserted", 0) - done.get("updated", 0)
        return Counts(read=read, **done)

    def watermark(self) -> str | None:
        """The value the commit moves the watermark to, as canonical text."""
        move = self.load.watermark
        if move is None:
            return None
        text = f"max({quote(move.column)})"
        if isinstance(move.kind, t.TimestampTZ):
            text = f"date_format({text}, \"yyyy-MM-dd HH:mm:ss.SSSSSS'+00:00'\")"
        elif isinstance(move.kind, t.Timestamp):
            text = f"date_format({text}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
        found = self.relations[INCOMING].selectExpr(f"CAST({text} AS STRING)").collect()[0][0]
        return greater_value(move.previous, found, move.kind)


def stamp_values(load: Load) -> dict[str, str]:
    """Spark SQL for the columns this system adds."""
    return {
        RUN_ID_COLUMN: literal(load.run.run_id),
        LOADED_AT_COLUMN: f"TIMESTAMP '{load.run.loaded_at:%Y-%m-%d %H:%M:%S.%f}+00:00'",
    }


def spark_stand_in(node: exp.Anonymous, load: Load) -> str:
    """What a mode leaves to the product, in Spark SQL."""
    given, stamps = node.expressions, stamp_values(load)
    if node.name == MOMENT:
        return stamps[LOADED_AT_COLUMN]
    if node.name == RUN:
        return stamps[RUN_ID_COLUMN]
    if node.name == MISSING:
        return f"CAST(NULL AS {spark_ddl(load.type_of(given[0].name))})"
    if node.name == VALUE:
        return f"CAST({literal(given[0].name)} AS {spark_ddl(load.type_of(given[1].name))})"
    if node.name == LATER:
        seconds = f"CAST({given[1].name} AS DECIMAL(18, 6))"
        return f"({given[0].sql(dialect='spark')} + make_dt_interval(0, 0, 0, {seconds}))"
    if node.name == COMPARABLE:
        return str(given[0].sql(dialect="spark"))
    raise Unsupported(f"Spark does not know {node.name}")
