"""A third-party backend in one file: a table is one JSON document, replaced atomically.

It can only insert, holds only numbers and text, and cannot be read. The conformance suite runs
what it declares and expects ``Unsupported`` for the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from ematix_flow.backends.base import (
    Backend,
    Capabilities,
    FoundColumn,
    FoundTable,
    Landing,
    LiveConnection,
    Load,
    SourceColumn,
    SourceQuery,
    Staged,
)
from ematix_flow.change import Counts
from ematix_flow.connections import Connection
from ematix_flow.errors import Unsupported
from ematix_flow.model import TableName

KINDS = ("float", "double", "numeric", "boolean", "date", "time", "timestamp", "timestamp_tz")
REFUSED = (*KINDS, "json", "jsonb", "bytes", "array", "small_int", "integer", "string", "uuid")


@dataclass(frozen=True, repr=False, kw_only=True)
class ToyConnection(Connection):
    """A folder."""

    path: str = ""
    kind: ClassVar[str] = "toy"


class Toy(Backend):
    """Tables as JSON documents."""

    kind = "toy"
    dialect = "spark"
    capabilities = Capabilities(
        source=False,
        verbs=frozenset({"insert"}),
        refused_types=dict.fromkeys(REFUSED, "use BigInt or Text"),
    )

    def file(self, name: TableName) -> Path:
        assert isinstance(self.connection, ToyConnection)
        return Path(self.connection.path) / f"{name}.toy"

    def document(self, name: TableName) -> dict[str, Any]:
        file = self.file(name)
        empty: dict[str, Any] = {"columns": [], "rows": [], "runs": {}}
        return json.loads(file.read_text()) if file.exists() else empty

    def open(self) -> LiveConnection:
        raise Unsupported("a toy cannot be asked")

    def table_query(self, table: str, columns: Mapping[str, str] | None) -> SourceQuery:
        raise Unsupported("a toy cannot be read")

    def describe(self, query: SourceQuery) -> tuple[SourceColumn, ...]:
        raise Unsupported("a toy cannot be read")

    def read(self, engine: Any, query: SourceQuery) -> Any:
        raise Unsupported("a toy cannot be read")

    def locate(self, name: TableName, prefix: str | None = None) -> str:
        return str(self.file(name))

    def inspect(self, name: TableName, prefix: str | None = None) -> FoundTable | None:
        if not self.file(name).exists():
            return None
        columns = self.document(name)["columns"]
        return FoundTable(tuple(FoundColumn(n, None, kind, True) for n, kind in columns))

    def ddl(self, load: Load) -> list[str]:
        return []

    def steps_sql(self, load: Load, incoming: str) -> list[str]:
        return [step.rows.sql(dialect=self.dialect) for step in load.change.steps]

    def land(self, load: Load) -> ToyLanding:
        return ToyLanding(self, load)

    def committed(self, run_id: str, name: TableName, prefix: str | None = None) -> Counts | None:
        found = self.document(name)["runs"].get(run_id)
        return Counts(**found) if found else None


class ToyLanding(Landing):
    """Collects the rows and replaces the document."""

    def __init__(self, backend: Toy, load: Load) -> None:
        self.backend = backend
        self.load = load

    def __enter__(self) -> ToyLanding:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def stage(self, engine: Any, rows: Any) -> Staged:
        self.load.announce("staging")
        run = self.load.run
        # The columns this system adds come last; they are the target's to fill in.
        added = [run.run_id, run.loaded_at.isoformat()][
            : len(self.load.columns) - len(rows.columns)
        ]
        held = [[*row, *added] for row in rows.collect()]
        self.load.announce("staged")
        return Staged(len(held), 0, held)

    def commit(self, staged: Staged, *, keep: bool) -> Counts:
        counts = Counts(read=staged.rows, inserted=staged.rows)
        if not keep:
            return counts
        load = self.load
        document = self.backend.document(load.name)
        document["columns"] = [(name, str(kind)) for name, kind in load.columns]
        document["rows"] += staged.handle
        document["runs"][load.run.run_id] = asdict(counts)
        self.load.announce("committing")
        file = self.backend.file(load.name)
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(document, default=str))
        os.replace(temporary, file)
        self.load.announce("committed")
        return counts
