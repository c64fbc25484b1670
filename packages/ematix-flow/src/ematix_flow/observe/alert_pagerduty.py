"""``pagerduty://key``: an incident per pipeline, resolved when the pipeline recovers."""

from __future__ import annotations

import hashlib
import socket
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError
from ematix_flow.observe.addresses import Address
from ematix_flow.observe.posting import post_json, shown_host
from ematix_flow.redaction import remember_secret

if TYPE_CHECKING:
    from ematix_flow.observe.events import AlertEvent

ENDPOINT = "https://events.pagerduty.com/v2/enqueue"
SEVERITIES = ("critical", "error", "warning", "info")
_LONGEST_KEY, _LONGEST_SUMMARY = 255, 1_024


class PagerDutyAlerter:
    """Events of the API, version 2."""

    def __init__(self, address: Address) -> None:
        self._key = address.need_host("pagerduty://routing-key")
        remember_secret(self._key)
        address.check_options("service", "severity", "endpoint")
        address.check_no_path()
        address.check_no_login()
        self._service = address.options.get("service", "ematix-flow")
        self._severity = address.options.get("severity", "error")
        if self._severity not in SEVERITIES:
            raise ConfigError(
                f"alerter pagerduty:// knows no severity {self._severity!r}",
                fix=nearest(self._severity, SEVERITIES),
            )
        self._endpoint = address.options.get("endpoint", ENDPOINT)
        if not self._endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                "endpoint= of alerter pagerduty:// is no URL",
                fix="write endpoint=https://host/path",
            )
        self.name = f"pagerduty ({shown_host(self._endpoint)})"

    def notify(self, event: AlertEvent) -> None:
        """Open, refresh or resolve the pipeline's incident."""
        document: dict[str, Any] = {
            "routing_key": self._key,
            "event_action": "resolve" if event.is_good_news else "trigger",
            "dedup_key": self._incident(event.pipeline),
        }
        if not event.is_good_news:
            document["payload"] = {
                "summary": event.text[:_LONGEST_SUMMARY],
                "source": event.host or socket.gethostname(),
                "severity": "critical" if event.gave_up else self._severity,
                "timestamp": event.timestamp.isoformat(),
                "component": event.pipeline,
                "group": self._service,
                "class": event.kind,
                "custom_details": event.to_dict(),
            }
        post_json(self._endpoint, document)

    def _incident(self, pipeline: str) -> str:
        key = f"{self._service}/{pipeline}"
        if len(key) <= _LONGEST_KEY:
            return key
        return hashlib.sha256(key.encode()).hexdigest()
