"""The ``Mode`` protocol, and how a mode is found by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ematix_flow.connections import nearest
from ematix_flow.errors import UnknownName
from ematix_flow.modes.sql import missing, name, names, parsed, stamped
from ematix_flow.plugins import plugins

if TYPE_CHECKING:
    from sqlglot import exp

    from ematix_flow.change import Change
    from ematix_flow.model import Column, LoadOptions, Table

ENTRY_POINTS = "ematix_flow.modes"


@dataclass(frozen=True)
class Shape:
    """The relations of a load: what the target holds, what arrives, what is kept beside it.

    ``unique`` says that the target itself sees to it that no key is stored twice.
    """

    table: Table
    incoming: tuple[Column, ...]
    key: tuple[str, ...] = ()
    side: Table | None = None
    unique: bool = False


@dataclass(frozen=True)
class Reach:
    """How far a pipeline has loaded a target, and from where it reads again.

    ``value`` is the watermark's canonical text; None before the first load.
    """

    column: str
    value: str | None


class Mode(Protocol):
    """A way for rows to land."""

    def shape(self, table: Table, options: LoadOptions) -> Shape:
        """The relations of a load into a declared table."""

    def plan(
        self, shape: Shape, columns: Sequence[str], options: LoadOptions, reach: Reach | None
    ) -> Change:
        """The change that loads ``incoming``; ``columns`` are all that land in the target."""


def load_mode(name: str) -> Mode:
    """The mode of that name, from the entry points of all installed packages."""
    found = plugins(ENTRY_POINTS)
    if name not in found:
        raise UnknownName(f"mode={name!r} is not known", fix=nearest(name, found))
    mode: Mode = found[name].load()()
    return mode


def first_rows(columns: Sequence[str], blank: str | None = None) -> exp.Query:
    """The incoming rows as those of a new table; in a column that is to be blank is nothing."""
    values = (f"{missing(c) if c == blank else stamped(c, name(c))} AS {name(c)}" for c in columns)
    return parsed(f"SELECT {', '.join(values)} FROM incoming")


def select_incoming(columns: Sequence[str]) -> exp.Query:
    """``SELECT columns FROM incoming``, every identifier quoted."""
    return parsed(f"SELECT {names(columns)} FROM incoming")
