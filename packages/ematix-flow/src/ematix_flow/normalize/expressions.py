"""Normalizers written by the user as Spark SQL; they have no meaning outside Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from ematix_flow.errors import DeclarationError, Unsupported
from ematix_flow.normalize.base import Normalizer, Step, checked_text
from ematix_flow.types import ColumnType, parse_annotation


@dataclass(frozen=True, repr=False)
class Expression(Normalizer):
    """Spark SQL over the source row."""

    expression: str
    returns: ColumnType | None = None

    def __post_init__(self) -> None:
        who = f"{self.name}()"
        if not checked_text(who, "expression", self.expression).strip():
            raise DeclarationError(f"{who}: the expression is empty")
        if self.returns is not None:
            object.__setattr__(self, "returns", parse_annotation(self.returns)[0])

    def apply(self, value: object) -> NoReturn:
        """There is no meaning in Python."""
        raise Unsupported(f"{self!r} is SQL: only Spark can apply it")

    def resolve(self, source: ColumnType) -> Step:
        """This step on a column of type ``source``, or the reason why it cannot be."""
        return Step(self, source, self.returns)


@dataclass(frozen=True, repr=False)
class Sql(Expression):
    """An expression in which the word ``col`` stands for the value so far."""

    name: ClassVar[str] = "sql"


@dataclass(frozen=True, repr=False)
class Derive(Expression):
    """An expression over other columns of the source; first in its chain."""

    name: ClassVar[str] = "derive"


def sql(expression: str, returns: ColumnType | None = None) -> Sql:
    """Apply a Spark SQL expression in which ``col`` is the value so far."""
    return Sql(expression, returns)


def derive(expression: str, returns: ColumnType | None = None) -> Derive:
    """Compute the column from others by a Spark SQL expression; must come first."""
    return Derive(expression, returns)
