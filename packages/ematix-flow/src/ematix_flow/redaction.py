"""Keeps secrets out of every output: by field name, by URL shape, and by value.

Values that were resolved from ``${…}`` references or that stand in secret fields are
remembered here for the life of the process, so that an error text or a log line that quotes
one comes out masked.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

MASK = "***"

_SECRET_SEGMENTS = ("password", "passwd", "pwd", "secret", "token", "key", "credential", "dsn")
_NOT_SECRET = ("message_key_column", "partition_key_prefix", "primary_key", "private_key_id")
_MIN_REMEMBERED = 4

_URL_USERINFO = re.compile(r"(?P<head>[a-zA-Z][\w+.-]*://[^\s:/@'\"]*):(?P<password>[^\s'\"]*)@")
_SECRET_WORD = (
    r"[\w.-]*(?:password|passwd|pwd|secret|token|credential|api[_-]?key|access[_-]?key)[\w.-]*"
)
_KEY_VALUE = re.compile(
    rf"(?P<key>\b{_SECRET_WORD})(?P<sep>[\"']?\s*[=:]\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&)\"']+)",
    re.IGNORECASE,
)

_remembered: set[str] = set()


def is_secret_field(name: str) -> bool:
    """Whether a field of this name holds a secret."""
    lowered = name.lower()
    if lowered in _NOT_SECRET:
        return False
    segments = re.split(r"[_\-.]", lowered)
    return any(s in _SECRET_SEGMENTS for s in segments) or "password" in lowered


def remember_secret(value: str) -> None:
    """Mask this value wherever it appears from now on."""
    if len(value) >= _MIN_REMEMBERED:
        _remembered.add(value)
        _remembered.add(quote(value, safe=""))


def remember_url_password(url: str) -> None:
    """Mask the password inside a URL wherever it appears from now on."""
    for match in _URL_USERINFO.finditer(url):
        password = match["password"]
        remember_secret(password)
        remember_secret(unquote(password))


def redact_text(text: str) -> str:
    """The text with every known or recognisable secret masked."""
    for secret in sorted(_remembered, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _URL_USERINFO.sub(rf"\g<head>:{MASK}@", text)
    return _KEY_VALUE.sub(rf"\g<key>\g<sep>{MASK}", text)


def redact(field: str, value: object) -> object:
    """A field's value, safe to show."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if is_secret_field(field):
        return value if isinstance(value, str) and _only_references(value) else MASK
    return redact_text(value) if isinstance(value, str) else value


def _only_references(value: str) -> bool:
    """A ``${VAR}`` reference names a secret without holding it."""
    return re.fullmatch(r"\$\{[^}:]+\}", value) is not None
