"""No password gets out: by field, by shape of the text, and by value."""

from __future__ import annotations

import json
import logging
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow import redaction
from ematix_flow.redaction import (
    MASK,
    Concealed,
    is_secret_field,
    redact,
    redact_text,
    remember_secret,
    remember_url_password,
)


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test remembers no other test masks."""
    monkeypatch.setattr(redaction, "_remembered", set())


# Marked at both ends, so that no half of one can hide in a host name or in the mask.
passwords = st.text(st.characters(exclude_categories=("Cs",)), max_size=20).map(
    lambda middle: f"Qx{middle}xQ"
)
plain_passwords = st.text(
    st.characters(exclude_categories=("Cs", "Z", "C"), exclude_characters="'\"&\\"), max_size=20
).map(lambda middle: f"Qx{middle}xQ")


def assert_hidden(password: str, shown: str) -> None:
    assert MASK in shown
    assert password not in shown
    assert "Qx" not in shown
    assert "xQ" not in shown


@given(passwords)
def test_a_password_in_the_url_of_a_field(password: str) -> None:
    for scheme in ("postgres", "postgresql", "mysql+pymysql", "amqps", "jdbc:postgresql", "http"):
        for user in ("", "me", "me@corp"):
            url = f"{scheme}://{user}:{password}@db.example:5432/shop"
            shown = str(redact("url", url))
            assert_hidden(password, shown)
            assert shown.startswith(f"{scheme}://{user}:{MASK}@")


@given(passwords)
def test_an_encoded_password_in_any_text(password: str) -> None:
    encoded = quote(password, safe="")
    for url in (
        f"amqp://me:{encoded}@broker/vhost",
        f"jdbc:mysql://host/db?user=me&password={encoded}&useSSL=true",
        f"jdbc:postgresql://host/db?password={encoded}",
        f"s3://bucket/prefix?secret_access_key={encoded}&region=eu",
    ):
        for text in (f"cannot reach {url} now", json.dumps({"url": url}), repr([url]), f"({url})"):
            assert_hidden(encoded, redact_text(text))


@given(passwords)
def test_quoted_values(password: str) -> None:
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    assert_hidden(password, redact_text(f"host=db password='{escaped}' dbname=shop"))
    assert_hidden(password, redact_text(json.dumps({"sasl_password": password, "user": "me"})))
    assert_hidden(password, redact_text(str({"token": password, "user": "me"})))


@given(plain_passwords)
def test_unquoted_values(password: str) -> None:
    for text in (
        f"host=db user=me password={password} dbname=shop",
        f"PGPASSWORD={password} psql",
        f"api_key: {password}",
        f"jdbc:sqlserver://host;user=me;password={password}",
    ):
        assert_hidden(password, redact_text(text))


@given(passwords)
def test_a_remembered_value_in_any_text(password: str) -> None:
    remember_secret(password)
    for text in (
        f"the server said {password} twice: {password}",
        f"value {password!r}",
        json.dumps([password]),
        f"https://host/{quote(password, safe='')}",
    ):
        assert_hidden(password, redact_text(text))


@given(passwords)
def test_the_password_of_a_remembered_url(password: str) -> None:
    remember_url_password(f"postgres://me:{quote(password, safe='')}@host/db")
    assert_hidden(password, redact_text(f"authentication failed, tried {password}"))
    assert_hidden(password, redact_text(f"tried {quote(password, safe='')}"))


def test_short_values_are_not_remembered() -> None:
    remember_secret("abc")
    assert redact_text("abc is a word") == "abc is a word"


def test_what_is_no_secret_is_left_alone() -> None:
    for text in (
        "postgres://localhost/wh",
        "postgres://me@localhost:5432/wh",
        "see https://example.org/a:b for more",
        "12:30 mail me@example.org",
        "SELECT a FROM t WHERE key = 1",
    ):
        assert redact_text(text) == text


def test_only_the_value_is_masked() -> None:
    assert redact_text("host=h password=x1 dbname=d") == f"host=h password={MASK} dbname=d"
    assert redact_text("a?password=x1&ssl=1") == f"a?password={MASK}&ssl=1"
    assert redact_text("('password=x1')") == f"('password={MASK}')"


@pytest.mark.parametrize(
    "name",
    [
        "password", "PASSWORD", "sasl_plain_password", "basic_auth_password", "secret_access_key",
        "access_key_id", "aws_secret_access_key", "api-key", "auth.token", "private_key", "dsn",
        "mypassword2",
    ],
)  # fmt: skip
def test_secret_fields(name: str) -> None:
    assert is_secret_field(name)
    assert redact(name, "x") == MASK
    assert redact(name, 12345) == MASK
    assert redact(name, None) is None


@pytest.mark.parametrize("name", ["user", "host", "keyboard", "primary_key", "tokenizer", "path"])
def test_fields_without_secrets(name: str) -> None:
    assert not is_secret_field(name)
    assert redact(name, "x") == "x"
    assert redact(name, 5432) == 5432


def test_a_reference_names_a_secret_without_holding_it() -> None:
    assert redact("password", "${PGPASSWORD}") == "${PGPASSWORD}"
    assert redact("password", "${PGPASSWORD:-hunter2}") == MASK
    assert redact("password", "x${PGPASSWORD}") == MASK


def test_concealed_text_is_text_that_does_not_show_itself() -> None:
    held = Concealed("hunter22", "h***")
    assert held == "hunter22"
    assert f"{held}" == "hunter22"
    assert (repr(held), str([held]), f"{held!r}") == ("'h***'", "['h***']", "'h***'")


def test_concealed_text_in_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("ematix_flow.test").info("fields %s", {"password": Concealed("hunter22")})
    assert "hunter22" not in caplog.text
