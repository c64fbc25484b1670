"""``truncate``: the incoming rows replace all rows, in one step that no reader can see into."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from ematix_flow.change import INCOMING, Assertion, Change, Replace
from ematix_flow.errors import EmptySource
from ematix_flow.model import LoadOptions, Table
from ematix_flow.modes.base import select_incoming


class Truncate:
    """Replaces all rows; an empty source is refused unless it is allowed by name."""

    def plan(self, table: Table, columns: Sequence[str], options: LoadOptions) -> Change:
        """One replacement, guarded against an empty source."""
        guards = () if options.allow_empty else (_not_empty(table),)
        return Change(steps=(Replace(select_incoming(columns)),), assertions=guards)


def _not_empty(table: Table) -> Assertion:
    none = exp.EQ(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(0))
    empty = exp.Case().when(none, exp.Literal.number(1)).else_(exp.Literal.number(0))
    return Assertion(
        violations=exp.select(empty).from_(exp.table_(INCOMING)),
        error=EmptySource(
            f"the source has 0 rows, and loading it would empty {table.name}",
            fix="check the source, or allow it with allow_empty=True",
        ),
    )
