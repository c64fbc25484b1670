"""``${…}`` references and the resolvers behind them.

``${NAME}`` and ``${NAME:-default}`` read the environment, ``${file:PATH}`` a file,
``${aws:NAME#FIELD}``, ``${vault:PATH#FIELD}`` and ``${gcp:NAME#FIELD}`` secret stores. References
are resolved at use time only, and every resolved value is remembered for redaction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from ematix_flow.errors import ConfigError, MissingSecret
from ematix_flow.redaction import remember_secret, remember_url_password
from ematix_flow.secret_stores import (
    AwsSecretsManagerResolver,
    GcpSecretManagerResolver,
    VaultResolver,
)

_REFERENCE = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<body>[^}]*)\}|(?P<open>\$\{)")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_RESERVED_IN_URL = re.compile(r"[@/?#\[\]\s]")


class Resolver(Protocol):
    """Turns what stands behind a prefix into the secret's value."""

    def resolve(self, reference: str) -> str:
        """The value of ``reference``, or ``MissingSecret``."""


@dataclass(frozen=True)
class FileResolver:
    """``${file:/run/secrets/password}``: the file's text without its last line break."""

    def resolve(self, reference: str) -> str:
        """Read the file."""
        try:
            return Path(reference).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise MissingSecret(
                f"cannot read the secret file {reference}: {reason}",
                fix="check the path and its permissions",
            ) from error


_resolvers: dict[str, Callable[[], Resolver]] = {
    "file": FileResolver,
    "aws": AwsSecretsManagerResolver,
    "vault": VaultResolver,
    "gcp": GcpSecretManagerResolver,
}


def register_resolver(prefix: str, resolver: Resolver) -> None:
    """Serve ``${prefix:…}`` references with ``resolver``."""
    _resolvers[prefix] = lambda: resolver


def unregister_resolver(prefix: str) -> None:
    """Forget the resolver behind a prefix."""
    _resolvers.pop(prefix, None)


def resolve_reference(reference: str) -> str:
    """The value of one reference, written without its ``${`` and ``}``."""
    variable = _VARIABLE.fullmatch(reference)
    if variable:
        value = os.environ.get(variable["name"])
        # As in a shell, ":-" also replaces an empty value.
        if not value and variable["default"] is not None:
            value = variable["default"]
        if value is None:
            raise MissingSecret(
                f"environment variable {variable['name']} is not set",
                # Not NAME=…, which would come out masked.
                fix="export it, or give the reference a default as in ${VAR:-default}",
            )
    else:
        prefix, colon, rest = reference.partition(":")
        if not colon or prefix not in _resolvers:
            known = ", ".join(f"${{{p}:…}}" for p in sorted(_resolvers))
            raise ConfigError(
                f"${{{reference}}} is not a reference this version understands",
                fix=f"use ${{VAR}}, ${{VAR:-default}} or one of {known}",
            )
        value = _resolvers[prefix]().resolve(rest)
        remember_secret(value)
    remember_url_password(value)
    return value


def expand(value: str) -> str:
    """The text with every ``${…}`` reference replaced; ``$${`` stands for a plain ``${``."""
    return _REFERENCE.sub(_value_of, value)


def expand_url(url: str) -> str:
    """The same for a URL: a password may hold ``@`` or ``/`` without breaking the URL apart."""
    # References count as letters here, so that only the URL's own punctuation shapes it.
    shape = _REFERENCE.sub(lambda match: "x" * len(match[0]), url)
    scheme, separator, _ = shape.partition("://")
    start = len(scheme + separator) if separator else 0
    end = min((i for i in (shape.find(c, start) for c in "/?#") if i >= 0), default=len(shape))
    userinfo_end = shape.rfind("@", start, end)

    def replace(match: re.Match[str]) -> str:
        value = _value_of(match)
        inside = start <= match.start() < userinfo_end
        return quote(value, safe="") if inside and _RESERVED_IN_URL.search(value) else value

    return _REFERENCE.sub(replace, url)


def _value_of(match: re.Match[str]) -> str:
    if match["escape"]:
        return "${"
    if match["open"]:
        raise ConfigError("a ${…} reference has no closing brace", fix="add } after its name")
    if "${" in match["body"]:
        raise ConfigError(
            "a ${…} reference cannot stand inside another", fix="set one variable for the whole"
        )
    return resolve_reference(match["body"])
