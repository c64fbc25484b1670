"""What declarations become: frozen data with file and line. Nothing here executes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.clock import Schedule
from ematix_flow.errors import SourceLocation
from ematix_flow.peers import Placement
from ematix_flow.types import ColumnType

if TYPE_CHECKING:
    from ematix_flow.normalize.base import Normalizer

RUN_ID_COLUMN = "_run_id"
LOADED_AT_COLUMN = "_loaded_at"
VALID_FROM_COLUMN = "valid_from"
VALID_TO_COLUMN = "valid_to"
IS_CURRENT_COLUMN = "is_current"
ROW_HASH_COLUMN = "row_hash"
# Staged beside the declared columns where a mode needs them; they never land under these names.
EVENT_AT_COLUMN = "_event_at"
DELETED_COLUMN = "_deleted"
BOOKKEEPING_SCHEMA = "ematix_flow"


@dataclass(frozen=True)
class Column:
    """One declared column."""

    type: ColumnType
    nullable: bool = True
    primary_key: bool = False
    name: str = ""
    normalizers: tuple[Normalizer, ...] = ()
    renamed_from: str | None = None

    def to_spec(self) -> dict[str, Any]:
        """The column as plain data."""
        return {
            "name": self.name,
            "type": self.type.to_spec(),
            "nullable": self.nullable,
            "primary_key": self.primary_key,
        }


@dataclass(frozen=True)
class TableName:
    """A table's schema and name; a backend decides how they are spelled."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True)
class Table:
    """A declared table."""

    name: TableName
    columns: tuple[Column, ...]
    natural_keys: tuple[tuple[str, ...], ...] = ()
    unique_constraints: tuple[tuple[str, ...], ...] = ()
    merge_keys: tuple[str, ...] = ()
    doc: str = ""
    location: SourceLocation | None = None

    @property
    def column_names(self) -> tuple[str, ...]:
        """The declared columns, in order."""
        return tuple(c.name for c in self.columns)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns marked ``pk()``, in order."""
        return tuple(c.name for c in self.columns if c.primary_key)

    @property
    def unique_groups(self) -> tuple[tuple[str, ...], ...]:
        """Every group of columns that must be unique together, the primary key aside."""
        return tuple(dict.fromkeys((*self.natural_keys, *self.unique_constraints)))

    def without_keys(self) -> Table:
        """The same columns, none of them in a key."""
        columns = tuple(replace(c, primary_key=False) for c in self.columns)
        return replace(self, columns=columns, natural_keys=(), unique_constraints=())


def merge_key(table: Table, keys: tuple[str, ...] | None) -> tuple[str, ...]:
    """The columns that tell one row of a keyed load from another; empty where there are none."""
    natural = next(iter(table.natural_keys), ())
    return keys or table.merge_keys or natural or table.primary_key


@dataclass(frozen=True)
class FileOptions:
    """How an object store writes and reads its files; unset means the format's default."""

    parquet_compression: str | None = None
    csv_delimiter: str | None = None
    csv_header: bool | None = None
    csv_quote: str | None = None
    csv_escape: str | None = None
    csv_null_value: str | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None

    def set_fields(self) -> dict[str, Any]:
        """The options that are set."""
        return {k: v for k, v in self.__dict__.items() if v is not None}


@dataclass(frozen=True)
class LoadOptions:
    """How rows land: everything ``.sync(**overrides)`` may change for one run."""

    keys: tuple[str, ...] | None = None
    update_columns: tuple[str, ...] | None = None
    compare_columns: tuple[str, ...] | None = None
    event_timestamp_column: str | None = None
    handle_deletes: str | None = None
    soft_delete_column: str = "deleted_at"
    max_delete_fraction: float = 0.5
    delete_when: str | None = None
    duplicate_keys: str = "error"
    order_by: str | None = None
    ttl_seconds: float | None = None
    incremental: bool = False
    watermark_column: str | None = None
    lookback: object | None = None
    null_watermark: str = "error"
    on_drift: str | Mapping[str, str] = "error"
    allow: tuple[str, ...] = ()
    allow_empty: bool = False
    force_path: str | None = None


@dataclass(frozen=True)
class TargetSpec:
    """Where a pipeline's rows land."""

    table: Table
    connection: str
    mode: str
    options: LoadOptions
    prefix: str | None = None
    files: FileOptions = field(default_factory=FileOptions)
    column_map: Mapping[str, str] = field(default_factory=dict)


# How a pipeline may have to end for those that depend on it.
CONDITIONS = ("success", "completed", "failed")


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how far apart a failed run is tried again."""

    max_attempts: int = 1
    backoff_seconds: float = 0.0
    backoff_factor: float = 1.0
    max_backoff_seconds: float | None = None
    linear: bool = False
    jitter: float = 0.0
    retry_on: tuple[str, ...] = ("transient",)

    def pause_after(self, attempt: int) -> float:
        """How many seconds after a failed attempt the next one begins, without the jitter."""
        factor = attempt if self.linear else self.backoff_factor ** (attempt - 1)
        most = float("inf") if self.max_backoff_seconds is None else self.max_backoff_seconds
        return min(self.backoff_seconds * factor, most)

    def covers(self, error: BaseException) -> bool:
        """Whether a failure by this error is one after which it is tried again."""
        kinds = {kind.__name__ for kind in type(error).__mro__}
        transient = bool(getattr(error, "transient", False))
        return (
            "any" in self.retry_on
            or (transient and "transient" in self.retry_on)
            or bool(kinds & set(self.retry_on))
        )


@dataclass(frozen=True)
class PipelineSpec:
    """A declared pipeline: the data behind the object that ``@ematix.pipeline`` returns."""

    name: str
    function: Callable[..., Any]
    targets: tuple[TargetSpec, ...]
    location: SourceLocation
    source_connection: str | None = None
    source_table: str | None = None
    transform_sql: str | None = None
    transforms_pre: tuple[Any, ...] = ()
    transforms_post: tuple[Any, ...] = ()
    continue_on_failure_post: bool = False
    continue_on_target_failure: bool = False
    options: LoadOptions = field(default_factory=LoadOptions)
    schedule: Schedule | None = None
    depends_on: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    freshness_sla_seconds: float | None = None
    freshness_column: str | None = None
    retry: RetryPolicy | None = None
    upstream_freshness_secs: int | None = None
    placement: Placement = field(default_factory=Placement)
    doc: str = ""

    @property
    def source(self) -> str:
        """The name of the connection that is read."""
        return self.source_connection or self.targets[0].connection

    @property
    def target_labels(self) -> tuple[str, ...]:
        """A name for each target that tells it from the others: its table's, where that does."""
        plain = [str(t.table.name) for t in self.targets]
        placed = [f"{t.connection}:{name}" for t, name in zip(self.targets, plain, strict=True)]
        return tuple(
            name
            if plain.count(name) == 1
            else place + (f" at {t.prefix}" if t.prefix and placed.count(place) > 1 else "")
            for t, name, place in zip(self.targets, plain, placed, strict=True)
        )
