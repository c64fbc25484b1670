"""Takes a connection's URL apart without ever quoting it: a URL may hold a password."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, repr=False)
class UrlParts:
    """The parts of ``scheme://user:password@host:port/path?options``, decoded."""

    scheme: str
    user: str | None
    password: str | None
    host: str | None
    port: str | None
    path: str
    options: dict[str, str]


def split_url(url: str) -> UrlParts:
    """The parts of a URL. The last ``@`` before the path ends the user and password."""
    scheme, _, rest = url.partition("://")
    end = min((i for i in map(rest.find, "/?#") if i >= 0), default=len(rest))
    authority, tail = rest[:end], rest[end:].partition("#")[0]
    userinfo, at, server = authority.rpartition("@")
    user, colon, password = userinfo.partition(":")
    if server.startswith("["):
        host, _, after = server[1:].partition("]")
        port = after.removeprefix(":")
    else:
        host, _, port = server.partition(":")
    path, _, query = tail.partition("?")
    pairs = (pair.partition("=")[::2] for pair in query.split("&") if "=" in pair)
    return UrlParts(
        scheme=scheme,
        user=unquote(user) if at and user else None,
        password=unquote(password) if colon else None,
        host=host or None,
        port=port or None,
        path=unquote(path.lstrip("/")),
        options={unquote(name): unquote(value) for name, value in pairs},
    )
