"""The worker's side of a slot that a scheduler has claimed: ``flow run NAME --claim-token``."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from ematix_flow import config
from ematix_flow.errors import Fenced
from ematix_flow.model import PipelineSpec
from ematix_flow.observe.observer import Observer
from ematix_flow.run.ids import new_run_id
from ematix_flow.run.log import RunLog
from ematix_flow.run.turns import Key
from ematix_flow.schedule.agenda import Fire
from ematix_flow.schedule.claims import Claims
from ematix_flow.schedule.slots import Assignment, ClaimedSlot, Ended, Here, Worker


def run_claimed(
    spec: PipelineSpec,
    token: str,
    log: RunLog,
    *,
    lease: timedelta,
    previous: str | None = None,
    lost: bool = False,
    worker: Worker | None = None,
    observer: Observer | None = None,
    now: datetime | None = None,
) -> Ended:
    """Run the slot behind a token to its end; ``Fenced`` if the claim is not good any more."""
    key = Key(config.origin_of(spec.location.file), spec.name)
    claims = Claims(log, lease=lease)
    turn = claims.adopt(key, token)
    if turn is None or turn.slot is None:
        raise Fenced(
            f"pipeline {spec.name!r}: the claim of this worker is not good any more",
            fix="leave it to whoever has the slot now",
        )
    fire = Fire(turn.slot, turn.attempt, previous, lost=lost)
    run_id = new_run_id() if previous is not None else turn.run_id or new_run_id()
    work = Assignment(
        spec,
        turn.slot,
        turn.attempt,
        run_id,
        log,
        "scheduler",
        observer=observer,
    )
    began, started = now or log.clock(), time.monotonic()

    def moment() -> datetime:
        passed = 0.0 if now is not None else time.monotonic() - started
        return began + timedelta(seconds=passed)

    with claims.kept():
        return ClaimedSlot(key, fire, work, claims, worker or Here(), began, moment).run()
