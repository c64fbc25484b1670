"""What sets a run apart from an ordinary one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ematix_flow.backends.base import Ask, Inspect, Load
from ematix_flow.modes.window import Window


@dataclass(frozen=True)
class Purpose:
    """A range that is loaded again, the batch it counts as, and who is shown the change sets.

    ``inspect`` is told the target's label too.
    """

    window: Window | None = None
    batch: str | None = None
    inspect: Callable[[str, Load, Ask], None] | None = None

    def onlooker(self, label: str) -> Inspect | None:
        """Who looks at one target's change sets."""
        return None if self.inspect is None else partial(self.inspect, label)


ORDINARY = Purpose()
