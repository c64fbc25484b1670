"""A client of the warm engine: a session of its own there, for as long as a run lasts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.engine import delta
from ematix_flow.engine.clients import Attachment
from ematix_flow.engine.connect import ConnectEngine, open_session
from ematix_flow.engine.protocol import Job
from ematix_flow.engine.settings import EngineSettings
from ematix_flow.engine.warm import (
    Record,
    Slot,
    look,
    misfit,
    own_slot,
    read_record,
    read_token,
)
from ematix_flow.errors import EmatixError, EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_PATIENCE = 10.0


def attach_to_warm(settings: EngineSettings) -> WarmSession | None:
    """A session on this folder's warm engine; None where there is none that fits and answers."""
    found = look(own_slot())
    reason = misfit(found, dataclasses.replace(settings, jars=()))
    if reason is None and found.record is not None:
        try:
            session = _attached(found.slot, found.record, settings)
            if read_record(found.slot) == found.record:
                return session
            session.stop()
            reason = "it is about to end"
        except (EmatixError, OSError) as error:
            reason = str(error)
    if found.state != "off":
        logger.debug("the warm engine is not used: %s", reason)
    return None


def _attached(slot: Slot, record: Record, settings: EngineSettings) -> WarmSession:
    remote = f"sc://localhost:{record.port}/;token={read_token(slot)}"
    reached = dataclasses.replace(settings, remote=remote)
    spark = open_session(reached, seconds=_PATIENCE, loopback=True)
    logger.debug("attached to the warm engine, process %d", record.process_id)
    return WarmSession(spark, settings, slot=slot, record=record)


class WarmSession(ConnectEngine):
    """A session on the warm engine, closed with the run that opened it."""

    per_run = True

    def __init__(
        self, spark: SparkSession, settings: EngineSettings, *, slot: Slot, record: Record
    ) -> None:
        super().__init__(spark, settings)
        self._slot = slot
        self._record = record
        self._attachments = {_session_id(spark): _enrolled(slot, spark)}

    @property
    def alive(self) -> bool:
        """Whether session and engine are still there."""
        return super().alive and self._slot.is_held

    def delta_session(self) -> SparkSession:
        """The session, if the engine was started with Delta."""
        if delta.JARS not in self._record.jars:
            raise EngineError(
                "the warm engine was started before Delta Lake was needed",
                fix="end it with `flow engine stop`, or add --engine local",
            )
        return super().delta_session()

    def require_jars(self, names: Sequence[str]) -> None:
        """Send those connector jars that the engine was started without."""
        super().require_jars([name for name in names if name not in self._record.jars])

    @contextlib.contextmanager
    def job(self, description: str) -> Iterator[Job]:
        """Tag all queries of the block.

        Its first Python function sees the folder and environment of this moment, and all later
        ones of the session the same.
        """
        for attachment in list(self._attachments.values()):
            attachment.refresh()
        try:
            with super().job(description) as job:
                yield job
        except Exception as error:
            if self.alive:
                raise
            raise EngineError(
                "the warm engine of this folder has ended in the middle of the run",
                fix="run it again, which needs none, or look into `flow engine logs`",
            ) from error

    def stop(self) -> None:
        """Close the session; the engine goes on."""
        super().stop()
        while self._attachments:
            self._attachments.popitem()[1].close()

    def _new_delta_session(self) -> SparkSession:
        clone = super()._new_delta_session()
        self._attachments[_session_id(clone)] = _enrolled(self._slot, clone)
        return clone

    def _release(self, clone: Any) -> None:
        name = _session_id(clone)
        super()._release(clone)
        attachment = self._attachments.pop(name, None)
        if attachment is not None:
            attachment.close()


def _enrolled(slot: Slot, spark: Any) -> Attachment:
    client = spark.client
    return Attachment(
        slot, _session_id(spark), user=client._user_id or "", session=client._session_id
    )


def _session_id(spark: Any) -> str:
    """What the server calls a session, and tells its Python workers."""
    name = spark.client._server_session_id
    if name is None:
        # It comes with the first answer.
        spark.version  # noqa: B018
        name = spark.client._server_session_id
    return str(name)
