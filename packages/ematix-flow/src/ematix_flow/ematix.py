"""The decorators: ``@ematix.connection``, ``@ematix.table``, ``@ematix.pipeline`` (``.job``).

They check what they are given and hand frozen declarations to the registry. They never connect,
never start the engine, and never run the function they decorate.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from ematix_flow.connections import Connection, build_connection, nearest
from ematix_flow.declaring import (
    check_function,
    check_schedule,
    load_options,
    retry_policy,
    target_specs,
)
from ematix_flow.errors import DeclarationError, EmatixError, SourceLocation, UnknownName
from ematix_flow.model import LoadOptions, PipelineSpec
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import Broken, active_registry, caller_location
from ematix_flow.table import ManagedTable, declare_table
from ematix_flow.target import Target

__all__ = ["connection", "job", "pipeline", "table"]


def connection(cls: type) -> Connection:
    """Turn a class body into a connection registered under the class's name."""
    where = caller_location()
    fields = {k: v for k, v in vars(cls).items() if not k.startswith("__")}
    name = fields.pop("name", cls.__name__)
    try:
        if "kind" not in fields and not ({"url", "dsn"} & set(fields)):
            raise DeclarationError(
                f"connection {name!r} has no kind", fix='add for example kind = "postgres"'
            )
        built = build_connection(name, fields)
    except EmatixError as error:
        return active_registry().refuse(name, error, where)  # type: ignore[return-value]  # stands in for a connection while a project's errors are collected
    active_registry().add_connection(built)
    return built


def table(
    *, schema: str | None = None, name: str | None = None
) -> Callable[[type], type[ManagedTable]]:
    """Declare a table from an annotated class body."""

    def declare(cls: type) -> type[ManagedTable]:
        return declare_table(cls, schema=schema, name=name)

    return declare


def pipeline(  # noqa: PLR0913 - every option of a load, all by keyword
    *,
    target: type[ManagedTable] | None = None,
    targets: Sequence[Target] | None = None,
    target_connection: str | Connection | None = None,
    source_connection: str | Connection | None = None,
    source_table: str | None = None,
    column_map: Mapping[str, str] | None = None,
    mode: str = "append",
    name: str | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    depends_on: Sequence[str | Pipeline] | None = None,
    upstream_freshness_secs: int | None = None,
    retry: Mapping[str, Any] | None = None,
    keys: Sequence[str] | None = None,
    update_columns: Sequence[str] | None = None,
    compare_columns: Sequence[str] | None = None,
    event_timestamp_column: str | None = None,
    ttl: timedelta | None = None,
    ttl_seconds: float | None = None,
    handle_deletes: str | None = None,
    soft_delete_column: str = "deleted_at",
    max_delete_fraction: float = 0.5,
    delete_when: str | None = None,
    duplicate_keys: str = "error",
    order_by: str | None = None,
    incremental: bool = False,
    incremental_column: str | None = None,
    watermark_column: str | None = None,
    lookback: timedelta | float | None = None,
    null_watermark: str = "error",
    on_drift: str = "error",
    allow: Sequence[str] = (),
    allow_empty: bool = False,
    force_path: str | None = None,
    transform_sql: str | None = None,
    transforms_pre: Sequence[Any] | None = None,
    transforms_post: Sequence[Any] | None = None,
    continue_on_failure_post: bool = False,
    continue_on_target_failure: bool = False,
    prefix: str | None = None,
    engine: str = "auto",
    peers: Sequence[str] | None = None,
    master: str | None = None,
    **unknown: NoReturn,
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Declare a pipeline: where rows come from, where they land, and how.

    The function returns SQL in the source's dialect, a Spark DataFrame, or nothing when
    ``source_table=`` names the source. Its arguments are injected by name: ``conn`` (the live
    source), ``target``, ``spark``, ``run``.
    """
    given = {k: v for k, v in locals().items() if k != "unknown"}
    where = caller_location()

    def declare(function: Callable[..., Any]) -> Pipeline:
        chosen = name or getattr(function, "__name__", "pipeline")
        try:
            for keyword in unknown:
                raise UnknownName(
                    f"pipeline {chosen!r} has no option {keyword!r}", fix=nearest(keyword, given)
                )
            broken = _broken_part(target, targets)
            if broken is not None:
                return _skipped(chosen, broken)
            declared = Pipeline(_spec_of(chosen, function, given, where))
            active_registry().add_pipeline(declared)
        except EmatixError as error:
            if error.where is None:
                error.what = (
                    f"pipeline {chosen!r}: {error.what.removeprefix(f'pipeline {chosen!r} ')}"
                )
            return active_registry().refuse(chosen, error, where)  # type: ignore[return-value]  # stands in for a pipeline while a project's errors are collected
        return declared

    return declare


job = pipeline


def _broken_part(target: Any, targets: Sequence[Any] | None) -> Broken | None:
    tables = [target, *(getattr(t, "table", None) for t in targets or ())]
    for declared in tables:
        broken = getattr(declared, "__broken__", None)
        if isinstance(broken, Broken):
            return broken
    return None


def _skipped(name: str, cause: Broken) -> Pipeline:
    """A pipeline whose table is already reported: known by name, not reported twice."""
    broken = Broken(name, cause.error)
    active_registry().broken[name] = broken
    return broken  # type: ignore[return-value]  # stands in for a pipeline


def _spec_of(
    name: str, function: Callable[..., Any], given: Mapping[str, Any], where: SourceLocation
) -> PipelineSpec:
    check_function(function, given["source_table"])
    check_schedule(given["schedule"], given["timezone"])
    options: LoadOptions = load_options(given)
    specs = target_specs(given)
    column_map = dict(given["column_map"] or {})
    for column in column_map:
        for spec in specs:
            if column not in spec.table.column_names:
                raise DeclarationError(
                    f"column_map names {column!r}, which is not a column of {spec.table.name}",
                    fix=nearest(column, spec.table.column_names),
                )
    if column_map and not given["source_table"]:
        raise DeclarationError(
            "column_map= goes with source_table=", fix="rename the columns in your SQL instead"
        )
    return PipelineSpec(
        name=name,
        function=function,
        targets=specs,
        location=where,
        source_connection=_connection_name(given["source_connection"]),
        source_table=given["source_table"],
        column_map=column_map,
        transform_sql=given["transform_sql"],
        options=options,
        schedule=given["schedule"],
        timezone=given["timezone"],
        depends_on=tuple(_pipeline_name(d) for d in given["depends_on"] or ()),
        retry=retry_policy(given["retry"]),
        upstream_freshness_secs=given["upstream_freshness_secs"],
        not_yet=tuple(_not_yet(given)),
        doc=inspect.getdoc(function) or "",
    )


def _connection_name(value: str | Connection | None) -> str | None:
    return value.name if isinstance(value, Connection) else value


def _pipeline_name(value: str | Pipeline) -> str:
    return value if isinstance(value, str) else value.name


_LATER_MODES = ("merge", "scd1", "scd2")
_LATER = {
    "targets": "several targets",
    "ttl": "ttl=",
    "ttl_seconds": "ttl_seconds=",
    "handle_deletes": "handle_deletes=",
    "delete_when": "delete_when=",
    "order_by": "order_by=",
    "incremental": "incremental=True",
    "incremental_column": "incremental_column=",
    "watermark_column": "watermark_column=",
    "lookback": "lookback=",
    "transform_sql": "transform_sql= in a batch pipeline",
    "transforms_pre": "transforms_pre=",
    "transforms_post": "transforms_post=",
    "peers": "peers=",
    "master": "master=",
}


def _not_yet(given: Mapping[str, Any]) -> list[str]:
    """The declared features that this version checks but does not execute."""
    later = [f"mode={given['mode']!r}"] if given["mode"] in _LATER_MODES else []
    later += [shown for option, shown in _LATER.items() if given[option]]
    if given["on_drift"] != "error":
        later.append(f"on_drift={given['on_drift']!r}")
    if given["engine"] != "auto":
        later.append(f"engine={given['engine']!r}")
    return later
