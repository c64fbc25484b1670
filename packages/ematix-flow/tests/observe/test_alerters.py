"""Every kind of alerter against a real server."""

from __future__ import annotations

import base64
import ssl
import threading
import time
from datetime import datetime, timezone
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.observe.alert_email import EmailAlerter
from ematix_flow.observe.alerts import Alerts, open_alerter
from ematix_flow.observe.events import AlertEvent
from ematix_flow.observe.posting import Undelivered
from ematix_flow.redaction import redact_text

from .ends import Answer, SmtpEnd, free_port, http_end, smtp_end, wait_for

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
FAILED = AlertEvent(
    "failed", "load <orders> & more", NOON, "password=hunter2 was refused", "Permanent", run_id="r1"
)
RECOVERED = AlertEvent("recovered", "load <orders> & more", NOON, run_id="r2")


def test_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    open_alerter("stdout://").notify(FAILED)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "flow: alert: 2026-01-31T12:00:00Z load <orders> & more failed: Permanent: password=*** "
        "was refused (run r1)\n"
    )


def test_a_webhook_gets_all_there_is_to_know() -> None:
    with http_end() as end:
        open_alerter(f"http://{end.where}/alerts?team=data").notify(FAILED)
        open_alerter(f"webhook+http://me:p%40ss@{end.where}/alerts").notify(RECOVERED)
    first, second = end.requests
    assert first.path == "/alerts?team=data"
    assert "hunter2" not in first.body.decode()
    assert (first.json["kind"], first.json["pipeline"]) == ("failed", FAILED.pipeline)
    assert first.json["error_message"] == "password=*** was refused"
    assert first.json["timestamp"] == "2026-01-31T12:00:00+00:00"
    assert second.json["kind"] == "recovered"
    assert second.headers["Authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("scheme", ["slack", "webhook", "webhook+https", "https"])
def test_others_than_http_are_encrypted(scheme: str, server_tls: ssl.SSLContext) -> None:
    with http_end(tls=server_tls) as end:
        open_alerter(f"{scheme}://{end.where}/services/T0/B0/token").notify(FAILED)
    (request,) = end.requests
    assert request.path == "/services/T0/B0/token"
    if scheme == "slack":
        assert request.json == {
            "text": ":red_circle: load &lt;orders&gt; &amp; more failed: Permanent: password=*** "
            "was refused (run r1)"
        }


def test_the_address_that_slack_gives_is_slacks() -> None:
    alerter = open_alerter("https://hooks.slack.com/services/T0/B0/abcdefghijkl")
    assert type(alerter).__name__ == "SlackAlerter"
    assert redact_text("posted to services/T0/B0/abcdefghijkl") == "posted to ***"
    assert "abcdefghijkl" not in repr(vars(alerter)["name"])


def test_a_whole_url_may_be_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_end() as end:
        monkeypatch.setenv("HOOK", f"http://{end.where}/hook")
        open_alerter("${HOOK}").notify(FAILED)
        monkeypatch.setenv("PLACE", f"{end.where}/hook")
        open_alerter("webhook+http://${PLACE}").notify(FAILED)
    assert [r.path for r in end.requests] == ["/hook", "/hook"]


def test_a_certificate_of_nobody_known_is_refused(server_tls: ssl.SSLContext) -> None:
    with http_end(tls=server_tls) as end:
        with pytest.raises(Undelivered, match="certificate") as caught:
            open_alerter(f"https://{end.where}/x").notify(FAILED)
        assert end.requests == []
    assert "/x" not in str(caught.value)
    assert not caught.value.again


def test_pagerduty_opens_and_resolves_one_incident() -> None:
    with http_end() as end:
        url = f"http://{end.where}/v2/enqueue"
        key = "0123456789abcdef0123456789abcdef"
        alerter = open_alerter(f"pagerduty://{key}?service=shop&severity=warning&endpoint={url}")
        gave_up = AlertEvent("gave_up", FAILED.pipeline, NOON, "still", attempt_count=3)
        for event in (FAILED, gave_up, RECOVERED):
            alerter.notify(event)
    first, second, last = (request.json for request in end.requests)
    assert first["routing_key"] == key
    assert first["dedup_key"] == second["dedup_key"] == last["dedup_key"]
    assert [r["event_action"] for r in (first, second, last)] == ["trigger", "trigger", "resolve"]
    assert first["payload"]["severity"] == "warning"
    assert second["payload"]["severity"] == "critical"
    assert first["payload"]["group"] == "shop"
    assert first["payload"]["custom_details"]["run_id"] == "r1"
    assert key not in str(first["payload"])
    assert redact_text(f"key {key}") == "key ***"


@pytest.mark.parametrize(
    ("answers", "requests", "delivered"),
    [
        ([Answer(500), Answer(503)], 3, True),
        ([Answer(429, (("Retry-After", "1"),))], 2, True),
        ([Answer(404)], 1, False),
        ([Answer(302, (("Location", "http://127.0.0.1:1/"),))], 1, False),
        ([Answer(400, body=b"invalid_payload")], 1, False),
    ],
)
def test_an_answer_decides_about_another_try(
    answers: list[Answer], requests: int, delivered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with http_end(*answers) as end:
        alerts = Alerts([open_alerter(f"http://{end.where}/a/secret-path-of-this-hook")])
        alerts.send(FAILED)
        assert alerts.close(15)
    assert len(end.requests) == requests
    assert ("did not get through" not in caplog.text) is delivered
    assert "secret-path-of-this-hook" not in caplog.text
    if answers[0].status == 429:
        assert end.requests[1].at - end.requests[0].at >= 1
    if answers[0].body == b"invalid_payload":
        assert "HTTP 400 (invalid_payload)" in caplog.text


def test_a_server_that_is_gone_or_slow_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    with http_end(Answer(wait=release)) as slow:
        alerts = Alerts(
            [
                open_alerter(f"http://{slow.where}/x"),
                open_alerter(f"http://127.0.0.1:{free_port()}"),
            ]
        )
        began = time.monotonic()
        alerts.send(FAILED)
        assert time.monotonic() - began < 0.5
        wait_for(lambda: slow.requests)
        assert alerts.close(1.0) is False
        assert time.monotonic() - began < 5
        release.set()
    assert "were still under way" in caplog.text


def mailer(end: SmtpEnd, login: str = "", options: str = "") -> str:
    return (
        f"email://{login}127.0.0.1:{end.port}?from=flow@example.com&to=a@x.org,b+c@y.org{options}"
    )


def test_email_without_encryption() -> None:
    with smtp_end() as end:
        open_alerter(mailer(end, options="&starttls=0")).notify(FAILED)
    (mail,) = end.mails
    assert (mail.sender, mail.recipients) == ("flow@example.com", ["a@x.org", "b+c@y.org"])
    assert mail.message["Subject"] == "[ematix-flow] load <orders> & more failed"
    text = mail.message.get_payload()
    assert "password=*** was refused" in text
    assert "hunter2" not in text
    assert not mail.by_tls


def test_email_by_starttls_with_a_login(server_tls: ssl.SSLContext, trusted: Path) -> None:
    password = "p@ss/w:rd"
    with smtp_end(tls=server_tls, login=("me", password)) as end:
        login = f"me:{quote(password, safe='')}@"
        open_alerter(mailer(end, login)).notify(FAILED)
        with pytest.raises(Undelivered, match="SMTP 535") as caught:
            open_alerter(mailer(end, "me:wrong-password@")).notify(FAILED)
    (mail,) = end.mails
    assert (mail.by_tls, mail.user) == (True, "me")
    assert not caught.value.again
    assert "wrong-password" not in str(caught.value)


def test_email_names_the_authority_it_trusts(server_tls: ssl.SSLContext, credentials) -> None:
    with smtp_end(tls=server_tls) as end:
        with pytest.raises(Undelivered, match="certificate") as caught:
            open_alerter(mailer(end)).notify(FAILED)
        assert not caught.value.again
        open_alerter(mailer(end, options=f"&ca={credentials.ca}")).notify(FAILED)
    assert [mail.by_tls for mail in end.mails] == [True]


def test_email_is_not_sent_in_the_open_unless_asked_for() -> None:
    with smtp_end() as end, pytest.raises(Undelivered, match="STARTTLS"):
        open_alerter(mailer(end)).notify(FAILED)
    assert end.mails == []


def test_email_that_is_refused_for_now_is_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    with smtp_end() as end:
        end.refusals = ["451 try again later", "554 never"]
        alerts = Alerts([open_alerter(mailer(end, options="&starttls=0"))])
        alerts.send(FAILED)
        alerts.send(RECOVERED)
        assert alerts.close(15)
    assert [m.message["Subject"] for m in end.mails] == [
        "[ematix-flow] load <orders> & more has recovered"
    ]
    assert "SMTP 554 (never)" in caplog.text


@given(st.text(), st.text())
def test_email_of_any_name_and_message(name: str, message: str) -> None:
    alerter = open_alerter("email://host?from=a@x.org&to=b@x.org")
    assert isinstance(alerter, EmailAlerter)
    event = AlertEvent("failed", name, NOON, message)
    sent = message_from_bytes(alerter._message(event).as_bytes(), policy=default)
    assert sent["Subject"] == f"[ematix-flow] {event.title}"
    assert sent["To"] == "b@x.org"


def test_email_to_nobody_there_is_tried_again() -> None:
    url = f"email://127.0.0.1:{free_port()}?from=a@x.org&to=b@x.org&starttls=0"
    with pytest.raises(Undelivered) as caught:
        open_alerter(url).notify(FAILED)
    assert caught.value.again
