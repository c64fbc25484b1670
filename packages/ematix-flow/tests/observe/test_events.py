"""What an alert says, and when two of them say the same."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.errors import UnknownName
from ematix_flow.observe.events import KINDS, AlertEvent
from ematix_flow.redaction import remember_secret

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def failed(message: str, kind: str = "BackendError") -> AlertEvent:
    return AlertEvent("failed", "load_orders", NOON, message, kind)


def test_it_says_who_what_and_why() -> None:
    event = AlertEvent(
        "gave_up", "load_orders", NOON, "no such host", "Transient", 3, 3, run_id="r1"
    )
    assert event.text == (
        "load_orders failed and will not be tried again: Transient: no such host "
        "(attempt 3 of 3, run r1)"
    )
    assert event.gave_up
    assert not failed("no such host").gave_up


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'recovered'"):
        AlertEvent("recoverd", "load_orders")


def test_secrets_are_masked_when_it_is_made() -> None:
    remember_secret("s3cr3t-value")
    event = failed(
        "login with s3cr3t-value at postgresql://me:hush@host/db failed: password=hunter2"
    )
    for text in (event.text, str(event.to_dict()), repr(event)):
        assert "s3cr3t-value" not in text
        assert "hush" not in text
        assert "hunter2" not in text


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("12 rows were refused", "4711 rows were refused", True),
        ("run 01a1e3b4-a7d5-7449-b458-9b48e914d878 is gone",) * 2 + (True,),
        (
            "run 01a1e3b4-a7d5-7449-b458-9b48e914d878 is gone",
            "run 01a1e3b4-f520-7458-ac78-121260fc910c is gone",
            True,
        ),
        ("no such table", "no such column", False),
    ],
)
def test_two_failures_are_the_same_but_for_particulars(one: str, other: str, same: bool) -> None:
    assert (failed(one).sameness == failed(other).sameness) is same
    assert failed(one).sameness != failed(one, "DataError").sameness


@given(st.sampled_from(KINDS), st.text(max_size=50), st.text(max_size=3000))
def test_any_name_and_message_make_one_line(kind: str, name: str, message: str) -> None:
    event = AlertEvent(kind, name, NOON, message)
    assert len(event.text.splitlines()) <= 1
    assert len(event.error_message or "") <= 2000
