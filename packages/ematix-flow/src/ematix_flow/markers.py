"""Column markers for ``Annotated[...]``: keys and nullability."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PrimaryKey:
    """Put on a column by ``pk()``."""


@dataclass(frozen=True)
class NaturalKey:
    """Put on a column by ``natural_key()``; columns of one group form one key."""

    group: str = ""


@dataclass(frozen=True)
class Nullable:
    """Put on a column by ``nullable()``."""


def pk() -> PrimaryKey:
    """Make the column part of the primary key, in the order of declaration."""
    return PrimaryKey()


def natural_key(group: str = "") -> NaturalKey:
    """Make the column part of a business key; columns of one ``group`` are unique together."""
    return NaturalKey(group)


def nullable() -> Nullable:
    """Allow NULL in the column, like ``| None``."""
    return Nullable()
