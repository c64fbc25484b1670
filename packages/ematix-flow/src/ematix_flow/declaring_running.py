"""The checks behind what says how a pipeline is run: dependencies, retries, tags, freshness."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from ematix_flow import errors
from ematix_flow.connections import nearest
from ematix_flow.declaring_options import is_text
from ematix_flow.declaring_transforms import shown
from ematix_flow.durations import duration
from ematix_flow.errors import ConfigError, DeclarationError, EmatixError, UnknownName
from ematix_flow.model import CONDITIONS, RetryPolicy
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import Broken

# Other spellings of keys of ``retry=``.
_SPELLINGS = {"base_secs": "backoff_seconds", "max_backoff_secs": "max_backoff_seconds"}
_GROWTHS = ("fixed", "linear", "exponential")
_NUMBERS = (
    "max_attempts",
    "backoff_seconds",
    "backoff_factor",
    "max_backoff_seconds",
    "jitter",
)
_KEYS = (*_NUMBERS, "backoff", "retry_on", *_SPELLINGS)


def retry_policy(retry: Mapping[str, Any] | None) -> RetryPolicy | None:
    """A typed policy from ``retry={…}``; unknown keys are errors."""
    if retry is None:
        return None
    if not isinstance(retry, Mapping):
        raise DeclarationError(
            f"retry= must be a dictionary, not {retry!r}", fix='write retry={"max_attempts": 3}'
        )
    given: dict[str, Any] = {}
    for key, value in retry.items():
        if key not in _KEYS:
            raise UnknownName(f"retry has no key {key!r}", fix=nearest(str(key), _KEYS))
        name = _SPELLINGS.get(key, key)
        if name in given:
            raise DeclarationError(
                f"retry has both {key!r} and another spelling of it", fix="keep one of them"
            )
        given[name] = _number(key, value) if name in _NUMBERS else value
    growth = given.pop("backoff", None)
    if growth is not None:
        if growth not in _GROWTHS:
            raise DeclarationError(
                f"retry['backoff'] cannot be {growth!r}", fix=f"use one of {', '.join(_GROWTHS)}"
            )
        if growth != "exponential" and "backoff_factor" in given:
            raise DeclarationError(
                f"retry['backoff_factor'] does not go with retry['backoff']={growth!r}",
                fix="remove one of them",
            )
        given |= {"linear": growth == "linear"}
        given.setdefault("backoff_factor", 2.0 if growth == "exponential" else 1.0)
    if "retry_on" in given:
        given["retry_on"] = _retry_on(given["retry_on"])
    policy = RetryPolicy(**given)
    if not isinstance(policy.max_attempts, int) or policy.max_attempts < 1:
        raise DeclarationError(
            "retry['max_attempts'] must be a whole number from 1 upwards",
            fix="write 1 for a single try",
        )
    if policy.jitter > 1:
        raise DeclarationError(
            f"retry['jitter'] must be from 0 to 1, not {policy.jitter!r}",
            fix="write 0.5 for pauses that are up to half as long again",
        )
    return policy


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise DeclarationError(
            f"retry[{key!r}] must be a number from 0 upwards, not {value!r}",
            fix=f"write for example retry={{{key!r}: 3}}",
        )
    return value


def _retry_on(value: object) -> tuple[str, ...]:
    """Names of error classes; ``transient`` and ``any`` stand for many of them."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise DeclarationError(
            f"retry['retry_on'] must be a list of error classes, not {value!r}",
            fix='write "any", "transient" or for example ["Transient", "DataError"]',
        )
    known = [
        name
        for name, held in vars(errors).items()
        if isinstance(held, type) and issubclass(held, EmatixError)
    ]
    found = []
    for entry in names:
        name = entry.__name__ if isinstance(entry, type) else str(entry)
        if name not in ("any", "transient", *known):
            raise UnknownName(
                f"retry['retry_on'] names {name!r}, which is no error of this system",
                fix=nearest(name, [*known, "any", "transient"]),
            )
        found.append(name)
    return tuple(found)


def dependencies(value: object) -> dict[str, str]:
    """The pipelines in ``depends_on=``, each with how it must have ended."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        entries: list[Any] = list(value.items())
    elif isinstance(value, list | tuple):
        entries = [e if isinstance(e, tuple) else (e, CONDITIONS[0]) for e in value]
    else:
        raise DeclarationError(
            f"depends_on= must be a list of pipelines, not {shown(value)}",
            fix=f"write depends_on=[{value!r}]" if isinstance(value, str) else "put it in a list",
        )
    found: dict[str, str] = {}
    for entry in entries:
        if len(entry) != 2:  # noqa: PLR2004 - a pipeline and its condition
            raise DeclarationError(
                f"depends_on= has an entry of {len(entry)} parts",
                fix='write ("load_orders", "completed")',
            )
        upstream, condition = entry
        if not is_text(upstream) and not isinstance(upstream, Pipeline | Broken):
            raise DeclarationError(
                f"depends_on= takes pipelines or their names, not {shown(upstream)}",
                fix='write for example ["load_orders"]',
            )
        if condition not in CONDITIONS:
            raise UnknownName(
                f"depends_on= cannot wait for {condition!r}",
                fix=nearest(str(condition), CONDITIONS),
            )
        name = upstream if isinstance(upstream, str) else upstream.name
        if found.get(name, condition) != condition:
            raise DeclarationError(
                f"depends_on= names {name!r} with two conditions", fix="keep one of them"
            )
        found[name] = condition
    return found


def duration_seconds(option: str, value: object) -> float | None:
    """A time in seconds: a number of them, a timedelta, or a text such as ``6h``."""
    if value is None:
        return None
    length = value
    if isinstance(value, str):
        with contextlib.suppress(ConfigError):
            length = duration(value, option)
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if isinstance(seconds, int | float) and seconds is not True and 0 < seconds < math.inf:
        return float(seconds)
    raise DeclarationError(
        f"{option}= must be a time above 0, not {value!r}",
        fix='write seconds, a timedelta or a text such as "90s", "15m", "6h", "2d"',
    )


def check_freshness_column(
    column: object, given: Mapping[str, Any], names: Collection[str]
) -> str | None:
    """``freshness_column=``, if it is one of the table's."""
    if column is None:
        return None
    if given["freshness_sla"] is None:
        raise DeclarationError(
            "freshness_column= goes with freshness_sla=", fix="add it, or remove the column"
        )
    if column not in names:
        raise DeclarationError(
            f"freshness_column={column!r} is not a column of the target",
            fix=nearest(str(column), names),
        )
    return str(column)


def tag_names(value: object) -> tuple[str, ...]:
    """``tags=`` as names."""
    if not isinstance(value, list | tuple) or not all(map(is_text, value)):
        raise DeclarationError(
            f"tags= must be a list of texts, not {shown(value)}", fix='write for example ["heavy"]'
        )
    return tuple(dict.fromkeys(value))
