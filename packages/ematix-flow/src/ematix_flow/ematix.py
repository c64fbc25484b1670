"""The decorators: ``@ematix.connection``, ``.table``, ``.pipeline`` (``.job``), ``.transform``.

They check what they are given and hand frozen declarations to the registry. They never connect,
never start the engine, and never run the function they decorate.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NoReturn

from ematix_flow.connections import Connection, build_connection, nearest
from ematix_flow.declaring import (
    check_function,
    connection_name,
    placement,
    target_specs,
)
from ematix_flow.declaring_columns import check_target
from ematix_flow.declaring_options import load_options
from ematix_flow.declaring_running import (
    check_freshness_column,
    dependencies,
    duration_seconds,
    retry_policy,
    tag_names,
)
from ematix_flow.declaring_schedule import schedule_of
from ematix_flow.declaring_transforms import (
    check_limits,
    check_transforms,
    shown,
    step_arguments,
)
from ematix_flow.errors import DeclarationError, EmatixError, SourceLocation, UnknownName
from ematix_flow.model import LoadOptions, PipelineSpec
from ematix_flow.pipeline import Pipeline, Transform
from ematix_flow.registry import Broken, active_registry, caller_location
from ematix_flow.table import ManagedTable, declare_table
from ematix_flow.target import Target
from ematix_flow.transforms import transform_ref

__all__ = ["connection", "job", "pipeline", "table", "transform", "transform_ref"]


def connection(cls: type) -> Connection:
    """Turn a class body into a connection registered under the class's name."""
    where = caller_location()
    if not isinstance(cls, type):
        raise DeclarationError(
            "@ematix.connection goes on a class",
            fix='write class warehouse: with kind = "postgres" and url = "…" in its body',
            where=where,
        )
    fields: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        fields |= {k: v for k, v in vars(base).items() if not k.startswith("__")}
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
    *, schema: str | None = None, name: str | None = None, **unknown: NoReturn
) -> Callable[[type], type[ManagedTable]]:
    """Declare a table from an annotated class body."""

    def declare(cls: type) -> type[ManagedTable]:
        return declare_table(cls, schema=schema, name=name, unknown=unknown)

    return declare


def pipeline(
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
    jitter: timedelta | float | None = None,
    start_date: date | str | None = None,
    end_date: date | str | None = None,
    excluded_days: Sequence[date | str] | str | None = None,
    catchup: str = "last",
    catchup_limit: int = 100,
    depends_on: Sequence[str | Pipeline | tuple[str | Pipeline, str]]
    | Mapping[str, str]
    | None = None,
    upstream_freshness_secs: int | None = None,
    retry: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    freshness_sla: timedelta | float | str | None = None,
    freshness_column: str | None = None,
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
    on_drift: str | Mapping[str, str] = "error",
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
        given_name = name if isinstance(name, str) and name else None
        chosen = given_name or str(getattr(function, "__name__", "pipeline"))
        try:
            for keyword in unknown:
                raise UnknownName(
                    f"pipeline {chosen!r} has no option {keyword!r}", fix=nearest(keyword, given)
                )
            broken = _broken_part(target, targets, target_connection, source_connection)
            if broken is not None:
                return _skipped(chosen, broken)
            declared = Pipeline(_spec_of(chosen, function, given, where))
            active_registry().add_pipeline(declared)
        except EmatixError as error:
            if error.where is None and not error.what.startswith(f"pipeline {chosen!r}"):
                error.what = f"pipeline {chosen!r}: {error.what}"
            return active_registry().refuse(chosen, error, where)  # type: ignore[return-value]  # stands in for a pipeline while a project's errors are collected
        return declared

    return declare


job = pipeline


def transform(
    *,
    name: str | None = None,
    connection: str | Connection | None = None,
    target_connection: str | Connection | None = None,
    **unknown: NoReturn,
) -> Callable[[Callable[..., Any]], Transform]:
    """Declare a named transform: a function that returns SQL, or that does its work itself.

    It runs on its own ``connection=`` (``target_connection=`` says the same), or else on the
    target of the pipeline that names it. Its arguments are injected by name: ``conn`` (that
    connection, live), ``spark``, ``run``.
    """
    where = caller_location()

    def declare(function: Callable[..., Any]) -> Transform:
        given_name = name if isinstance(name, str) and name else None
        chosen = given_name or str(getattr(function, "__name__", "transform"))
        try:
            for keyword in unknown:
                known = ("name", "connection", "target_connection")
                raise UnknownName(
                    f"transform {chosen!r} has no option {keyword!r}", fix=nearest(keyword, known)
                )
            if not callable(function) or isinstance(function, type | Pipeline | Transform):
                raise DeclarationError(
                    f"@ematix.transform goes on a function, not {shown(function)}",
                    fix="put it above a def that returns SQL",
                )
            if connection is not None and target_connection is not None:
                raise DeclarationError(
                    "both connection= and target_connection= are given", fix="keep one of them"
                )
            step_arguments(function)
            place = connection_name(
                "connection", target_connection if connection is None else connection
            )
            declared = Transform(chosen, function, connection=place, location=where)
            active_registry().add_transform(declared)
        except EmatixError as error:
            if error.where is None and not error.what.startswith(f"transform {chosen!r}"):
                error.what = f"transform {chosen!r}: {error.what}"
            return active_registry().refuse(chosen, error, where)  # type: ignore[return-value]  # stands in for a transform while a project's errors are collected
        return declared

    return declare


def _broken_part(target: Any, targets: Any, *connections: Any) -> Broken | None:
    """A table or connection that was refused; what is built on it is not refused again."""
    entries = targets if isinstance(targets, list | tuple) else ()
    parts = [target, *(getattr(e, "table", None) for e in entries)]
    connections = (*connections, *(getattr(e, "connection", None) for e in entries))
    for held in connections:
        if isinstance(held, Broken):
            return held
    for declared in parts:
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
    schedule = schedule_of(given)
    check_transforms(given)
    options: LoadOptions = load_options(given)
    specs = target_specs(given, options)
    transforms_pre = tuple(given["transforms_pre"] or ())
    for spec in specs:
        check_target(spec, where)
        check_limits(transforms_pre, spec)
    if any(spec.column_map for spec in specs) and not given["source_table"]:
        raise DeclarationError(
            "column_map= goes with source_table=", fix="rename the columns in your SQL instead"
        )
    return PipelineSpec(
        name=name,
        function=function,
        targets=specs,
        location=where,
        source_connection=connection_name("source_connection", given["source_connection"]),
        source_table=given["source_table"],
        transform_sql=given["transform_sql"],
        transforms_pre=transforms_pre,
        transforms_post=tuple(given["transforms_post"] or ()),
        continue_on_failure_post=given["continue_on_failure_post"],
        continue_on_target_failure=given["continue_on_target_failure"],
        options=options,
        schedule=schedule,
        depends_on=dependencies(given["depends_on"]),
        tags=tag_names(given["tags"]),
        freshness_sla_seconds=duration_seconds("freshness_sla", given["freshness_sla"]),
        freshness_column=check_freshness_column(
            given["freshness_column"], given, specs[0].table.column_names
        ),
        retry=retry_policy(given["retry"]),
        upstream_freshness_secs=given["upstream_freshness_secs"],
        placement=placement(given),
        doc=inspect.getdoc(function) or "",
    )
