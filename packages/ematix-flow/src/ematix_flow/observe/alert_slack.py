"""``slack://hooks.slack.com/services/…``: a message by an incoming webhook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.errors import ConfigError
from ematix_flow.observe.addresses import Address
from ematix_flow.observe.posting import post_json, shown_host
from ematix_flow.redaction import remember_secret

if TYPE_CHECKING:
    from ematix_flow.observe.events import AlertEvent

_SIGNS = {
    "failed": ":red_circle:",
    "gave_up": ":rotating_light:",
    "recovered": ":large_green_circle:",
    "sla_breached": ":hourglass:",
    "quality_failed": ":warning:",
}


class SlackAlerter:
    """Whoever knows the path may post, so it is never shown."""

    def __init__(self, address: Address) -> None:
        address.need_host("slack://hooks.slack.com/services/…")
        address.check_options()
        address.check_no_login()
        if not address.path:
            raise ConfigError(
                f"alerter {address.scheme}:// has no path",
                fix="copy the whole webhook URL from Slack",
            )
        for secret in (address.path, address.path.rpartition("/")[2]):
            remember_secret(secret)
        self._url = f"https://{address.rest}"
        self.name = f"slack ({shown_host(self._url)})"

    def notify(self, event: AlertEvent) -> None:
        """Post a message."""
        text = event.text
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            text = text.replace(character, entity)
        post_json(self._url, {"text": f"{_SIGNS[event.kind]} {text}"})
