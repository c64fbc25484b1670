"""One read of the source for all targets that take their rows through Spark, and its digests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.sql import SqlBackend
from ematix_flow.engine.session import shared_engine
from ematix_flow.run.fingerprints import digest, frame_fingerprint, rows_fingerprint
from ematix_flow.run.plan import Plan
from ematix_flow.run.reading import Reading, persisted
from ematix_flow.run.watermarks import Since
from ematix_flow.watermark import read_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine


class SharedSource:
    """The rows of a run's source: read when the first target asks, kept for the others.

    With ``digested`` they are kept for a single target, too: its rows are looked at twice.
    """

    def __init__(self, plans: Sequence[Plan], *, digested: bool = False) -> None:
        self._plans = [plan for plan in plans if plan.select is None]
        self._kept = len(self._plans) > 1 or digested
        self._rows: DataFrame | None = None
        self._fingerprints: dict[str, str] = {}
        self.staged: dict[str, DataFrame] = {}

    def fingerprint(self, plan: Plan) -> str:
        """A digest of the rows as a target gets them, whatever their order."""
        if plan.label not in self._fingerprints:
            found = self._digest(plan) if plan.select is None else _digest_inside(plan, plan.select)
            # Every path has its own way to put a value into words.
            self._fingerprints[plan.label] = f"{plan.path}:{plan.sink.dialect}:{digest(found)}"
        return self._fingerprints[plan.label]

    def _digest(self, plan: Plan) -> list[int]:
        engine = shared_engine()
        engine.require_jars((*plan.source.jars, *plan.sink.jars))
        with engine.job(f"{plan.spec.name}: what {plan.load.name} gets"):
            return frame_fingerprint(self.incoming(plan, engine))

    def incoming(self, plan: Plan, engine: Engine) -> DataFrame:
        """The rows as one target stages them."""
        self.staged[plan.label] = rows = self._incoming(plan, engine)
        return rows

    def _incoming(self, plan: Plan, engine: Engine) -> DataFrame:
        if not self._kept:
            return plan.incoming(engine)
        if self._rows is None:
            self._rows = persisted(common_reading(self._plans).read(engine))
        reading = dataclasses.replace(plan.reading, shared=self._rows)
        return dataclasses.replace(plan, reading=reading).incoming(engine)


def common_reading(plans: Sequence[Plan]) -> Reading:
    """What holds the rows of every target: from the lowest of their watermarks, or all."""
    first = plans[0].reading
    if all(plan.reading.query == first.query for plan in plans):
        return first
    limits = [plan.since for plan in plans if isinstance(plan.since, Since)]
    alike = {(limit.column, limit.kind) for limit in limits}
    narrowed = all(plan.reading.whole is not None for plan in plans)
    if len(limits) == len(plans) and len(alike) == 1 and narrowed:
        starts = [read_value(limit.start or "", limit.kind) for limit in limits]
        return plans[starts.index(min(starts))].reading
    return dataclasses.replace(first, query=first.whole or first.query)


def _digest_inside(plan: Plan, select: str) -> list[int]:
    """The same where the rows never leave the database."""
    sink = plan.sink
    if not isinstance(sink, SqlBackend):
        raise TypeError(sink)
    columns = [(column.name, column.type) for column in plan.load.incoming]
    query = rows_fingerprint("given", columns, sink.dialect).sql(dialect=sink.dialect)
    # The user's own SQL is left as it is, so it takes no part in parsing.
    query = query.replace("FROM given", f"FROM ({select}) AS given", 1)
    with sink.session(read_only=True) as session:
        (found,) = session.rows(query)
    return [int(number or 0) for number in found]
