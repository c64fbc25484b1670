"""Object stores on a local disk, one per format, read as any program would read the files."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ematix_flow import types as t
from ematix_flow.connections import Connection, ObjectStoreLocalConnection
from ematix_flow.model import Table, TableName
from harness.base import Harness
from harness.values import from_text


class FilesHarness(Harness):
    """A folder per connection."""

    kind = "object_store_local"
    by_spark = True
    format: str
    extension: str

    def connection(self, name: str) -> Connection:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return ObjectStoreLocalConnection(name=name, path=str(path), format=self.format)

    def _table(self, connection: Connection, name: TableName) -> Path:
        assert isinstance(connection, ObjectStoreLocalConnection)
        assert connection.path is not None
        return Path(connection.path) / (name.schema or "") / name.name

    def rows(self, connection: Connection, table: Table) -> list[dict[str, Any]]:
        kinds = {c.name: c.type for c in table.columns}
        files = sorted(self._table(connection, table.name).glob(f"*.{self.extension}*"))
        return [
            {
                k: None if v is None else self.value(kinds.get(k, t.Text()), v)
                for k, v in row.items()
            }
            for file in files
            for row in self.read(file)
        ]

    def read(self, file: Path) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def value(self, kind: t.ColumnType, value: Any) -> Any:
        return from_text(kind.kind, value)

    def exists(self, connection: Connection, name: TableName) -> bool:
        return self._table(connection, name).exists()

    def litter(self, connection: Connection) -> list[str]:
        assert isinstance(connection, ObjectStoreLocalConnection)
        assert connection.path is not None
        root = Path(connection.path)
        left = [str(p.relative_to(root)) for p in root.rglob("*") if "stage" in p.parts]
        for manifest in root.rglob("_ematix"):
            newest = max(manifest.glob("*.json"), default=None)
            if newest is None:
                left.append(str(manifest.relative_to(root)))
                continue
            text = newest.read_text(encoding="utf-8")
            data = [p for p in manifest.parent.iterdir() if p.is_file()]
            left += [p.name for p in data if p.name not in text]
        return left


class ParquetHarness(FilesHarness):
    """Parquet, read by pyarrow."""

    name = "parquet"
    format = "parquet"
    extension = "parquet"

    def read(self, file: Path) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet as pq

        yield from pq.read_table(file).to_pylist()


class OrcHarness(FilesHarness):
    """ORC, read by pyarrow."""

    name = "orc"
    format = "orc"
    extension = "orc"

    def read(self, file: Path) -> Iterator[dict[str, Any]]:
        from pyarrow import orc

        yield from orc.read_table(file).to_pylist()

    def value(self, kind: t.ColumnType, value: Any) -> Any:
        # pyarrow reads ORC's instants without their zone; they are in UTC.
        if kind.kind == "timestamp_tz" and value.tzinfo is None:
            return from_text(kind.kind, value.isoformat() + "+00:00")
        return super().value(kind, value)


class CsvHarness(FilesHarness):
    """CSV, read by the standard library; which alone cannot tell NULL from an empty text."""

    name = "csv"
    format = "csv"
    extension = "csv"

    def read(self, file: Path) -> Iterator[dict[str, Any]]:
        text = file.read_bytes().decode("utf-8")
        header, *records = _csv_records(text)
        for record in records:
            yield dict(zip([h or "" for h in header], record, strict=True))

    def value(self, kind: t.ColumnType, value: Any) -> Any:
        if isinstance(kind, t.Bytes):
            return base64.b64decode(value)
        if isinstance(kind, t.Array):
            return [
                None if v is None else from_text(kind.element.kind, v) for v in json.loads(value)
            ]
        return super().value(kind, value)


class JsonLinesHarness(FilesHarness):
    """JSON lines, read by the standard library."""

    name = "json_lines"
    format = "json_lines"
    extension = "json"

    def rows(self, connection: Connection, table: Table) -> list[dict[str, Any]]:
        absent = dict.fromkeys((*table.column_names, "_run_id", "_loaded_at"))
        return [{**absent, **row} for row in super().rows(connection, table)]

    def read(self, file: Path) -> Iterator[dict[str, Any]]:
        for line in file.read_text(encoding="utf-8").split("\n"):
            if line:
                yield json.loads(line, parse_float=str, parse_int=str)

    def value(self, kind: t.ColumnType, value: Any) -> Any:
        if isinstance(kind, t.Bytes):
            return base64.b64decode(value)
        if isinstance(kind, t.Array):
            return [None if v is None else from_text(kind.element.kind, v) for v in value]
        if isinstance(kind, t.Float) and isinstance(value, str):
            return _single(value)
        return super().value(kind, value)


def _single(text: str) -> float:
    import numpy as np

    value = float(text)
    return value if math.isnan(value) or math.isinf(value) else float(np.float32(value))


def _csv_records(text: str) -> Iterator[list[str | None]]:
    """RFC 4180 records in which an empty field without quotes is NULL."""
    field, quoted, inside, record = [], False, False, []
    position = 0
    while position < len(text):
        character = text[position]
        if inside:
            if character == '"' and text[position + 1 : position + 2] == '"':
                field.append('"')
                position += 1
            elif character == '"':
                inside = False
            else:
                field.append(character)
        elif character == '"':
            inside = quoted = True
        elif character in ",\n":
            value = "".join(field)
            record.append(value if value or quoted else None)
            field, quoted = [], False
            if character == "\n":
                yield record
                record = []
        else:
            field.append(character)
        position += 1


HARNESSES = (ParquetHarness, OrcHarness, CsvHarness, JsonLinesHarness)
