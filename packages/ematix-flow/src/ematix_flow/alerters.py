"""The public door to alerts: what they say, alerters of your own, and those behind URLs."""

from __future__ import annotations

from ematix_flow.observe.alerts import (
    Alerter,
    active_alerters,
    clear_alerters,
    register_alerter,
)
from ematix_flow.observe.alerts import open_alerter as from_url
from ematix_flow.observe.events import AlertEvent

__all__ = [
    "AlertEvent",
    "Alerter",
    "active_alerters",
    "clear_alerters",
    "from_url",
    "register_alerter",
]
