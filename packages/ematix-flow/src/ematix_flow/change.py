"""What a mode asks of a target: relational steps over ``incoming`` and ``current``.

Each step is written once, as a sqlglot expression. A database renders it in its dialect and runs
it inside the commit; a store of files renders it as Spark SQL. No step names a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from sqlglot import exp

    from ematix_flow.errors import EmatixError

INCOMING = "incoming"
CURRENT = "current"
SIDE = "side"
CHANGES = "changes"
SIDE_CHANGES = "side_changes"
OPERATION = "_op"

# Stand-ins in a mode's SQL for what every product spells in its own way.
MOMENT = "EMATIX_MOMENT"
RUN = "EMATIX_RUN"
MISSING = "EMATIX_NULL"
VALUE = "EMATIX_VALUE"
LATER = "EMATIX_AFTER"
COMPARABLE = "EMATIX_COMPARABLE"


@dataclass(frozen=True)
class Insert:
    """Add these rows to ``current``."""

    rows: exp.Query
    verb: ClassVar[str] = "insert"


@dataclass(frozen=True)
class Replace:
    """Put these rows in the place of everything in ``current``."""

    rows: exp.Query
    verb: ClassVar[str] = "replace"


@dataclass(frozen=True)
class Rewrite:
    """Put these rows in the place of those in ``current`` for which ``where`` is true."""

    rows: exp.Query
    where: exp.Expression
    verb: ClassVar[str] = "rewrite"


@dataclass(frozen=True)
class Effect:
    """What one kind of row in a change set does, and the count it adds to."""

    act: str
    counted: str | None = None


@dataclass(frozen=True)
class Revise:
    """Apply a change set: rows with an operation each, computed from the state before.

    All change sets of a commit are computed before the first of them is applied. A row is found
    by ``identity``; an update sets all its other columns.
    """

    rows: exp.Query
    identity: tuple[str, ...]
    effects: Mapping[str, Effect]
    relation: str = CURRENT
    verb: ClassVar[str] = "revise"

    @property
    def changes(self) -> str:
        """The name under which assertions see this change set."""
        return CHANGES if self.relation == CURRENT else SIDE_CHANGES

    def operations(self, act: str) -> tuple[str, ...]:
        """The operations that insert, update or delete."""
        return tuple(name for name, effect in self.effects.items() if effect.act == act)


Step = Insert | Replace | Rewrite | Revise


@dataclass(frozen=True)
class Assertion:
    """A query that finds rows only where something is wrong, and what is said then.

    ``when`` is "incoming" before anything else, "changes" once the change sets are known, or
    "result" after they have been applied. Where ``unique`` is a key of a table that the commit
    creates, that key refuses the same rows by itself.
    """

    violations: exp.Query
    refuse: Callable[[Sequence[Sequence[Any]]], EmatixError]
    when: str = "incoming"
    unique: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """The steps of one commit, in order, and what must hold around them.

    ``derived`` are relations that the steps share. ``considered`` counts the incoming rows that
    could have changed something; those that did not are the unchanged ones. ``opening`` is what
    the steps put into an empty table, where every incoming row gives one row of its own.
    """

    steps: tuple[Step, ...]
    assertions: tuple[Assertion, ...] = ()
    derived: Mapping[str, exp.Query] = field(default_factory=dict)
    considered: exp.Query | None = None
    opening: exp.Query | None = None

    @property
    def verbs(self) -> frozenset[str]:
        """The kinds of steps a target must be able to do."""
        return frozenset(step.verb for step in self.steps)

    @property
    def revisions(self) -> tuple[Revise, ...]:
        """The steps that apply a change set."""
        return tuple(step for step in self.steps if isinstance(step, Revise))


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
