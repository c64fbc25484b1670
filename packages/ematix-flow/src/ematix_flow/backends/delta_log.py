"""The log of a Delta table, read without Spark, and this system's own record in its commits.

Every commit of ours carries a ``Record`` as its ``userMetadata``: the run, its counts, and the
bookkeeping of all pipelines carried forward. Delta's ``txn`` holds each pipeline's epoch too, so
that it survives when old commits are cleaned up, and Delta itself refuses a stale writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ematix_flow import types as t
from ematix_flow.backends.manifest import sync_folder, type_from_spec, type_to_spec
from ematix_flow.change import Counts
from ematix_flow.errors import DataError, Unsupported
from ematix_flow.sql.spark import spark_ddl

LOG_FOLDER = "_delta_log"
OWN_FOLDER = "_ematix"
RECORD_KEY = "ematix_flow"
RECORD_VERSION = 1
TYPE_KEY = "ematix_flow.type"
PRIMARY_KEY = "ematix_flow.primary_key"
_BATCHES_KEPT = 10_000
_DIGITS = 20
_PLAIN: dict[str, t.ColumnType] = {
    "byte": t.SmallInt(),
    "short": t.SmallInt(),
    "integer": t.Integer(),
    "long": t.BigInt(),
    "float": t.Float(),
    "double": t.Double(),
    "boolean": t.Boolean(),
    "string": t.Text(),
    "date": t.Date(),
    "timestamp": t.TimestampTZ(),
    "timestamp_ntz": t.Timestamp(),
    "binary": t.Bytes(),
    "variant": t.JSON(),
}


@dataclass(frozen=True)
class Record:
    """What a commit of ours says: the run it was, and how far every pipeline has come.

    ``side`` is the version of the side table that belongs to the table after this commit.
    """

    run: Mapping[str, str] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    fences: Mapping[str, int] = field(default_factory=dict)
    watermarks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    batches: tuple[str, ...] = ()
    side: int | None = None

    def to_json(self) -> str:
        """The record as it is stored."""
        kept = dataclasses.replace(self, batches=self.batches[-_BATCHES_KEPT:])
        document = {"version": RECORD_VERSION, **dataclasses.asdict(kept)}
        return json.dumps({RECORD_KEY: document}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Record | None:
        """A stored record; None where the text is somebody else's."""
        try:
            document = json.loads(text)[RECORD_KEY]
        except (ValueError, KeyError, TypeError):
            return None
        if document["version"] > RECORD_VERSION:
            raise Unsupported(
                f"its commits were written by a newer version (record {document['version']}, this "
                f"version knows {RECORD_VERSION})",
                fix="upgrade ematix-flow",
            )
        return cls(
            run=document["run"],
            counts=Counts(**document["counts"]),
            fences=document["fences"],
            watermarks=document["watermarks"],
            batches=tuple(document["batches"]),
            side=document["side"],
        )


@dataclass(frozen=True)
class DeltaColumn:
    """A column: its logical type, the Spark type it is stored as, and what else is noted of it."""

    name: str
    type: t.ColumnType | None
    stored: str
    nullable: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """A table after one commit, as far as its log says it without looking at the data."""

    version: int
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]
    transactions: Mapping[str, int]

    @cached_property
    def columns(self) -> tuple[DeltaColumn, ...]:
        """The columns, in order."""
        fields = json.loads(self.metadata["schemaString"])["fields"]
        return tuple(_column(f) for f in fields)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        found: Mapping[str, str] = self.metadata.get("configuration") or {}
        return found

    @property
    def partitions(self) -> tuple[str, ...]:
        """The columns by which the files are laid out in folders."""
        return tuple(self.metadata.get("partitionColumns") or ())

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The key that the table was created with."""
        return tuple(json.loads(self.properties.get(PRIMARY_KEY, "[]")))


def fence_name(pipeline: str) -> str:
    """The ``appId`` under which Delta keeps a pipeline's epoch."""
    return f"ematix_flow/{pipeline}"


class DeltaLog:
    """The ``_delta_log`` of one table's folder."""

    def __init__(self, table_folder: Path) -> None:
        self.table_folder = table_folder
        self.folder = table_folder / LOG_FOLDER
        self.own_folder = table_folder / OWN_FOLDER
        self.stage_root = self.own_folder / "stage"

    def versions(self) -> list[int]:
        """The commits that are still listed, newest first."""
        return sorted(self._numbers(".json"), reverse=True)

    def _numbers(self, suffix: str) -> Iterator[int]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(self.folder):
                stem = name.removesuffix(suffix)
                if stem != name and len(stem) == _DIGITS and stem.isdigit():
                    yield int(stem)

    def path(self, version: int) -> Path:
        """The file of a commit."""
        return self.folder / f"{version:0{_DIGITS}}.json"

    def snapshot(self, *, at: int | None = None) -> Snapshot | None:
        """The table as it is now or was after a commit, or None where there is none."""
        versions = [v for v in self.versions() if at is None or v <= at]
        start, actions = self._checkpoint(at)
        if not versions and start < 0:
            return None
        metadata: Mapping[str, Any] | None = None
        protocol: Mapping[str, Any] = {}
        transactions: dict[str, int] = {}
        version = start
        for number in sorted(v for v in versions if v > start):
            actions = _chained(actions, self.actions(number))
            version = number
        for action in actions:
            metadata = action.get("metaData") or metadata
            protocol = action.get("protocol") or protocol
            if action.get("txn"):
                transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
        if metadata is None:
            raise DataError(
                f"the Delta log {self.folder} does not say what the table is",
                fix="restore its missing commits from a backup",
            )
        return Snapshot(version, metadata, protocol, transactions)

    def actions(self, version: int) -> list[dict[str, Any]]:
        """What a commit says, line by line; data files are left out."""
        text = self.path(version).read_text(encoding="utf-8")
        try:
            return [
                json.loads(line)
                for line in text.split("\n")
                if line and not line.startswith(('{"add"', '{"remove"', '{"cdc"'))
            ]
        except ValueError as error:
            raise DataError(
                f"the commit {self.path(version)} is damaged", fix="restore it from a backup"
            ) from error

    def _checkpoint(self, at: int | None) -> tuple[int, Iterator[dict[str, Any]]]:
        """The newest complete checkpoint: its version, and what it says besides data files."""
        parts: dict[int, dict[int, list[Path]]] = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(self.folder)):
                stem = name.removesuffix(".parquet").removesuffix(".json").split(".")
                if len(stem) < 2 or stem[1] != "checkpoint" or not stem[0].isdigit():  # noqa: PLR2004 - version.checkpoint
                    continue
                # 1 file, or numbered parts of which all must be there.
                total = int(stem[3]) if len(stem) == 4 else 1  # noqa: PLR2004 - part.of
                held = parts.setdefault(int(stem[0]), {}).setdefault(total, [])
                if total > 1 or not held:
                    held.append(self.folder / name)
        for version in sorted((v for v in parts if at is None or v <= at), reverse=True):
            for total, files in parts[version].items():
                if len(files) == total:
                    return version, _checkpointed(files)
        return -1, iter(())

    def record_of(self, version: int) -> Record | None:
        """What a commit says if it is one of ours."""
        try:
            with self.path(version).open(encoding="utf-8") as lines:
                for line in lines:
                    if line.startswith('{"commitInfo"'):
                        said = json.loads(line)["commitInfo"].get("userMetadata")
                        return None if said is None else Record.from_json(said)
        except FileNotFoundError:
            return None
        except Unsupported as error:
            raise Unsupported(f"table {self.table_folder}: {error.what}", fix=error.fix) from error
        return None

    def newest_record(self, snapshot: Snapshot | None) -> Record:
        """The bookkeeping of all pipelines, from the newest of our commits."""
        if snapshot is None:
            return Record()
        for version in self.versions():
            record = self.record_of(version) if version <= snapshot.version else None
            if record is not None:
                return record
        if any(name.startswith(fence_name("")) for name in snapshot.transactions):
            raise DataError(
                f"the commits in which ematix-flow kept its bookkeeping of {self.table_folder} are "
                "no longer in its log",
                fix="restore them, or raise delta.logRetentionDuration and load the table anew",
            )
        return Record()

    def of_run(self, run_id: str) -> Record | None:
        """What the commit of a run says, or None if it never committed."""
        for version in self.versions():
            record = self.record_of(version)
            if record is not None and record.run.get("run_id") == run_id:
                return record
        return None

    def note(self, snapshot: Snapshot, record: Record, *, fence: str | None = None) -> bool:
        """Commit bookkeeping alone, without data; False when somebody else was quicker.

        With ``fence`` that pipeline's epoch becomes Delta's too, against writers still under way.
        """
        now = time.time_ns() // 1_000_000
        info: dict[str, Any] = {
            "timestamp": now,
            "operation": "EMATIX FLOW BOOKKEEPING",
            "operationParameters": {},
            "readVersion": snapshot.version,
            "isBlindAppend": True,
            "userMetadata": record.to_json(),
        }
        if snapshot.properties.get("delta.enableInCommitTimestamps") == "true":
            info = {"inCommitTimestamp": max(now, self._timestamp(snapshot.version) + 1), **info}
        lines: list[dict[str, Any]] = [{"commitInfo": info}]
        if fence is not None:
            epoch = {"appId": fence_name(fence), "version": record.fences[fence]}
            lines.append({"txn": {**epoch, "lastUpdated": now}})
        scratch = self.own_folder / f"{uuid.uuid4().hex}.tmp"
        self.own_folder.mkdir(exist_ok=True)
        with scratch.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(scratch, self.path(snapshot.version + 1))
        except FileExistsError:
            return False
        finally:
            scratch.unlink()
        sync_folder(self.folder)
        return True

    def _timestamp(self, version: int) -> int:
        for action in self.actions(version):
            if "commitInfo" in action:
                return int(action["commitInfo"].get("inCommitTimestamp", 0))
        return 0


def _chained(
    first: Iterator[dict[str, Any]], second: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    yield from first
    yield from second


def _checkpointed(files: list[Path]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    wanted = ("metaData", "protocol", "txn")
    for file in files:
        if file.suffix == ".json":
            for line in file.read_text(encoding="utf-8").split("\n"):
                if line:
                    yield json.loads(line)
            continue
        with pq.ParquetFile(file) as held:
            names = [name for name in wanted if name in held.schema_arrow.names]
            for row in held.read(columns=names).to_pylist(maps_as_pydicts="lossy"):
                if any(row.values()):
                    yield row


def _column(found: Mapping[str, Any]) -> DeltaColumn:
    kind, ddl = _logical(found["type"])
    spec = found["metadata"].get(TYPE_KEY)
    if spec is not None:
        told = type_from_spec(json.loads(spec))
        # Somebody may have given the column another type since.
        kind = told if kind is not None and spark_ddl(told) == ddl else kind
    own = ("delta.", TYPE_KEY)
    notes = {k: v for k, v in found["metadata"].items() if not k.startswith(own)}
    return DeltaColumn(found["name"], kind, ddl, bool(found["nullable"]), notes)


def _logical(kind: Any) -> tuple[t.ColumnType | None, str]:
    """The logical type behind a type of Delta's schema, and how Spark spells it."""
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            precision, scale = (int(n) for n in kind[8:-1].split(","))
            return t.Numeric(precision, scale), f"DECIMAL({precision}, {scale})"
        plain = _PLAIN.get(kind)
        if plain is None:
            return None, kind.upper()
        return plain, {"byte": "TINYINT", "variant": "VARIANT"}.get(kind, spark_ddl(plain))
    if kind["type"] == "array":
        element, ddl = _logical(kind["elementType"])
        nested = element is None or element.kind == "json"
        return (t.JSON() if element is None or nested else t.Array(element)), f"ARRAY<{ddl}>"
    if kind["type"] == "struct":
        inner = ", ".join(f"{f['name']}: {_logical(f['type'])[1]}" for f in kind["fields"])
        return t.JSON(), f"STRUCT<{inner}>"
    inner = ", ".join(_logical(kind[part])[1] for part in ("keyType", "valueType"))
    return t.JSON(), f"MAP<{inner}>"


def type_metadata(column_type: t.ColumnType) -> dict[str, str]:
    """What is kept with a column whose Spark type does not say its logical type."""
    told = isinstance(column_type, t.Numeric) or column_type in _PLAIN.values()
    if told and column_type.kind != "json":
        return {}
    return {TYPE_KEY: json.dumps(type_to_spec(column_type))}
