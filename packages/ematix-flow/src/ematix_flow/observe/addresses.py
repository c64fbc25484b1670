"""The URLs of alerters, metrics and traces: taken apart, checked, and shown without secrets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.redaction import remember_secret, remember_url_password
from ematix_flow.secrets import expand_url
from ematix_flow.urls import split_url

_HIGHEST_PORT = 65_535


@dataclass(frozen=True)
class Address:
    """One URL of a kind of receiver; ``what`` says in words what is addressed."""

    what: str
    scheme: str
    # Any of these may hold a secret.
    url: str = field(repr=False)
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    host: str | None = field(repr=False)
    port: int | None
    path: str = field(repr=False)
    options: Mapping[str, str] = field(repr=False)

    @property
    def rest(self) -> str:
        """All that follows ``://``."""
        return self.url.partition("://")[2]

    def need_host(self, example: str) -> str:
        """The host; an error that shows an example where there is none."""
        if not self.host:
            raise ConfigError(f"{self.what} {self.scheme}:// names no host", fix=f"write {example}")
        return self.host

    def check_options(self, *known: str) -> None:
        """Refuse an option that would say nothing."""
        for name in self.options:
            if name not in known:
                fix = nearest(name, known) if known else "leave it out: it takes none"
                raise UnknownName(f"{self.what} {self.scheme}:// has no option {name!r}", fix=fix)

    def check_no_path(self) -> None:
        """Refuse a path that would say nothing."""
        if self.path:
            raise ConfigError(
                f"{self.what} {self.scheme}:// takes no path", fix="leave out what follows the host"
            )

    def check_no_login(self) -> None:
        """Refuse a user or password that nobody would be shown."""
        if self.user is not None or self.password is not None:
            raise ConfigError(
                f"{self.what} {self.scheme}:// takes no user and no password",
                fix="leave out what precedes the @",
            )

    def check_bare(self) -> None:
        """Refuse whatever follows ``://``."""
        self.check_options()
        if self.rest:
            raise ConfigError(
                f"{self.what} {self.scheme}:// takes nothing after it",
                fix=f"write {self.scheme}://",
            )

    def flag(self, name: str, *, default: bool) -> bool:
        """An option that is 1 or 0."""
        given = self.options.get(name, "").lower()
        if name not in self.options:
            return default
        if given not in ("1", "0", "true", "false"):
            raise ConfigError(
                f"{name}= of {self.what} {self.scheme}:// must be 1 or 0", fix=f"write {name}=1"
            )
        return given in ("1", "true")


def parse_address(url: str, *, what: str, schemes: Collection[str]) -> Address:
    """The parts of a URL, its ``${…}`` references resolved, its secrets remembered."""
    resolved = expand_url(url)
    scheme, separator, _ = resolved.partition("://")
    if not separator:
        raise ConfigError(
            f"{what} needs a URL, with :// in it",
            fix=f"begin it with one of {', '.join(f'{s}://' for s in sorted(schemes))}",
        )
    if scheme not in schemes:
        raise UnknownName(f"there is no {what} {scheme}://", fix=nearest(scheme, schemes))
    remember_url_password(resolved)
    parts = split_url(resolved)
    if parts.password:
        remember_secret(parts.password)
    query = resolved.partition("#")[0].partition("?")[2]
    return Address(
        what=what,
        scheme=scheme,
        url=resolved,
        user=parts.user,
        password=parts.password,
        host=parts.host,
        port=_port(parts.port, f"{what} {scheme}://"),
        path=parts.path,
        # An address of an e-mail may hold a plus sign, which a form would take for a blank.
        options=dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True)),
    )


def _port(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise ConfigError(f"the port of {where} is no port", fix="write a number up to 65535")
    return int(text)
