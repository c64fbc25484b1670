"""What a mode asks of a target: relational steps over ``incoming`` and ``current``.

Each step is written once, as a sqlglot expression. A database renders it in its dialect and runs
it inside the commit; a store of files renders it as Spark SQL. No step names a backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from sqlglot import exp

    from ematix_flow.errors import EmatixError

INCOMING = "incoming"
CURRENT = "current"


@dataclass(frozen=True)
class Insert:
    """Add these rows to ``current``."""

    rows: exp.Select
    verb: ClassVar[str] = "insert"


@dataclass(frozen=True)
class Replace:
    """Put these rows in the place of everything in ``current``."""

    rows: exp.Select
    verb: ClassVar[str] = "replace"


Step = Insert | Replace


@dataclass(frozen=True)
class Assertion:
    """A query for one number that must be 0, and what is wrong when it is not."""

    violations: exp.Select
    error: EmatixError


@dataclass(frozen=True)
class Change:
    """The steps of one commit, in order, and what must hold before they are applied."""

    steps: tuple[Step, ...]
    assertions: tuple[Assertion, ...] = ()

    @property
    def verbs(self) -> frozenset[str]:
        """The kinds of steps a target must be able to do."""
        return frozenset(step.verb for step in self.steps)


@dataclass(frozen=True)
class Counts:
    """What a commit did, in rows."""

    read: int = 0
    inserted: int = 0
    updated: int = 0
    closed: int = 0
    deleted: int = 0
    unchanged: int = 0
    rejected: int = 0
