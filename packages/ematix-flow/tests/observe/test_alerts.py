"""Who is told, how often, and that no run waits for it."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest

from ematix_flow.errors import EmatixError
from ematix_flow.observe.alerts import (
    Alerts,
    ProcessMemory,
    active_alerters,
    clear_alerters,
    open_alerter,
    register_alerter,
)
from ematix_flow.observe.events import AlertEvent
from ematix_flow.observe.posting import Undelivered

from .ends import wait_for

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


class Listener:
    """Keeps what it hears; fails as often as told."""

    def __init__(self, name: str = "listener", *failures: Exception) -> None:
        self.name = name
        self.heard: list[AlertEvent] = []
        self.tries = 0
        self.failures = list(failures)

    def notify(self, event: AlertEvent) -> None:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        self.heard.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.heard]


def event(kind: str = "failed", minutes: float = 0, **fields: object) -> AlertEvent:
    at = NOON + timedelta(minutes=minutes)
    given = {"error_message": "no such table", "error_type": "Permanent", **fields}
    return AlertEvent(kind, str(given.pop("pipeline", "load")), at, **given)  # type: ignore[arg-type]


def told(listener: Listener, *events: AlertEvent, **options: float) -> Listener:
    alerts = Alerts([listener], **options)  # type: ignore[arg-type]
    for one in events:
        alerts.send(one)
    assert alerts.close(10)
    return listener


def test_the_same_trouble_is_told_once_and_again_after_a_while() -> None:
    every_ten_minutes = [event(minutes=m) for m in range(0, 13 * 60, 10)]
    heard = told(Listener(), *every_ten_minutes).heard
    assert [e.timestamp - NOON for e in heard] == [timedelta(hours=h) for h in (0, 6, 12)]
    heard = told(Listener(), *every_ten_minutes, repeat_seconds=3600).heard
    assert len(heard) == 13


def test_other_trouble_and_other_pipelines_are_news() -> None:
    listener = told(
        Listener(),
        event(),
        event(minutes=1, error_message="no such column"),
        event(minutes=2, pipeline="other"),
        event("gave_up", minutes=3),
        event(minutes=4),
    )
    assert len(listener.heard) == 4


def test_a_recovery_is_always_told_and_makes_all_news_again() -> None:
    listener = told(
        Listener(), event(), event(minutes=1), event("recovered", 2), event(minutes=3),
        event("recovered", 4), event("recovered", 5),
    )  # fmt: skip
    assert listener.kinds == ["failed", "recovered", "failed", "recovered", "recovered"]


def test_a_memory_may_outlive_those_who_tell() -> None:
    memory = ProcessMemory()
    first, second = Listener(), Listener()
    for listener in (first, second):
        alerts = Alerts([listener], memory=memory)
        alerts.send(event())
        assert alerts.close(10)
    assert (len(first.heard), len(second.heard)) == (1, 0)


def test_what_did_not_get_through_is_told_the_next_time() -> None:
    listener = told(Listener("l", ValueError("a bug")), event(), event(minutes=1), event(minutes=2))
    assert [e.timestamp for e in listener.heard] == [NOON + timedelta(minutes=1)]


def test_only_trouble_that_may_pass_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    passing = Undelivered("HTTP 503", again=True, after=0.0)
    lasting = Undelivered("HTTP 403", again=False)
    assert told(Listener("a", passing, passing), event()).tries == 3
    assert told(Listener("b", lasting), event()).tries == 1
    assert told(Listener("c", KeyError("x")), event()).tries == 1
    assert told(Listener("d", *[passing] * 9), event()).tries == 5
    lost = [r.getMessage() for r in caplog.records if "did not get through" in r.getMessage()]
    assert [line.split(":")[0].split()[-1] for line in lost] == ["b", "c", "d"]


def test_too_many_are_held_back_and_counted() -> None:
    many = [event(pipeline=f"p{i}") for i in range(50)]
    listener = told(Listener(), *many, event("recovered", pipeline="p49"), per_minute=20)
    assert len(listener.heard) == 21
    assert listener.heard[-1].held_back == 30
    assert "30 alerts before this one were held back" in listener.heard[-1].text


def test_one_that_hangs_delays_neither_the_others_nor_the_run() -> None:
    release = threading.Event()

    class Hanging(Listener):
        def notify(self, event: AlertEvent) -> None:
            release.wait(30)

    quick = Listener("quick")
    alerts = Alerts([Hanging("hanging"), quick])
    began = time.monotonic()
    for i in range(2000):  # more than wait in a queue
        alerts.send(event(pipeline=f"p{i % 10}"))
    assert time.monotonic() - began < 2
    wait_for(lambda: len(quick.heard) == 10)
    began = time.monotonic()
    assert alerts.close(0.5) is False
    assert time.monotonic() - began < 2
    release.set()


def test_what_was_under_way_at_the_end_is_not_taken_for_told() -> None:
    release = threading.Event()

    class Hanging(Listener):
        def notify(self, event: AlertEvent) -> None:
            release.wait(30)

    memory, later = ProcessMemory(), Listener("hanging")
    alerts = Alerts([Hanging("hanging")], memory=memory)
    alerts.send(event())
    assert alerts.close(0.3) is False
    release.set()
    alerts = Alerts([later], memory=memory)
    alerts.send(event(minutes=1))
    assert alerts.close(10)
    assert later.kinds == ["failed"]


def test_a_pause_between_tries_ends_when_nobody_waits_any_more() -> None:
    patient = Listener("patient", *[Undelivered("busy", again=True, after=30.0)] * 9)
    alerts = Alerts([patient])
    alerts.send(event())
    wait_for(lambda: patient.tries == 1)
    began = time.monotonic()
    assert alerts.close(1.0)
    assert time.monotonic() - began < 5
    assert patient.tries == 2  # a last one


def test_after_the_end_nothing_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    alerts = Alerts([listener])
    assert alerts.close(1)
    with caplog.at_level(logging.WARNING):
        alerts.send(event())
    assert "full or closed" in caplog.text
    assert listener.heard == []


def test_the_public_doors() -> None:
    from ematix_flow import alerters, metrics

    assert alerters.from_url is open_alerter
    assert alerters.AlertEvent is AlertEvent
    metrics.from_url("null://").close(1)


def test_registered_alerters() -> None:
    listener = Listener()
    register_alerter(listener)
    assert active_alerters() == (listener,)
    clear_alerters()
    assert active_alerters() == ()


def test_an_event_is_not_changed_for_the_other_alerters() -> None:
    one = event()
    assert dataclasses.replace(one, held_back=3).held_back == 3
    assert one.held_back == 0


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("slak://hooks.slack.com/services/x", "there is no alerter slak://; did you mean 'slack'?"),
        ("stdout", "alerter needs a URL"),
        ("stdout://?colour=1", "alerter stdout:// has no option 'colour'; leave it out"),
        ("slack://", "alerter slack:// names no host"),
        ("slack://hooks.slack.com", "alerter slack:// has no path"),
        ("https://hooks.slack.com/services/a?x=1", "has no option 'x'"),
        ("webhook://", "names no host"),
        ("webhook://host:99999/", "the port of alerter webhook:// is no port"),
        ("pagerduty://", "names no host"),
        ("pagerduty://key?severty=info", "no option 'severty'; did you mean 'severity'?"),
        (
            "pagerduty://key?severity=critcal",
            "knows no severity 'critcal'; did you mean 'critical'",
        ),
        ("pagerduty://key?endpoint=ftp://x", "endpoint= of alerter pagerduty:// is no URL"),
        ("email://host?to=a@b.c", "alerter email:// has no from="),
        ("slack://me@hooks.slack.com/services/x", "alerter slack:// takes no user and no password"),
        ("stdout://here", "alerter stdout:// takes nothing after it"),
        ("pagerduty://key/path", "alerter pagerduty:// takes no path"),
        ("email://host?from=a@b.c", "alerter email:// has no to="),
        ("email://host?from=a@b.c&to=nobody", "a from= or to= that is no address"),
        (
            "email://host?from=a@b.c&to=d@e.f&starttls=maybe",
            "starttls= of alerter email:// must be",
        ),
        ("email://host?from=a@b.c&too=d@e.f", "no option 'too'; did you mean 'to'?"),
        ("slack://${NO_SUCH_HOOK}", "environment variable NO_SUCH_HOOK is not set"),
    ],
)
def test_a_url_that_is_not_written_well(url: str, says: str) -> None:
    with pytest.raises(EmatixError) as caught:
        open_alerter(url)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2
