"""A range of a target loaded again: what each mode puts in the place of what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ematix_flow.change import Change, Rewrite
from ematix_flow.errors import Unsupported
from ematix_flow.model import LoadOptions
from ematix_flow.modes.base import Shape, select_incoming
from ematix_flow.modes.events import event_change
from ematix_flow.modes.merge import merge_change
from ematix_flow.modes.scd2 import sound
from ematix_flow.modes.sql import comparable, condition, value


@dataclass(frozen=True)
class Window:
    """A half-open range of a column, as canonical text; without an end, all from the start on."""

    column: str
    start: str
    end: str | None

    def holds(self, of: str = "") -> str:
        """Neutral SQL for a row being in the range."""
        own = comparable(self.column, of)
        lower = f"{own} >= {value(self.start, self.column)}"
        return lower if self.end is None else f"{lower} AND {own} < {value(self.end, self.column)}"


def refuse_window(mode: str, options: LoadOptions) -> None:
    """Refuse a mode whose rows do not belong to a range."""
    if mode == "scd2" and options.event_timestamp_column is None:
        raise Unsupported(
            "the history of mode='scd2' without an event time tells when runs saw the source, "
            "and no run can see it again as it was",
            fix="declare event_timestamp_column=, or load it with `flow run`",
        )
    if mode not in ("append", "merge", "scd1", "scd2"):
        raise Unsupported(
            f"mode={mode!r} has no ranges: every load replaces all rows", fix="use `flow run`"
        )


def window_change(
    mode: str, shape: Shape, columns: Sequence[str], options: LoadOptions, window: Window
) -> Change:
    """The change that leaves in the range exactly what has come, and touches nothing else.

    Of event-time ``scd2`` everything from the start of the range on is forgotten and replayed;
    the start must be an instant there.
    """
    refuse_window(mode, options)
    if mode == "append":
        return Change(steps=(Rewrite(select_incoming(columns), condition(window.holds())),))
    if shape.side is not None:
        return event_change(
            shape, shape.side, columns, options, sound=sound(shape.key), again=window.start
        )
    return merge_change(shape, columns, options, replaced=window.holds("c"))
