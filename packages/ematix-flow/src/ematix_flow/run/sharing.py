"""One read of the source for all targets that take their rows through Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.run.plan import Plan
from ematix_flow.run.reading import Reading, persisted
from ematix_flow.run.watermarks import Since
from ematix_flow.watermark import read_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine


class SharedSource:
    """The rows of a run's source: read when the first target asks, kept for the others."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = [plan for plan in plans if plan.select is None]
        self._rows: DataFrame | None = None

    def incoming(self, plan: Plan, engine: Engine) -> DataFrame:
        """The rows as one target stages them."""
        if len(self._plans) < 2:  # noqa: PLR2004 - nobody to share with
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
