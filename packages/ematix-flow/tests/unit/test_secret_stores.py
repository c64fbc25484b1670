"""Vault and Google Cloud Secret Manager, at their HTTP boundary."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.errors import MissingSecret
from ematix_flow.redaction import redact_text
from ematix_flow.secret_stores import GcpSecretManagerResolver
from ematix_flow.secrets import expand, register_resolver

TOKEN = "hvs.token-of-the-test"
VERSION_2 = {"data": {"path": "kv/", "options": {"version": "2"}}}
VERSION_1 = {"data": {"path": "old/", "options": {"version": "1"}}}
ANSWERS: dict[str, Any] = {
    "/v1/sys/internal/ui/mounts/kv/prod/pg": VERSION_2,
    "/v1/kv/data/prod/pg": {"data": {"data": {"user": "me", "password": "vault-pa55"}}},
    "/v1/sys/internal/ui/mounts/kv/one": VERSION_2,
    "/v1/kv/data/one": {"data": {"data": {"only": "vault-single"}}},
    "/v1/sys/internal/ui/mounts/kv/gone": VERSION_2,
    "/v1/sys/internal/ui/mounts/old/pg": VERSION_1,
    "/v1/old/pg": {"data": {"password": "vault-v1-pa55"}},
    # Whoever may not ask for mounts can still read what is theirs.
    "/v1/secret/data/app": {"data": {"data": {"key": "vault-guessed"}}},
}
STORED = {
    "projects/shop/secrets/plain/versions/latest": b"gcp-plain",
    "projects/shop/secrets/pg/versions/latest": b'{"password": "gcp-json-pa55"}',
    "projects/other/secrets/plain/versions/3": b"gcp-third",
    "projects/shop/secrets/bytes/versions/latest": b"\xff\xfe",
}


class Store(BaseHTTPRequestHandler):
    """Answers as Vault does, and as Google Cloud does."""

    def do_GET(self) -> None:
        if self.path.endswith(":access"):
            held = STORED.get(self.path.removeprefix("/v1/").removesuffix(":access"))
            data = base64.b64encode(held or b"").decode()
            self._say(404 if held is None else 200, {"payload": {"data": data}})
        elif self.headers["X-Vault-Token"] != TOKEN:
            self._say(403, {"errors": ["permission denied"]})
        else:
            found = ANSWERS.get(self.path)
            self._say(404 if found is None else 200, found or {"errors": []})

    def _say(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("VAULT_ADDR", address)
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("VAULT_NAMESPACE", "VAULT_CACERT", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def gcp(store: str) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession

    session = AuthorizedSession(AnonymousCredentials())
    register_resolver("gcp", GcpSecretManagerResolver(session, "shop", store))


@pytest.mark.usefixtures("store")
def test_vault_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert expand("${vault:kv/prod/pg#user}:${vault:kv/prod/pg#password}") == "me:vault-pa55"
    assert expand("${vault:kv/one}") == "vault-single"
    assert expand("${vault:old/pg#password}") == "vault-v1-pa55"
    assert expand("${vault:secret/app#key}") == "vault-guessed"
    assert redact_text("it was vault-pa55 or vault-single") == "it was *** or ***"
    monkeypatch.delenv("VAULT_TOKEN")
    (tmp_path / ".vault-token").write_text(f"{TOKEN}\n")
    assert expand("${vault:kv/one}") == "vault-single"


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("vault:kv/prod/pg#pasword", "the Vault secret 'kv/prod/pg' has no field 'pasword'"),
        ("vault:kv/prod/pg", "the Vault secret 'kv/prod/pg' has 2 fields; name one of them"),
        ("vault:kv/gone#x", "Vault has no secret 'kv/gone'; check the engine and the path"),
        ("vault:kv", "names no secret; write engine, path and field"),
    ],
)
def test_vault_secrets_that_are_not_there(reference: str, says: str) -> None:
    with pytest.raises(MissingSecret) as caught:
        expand(f"${{{reference}}}")
    assert says in str(caught.value)
    assert "vault-pa55" not in str(caught.value)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("VAULT_TOKEN", "hvs.wrong-token", "Vault does not let this token read 'kv/one'"),
        ("VAULT_TOKEN", "", "a ${vault:…} reference needs a token"),
        ("VAULT_ADDR", "", "a ${vault:…} reference needs VAULT_ADDR"),
        ("VAULT_ADDR", "http://127.0.0.1:1", "Vault at http://127.0.0.1:1 does not answer"),
        ("VAULT_CACERT", "/no/such/file.pem", "does not answer: "),
    ],
)
def test_vault_that_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(MissingSecret) as caught:
        expand("${vault:kv/one}")
    assert says in str(caught.value)
    assert "hvs." not in str(caught.value)


@pytest.mark.usefixtures("gcp")
def test_secrets_of_google_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expand("${gcp:plain} ${gcp:pg#password}") == "gcp-plain gcp-json-pa55"
    assert expand("${gcp:projects/other/secrets/plain/versions/3}") == "gcp-third"
    assert redact_text("gcp-plain") == "***"
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "other")
    for reference, says in {
        "gcp:plain": "Google Cloud has no secret 'plain'",
        "gcp:projects/shop/secrets/bytes": "holds bytes, not text",
        "gcp:projects/shop/secrets/pg#user": "has no field 'user'",
    }.items():
        with pytest.raises(MissingSecret, match=says):
            expand(f"${{{reference}}}")


@pytest.mark.usefixtures("store")
def test_google_cloud_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(MissingSecret, match="cannot read the Google Cloud secret 'plain'"):
        expand("${gcp:plain}")
