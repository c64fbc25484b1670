"""Secret stores behind ``${…}`` references: AWS Secrets Manager, HashiCorp Vault, Google Cloud.

A store holds a text, or a JSON document of which ``#field`` names a part.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ematix_flow.errors import MissingExtra, MissingSecret

_SECONDS = 10.0
_FORBIDDEN, _MISSING = 403, 404
_FIELD = "check the part after # in the reference"


def field_of(store: str, name: str, held: object, wanted: str) -> str:
    """One field of a secret that is a document."""
    try:
        document = json.loads(held) if isinstance(held, str) else held
        return str(document[wanted])  # type: ignore[index]  # told below if it is none
    except (ValueError, KeyError, TypeError) as error:
        raise MissingSecret(
            f"the {store} secret {name!r} has no field {wanted!r}", fix=_FIELD
        ) from error


@dataclass(frozen=True)
class AwsSecretsManagerResolver:
    """``${aws:name#field}``: a secret, or one field of a JSON secret."""

    client: Any = None

    def resolve(self, reference: str) -> str:
        """Ask AWS Secrets Manager."""
        name, _, wanted = reference.partition("#")
        value = self._fetch(name)
        return field_of("AWS", name, value, wanted) if wanted else value

    def _fetch(self, name: str) -> str:
        try:
            import boto3
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise MissingExtra("a ${aws:…} reference", "secrets-aws") from error
        try:
            client = self.client or boto3.client("secretsmanager")
            answer = client.get_secret_value(SecretId=name)
        except (BotoCoreError, ClientError) as error:
            raise MissingSecret(
                f"cannot read the AWS secret {name!r}: {error}",
                fix="check its name, the region and your AWS credentials",
            ) from error
        if "SecretString" not in answer:
            raise MissingSecret(
                f"the AWS secret {name!r} holds bytes, not text", fix="store it as text"
            )
        return str(answer["SecretString"])


@dataclass(frozen=True)
class VaultResolver:
    """``${vault:secret/prod/pg#password}``: a field of a secret in a key/value engine of Vault.

    ``VAULT_ADDR``, ``VAULT_TOKEN`` or ``~/.vault-token``, ``VAULT_NAMESPACE``, ``VAULT_CACERT`` say
    where it is and who asks, as they do for Vault's own command.
    """

    def resolve(self, reference: str) -> str:
        """Ask Vault."""
        path, _, wanted = reference.partition("#")
        path = path.strip("/")
        if "/" not in path:
            raise MissingSecret(
                f"${{vault:{reference}}} names no secret",
                fix="write engine, path and field: ${vault:secret/prod/pg#password}",
            )
        document = self._document(path)
        if wanted:
            return field_of("Vault", path, document, wanted)
        if len(document) != 1:
            raise MissingSecret(
                f"the Vault secret {path!r} has {len(document)} fields",
                fix=f"name one of them: ${{vault:{path}#{min(document, default='field')}}}",
            )
        return str(next(iter(document.values())))

    def _document(self, path: str) -> dict[str, Any]:
        mount, version = self._mount(path)
        rest = path.removeprefix(mount).strip("/")
        place = f"{mount}data/{rest}" if version == "2" else f"{mount}{rest}"
        status, answer = self._get(place)
        if status == _FORBIDDEN:
            raise MissingSecret(
                f"Vault does not let this token read {path!r}",
                fix="set VAULT_TOKEN to one that may, or have its policy extended",
            )
        data = answer.get("data") or {}
        found = data.get("data") if version == "2" else data
        if status == _MISSING or not found:
            raise MissingSecret(
                f"Vault has no secret {path!r}", fix="check the engine and the path"
            )
        return dict(found)

    def _mount(self, path: str) -> tuple[str, str]:
        """The engine that holds a path, and its version; one that is not told is of version 2."""
        status, answer = self._get(f"sys/internal/ui/mounts/{path}")
        data = answer.get("data") or {}
        if status >= 400 or "path" not in data:  # noqa: PLR2004 - the first that is no answer
            return path.partition("/")[0] + "/", "2"
        return str(data["path"]), str((data.get("options") or {}).get("version") or "1")

    @staticmethod
    def _get(place: str) -> tuple[int, dict[str, Any]]:
        import ssl
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        address = os.environ.get("VAULT_ADDR", "").rstrip("/")
        if not address.startswith(("http://", "https://")):
            raise MissingSecret(
                "a ${vault:…} reference needs VAULT_ADDR", fix="set it to https://host:8200"
            )
        headers = {"X-Vault-Token": _vault_token()}
        if namespace := os.environ.get("VAULT_NAMESPACE"):
            headers["X-Vault-Namespace"] = namespace
        request = Request(f"{address}/v1/{quote(place)}", headers=headers)  # noqa: S310 - checked
        try:
            trusted = ssl.create_default_context(cafile=os.environ.get("VAULT_CACERT") or None)
            with urlopen(request, timeout=_SECONDS, context=trusted) as answer:  # noqa: S310 - checked
                return int(answer.status), json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, {}
        except (URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise MissingSecret(
                f"Vault at {address} does not answer: {reason}",
                fix="check VAULT_ADDR and VAULT_CACERT",
            ) from error


def _vault_token() -> str:
    token = os.environ.get("VAULT_TOKEN", "")
    if token:
        return token
    try:
        return (Path.home() / ".vault-token").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise MissingSecret(
            "a ${vault:…} reference needs a token", fix="set VAULT_TOKEN, or log in: vault login"
        ) from error


@dataclass(frozen=True)
class GcpSecretManagerResolver:
    """``${gcp:name#field}``: the latest version of a secret of the project of the credentials.

    ``${gcp:projects/shop/secrets/pg/versions/3}`` names it in full.
    """

    session: Any = None
    project: str | None = None
    endpoint: str = "https://secretmanager.googleapis.com"

    def resolve(self, reference: str) -> str:
        """Ask Google Cloud."""
        name, _, wanted = reference.partition("#")
        value = self._fetch(name)
        return field_of("Google Cloud", name, value, wanted) if wanted else value

    def _fetch(self, name: str) -> str:
        try:
            import google.auth
            from google.auth.exceptions import GoogleAuthError
            from google.auth.transport.requests import AuthorizedSession
            from requests import RequestException
        except ImportError as error:
            raise MissingExtra("a ${gcp:…} reference", "secrets-gcp") from error
        try:
            session, project = self.session, self.project
            if session is None:
                credentials, project = google.auth.default(
                    scopes=["https://www.googleapis.com/auth/cloud-platform"]
                )
                session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]  # untyped
            url = f"{self.endpoint}/v1/{quote(self._path(name, project))}:access"
            answer = session.get(url, timeout=_SECONDS)
        except (GoogleAuthError, RequestException) as error:
            raise MissingSecret(
                f"cannot read the Google Cloud secret {name!r}: {error}",
                fix="check your credentials: gcloud auth application-default login",
            ) from error
        if answer.status_code == _MISSING:
            raise MissingSecret(
                f"Google Cloud has no secret {name!r}", fix="check its name and its project"
            )
        if not answer.ok:
            raise MissingSecret(
                f"Google Cloud does not give the secret {name!r}: HTTP {answer.status_code}",
                fix="give these credentials the role Secret Manager Secret Accessor",
            )
        try:
            return base64.b64decode(answer.json()["payload"]["data"]).decode()
        except UnicodeDecodeError as error:
            raise MissingSecret(
                f"the Google Cloud secret {name!r} holds bytes, not text", fix="store it as text"
            ) from error

    @staticmethod
    def _path(name: str, project: str | None) -> str:
        if name.startswith("projects/"):
            return name if "/versions/" in name else f"{name}/versions/latest"
        project = os.environ.get("GOOGLE_CLOUD_PROJECT") or project
        if not project:
            raise MissingSecret(
                f"the Google Cloud secret {name!r} has no project",
                fix="set GOOGLE_CLOUD_PROJECT, or write ${gcp:projects/PROJECT/secrets/NAME}",
            )
        return f"projects/{project}/secrets/{name}/versions/latest"
