"""Where events go: a file or an HTTP endpoint. A receiver that is down never holds a run up."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, build_opener

from ematix_flow.config import OpenLineageSettings
from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError, NotAvailableYet
from ematix_flow.redaction import redact_text, remember_secret, remember_url_password
from ematix_flow.secrets import expand

logger = logging.getLogger(__name__)

_ENDPOINT = "/api/v1/lineage"
_SECONDS_TO_ANSWER = 1.0
_SECONDS_TO_FINISH = 1.5
_PAUSES = (0.1, 0.3)
_SERVER_ERROR = 500
_SCHEMES = ("file", "http", "https", "kafka")


class Receiver(Protocol):
    """Takes events, one after the other, from one thread."""

    def take(self, event: bytes) -> None:
        """Keep it, or raise ``OSError``."""


class FileReceiver:
    """One line per event, at the end of a file; several processes may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self, event: bytes) -> None:
        """Append a line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # One write to a file opened for appending does not mix with those of others.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, event + b"\n")
        finally:
            os.close(descriptor)


class HttpReceiver:
    """Posts each event; a token goes into the header."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url)
        self.url = url if parts.path.strip("/") else url.rstrip("/") + _ENDPOINT
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._opener = build_opener()

    def take(self, event: bytes) -> None:
        """Post it; an answer that says it is the event's own fault is not asked for again."""
        request = Request(self.url, data=event, headers=self._headers, method="POST")  # noqa: S310 - http(s) only
        try:
            with self._opener.open(request, timeout=_SECONDS_TO_ANSWER) as answer:
                answer.read()
        except HTTPError as error:
            with error:
                if error.code >= _SERVER_ERROR:
                    raise
            logger.warning("OpenLineage: %s", redact_text(f"{self.url} refused an event: {error}"))


def receiver_at(settings: OpenLineageSettings) -> Receiver:
    """The receiver behind an address."""
    url = expand(settings.url)
    remember_url_password(url)
    scheme, separator, rest = url.partition("://")
    if scheme in ("http", "https") and separator:
        api_key = expand(settings.api_key) if settings.api_key else None
        if api_key is not None:
            remember_secret(api_key)
        return HttpReceiver(url, api_key)
    if scheme == "file" and separator:
        return FileReceiver(Path(rest).expanduser())
    if scheme == "kafka":
        raise NotAvailableYet(
            "OpenLineage events to Kafka", fix="write file://… or https://… meanwhile"
        )
    raise ConfigError(
        f"OpenLineage events cannot go to {redact_text(url)!r}",
        fix=f"write file:///path/events.jsonl or https://host; {nearest(scheme, _SCHEMES)}",
    )


class Delivery:
    """Hands events to a receiver in the background, in their order."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ematix-openlineage", daemon=True)
        self._thread.start()

    def put(self, event: Mapping[str, Any]) -> None:
        """Hand over an event; returns at once."""
        self._waiting.put(json.dumps(event, ensure_ascii=False).encode())

    def finish(self, seconds: float = _SECONDS_TO_FINISH) -> None:
        """Wait for what has been handed over, but not for long."""
        self._waiting.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._given_up.set()
            logger.warning("OpenLineage: the receiver does not answer; events of this run are lost")

    def _work(self) -> None:
        while (event := self._waiting.get()) is not None:
            if not self._given_up.is_set() and not self._delivered(event):
                self._given_up.set()

    def _delivered(self, event: bytes) -> bool:
        for pause in (*_PAUSES, None):
            try:
                self._receiver.take(event)
            except Exception as error:  # noqa: BLE001 - whatever a receiver does, the run goes on
                if pause is None or self._given_up.is_set():
                    said = redact_text(str(error))
                    logger.warning("OpenLineage: events of this run are lost: %s", said)
                    return False
                time.sleep(pause)
            else:
                return True
        return False


@contextlib.contextmanager
def delivering(receiver: Receiver) -> Iterator[Delivery]:
    """A delivery that is finished at the end of the block."""
    delivery = Delivery(receiver)
    try:
        yield delivery
    finally:
        delivery.finish()
