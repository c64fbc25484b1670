"""``webhook://host/path``: the event as JSON to any HTTP server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.observe.addresses import Address
from ematix_flow.observe.posting import post_json, shown_host
from ematix_flow.redaction import remember_secret

if TYPE_CHECKING:
    from ematix_flow.observe.events import AlertEvent

_TOKEN_LENGTH = 16


class WebhookAlerter:
    """Its query belongs to the receiver; a user and password become basic authentication."""

    def __init__(self, address: Address) -> None:
        address.need_host("webhook://host/path")
        protocol = "http" if address.scheme.endswith("http") else "https"
        authority, slash, tail = _split(address.rest)
        self._url = f"{protocol}://{authority.rpartition('@')[2]}{slash}{tail}"
        self._user, self._password = address.user, address.password
        for value in (*address.options.values(), address.path.rpartition("/")[2]):
            if len(value) >= _TOKEN_LENGTH:
                remember_secret(value)
        self.name = f"webhook ({shown_host(self._url)})"

    def notify(self, event: AlertEvent) -> None:
        """Post the event."""
        post_json(self._url, event.to_dict(), user=self._user, password=self._password)


def _split(rest: str) -> tuple[str, str, str]:
    end = min((i for i in map(rest.find, "/?#") if i >= 0), default=len(rest))
    return rest[:end], rest[end : end + 1], rest[end + 1 :]
