"""A daemon thread that does one thing after the other, so that a run need not wait for it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


class Courier(Generic[Item]):
    """Hands items to ``deliver``, in order, from a thread that starts with the first of them.

    What ``deliver`` raises is logged and forgotten. ``hurry`` is set when nobody will wait much
    longer; whoever pauses in ``deliver`` pauses on it.
    """

    def __init__(self, name: str, deliver: Callable[[Item], None], *, most: int = 1_000) -> None:
        self.hurry = threading.Event()
        self._name = name
        self._deliver = deliver
        self._waiting: queue.Queue[Item | None] = queue.Queue(maxsize=most)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def take(self, item: Item) -> bool:
        """Take an item along; False where too many wait already, or it is closed."""
        with self._lock:
            if self.hurry.is_set():
                return False
            try:
                self._waiting.put_nowait(item)
            except queue.Full:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            return True

    def close(self, timeout: float) -> bool:
        """Wait so many seconds for all to be delivered; whether it was."""
        deadline = time.monotonic() + timeout
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            self.hurry.set()
            return True
        try:
            self._waiting.put(None, timeout=max(0.0, deadline - time.monotonic()))
        except queue.Full:
            self.hurry.set()
            return False
        # The last tenth is for one more try of what is being retried.
        thread.join(max(0.0, (deadline - time.monotonic()) * 0.9))
        self.hurry.set()
        thread.join(max(0.0, deadline - time.monotonic()))
        return not thread.is_alive()

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._deliver(item)
            except Exception as error:  # noqa: BLE001 - nothing here may end the thread
                logger.warning("%s: %s: %s", self._name, type(error).__name__, error)
