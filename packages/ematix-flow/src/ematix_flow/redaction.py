"""Keeps secrets out of every output: by field name, by URL shape, and by value.

Values that were resolved from ``${…}`` references or that stand in secret fields are
remembered here for the life of the process, so that an error text or a log line that quotes
one comes out masked.
"""

from __future__ import annotations

import json
import re
from urllib.parse import quote, unquote

MASK = "***"

_SECRET_SEGMENTS = ("password", "passwd", "pwd", "secret", "token", "key", "credential", "dsn")
_NOT_SECRET = ("message_key_column", "partition_key_prefix", "primary_key", "private_key_id")
_MIN_REMEMBERED = 4

# A user name may hold "@" and a password anything, so both reach as far as they can: masking too
# much is the safe mistake. Inside running text a quote or a blank ends the URL.
# A scheme has an end, too: without one, a long word would be tried from each of its letters.
_SCHEME = r"[a-zA-Z][\w+.-]{0,40}://"
_URL_IN_TEXT = re.compile(rf"(?P<head>{_SCHEME}[^\s:/'\"]*):(?P<password>[^\s'\"]*)@")
_WHOLE_URL = re.compile(rf"(?P<head>{_SCHEME}[^:/]*):(?P<password>.*)@", re.DOTALL)

_SENSITIVE = (
    r"[\w.-]*(?:password|passwd|pwd|secret|token|credential|api[_-]?key|access[_-]?key)[\w.-]*"
)
_CLOSING = r"(?=[\"')\]},;]*(?:\s|$))"
_QUERY_VALUE = re.compile(
    rf"(?P<key>[?&]{_SENSITIVE})(?P<sep>=)(?P<value>[^\s&]+?)(?:(?=&)|{_CLOSING})", re.IGNORECASE
)
_KEY_VALUE = re.compile(
    rf"(?P<key>(?<![?&\w.-]){_SENSITIVE})(?P<sep>[\"']?\s*[=:]\s*)"
    rf"(?P<value>\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\S+?{_CLOSING})",
    re.IGNORECASE | re.DOTALL,
)

_remembered: set[str] = set()


class Concealed(str):
    """Text that shows itself masked in ``repr()``, and so in every container and traceback."""

    shown: object

    def __new__(cls, text: str, shown: object = MASK) -> Concealed:
        """The text, and what is shown in its place."""
        held = super().__new__(cls, text)
        held.shown = shown
        return held

    def __repr__(self) -> str:
        return repr(self.shown)


def is_secret_field(name: str) -> bool:
    """Whether a field of this name holds a secret."""
    lowered = name.lower()
    if lowered in _NOT_SECRET:
        return False
    segments = re.split(r"[_\-.]", lowered)
    return any(s in _SECRET_SEGMENTS for s in segments) or "password" in lowered


def remember_secret(value: str) -> None:
    """Mask this value wherever it appears from now on, quoted or escaped too."""
    if len(value) >= _MIN_REMEMBERED:
        text = str(value)
        _remembered.update((text, quote(text, safe=""), repr(text)[1:-1], json.dumps(text)[1:-1]))


def remember_url_password(url: str) -> None:
    """Mask the password inside a URL wherever it appears from now on."""
    for match in _WHOLE_URL.finditer(url):
        password = match["password"]
        remember_secret(password)
        remember_secret(unquote(password))


def redact_text(text: str) -> str:
    """The text with every known or recognisable secret masked."""
    return _masked(text, _URL_IN_TEXT)


def redact(field: str, value: object) -> object:
    """A field's value, safe to show."""
    if value is None or isinstance(value, bool):
        return value
    if is_secret_field(field):
        return value if isinstance(value, str) and _only_references(value) else MASK
    return _masked(value, _WHOLE_URL) if isinstance(value, str) else value


def _masked(text: str, url: re.Pattern[str]) -> str:
    for secret in sorted(_remembered, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = url.sub(_without_password, text)
    text = _QUERY_VALUE.sub(rf"\g<key>\g<sep>{MASK}", text)
    return _KEY_VALUE.sub(rf"\g<key>\g<sep>{MASK}", text)


def _without_password(url: re.Match[str]) -> str:
    kept = url["password"] if _only_references(url["password"]) else MASK
    return f"{url['head']}:{kept}@"


def _only_references(value: str) -> bool:
    """A ``${VAR}`` reference names a secret without holding it."""
    return re.fullmatch(r"\$\{[^}:]+\}", value) is not None
