"""The checks behind ``@ematix.pipeline``: functions, schedules, load options, targets."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.config import DEFAULT_CONNECTION
from ematix_flow.connections import Connection, nearest
from ematix_flow.errors import DeclarationError, UnknownName
from ematix_flow.model import FileOptions, LoadOptions, RetryPolicy, Table, TargetSpec
from ematix_flow.registry import active_registry
from ematix_flow.table import ManagedTable
from ematix_flow.target import Target

MODES = ("append", "truncate", "merge", "scd1", "scd2")

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
    if len(names) == 1 and names[0] not in _INJECTED:
        return FunctionShape(((names[0], "source"),))
    roles = []
    for parameter in parameters:
        if parameter.name in _SOURCE_NAMES:
            roles.append((parameter.name, "source"))
        elif parameter.name in _TARGET_NAMES:
            roles.append((parameter.name, "target"))
        elif parameter.name in ("spark", "run"):
            roles.append((parameter.name, parameter.name))
        else:
            raise DeclarationError(
                f"its function has a parameter {parameter.name!r} that nothing can be put into",
                fix=f"use the names {', '.join(_INJECTED)}",
            )
    return FunctionShape(tuple(roles))


def check_function(function: Callable[..., Any], source_table: str | None) -> FunctionShape:
    """Refuse what cannot be a pipeline function."""
    if not callable(function) or isinstance(function, type):
        raise DeclarationError("@ematix.pipeline goes on a function")
    if source_table is not None and (not isinstance(source_table, str) or not source_table):
        raise DeclarationError("source_table= must be a text", fix='write "schema.table"')
    return function_shape(function)


def check_schedule(schedule: str | None, timezone: str | None) -> None:
    """Refuse a cron text that never fires and a time zone that does not exist."""
    if schedule is not None:
        from croniter import croniter

        if not isinstance(schedule, str) or not croniter.is_valid(schedule):
            raise DeclarationError(
                f"schedule={schedule!r} is not a cron expression",
                fix='write five fields such as "*/5 * * * *" (minute hour day month weekday)',
            )
    if timezone is not None:
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(timezone)
        except (KeyError, ValueError, OSError, TypeError) as error:
            raise DeclarationError(
                f"timezone={timezone!r} does not exist",
                fix='use an IANA name such as "Europe/Berlin"',
            ) from error


def retry_policy(retry: Mapping[str, Any] | None) -> RetryPolicy | None:
    """A typed policy from ``retry={…}``; unknown keys are errors."""
    if retry is None:
        return None
    known = [f.name for f in dataclasses.fields(RetryPolicy)]
    for key, value in retry.items():
        if key not in known:
            raise UnknownName(f"retry has no key {key!r}", fix=nearest(key, known))
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise DeclarationError(f"retry[{key!r}] must be a number from 0 upwards, not {value!r}")
    policy = RetryPolicy(**retry)
    if not isinstance(policy.max_attempts, int) or policy.max_attempts < 1:
        raise DeclarationError("retry['max_attempts'] must be a whole number from 1 upwards")
    return policy


_CHOICES = {
    "on_drift": ("error", "warn", "evolve"),
    "handle_deletes": (None, "hard", "soft"),
    "duplicate_keys": ("error", "first", "last"),
    "null_watermark": ("error", "load"),
    "force_path": (None, "same_db", "spark"),
    "engine": ("auto", "local", "distributed", "sail"),
}
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
        if given.get(option, allowed[0]) not in allowed:
            shown = ", ".join(repr(a) for a in allowed)
            raise DeclarationError(
                f"{option}={given[option]!r} is not known", fix=f"use one of {shown}"
            )
    for flag in _FLAGS:
        if not isinstance(given.get(flag, False), bool):
            raise DeclarationError(f"{flag}= must be True or False, not {given[flag]!r}")
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
    if given.get("handle_deletes") and mode not in ("merge", "scd1", "scd2"):
        raise DeclarationError(
            f'handle_deletes= does not go with mode="{mode}"', fix='use mode="merge" or "scd2"'
        )
    for option in ("update_columns", "compare_columns"):
        if given.get(option) and mode not in ("merge", "scd1", "scd2"):
            raise DeclarationError(
                f'{option}= does not go with mode="{mode}"', fix='use mode="merge" or "scd2"'
            )
    if given.get("event_timestamp_column") and mode != "scd2":
        raise DeclarationError(
            f'event_timestamp_column= does not go with mode="{mode}"', fix='use mode="scd2"'
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
        raise DeclarationError(f"max_delete_fraction must be from 0 to 1, not {fraction!r}")


def _names(option: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(v, str) for v in value):
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
        _check_column_options(given, table)
        name = _target_connection(given["target_connection"])
        return (TargetSpec(table, name, given["mode"], given["prefix"]),)
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
    files = FileOptions(**{f.name: getattr(entry, f.name) for f in dataclasses.fields(FileOptions)})
    return TargetSpec(
        _declared_table(entry.table),
        _target_connection(entry.connection),
        check_mode(entry.mode or given["mode"]),
        entry.prefix,
        files,
    )


def _declared_table(target: object) -> Table:
    if not (isinstance(target, type) and issubclass(target, ManagedTable)):
        shown = getattr(target, "__name__", type(target).__name__)
        raise DeclarationError(
            f"target={shown} is not a declared table",
            fix="put @ematix.table on the class or derive it from ManagedTable",
        )
    return target.__table__


def _check_column_options(given: Mapping[str, Any], table: Table) -> None:
    named = [(o, n) for o in _COLUMN_LISTS for n in given[o] or ()]
    single = ("event_timestamp_column", "watermark_column", "incremental_column")
    named += [(o, given[o]) for o in single if given[o]]
    for option, column in named:
        if column not in table.column_names:
            raise DeclarationError(
                f"{option}= names {column!r}, which is not a column of {table.name}",
                fix=nearest(str(column), table.column_names),
            )


def _target_connection(value: str | Connection | None) -> str:
    if isinstance(value, Connection):
        active_registry().connections.setdefault(value.name, value)
        return value.name
    return value or DEFAULT_CONNECTION
