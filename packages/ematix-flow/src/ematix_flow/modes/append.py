"""``append``: every incoming row is inserted, and of an incremental load no row twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.change import Change, Insert
from ematix_flow.model import LoadOptions, Table, merge_key
from ematix_flow.modes.base import Reach, Shape, first_rows, select_incoming
from ematix_flow.modes.sql import comparable, comparables, missing, name, names, parsed, same, value

if TYPE_CHECKING:
    from sqlglot import exp


class Append:
    """Inserts every row."""

    def shape(self, table: Table, options: LoadOptions) -> Shape:
        """The table as declared; its key matters to incremental loads only."""
        return Shape(table, table.columns, merge_key(table, options.keys))

    def plan(
        self, shape: Shape, columns: Sequence[str], options: LoadOptions, reach: Reach | None
    ) -> Change:
        """One insert, without the rows that an earlier run has read already."""
        if reach is None or reach.value is None:
            rows = select_incoming(columns)
            return Change(steps=(Insert(rows),), opening=first_rows(columns))
        if shape.key:
            rows = _new_by_key(shape.key, columns, reach)
        else:
            rows = _new_by_copies([c.name for c in shape.incoming], columns, reach)
        return Change(steps=(Insert(rows),))


def _beyond(reach: Reach, of: str) -> str:
    limit = value(reach.value or "", reach.column)
    return f"{comparable(reach.column, of)} > {limit}"


def _new_by_key(key: Sequence[str], columns: Sequence[str], reach: Reach) -> exp.Query:
    """Rows beyond the watermark; at it or before it only keys that the target does not have."""
    limit = value(reach.value or "", reach.column)
    again = f"({comparable(reach.column, 'i')} <= {limit} OR {name(reach.column, 'i')} IS NULL)"
    return parsed(
        f"SELECT {names(columns, 'i')} FROM incoming AS i WHERE {_beyond(reach, 'i')} UNION ALL "
        f"SELECT {names(columns, 'i')} FROM incoming AS i WHERE {again} AND NOT EXISTS "
        f"(SELECT 1 FROM current AS c WHERE {same('c', 'i', key)})"
    )


def _new_by_copies(given: Sequence[str], columns: Sequence[str], reach: Reach) -> exp.Query:
    """Rows beyond the watermark; at it, as many copies of a row as the target lacks."""
    limit = value(reach.value or "", reach.column)

    def at_limit(of: str) -> str:
        column = reach.column
        return f"({comparable(column, of)} = {limit} OR {name(column, of)} IS NULL)"

    listed = names(given)
    added = [c for c in columns if c not in given]
    blanks = "".join(f", {name(c, 'i')}" for c in added)
    # The stored rows' own stamps are not looked at; a NULL of their type keeps the union even.
    nulls = "".join(f", {missing(c)} AS {name(c)}" for c in added)
    both = (
        f"SELECT {listed}{blanks}, 1 AS _em_fresh FROM incoming AS i WHERE {at_limit('i')} "
        f"UNION ALL SELECT {listed}{nulls}, 0 AS _em_fresh FROM current AS c "
        f"WHERE {at_limit('c')}"
    )
    alike = f"PARTITION BY {comparables(given)}"
    return parsed(
        f"SELECT {names(columns, 'i')} FROM incoming AS i WHERE {_beyond(reach, 'i')} UNION ALL "
        f"SELECT {names(columns)} FROM (SELECT b.*, "
        f"ROW_NUMBER() OVER ({alike}, _em_fresh ORDER BY _em_fresh) AS _em_copy, "
        f"SUM(1 - _em_fresh) OVER ({alike}) AS _em_present FROM ({both}) AS b) AS n "
        "WHERE _em_fresh = 1 AND _em_copy > _em_present"
    )
