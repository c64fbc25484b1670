"""A run in a thread of this process that stops where a test wants it to."""

from __future__ import annotations

import contextvars
import threading
from pathlib import Path

from crash.child import PATIENCE, Order, declare
from ematix_flow.connections import Connection
from ematix_flow.errors import EmatixError
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.batch import run_pipeline
from ematix_flow.run.result import RunResult


class Racer:
    """A run that pauses at points, named by their first word."""

    def __init__(self, pipeline: Pipeline, *pauses: str) -> None:
        self._pauses = pauses
        self._changed = threading.Condition()
        self._at: str | None = None
        self.result: RunResult | None = None
        self.error: EmatixError | None = None
        # The test's registry is the context's, and a new thread starts without one.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run, pipeline), daemon=True)
        self._thread.start()

    def _run(self, pipeline: Pipeline) -> None:
        try:
            self.result = run_pipeline(pipeline.spec, trigger="python", announce=self._announce)
        except EmatixError as error:
            self.error = error
        finally:
            with self._changed:
                self._at = "end"
                self._changed.notify_all()

    def _announce(self, point: str) -> None:
        kind = point.partition(" ")[0]
        if kind not in self._pauses:
            return
        with self._changed:
            self._at = kind
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._at is None, PATIENCE)

    def reach(self) -> str:
        """Wait until it pauses or ends; where it is then."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._at is not None, PATIENCE)
            assert self._at is not None
            return self._at

    def go_on(self) -> None:
        """Let it leave the point at which it pauses."""
        with self._changed:
            assert self._at != "end", self.error
            self._at = None
            self._changed.notify_all()

    def pause_no_more(self) -> None:
        """Once it leaves the point at which it is, let it go through all others."""
        self._pauses = ()

    def end(self) -> None:
        """Let it run to its end, through all further pauses."""
        self.pause_no_more()
        with self._changed:
            if self._at != "end":
                self._at = None
                self._changed.notify_all()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def loading(target: Connection, home: Path, **details: object) -> Pipeline:
    """A pipeline of this process that loads rows into a connection."""
    order = Order((target,), home, home, None, **details)  # type: ignore[arg-type]
    return declare(order)
