"""The checks behind ``@ematix.pipeline``: functions, schedules, load options, targets."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from ematix_flow.config import DEFAULT_CONNECTION
from ematix_flow.connections import Connection, nearest
from ematix_flow.errors import DeclarationError, SourceLocation, UnknownName
from ematix_flow.model import LoadOptions, RetryPolicy, Table, TargetSpec
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import Broken, active_registry
from ematix_flow.table import ManagedTable
from ematix_flow.target import Target
from ematix_flow.transforms import RowTransform, TransformRef

MODES = ("append", "truncate", "merge", "scd1", "scd2")
_KEYED_MODES = ("merge", "scd1", "scd2")

_SOURCE_NAMES = ("conn", "src", "source")
_TARGET_NAMES = ("target", "tgt")
_INJECTED = (*_SOURCE_NAMES, *_TARGET_NAMES, "spark", "run")


@dataclass(frozen=True)
class FunctionShape:
    """What a pipeline function wants injected, parameter by parameter."""

    parameters: tuple[tuple[str, str], ...]

    @property
    def wants(self) -> frozenset[str]:
        """The roles it asks for: source, target, spark, run."""
        return frozenset(role for _, role in self.parameters)


def function_shape(function: Callable[..., Any]) -> FunctionShape:
    """The role of every parameter; a lone parameter of any name is the source."""
    parameters = list(inspect.signature(function).parameters.values())
    names = [p.name for p in parameters]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if len(names) == 1 and names[0] not in _INJECTED and parameters[0].kind not in several:
        return FunctionShape(((names[0], "source"),))
    roles = []
    for parameter in parameters:
        if parameter.name in _SOURCE_NAMES:
            roles.append((parameter.name, "source"))
        elif parameter.name in _TARGET_NAMES:
            roles.append((parameter.name, "target"))
        elif parameter.name in ("spark", "run"):
            roles.append((parameter.name, parameter.name))
        elif parameter.default is parameter.empty or parameter.kind in several:
            raise DeclarationError(
                f"its function has a parameter {parameter.name!r} that nothing can be put into",
                fix=f"use the names {', '.join(_INJECTED)}",
            )
    return FunctionShape(tuple(roles))


def check_function(function: Callable[..., Any], source_table: str | None) -> FunctionShape:
    """Refuse what cannot be a pipeline function."""
    if not callable(function) or isinstance(function, type | Pipeline):
        raise DeclarationError(
            "@ematix.pipeline goes on a function", fix="put it above a def that returns the rows"
        )
    if source_table is not None and not _is_text(source_table):
        raise DeclarationError("source_table= must be a text", fix='write "schema.table"')
    return function_shape(function)


def check_schedule(schedule: str | None, zone: str | None) -> None:
    """Refuse a cron text that never fires and a time zone that does not exist."""
    if schedule is not None:
        from croniter import CroniterBadDateError, croniter

        if not isinstance(schedule, str) or not croniter.is_valid(schedule):
            raise DeclarationError(
                f"schedule={schedule!r} is not a cron expression",
                fix='write five fields such as "*/5 * * * *" (minute hour day month weekday)',
            )
        try:
            croniter(schedule, datetime.now(timezone.utc)).get_next()
        except CroniterBadDateError as error:
            raise DeclarationError(
                f"schedule={schedule!r} never fires", fix="choose a day that exists"
            ) from error
    if zone is None:
        return
    if schedule is None:
        raise DeclarationError(
            f"timezone={zone!r} goes with schedule=", fix="add a schedule, or remove it"
        )
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError, TypeError, AttributeError) as error:
        raise DeclarationError(
            f"timezone={zone!r} does not exist",
            fix='use an IANA name such as "Europe/Berlin"',
        ) from error


def retry_policy(retry: Mapping[str, Any] | None) -> RetryPolicy | None:
    """A typed policy from ``retry={…}``; unknown keys are errors."""
    if retry is None:
        return None
    if not isinstance(retry, Mapping):
        raise DeclarationError(
            f"retry= must be a dictionary, not {retry!r}", fix='write retry={"max_attempts": 3}'
        )
    known = [f.name for f in dataclasses.fields(RetryPolicy)]
    for key, value in retry.items():
        if key not in known:
            raise UnknownName(f"retry has no key {key!r}", fix=nearest(key, known))
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise DeclarationError(
                f"retry[{key!r}] must be a number from 0 upwards, not {value!r}",
                fix=f"write for example retry={{{key!r}: 3}}",
            )
    policy = RetryPolicy(**retry)
    if not isinstance(policy.max_attempts, int) or policy.max_attempts < 1:
        raise DeclarationError(
            "retry['max_attempts'] must be a whole number from 1 upwards",
            fix="write 1 for a single try",
        )
    return policy


_CHOICES = {
    "on_drift": ("error", "warn", "evolve"),
    "handle_deletes": (None, "hard", "soft"),
    "duplicate_keys": ("error", "first", "last"),
    "null_watermark": ("error", "load"),
    "force_path": (None, "same_db", "spark"),
    "engine": ("auto", "local", "distributed", "sail"),
}
_TEXTS = (
    "name",
    "event_timestamp_column",
    "soft_delete_column",
    "delete_when",
    "order_by",
    "incremental_column",
    "watermark_column",
    "transform_sql",
    "prefix",
    "master",
)
_FLAGS = (
    "incremental",
    "allow_empty",
    "continue_on_failure_post",
    "continue_on_target_failure",
)
_COLUMN_LISTS = ("keys", "update_columns", "compare_columns")


def check_mode(mode: object) -> str:
    """The mode, if there is one of that name."""
    if mode not in MODES:
        raise UnknownName(f"mode={mode!r} is not known", fix=nearest(str(mode), MODES))
    return str(mode)


def load_options(given: Mapping[str, Any]) -> LoadOptions:
    """The load options among a pipeline's keywords, checked."""
    check_mode(given["mode"])
    for option, allowed in _CHOICES.items():
        value = given.get(option, allowed[0])
        if not isinstance(value, str | None) or value not in allowed:
            shown = ", ".join(repr(a) for a in allowed)
            raise DeclarationError(
                f"{option}={given[option]!r} is not known", fix=f"use one of {shown}"
            )
    for flag in _FLAGS:
        if not isinstance(given.get(flag, False), bool):
            raise DeclarationError(
                f"{flag}= must be True or False, not {given[flag]!r}", fix=f"write {flag}=True"
            )
    for option in _TEXTS:
        if given.get(option) is not None and not _is_text(given[option]):
            raise DeclarationError(
                f"{option}= must be a text, not {given[option]!r}", fix="correct it"
            )
    _check_numbers(given)
    _check_combinations(given)
    ttl = given.get("ttl")
    values = {f.name: given[f.name] for f in dataclasses.fields(LoadOptions) if f.name in given}
    for name in (*_COLUMN_LISTS, "allow"):
        if values.get(name) is not None:
            values[name] = _names(name, values[name])
    if ttl is not None:
        values["ttl_seconds"] = ttl.total_seconds()
    values["watermark_column"] = given.get("watermark_column") or given.get("incremental_column")
    return LoadOptions(**values)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _check_numbers(given: Mapping[str, Any]) -> None:
    ttl = given.get("ttl")
    if ttl is not None and not isinstance(ttl, timedelta):
        raise DeclarationError(
            f"ttl= must be a timedelta, not {ttl!r}", fix="write ttl=timedelta(days=30)"
        )
    seconds = {
        "ttl": ttl,
        "ttl_seconds": given.get("ttl_seconds"),
        "lookback": given.get("lookback"),
        "upstream_freshness_secs": given.get("upstream_freshness_secs"),
    }
    for option, value in seconds.items():
        length = value.total_seconds() if isinstance(value, timedelta) else value
        if length is None:
            continue
        if isinstance(length, bool) or not isinstance(length, int | float) or not length > 0:
            raise DeclarationError(
                f"{option}= must be a time above 0, not {value!r}", fix="give it in seconds"
            )


_ONLY_FOR_KEYED_MODES = ("handle_deletes", "update_columns", "compare_columns", "delete_when")


def _check_combinations(given: Mapping[str, Any]) -> None:
    mode = given["mode"]
    if given.get("incremental") and not (
        given.get("watermark_column") or given.get("incremental_column")
    ):
        raise DeclarationError(
            "incremental=True needs watermark_column=", fix="name a column that only grows"
        )
    if given.get("incremental") and mode == "truncate":
        raise DeclarationError(
            'incremental=True and mode="truncate" contradict each other', fix="remove one of them"
        )
    for option in _ONLY_FOR_KEYED_MODES:
        if given.get(option) and mode not in _KEYED_MODES:
            raise DeclarationError(
                f'{option}= does not go with mode="{mode}"', fix='use mode="merge" or "scd2"'
            )
    for option in ("event_timestamp_column", "ttl", "ttl_seconds"):
        if given.get(option) is not None and mode != "scd2":
            raise DeclarationError(
                f'{option}= does not go with mode="{mode}"', fix='use mode="scd2"'
            )
    if given.get("watermark_column") and given.get("incremental_column"):
        raise DeclarationError(
            "both watermark_column= and incremental_column= are given", fix="keep one of them"
        )
    if given.get("ttl") is not None and given.get("ttl_seconds") is not None:
        raise DeclarationError("both ttl= and ttl_seconds= are given", fix="keep one of them")
    if given.get("allow_empty") and mode != "truncate":
        raise DeclarationError(
            f'allow_empty=True does not go with mode="{mode}"',
            fix='it is for mode="truncate"; remove it',
        )
    fraction = given.get("max_delete_fraction", 0.5)
    if (
        isinstance(fraction, bool)
        or not isinstance(fraction, int | float)
        or not 0 <= fraction <= 1
    ):
        raise DeclarationError(
            f"max_delete_fraction must be from 0 to 1, not {fraction!r}",
            fix="write for example 0.5",
        )


def _names(option: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise DeclarationError(
            f"{option}= must be a list of column names, not {value!r}",
            fix=f'write {option}=("{value}",)' if isinstance(value, str) else "",
        )
    return tuple(value)


def target_specs(given: Mapping[str, Any]) -> tuple[TargetSpec, ...]:
    """Where the rows land, from ``target=`` or ``targets=``."""
    target, targets = given["target"], given["targets"]
    if (target is None) == (targets is None):
        raise DeclarationError(
            "exactly one of target= and targets= is needed",
            fix="give target= a declared table",
        )
    if target is not None:
        table = _declared_table(target)
        check_column_options(given, table)
        name = _target_connection(given["target_connection"])
        return (TargetSpec(table, name, given["mode"], given["prefix"]),)
    if not isinstance(targets, list | tuple) or not targets:
        raise DeclarationError(
            "targets= must be a list of at least one Target",
            fix='write [Target(table=…, connection="…")]',
        )
    return tuple(_from_target(entry, given) for entry in targets)


def _from_target(entry: object, given: Mapping[str, Any]) -> TargetSpec:
    if not isinstance(entry, Target):
        raise DeclarationError(
            f"targets= takes Target(…) entries, not {type(entry).__name__}",
            fix='write Target(table=…, connection="…")',
        )
    if isinstance(entry.table, tuple) or entry.table is None:
        raise DeclarationError(
            "a batch pipeline's Target needs table= with a declared table",
            fix="declare one with @ematix.table",
        )
    files = entry.file_options()
    table = _declared_table(entry.table)
    own = {o: getattr(entry, o) for o in (*_COLUMN_LISTS, "event_timestamp_column")}
    check_column_options({**given, **{o: v for o, v in own.items() if v is not None}}, table)
    return TargetSpec(
        table,
        _target_connection(entry.connection),
        check_mode(entry.mode or given["mode"]),
        entry.prefix,
        files,
    )


def _declared_table(target: object) -> Table:
    if isinstance(target, type) and issubclass(target, ManagedTable):
        declared = getattr(target, "__table__", None)
        if isinstance(declared, Table):
            return declared
        raise DeclarationError(
            f"target={target.__name__} is a base for tables, not a table",
            fix="derive a table from it, or remove __abstract__",
        )
    else:
        shown = getattr(target, "__name__", type(target).__name__)
        raise DeclarationError(
            f"target={shown} is not a declared table",
            fix="put @ematix.table on the class or derive it from ManagedTable",
        )


def check_column_options(given: Mapping[str, Any], table: Table) -> None:
    """Refuse options that name columns which the table does not have."""
    named = [(o, n) for o in _COLUMN_LISTS for n in given.get(o) or ()]
    single = ("event_timestamp_column", "watermark_column", "incremental_column")
    named += [(o, given[o]) for o in single if given.get(o)]
    for option, column in named:
        if column not in table.column_names:
            raise DeclarationError(
                f"{option}= names {column!r}, which is not a column of {table.name}",
                fix=nearest(str(column), table.column_names),
            )


def _target_connection(value: str | Connection | None) -> str:
    return connection_name("target_connection", value) or DEFAULT_CONNECTION


def connection_name(option: str, value: object) -> str | None:
    """The name behind a connection or its name; a connection given as such is registered."""
    if value is None or _is_text(value):
        return value  # type: ignore[return-value]  # a text, or nothing
    if not isinstance(value, Connection):
        raise DeclarationError(
            f"{option}= takes a connection or its name, not {_shown(value)}",
            fix='write for example "warehouse"',
        )
    held = active_registry().connections.setdefault(value.name, value)
    if held != value:
        raise DeclarationError(
            f"{option}= is a connection named {value.name!r}, and another of that name is "
            "registered",
            fix="give one of them another name=",
        )
    return value.name


def pipeline_names(value: object) -> tuple[str, ...]:
    """The names in ``depends_on=``; pipelines may be given as such."""
    entries = () if value is None else value
    if not isinstance(entries, list | tuple):
        raise DeclarationError(
            f"depends_on= must be a list of pipelines, not {_shown(value)}",
            fix=f"write depends_on=[{value!r}]" if isinstance(value, str) else "put it in a list",
        )
    for entry in entries:
        if not _is_text(entry) and not isinstance(entry, Pipeline | Broken):
            raise DeclarationError(
                f"depends_on= takes pipelines or their names, not {_shown(entry)}",
                fix='write for example ["load_orders"]',
            )
    return tuple(e if isinstance(e, str) else e.name for e in entries)


def check_columns_map(value: object, specs: tuple[TargetSpec, ...]) -> dict[str, str]:
    """``column_map=``: from columns of the target to columns of the source."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(map(_is_text, (*value, *value.values()))):
        raise DeclarationError(
            f"column_map= must be a dictionary of texts, not {value!r}",
            fix='write {"column of the target": "column of the source"}',
        )
    for column in value:
        for spec in specs:
            if column not in spec.table.column_names:
                raise DeclarationError(
                    f"column_map names {column!r}, which is not a column of {spec.table.name}",
                    fix=nearest(column, spec.table.column_names),
                )
    return dict(value)


def check_transforms(given: Mapping[str, Any]) -> None:
    """What ``transforms_pre=`` and ``transforms_post=`` may hold."""
    for option in ("transforms_pre", "transforms_post", "peers"):
        value = given[option]
        if value is not None and not isinstance(value, list | tuple):
            raise DeclarationError(f"{option}= must be a list, not {_shown(value)}", fix="use […]")
    for entry in given["transforms_pre"] or ():
        if not isinstance(entry, RowTransform):
            raise DeclarationError(
                f"transforms_pre= cannot hold {_shown(entry)}",
                fix="use what ematix_flow.transforms offers, such as filter_where(…)",
            )
    for entry in given["transforms_post"] or ():
        named = isinstance(entry, TransformRef) or _is_text(entry)
        if not named and (not callable(entry) or isinstance(entry, type)):
            raise DeclarationError(
                f"transforms_post= cannot hold {_shown(entry)}",
                fix="use SQL, a function, or ematix.transform_ref(…)",
            )
    for entry in given["peers"] or ():
        if not _is_text(entry) or not entry.startswith(("http://", "https://", "dns://", "k8s://")):
            raise DeclarationError(
                f"peers= cannot hold {_shown(entry)}",
                fix='write addresses such as "http://host:port", "dns://…" or "k8s://…"',
            )


def check_keys(spec: TargetSpec, keys: tuple[str, ...] | None, where: SourceLocation) -> None:
    """Refuse a keyed mode without a key, and say so when it is not the primary key."""
    if spec.mode not in _KEYED_MODES or keys:
        return
    table = spec.table
    chosen = table.merge_keys or next(iter(table.natural_keys), ())
    if not chosen and not table.primary_key:
        raise DeclarationError(
            f'mode="{spec.mode}" needs a key, and {table.name} has none',
            fix="mark columns with pk() or natural_key(), or give keys=",
        )
    if chosen and table.primary_key and set(chosen) != set(table.primary_key):
        origin = "__merge_keys__" if table.merge_keys else "natural_key()"
        warnings.warn_explicit(
            f"{table.name} is merged on {', '.join(chosen)} ({origin}), not on its primary key "
            f"{', '.join(table.primary_key)}; give keys= to choose",
            UserWarning,
            where.file,
            where.line,
        )


_LATER = {
    "targets": "targets=",
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


def not_yet(given: Mapping[str, Any]) -> list[str]:
    """The declared features that this version checks but does not execute."""
    later = [f"mode={given['mode']!r}"] if given["mode"] in _KEYED_MODES else []
    later += [shown for option, shown in _LATER.items() if given.get(option)]
    for option, now in (("on_drift", "error"), ("duplicate_keys", "error"), ("engine", "auto")):
        if given.get(option, now) != now:
            later.append(f"{option}={given[option]!r}")
    return later


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))
