"""Alerts: who is told, once about the same thing, from a thread that no run waits for.

``open_alerter`` makes an alerter from a URL; ``Alerts`` tells several of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from ematix_flow.observe.addresses import parse_address
from ematix_flow.observe.courier import Courier, close_all
from ematix_flow.observe.events import AlertEvent
from ematix_flow.redaction import redact_text

logger = logging.getLogger(__name__)

REPEAT_SECONDS = 6 * 3600
PER_MINUTE = 30
TRIES = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_MINUTE = 60.0

# Imported when a URL asks for one.
_CLASSES = {
    "console": "alert_console:ConsoleAlerter",
    "slack": "alert_slack:SlackAlerter",
    "webhook": "alert_webhook:WebhookAlerter",
    "email": "alert_email:EmailAlerter",
    "pagerduty": "alert_pagerduty:PagerDutyAlerter",
}
SCHEMES = {
    "stdout": "console",
    "stderr": "console",
    "slack": "slack",
    "webhook": "webhook",
    "webhook+http": "webhook",
    "webhook+https": "webhook",
    "http": "webhook",
    "https": "webhook",
    "email": "email",
    "pagerduty": "pagerduty",
}
_SLACK_HOST = "hooks.slack.com"


class Alerter(Protocol):
    """Tells somebody. Another class than ours is given to ``register_alerter``."""

    def notify(self, event: AlertEvent) -> None:
        """Tell of an event, or raise; called from a thread of its own."""


class AlertMemory(Protocol):
    """What was told already. Every method may be called from several threads."""

    def claim(
        self, receiver: str, pipeline: str, key: str, *, at: datetime, repeat: timedelta
    ) -> bool:
        """Whether ``key`` is news: not told since ``at - repeat``. From now on it is none."""

    def release(self, receiver: str, pipeline: str, key: str) -> None:
        """Take a claim back: it could not be told."""

    def forget(self, receiver: str, pipeline: str) -> None:
        """The pipeline has recovered; whatever comes next is news."""


class ProcessMemory:
    """Remembers for the life of the process."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], dict[str, datetime]] = {}
        self._lock = threading.Lock()

    def claim(
        self, receiver: str, pipeline: str, key: str, *, at: datetime, repeat: timedelta
    ) -> bool:
        """Whether it is news."""
        with self._lock:
            told = self._told.setdefault((receiver, pipeline), {})
            if key in told and at - told[key] < repeat:
                return False
            told[key] = at
            return True

    def release(self, receiver: str, pipeline: str, key: str) -> None:
        """It is news again."""
        with self._lock:
            self._told.get((receiver, pipeline), {}).pop(key, None)

    def forget(self, receiver: str, pipeline: str) -> None:
        """All of it is news again."""
        with self._lock:
            self._told.pop((receiver, pipeline), None)


def open_alerter(url: str) -> Alerter:
    """The alerter behind a URL; a ``ConfigError`` or ``UnknownName`` if it is not written well."""
    address = parse_address(url, what="alerter", schemes=SCHEMES)
    kind = SCHEMES[address.scheme]
    if kind == "webhook" and address.host == _SLACK_HOST:
        kind = "slack"
    module, _, name = _CLASSES[kind].partition(":")
    alerter: Alerter = getattr(importlib.import_module(f"{__package__}.{module}"), name)(address)
    return alerter


_registered: list[Alerter] = []


def register_alerter(alerter: Alerter) -> None:
    """Tell this one too, of every run of this process."""
    _registered.append(alerter)


def active_alerters() -> tuple[Alerter, ...]:
    """Those that were registered."""
    return tuple(_registered)


def clear_alerters() -> None:
    """Forget those that were registered."""
    _registered.clear()


class Alerts:
    """Tells alerters of events, each from a thread of its own.

    An alerter hears of the same trouble of a pipeline once, and again after ``repeat_seconds``; of
    a recovery always. It gets at most ``per_minute`` alerts a minute: the next one after that
    says how many were held back, and what was held back is told when it happens again.
    """

    def __init__(
        self,
        alerters: Sequence[Alerter],
        *,
        memory: AlertMemory | None = None,
        repeat_seconds: float = REPEAT_SECONDS,
        per_minute: int = PER_MINUTE,
    ) -> None:
        memory = memory or ProcessMemory()
        repeat = timedelta(seconds=repeat_seconds)
        names: dict[str, int] = {}
        self._channels = []
        for alerter in alerters:
            name = _name_of(alerter)
            # Two of one name are told apart, as long as they are given in the same order.
            names[name] = names.get(name, 0) + 1
            label = f"{name} {names[name]}"
            self._channels.append(_Channel(alerter, label, memory, repeat, per_minute))

    def send(self, event: AlertEvent) -> None:
        """Tell all of them, soon."""
        for channel in self._channels:
            channel.send(event)

    def finish(self) -> None:
        """Take no more; what is under way goes on."""
        for channel in self._channels:
            channel.courier.finish()

    def close(self, timeout: float = 10.0) -> bool:
        """Wait so many seconds for what is under way; whether all of it was dealt with."""
        done = close_all([channel.courier for channel in self._channels], timeout)
        for channel, settled in zip(self._channels, done, strict=True):
            if not settled:
                channel.give_up()
        return all(done)


class _Channel:
    """One alerter, its queue and its limits."""

    def __init__(
        self, alerter: Alerter, label: str, memory: AlertMemory, repeat: timedelta, per_minute: int
    ) -> None:
        self.name = _name_of(alerter)
        self.courier: Courier[AlertEvent] = Courier(f"ematix-alert {self.name}", self._tell)
        self._alerter = alerter
        self._id = hashlib.sha256(label.encode()).hexdigest()[:12]
        self._memory = memory
        self._repeat = repeat
        self._per_minute = per_minute
        self._sent: deque[float] = deque(maxlen=per_minute)
        self._held_back = 0
        self._telling: tuple[str, str, str] | None = None

    def send(self, event: AlertEvent) -> None:
        if not self.courier.take(event):
            self._lose(event, "its queue is full or closed")

    def _tell(self, event: AlertEvent) -> None:
        told = (self._id, event.pipeline, event.sameness)
        if event.is_good_news:
            self._memory.forget(self._id, event.pipeline)
        elif not self._memory.claim(*told, at=event.timestamp, repeat=self._repeat):
            logger.debug("%s was told of this before: %s", self.name, event.text)
            return
        elif self._is_too_much():
            self._memory.release(*told)
            self._held_back += 1
            logger.info("%s had too many alerts; held back: %s", self.name, event.text)
            return
        self._telling = told
        try:
            self._deliver(dataclasses.replace(event, held_back=self._held_back))
        except Exception as error:  # noqa: BLE001 - no alerter's fault is the run's
            self._memory.release(*told)
            self._lose(event, str(error) or type(error).__name__)
        else:
            self._held_back = 0
            self._sent.append(time.monotonic())
        finally:
            self._telling = None

    def give_up(self) -> None:
        """The process ends with something untold: whoever remembers must not take it for told."""
        logger.warning("alerts to %s were still under way at the end", self.name)
        if self._telling is not None:
            self._memory.release(*self._telling)

    def _is_too_much(self) -> bool:
        full = len(self._sent) == self._per_minute
        return full and time.monotonic() - self._sent[0] < _MINUTE

    def _deliver(self, event: AlertEvent) -> None:
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_when_event_set
        from tenacity.nap import sleep_using_event

        hurry = self.courier.hurry
        tries = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(TRIES) | stop_when_event_set(hurry),
            wait=_pause,
            sleep=sleep_using_event(hurry),
            reraise=True,
        )
        tries(self._alerter.notify, event)

    def _lose(self, event: AlertEvent, reason: str) -> None:
        told = redact_text(f"{event.title} (run {event.run_id}): {reason}")
        logger.warning("an alert did not get through to %s: %s", self.name, told)


def _name_of(alerter: Alerter) -> str:
    return redact_text(str(getattr(alerter, "name", type(alerter).__name__)))


def _may_pass(error: BaseException) -> bool:
    """Whether another try may help: the alerter says so."""
    return bool(getattr(error, "again", False))


def _pause(state: Any) -> float:
    """Twice as long each time, or as long as the other side has asked for."""
    asked = getattr(state.outcome.exception(), "after", None)
    pause: float = asked if asked is not None else _FIRST_PAUSE * 2.0 ** (state.attempt_number - 1)
    return min(pause, _LONGEST_PAUSE)
