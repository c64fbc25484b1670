"""``truncate``: the incoming rows replace all rows, in one step that no reader can see into."""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.change import Assertion, Change, Replace
from ematix_flow.errors import EmptySource
from ematix_flow.model import LoadOptions, Table
from ematix_flow.modes.base import Reach, Shape, first_rows, select_incoming
from ematix_flow.modes.sql import count_of, parsed


class Truncate:
    """Replaces all rows; an empty source is refused unless it is allowed by name."""

    def shape(self, table: Table, options: LoadOptions) -> Shape:
        """The table as declared."""
        return Shape(table, table.columns)

    def plan(
        self, shape: Shape, columns: Sequence[str], options: LoadOptions, reach: Reach | None
    ) -> Change:
        """One replacement, guarded against an empty source."""
        guards = () if options.allow_empty else (not_empty(shape.table),)
        rows = select_incoming(columns)
        return Change(steps=(Replace(rows),), assertions=guards, opening=first_rows(columns))


def not_empty(table: Table) -> Assertion:
    """Refuse a source without rows, which would take all rows of the target away."""
    error = EmptySource(
        f"the source has 0 rows, and loading it would empty {table.name}",
        fix="check the source, or allow it with allow_empty=True",
    )
    return Assertion(
        parsed(f"SELECT n FROM ({count_of()}) AS counted WHERE n = 0"), lambda rows: error
    )
