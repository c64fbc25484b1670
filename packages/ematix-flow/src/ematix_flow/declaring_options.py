"""The checks of load options: their values, and which of them go together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ematix_flow.connections import nearest
from ematix_flow.drift import check_allow, check_on_drift
from ematix_flow.errors import DeclarationError, UnknownName
from ematix_flow.model import LoadOptions

MODES = ("append", "truncate", "merge", "scd1", "scd2")
KEYED_MODES = ("merge", "scd1", "scd2")
_CHOICES = {
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
COLUMN_LISTS = ("keys", "update_columns", "compare_columns")
TARGET_OPTIONS = (*COLUMN_LISTS, "mode", "event_timestamp_column", "handle_deletes")


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
        if given.get(option) is not None and not is_text(given[option]):
            raise DeclarationError(
                f"{option}= must be a text, not {given[option]!r}", fix="correct it"
            )
    check_on_drift(given.get("on_drift", "error"))
    _check_numbers(given)
    _check_combinations(given)
    ttl = given.get("ttl")
    values = {f.name: given[f.name] for f in dataclasses.fields(LoadOptions) if f.name in given}
    for name in (*COLUMN_LISTS, "allow"):
        if values.get(name) is not None:
            values[name] = _names(name, values[name])
    check_allow(values.get("allow", ()), given.get("on_drift", "error"))
    if ttl is not None:
        values["ttl_seconds"] = ttl.total_seconds()
    if given.get("incremental_column"):
        values |= {"watermark_column": given["incremental_column"], "incremental": True}
    return LoadOptions(**values)


def is_text(value: object) -> bool:
    """Whether a value is a text with something in it."""
    return isinstance(value, str) and bool(value.strip())


_LOOK_BACK = "give a timedelta, or a number where the watermark column is one"


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
                f"{option}= must be a time above 0, not {value!r}",
                fix=_LOOK_BACK if option == "lookback" else "give it in seconds",
            )


_ONLY_FOR_KEYED_MODES = ("handle_deletes", "update_columns", "compare_columns", "delete_when")


def _check_combinations(given: Mapping[str, Any]) -> None:
    mode = given["mode"]
    incremental = bool(given.get("incremental") or given.get("incremental_column"))
    if incremental and not (given.get("watermark_column") or given.get("incremental_column")):
        raise DeclarationError(
            "incremental=True needs watermark_column=", fix="name a column that only grows"
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
    _check_idle(given, incremental=incremental)
    if incremental and mode == "truncate":
        raise DeclarationError(
            'incremental=True and mode="truncate" contradict each other', fix="remove one of them"
        )
    for option in _ONLY_FOR_KEYED_MODES:
        if given.get(option) and mode not in KEYED_MODES:
            raise DeclarationError(
                f'{option}= does not go with mode="{mode}"', fix='use mode="merge" or "scd2"'
            )
    if given.get("update_columns") and mode == "scd2":
        raise DeclarationError(
            'update_columns= does not go with mode="scd2", which keeps every version whole',
            fix="say with compare_columns= what makes a new version",
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
    if given.get("allow_empty") and mode != "truncate" and not given.get("handle_deletes"):
        raise DeclarationError(
            f'allow_empty=True does not go with mode="{mode}"',
            fix='it is for mode="truncate" and for handle_deletes=; remove it',
        )
    _check_deletes(given, mode)


def _check_idle(given: Mapping[str, Any], *, incremental: bool) -> None:
    """Refuse options that would change nothing, because what they belong to is not asked for."""
    deletes = given.get("handle_deletes")
    needs = {
        "order_by": (given.get("duplicate_keys", "error") != "error", 'duplicate_keys="last"'),
        "watermark_column": (incremental, "incremental=True"),
        "lookback": (incremental, "incremental=True"),
        "null_watermark": (incremental, "incremental=True"),
        "max_delete_fraction": (bool(deletes), "handle_deletes="),
        "soft_delete_column": (deletes == "soft", 'handle_deletes="soft"'),
    }
    defaults = LoadOptions()
    for option, (there, other) in needs.items():
        if not there and given.get(option, getattr(defaults, option)) != getattr(defaults, option):
            raise DeclarationError(f"{option}= goes with {other}", fix=f"add {other}, or remove it")


def _check_deletes(given: Mapping[str, Any], mode: str) -> None:
    policy = given.get("handle_deletes")
    if policy == "hard" and mode == "scd2":
        raise DeclarationError(
            'handle_deletes="hard" does not go with mode="scd2", which keeps history',
            fix='use handle_deletes="soft": it closes the versions of keys that are gone',
        )
    if policy and given.get("event_timestamp_column"):
        raise DeclarationError(
            "handle_deletes= needs a full snapshot, and event_timestamp_column= says that the "
            "source gives events",
            fix="mark deletes in the events with delete_when=",
        )
    if policy and (given.get("incremental") or given.get("incremental_column")):
        raise DeclarationError(
            "handle_deletes= needs a full snapshot, and incremental=True reads a part",
            fix="remove one of them, or mark deletes with delete_when=",
        )
    if given.get("duplicate_keys", "error") != "error":
        if mode not in KEYED_MODES or given.get("event_timestamp_column"):
            raise DeclarationError(
                f'duplicate_keys= does not go with mode="{mode}"'
                + (" by event time" if mode in KEYED_MODES else ""),
                fix="remove it",
            )
        if not given.get("order_by"):
            raise DeclarationError(
                f"duplicate_keys={given['duplicate_keys']!r} needs order_by=",
                fix='say which row is the last, for example order_by="updated_at"',
            )


def _names(option: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise DeclarationError(
            f"{option}= must be a list of column names, not {value!r}",
            fix=f'write {option}=("{value}",)' if isinstance(value, str) else "",
        )
    if not value and option in COLUMN_LISTS:
        raise DeclarationError(
            f"{option}= is an empty list", fix="name at least one column, or remove it"
        )
    return tuple(value)
