"""``${…}`` references: the environment, files, AWS Secrets Manager, resolvers of one's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.errors import ConfigError, MissingExtra, MissingSecret
from ematix_flow.redaction import redact_text
from ematix_flow.secrets import (
    expand,
    expand_url,
    register_resolver,
    resolve_reference,
    unregister_resolver,
)
from ematix_flow.urls import split_url

SECRETS = {
    "prod/plain": {"SecretString": "aws-plain-secret"},
    "prod/pg": {"SecretString": json.dumps({"user": "me", "password": "aws-json-secret", "n": 5})},
    "prod/bytes": {"SecretBinary": "AAAA"},
}


class SecretsManager(BaseHTTPRequestHandler):
    """Speaks as much of the AWS JSON protocol as reading a secret needs."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = SECRETS.get(asked["SecretId"])
        if self.headers["X-Amz-Target"] != "secretsmanager.GetSecretValue" or found is None:
            body = {"__type": "ResourceNotFoundException", "message": "no such secret"}
        else:
            body = {"Name": asked["SecretId"], **found}
        payload = json.dumps(body).encode()
        self.send_response(200 if found else 400)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SecretsManager)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_A", "db-1")
    monkeypatch.setenv("NAME_A", "shop")
    assert expand("postgres://${HOST_A}/${NAME_A}?x=${HOST_A}") == "postgres://db-1/shop?x=db-1"
    assert expand("no reference") == "no reference"


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSET_A", raising=False)
    monkeypatch.setenv("EMPTY_A", "")
    assert expand("${UNSET_A:-here}") == "here"
    assert expand("${EMPTY_A:-here}") == "here"
    assert expand("[${UNSET_A:-}]") == "[]"
    assert expand("${UNSET_A:-a:-b}") == "a:-b"
    assert expand("[${EMPTY_A}]") == "[]"
    monkeypatch.setenv("UNSET_A", "there")
    assert expand("${UNSET_A:-here}") == "there"


def test_an_unset_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSET_A", raising=False)
    with pytest.raises(MissingSecret) as caught:
        expand("${UNSET_A}")
    assert caught.value.what == "environment variable UNSET_A is not set"
    assert "export it" in caught.value.fix
    assert "default" in caught.value.fix


def test_escapes() -> None:
    assert expand("$${HOME}") == "${HOME}"
    assert expand("cost: 5$ and $HOME") == "cost: 5$ and $HOME"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${}", "${} is not a reference this version understands"),
        ("${1A}", "${1A} is not a reference"),
        ("${safe:secret/x}", "${safe:secret/x} is not a reference"),
        ("${A-default}", "${A-default} is not a reference"),
        ("${A", "a ${…} reference has no closing brace"),
        ("${A:-${B}}", "a ${…} reference cannot stand inside another"),
    ],
)
def test_what_is_no_reference(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(text)
    assert caught.value.what.startswith(says)
    assert caught.value.fix


def test_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b" file-secret \r\n")
    assert expand(f"${{file:{secret}}}") == " file-secret "
    assert "file-secret" not in redact_text("the file-secret  is out:  file-secret ")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not UTF-8 text"),
    ],
)
def test_unreadable_files(tmp_path: Path, make: object, says: str) -> None:
    path = tmp_path / "secret"
    make(path)  # type: ignore[operator]
    with pytest.raises(MissingSecret) as caught:
        expand(f"${{file:{path}}}")
    assert caught.value.what == f"cannot read the secret file {path}: {says}"
    assert caught.value.fix == "check the path and its permissions"


@pytest.mark.usefixtures("aws")
def test_aws_secrets() -> None:
    assert expand("${aws:prod/plain}") == "aws-plain-secret"
    assert expand("u=${aws:prod/pg#user} p=${aws:prod/pg#password}") == "u=me p=aws-json-secret"
    assert expand("${aws:prod/pg#n}") == "5"
    assert redact_text("aws-plain-secret aws-json-secret") == "*** ***"


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("aws:prod/nothing", "cannot read the AWS secret 'prod/nothing'"),
        ("aws:prod/pg#pasword", "the AWS secret 'prod/pg' has no field 'pasword'"),
        ("aws:prod/plain#password", "the AWS secret 'prod/plain' has no field 'password'"),
        ("aws:prod/bytes", "the AWS secret 'prod/bytes' holds bytes, not text"),
    ],
)
def test_aws_secrets_that_are_not_there(reference: str, says: str) -> None:
    with pytest.raises(MissingSecret) as caught:
        resolve_reference(reference)
    assert caught.value.what.startswith(says)
    assert caught.value.fix
    assert "aws-json-secret" not in str(caught.value)


def test_aws_without_a_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(
        MissingSecret, match="cannot read the AWS secret 'x': You must specify a re"
    ):
        resolve_reference("aws:x")


def test_aws_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(MissingExtra, match=r'pip install "ematix-flow\[secrets-aws\]"'):
        resolve_reference("aws:x")


def test_a_resolver_of_ones_own() -> None:
    class Reversing:
        def resolve(self, reference: str) -> str:
            return reference[::-1]

    register_resolver("mirror", Reversing())
    try:
        assert expand("${mirror:terces-rorrim}") == "mirror-secret"
        assert redact_text("mirror-secret") == "***"
    finally:
        unregister_resolver("mirror")
    unregister_resolver("mirror")
    with pytest.raises(ConfigError, match="mirror"):
        expand("${mirror:x}")


@given(
    password=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(
        # What is valid inside a URL is taken as already encoded.
        lambda p: "%" not in p or any(c in p for c in "@/?#[] ")
    )
)
def test_any_password_may_stand_in_a_url(password: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANY_PASSWORD", password)
        url = expand_url("postgres://me:${ANY_PASSWORD}@db:5432/shop?sslmode=require")
    parts = split_url(url)
    assert (parts.user, parts.password) == ("me", password)
    assert (parts.host, parts.port, parts.path) == ("db", "5432", "shop")
    assert parts.options == {"sslmode": "require"}


def test_a_url_made_of_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLE", "postgres://me:p%40ss@db/shop")
    monkeypatch.setenv("REST", "me:p%40ss@db/shop")
    monkeypatch.setenv("ENCODED", "p%40ss")
    monkeypatch.setenv("NAME", "a/b")
    whole = "postgres://me:p%40ss@db/shop"
    assert expand_url("${WHOLE}") == whole
    assert expand_url("postgres://${REST}") == whole
    assert expand_url("postgres://me:${ENCODED}@db/shop") == whole
    assert expand_url("postgres://db/${NAME}") == "postgres://db/a/b"
