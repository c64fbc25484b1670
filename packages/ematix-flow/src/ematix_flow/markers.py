"""Column markers for ``Annotated[...]``: keys, nullability, former names."""

from __future__ import annotations

from dataclasses import dataclass

from ematix_flow.errors import DeclarationError


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


@dataclass(frozen=True)
class RenamedFrom:
    """Put on a column by ``renamed_from()``."""

    name: str


def pk() -> PrimaryKey:
    """Make the column part of the primary key, in the order of declaration."""
    return PrimaryKey()


def natural_key(group: str = "") -> NaturalKey:
    """Make the column part of a business key; columns of one ``group`` are unique together."""
    return NaturalKey(group)


def nullable() -> Nullable:
    """Allow NULL in the column, like ``| None``."""
    return Nullable()


def renamed_from(name: str) -> RenamedFrom:
    """Say what the column was called: with ``on_drift="evolve"`` the table's column is renamed."""
    if not isinstance(name, str) or not name:
        raise DeclarationError(
            f"renamed_from() takes the column's former name, not {name!r}",
            fix='write for example renamed_from("amount")',
        )
    return RenamedFrom(name)
