"""A daemon thread that does one thing after the other, so that a run need not wait for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ematix_flow.redaction import redact_text

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
# Of the time that is waited at the end, for one more try of what is being retried.
_LAST_PART = 0.1


class Courier(Generic[Item]):
    """Hands items to ``deliver``, in order, from a thread that starts with the first of them.

    What ``deliver`` raises is logged and forgotten. ``hurry`` is set when nobody will wait much
    longer; whoever pauses in ``deliver`` pauses on it.
    """

    def __init__(self, name: str, deliver: Callable[[Item], None], *, most: int = 1_000) -> None:
        self.hurry = threading.Event()
        self._name = name
        self._deliver = deliver
        self._most = most
        self._waiting: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def take(self, item: Item) -> bool:
        """Take an item along; False where too many wait already, or it is closed."""
        with self._changed:
            if self._closing or len(self._waiting) >= self._most:
                return False
            self._waiting.append(item)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            return True

    def finish(self) -> None:
        """Take no more, and end when all is delivered."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self, timeout: float) -> bool:
        """Wait so many seconds for all to be delivered; whether it was."""
        return close_all([self], timeout)[0]

    def wait(self, deadline: float) -> bool:
        """Wait until a moment of the monotonic clock; whether all was delivered before."""
        if self._thread is None:
            return True
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                item = self._waiting.popleft()
            try:
                self._deliver(item)
            except Exception as error:  # noqa: BLE001 - nothing here may end the thread
                told = redact_text(f"{type(error).__name__}: {error}")
                logger.warning("%s: %s", self._name, told)


def close_all(couriers: list[Courier[Item]], timeout: float) -> list[bool]:
    """Close several, all together within so many seconds; whether each has delivered all."""
    deadline = time.monotonic() + timeout
    for courier in couriers:
        courier.finish()
    for courier in couriers:
        courier.wait(deadline - timeout * _LAST_PART)
    for courier in couriers:
        courier.hurry.set()
    return [courier.wait(deadline) for courier in couriers]
