"""Tells an OpenLineage receiver how a run begins and ends; nothing of it can fail a run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ematix_flow import config
from ematix_flow.lineage.declarations import declared_columns
from ematix_flow.lineage.names import Names
from ematix_flow.registry import active_registry
from ematix_flow.run.records import utc_now

if TYPE_CHECKING:
    from ematix_flow.lineage.openlineage import EventWriter, Output
    from ematix_flow.lineage.receivers import Delivery, Receiver
    from ematix_flow.model import PipelineSpec
    from ematix_flow.run.function import RunInfo
    from ematix_flow.run.journal import Journal

logger = logging.getLogger(__name__)


def configured_receiver() -> tuple[Receiver, str] | None:
    """Who is told of runs, if anyone, and the namespace of our jobs; refuses a wrong address."""
    settings = config.openlineage_settings()
    if settings is None:
        return None
    from ematix_flow.lineage.receivers import receiver_at

    return receiver_at(settings), settings.namespace


@contextlib.contextmanager
def openlineage_events(
    told: tuple[Receiver, str] | None, spec: PipelineSpec, run: RunInfo, journal: Journal
) -> Iterator[None]:
    """Events of the run inside the block, where a receiver is configured."""
    if told is None:
        yield
        return
    from ematix_flow.lineage.receivers import delivering

    receiver, namespace = told
    with delivering(receiver) as delivery:
        teller = _Teller(spec, run, journal, delivery, namespace)
        teller.tell(None, starts=True)
        try:
            yield
        except BaseException as error:
            teller.tell(error)
            raise
        teller.tell(None)


class _Teller:
    """Writes events from what the journal knows by then."""

    def __init__(
        self,
        spec: PipelineSpec,
        run: RunInfo,
        journal: Journal,
        delivery: Delivery,
        namespace: str,
    ) -> None:
        self.spec = spec
        self.run = run
        self.journal = journal
        self.delivery = delivery
        self.namespace = namespace
        self.names = Names()

    def tell(self, error: BaseException | None, *, starts: bool = False) -> None:
        try:
            self._tell(error, starts=starts)
        except Exception as failure:  # noqa: BLE001 - a run does not end for its events
            logger.warning("OpenLineage: an event could not be written: %s", failure)

    def _tell(self, error: BaseException | None, *, starts: bool) -> None:
        from ematix_flow.lineage.openlineage import state_of

        plan = next(iter(self.journal.plans.values()), None)
        query = plan.reading.query if plan is not None else None
        self.delivery.put(
            self._writer().event(
                "START" if starts else state_of(error),
                utc_now(),
                self._outputs(),
                query=query.sql if query is not None else None,
                dialect=plan.source.dialect if plan is not None else None,
                engine=_engine(plan.shown_engine) if plan is not None else None,
                error=error,
            )
        )

    def _writer(self) -> EventWriter:
        from ematix_flow import __version__
        from ematix_flow.lineage.openlineage import EventWriter

        listed = (p.spec for p in active_registry().pipelines.values())
        return EventWriter(
            namespace=self.namespace,
            pipeline=self.spec.name,
            run_id=self.run.id,
            version=__version__,
            names=self.names,
            declared=declared_columns(listed, self.names),
            description=self.spec.doc,
        )

    def _outputs(self) -> list[Output]:
        from ematix_flow.lineage.openlineage import Output

        found = []
        for target, label in zip(self.spec.targets, self.spec.target_labels, strict=True):
            result = self.journal.results.get(label)
            done = result if result is not None and result.status == "succeeded" else None
            found.append(
                Output(
                    self.names.table(target.connection, target.table.name, target.prefix),
                    target.table,
                    self.journal.lineages.get(label),
                    rows=None if done is None else done.counts.inserted + done.counts.updated,
                    bytes=None if done is None else done.bytes,
                )
            )
        return found


def _engine(shown: str) -> str:
    return "database" if shown == "none" else shown
