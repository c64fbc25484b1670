"""Delta tables on a local disk, read by the rules of the protocol with json and pyarrow alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ematix_flow.connections import Connection, DeltaLocalConnection
from ematix_flow.model import Table, TableName
from harness.base import Harness
from harness.values import from_text


class DeltaHarness(Harness):
    """A folder per connection."""

    name = "delta"
    kind = "delta_local"
    by_spark = True

    def connection(self, name: str) -> Connection:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return DeltaLocalConnection(name=name, path=str(path))

    def _root(self, connection: Connection) -> Path:
        assert isinstance(connection, DeltaLocalConnection)
        assert connection.path is not None
        return Path(connection.path)

    def _table(self, connection: Connection, name: TableName) -> Path:
        return self._root(connection) / (name.schema or "") / name.name

    def rows(self, connection: Connection, table: Table) -> list[dict[str, Any]]:
        kinds = {c.name: c.type.kind for c in table.columns}
        return [
            {k: None if v is None else from_text(kinds.get(k, ""), v) for k, v in row.items()}
            for row in read_table(self._table(connection, table.name))
        ]

    def exists(self, connection: Connection, name: TableName) -> bool:
        return any(commits(self._table(connection, name)))

    def litter(self, connection: Connection) -> list[str]:
        root = self._root(connection)
        tables = [p.parent for p in root.rglob("_delta_log") if any(commits(p.parent))]
        left = [str(p.relative_to(root)) for p in root.rglob("*") if "stage" in p.parts]
        for path in root.rglob("*"):
            if not any(path in t.parents or t == path or t in path.parents for t in tables):
                left.append(str(path.relative_to(root)))
        for table in tables:
            known = {path for action in actions(table) for path in _mentioned(action)}
            data = [str(p.relative_to(table)) for p in table.rglob("*.parquet")]
            left += [name for name in data if not name.startswith("_") and name not in known]
        return left


def commits(table: Path) -> Iterator[Path]:
    """The commits of a table, oldest first."""
    found = sorted((table / "_delta_log").glob("*.json"))
    return (path for path in found if path.stem.isdigit())


def actions(table: Path) -> Iterator[dict[str, Any]]:
    """Every action of every commit, oldest first."""
    for commit in commits(table):
        for line in filter(None, commit.read_text(encoding="utf-8").split("\n")):
            yield json.loads(line)


def _mentioned(action: dict[str, Any]) -> list[str]:
    return [unquote(action[kind]["path"]) for kind in ("add", "remove") if kind in action]


def read_table(table: Path) -> list[dict[str, Any]]:
    """The rows of the newest version."""
    import pyarrow.parquet as pq

    live: dict[str, None] = {}
    schema: dict[str, Any] = {}
    for action in actions(table):
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
        if "add" in action:
            assert not action["add"].get("deletionVector")
            live[unquote(action["add"]["path"])] = None
        elif "remove" in action:
            live.pop(unquote(action["remove"]["path"]), None)
    names = {
        f["metadata"].get("delta.columnMapping.physicalName", f["name"]): f["name"]
        for f in schema["fields"]
    }
    rows = []
    for file in live:
        for row in pq.read_table(table / file, partitioning=None).to_pylist():
            rows.append({logical: row.get(stored) for stored, logical in names.items()})
    return rows


HARNESSES = (DeltaHarness,)
