"""``stdout://`` and ``stderr://``: a line for whoever looks on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ematix_flow.observe.addresses import Address

if TYPE_CHECKING:
    from ematix_flow.observe.events import AlertEvent


class ConsoleAlerter:
    """Writes lines to standard error: standard output belongs to results."""

    def __init__(self, address: Address) -> None:
        address.check_bare()
        self.name = f"{address.scheme}://"

    def notify(self, event: AlertEvent) -> None:
        """Print a line."""
        moment = event.timestamp.isoformat(timespec="seconds").replace("+00:00", "Z")
        print(f"flow: alert: {moment} {event.text}", file=sys.stderr, flush=True)  # noqa: T201 - its job
