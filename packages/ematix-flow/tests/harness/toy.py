"""The toy backend, found as any installed package would be: by its entry point."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ematix_flow.connections import Connection
from ematix_flow.model import Table, TableName
from harness.base import Harness

sys.path.append(str(Path(__file__).parent.parent / "toy"))

from toy_backend import ToyConnection


class ToyHarness(Harness):
    """A folder per connection."""

    name = "toy"
    kind = "toy"

    def connection(self, name: str) -> Connection:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return ToyConnection(name=name, path=str(path))

    def _file(self, connection: Connection, name: TableName) -> Path:
        assert isinstance(connection, ToyConnection)
        return Path(connection.path) / f"{name}.toy"

    def rows(self, connection: Connection, table: Table) -> list[dict[str, Any]]:
        document = json.loads(self._file(connection, table.name).read_text())
        names = [name for name, _ in document["columns"]]
        return [dict(zip(names, row, strict=True)) for row in document["rows"]]

    def exists(self, connection: Connection, name: TableName) -> bool:
        return self._file(connection, name).exists()

    def litter(self, connection: Connection) -> list[str]:
        assert isinstance(connection, ToyConnection)
        return [p.name for p in Path(connection.path).glob("*.new")]


HARNESSES = (ToyHarness,)
