"""One HTTP POST of JSON, and what its failure means."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ematix_flow.redaction import redact_text

SECONDS = 10.0
_TOO_MANY, _SERVER_ERROR = 429, 500
_LONGEST_ANSWER = 200


class Undelivered(Exception):
    """An alert did not get through. ``again`` says that another try may, ``after`` when."""

    def __init__(self, what: str, *, again: bool, after: float | None = None) -> None:
        super().__init__(redact_text(" ".join(what.split())))
        self.again = again
        self.after = after


class _StayThere(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET, and its secrets elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post_json(
    url: str,
    document: Mapping[str, Any],
    *,
    user: str | None = None,
    password: str | None = None,
    seconds: float = SECONDS,
) -> None:
    """Send a document; ``Undelivered`` if the other side did not take it."""
    headers = {"Content-Type": "application/json", "User-Agent": "ematix-flow"}
    if user is not None:
        login = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        headers["Authorization"] = f"Basic {login}"
    body = json.dumps(document, default=str).encode()
    try:
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - http or https by construction
        opener = urllib.request.build_opener(_StayThere)
        with opener.open(request, timeout=seconds) as answer:
            answer.read(_LONGEST_ANSWER)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(error) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        # Never the URL, whose path may be a secret.
        told = str(reason) if isinstance(reason, OSError) else type(reason).__name__
        again = not isinstance(reason, ValueError | ssl.SSLCertVerificationError)
        raise Undelivered(told or type(reason).__name__, again=again) from None


def _refused(error: urllib.error.HTTPError) -> Undelivered:
    try:
        said = error.read(_LONGEST_ANSWER).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException):
        said = ""
    answer = f"HTTP {error.code}" + (f" ({said})" if said else "")
    again = error.code == _TOO_MANY or error.code >= _SERVER_ERROR
    return Undelivered(answer, again=again, after=_seconds(error.headers.get("Retry-After")))


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.strip().isdecimal() else None


def shown_host(url: str) -> str:
    """The part of a URL that is no secret."""
    return urlsplit(url).hostname or ""
