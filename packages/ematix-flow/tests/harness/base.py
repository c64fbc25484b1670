"""What a harness must offer. It reaches the product by its own driver, never through our code."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
from ematix_flow.connections import Connection
from ematix_flow.model import Table, TableName


class Harness(ABC):
    """One backend under test."""

    name: str
    kind: str
    service: str | None = None
    by_spark = False
    """Whether Spark computes what a load changes, rather than the product itself."""

    def __init__(self, folder: Path, server: Any = None) -> None:
        self.folder = folder
        self.server = server

    @abstractmethod
    def connection(self, name: str) -> Connection:
        """A connection to a fresh, empty place; the same place for the same name."""

    @abstractmethod
    def rows(self, connection: Connection, table: Table) -> list[dict[str, Any]]:
        """All rows of a table, as Python values of the declared types, in no set order."""

    @abstractmethod
    def exists(self, connection: Connection, name: TableName) -> bool:
        """Whether there is such a table."""

    @abstractmethod
    def litter(self, connection: Connection) -> list[str]:
        """What runs have left behind: stages, spools, locks. Empty when all is well."""

    def spelled(self, name: TableName) -> str:
        """A table as a user of this product writes it in SQL."""
        return str(name)

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what was taken."""


def all_harnesses() -> list[type[Harness]]:
    """Every harness of every file in this folder."""
    modules = sorted(m.name for m in pkgutil.iter_modules(harness.__path__))
    found: list[type[Harness]] = []
    for module in modules:
        loaded = importlib.import_module(f"harness.{module}")
        found += getattr(loaded, "HARNESSES", ())
    return found


def decoded(
    table: Table,
    rows: Sequence[Sequence[Any]],
    columns: Sequence[str],
    decode: Callable[[str, Any], Any],
) -> list[dict[str, Any]]:
    """Driver rows as dictionaries of Python values of the declared types."""
    kinds = {c.name: c.type.kind for c in table.columns}
    return [
        {
            name: None if value is None else decode(kinds.get(name, ""), value)
            for name, value in zip(columns, row, strict=True)
        }
        for row in rows
    ]
