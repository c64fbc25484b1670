"""``append``: every incoming row is inserted."""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.change import Change, Insert
from ematix_flow.model import LoadOptions, Table
from ematix_flow.modes.base import select_incoming


class Append:
    """Inserts every row."""

    def plan(self, table: Table, columns: Sequence[str], options: LoadOptions) -> Change:
        """One insert."""
        return Change(steps=(Insert(select_incoming(columns)),))
