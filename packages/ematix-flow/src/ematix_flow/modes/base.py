"""The ``Mode`` protocol, and how a mode is found by its name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from ematix_flow.connections import nearest
from ematix_flow.errors import UnknownName

if TYPE_CHECKING:
    from sqlglot import exp

    from ematix_flow.change import Change
    from ematix_flow.model import LoadOptions, Table

ENTRY_POINTS = "ematix_flow.modes"


class Mode(Protocol):
    """A way for rows to land."""

    def plan(self, table: Table, columns: Sequence[str], options: LoadOptions) -> Change:
        """The change that loads ``columns`` of ``incoming`` into ``table``."""


def load_mode(name: str) -> Mode:
    """The mode of that name, from the entry points of all installed packages."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise UnknownName(f"mode={name!r} is not known", fix=nearest(name, found))
    mode: Mode = found[name].load()()
    return mode


def select_incoming(columns: Sequence[str]) -> exp.Select:
    """``SELECT columns FROM incoming``, every identifier quoted."""
    from sqlglot import exp

    from ematix_flow.change import INCOMING

    quoted = [exp.column(exp.to_identifier(c, quoted=True)) for c in columns]
    return exp.select(*quoted).from_(exp.table_(INCOMING))
