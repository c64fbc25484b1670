"""The checks behind ``transforms_pre=``, ``transforms_post=`` and ``@ematix.transform``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ematix_flow.errors import DeclarationError
from ematix_flow.model import TargetSpec
from ematix_flow.pipeline import Pipeline, Transform
from ematix_flow.transforms import Limit, RowTransform, SamplePercent, TransformRef

_TARGET_NAMES = ("conn", "target", "tgt", "connection")
_INJECTED = (*_TARGET_NAMES, "spark", "run")
_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_transforms(given: Mapping[str, Any]) -> None:
    """What ``transforms_pre=`` and ``transforms_post=`` may hold."""
    for option in ("transforms_pre", "transforms_post", "peers"):
        value = given[option]
        if value is not None and not isinstance(value, list | tuple):
            raise DeclarationError(f"{option}= must be a list, not {shown(value)}", fix="use […]")
    for entry in given["transforms_pre"] or ():
        if not isinstance(entry, RowTransform):
            _check_row_function(entry)
    for entry in given["transforms_post"] or ():
        if isinstance(entry, TransformRef | Transform) or (
            isinstance(entry, str) and entry.strip()
        ):
            continue
        if not callable(entry) or isinstance(entry, type | Pipeline):
            raise DeclarationError(
                f"transforms_post= cannot hold {shown(entry)}",
                fix="use SQL, a function, or ematix.transform_ref(…)",
            )
        step_arguments(entry)


def _check_row_function(entry: object) -> None:
    if not callable(entry) or isinstance(entry, type | Pipeline | Transform):
        raise DeclarationError(
            f"transforms_pre= cannot hold {shown(entry)}",
            fix="use what ematix_flow.transforms offers, such as filter_where(…), or a function "
            "of the DataFrame",
        )
    try:
        inspect.signature(entry).bind(None)
    except TypeError as error:
        raise DeclarationError(
            f"the function {shown(entry)} in transforms_pre= cannot be called with a DataFrame "
            "alone",
            fix="give it one parameter",
        ) from error
    except ValueError:  # a builtin without a signature
        return


def check_limits(transforms: Sequence[Any], target: TargetSpec) -> None:
    """Refuse ``limit()`` and ``sample_pct()`` where rows they leave out would be lost."""
    options = target.options
    for entry in transforms:
        lost = ""
        if isinstance(entry, Limit | SamplePercent) and options.handle_deletes:
            lost = "handle_deletes=: the rows it leaves out would be deleted"
        elif isinstance(entry, Limit) and options.incremental:
            lost = "incremental=True: the rows it leaves out would never be read"
        if lost:
            name = "limit()" if isinstance(entry, Limit) else "sample_pct()"
            raise DeclarationError(
                f"{name} in transforms_pre= does not go with {lost}",
                fix="use filter_where(…), or remove one of them",
            )


def step_arguments(function: Callable[..., Any]) -> tuple[tuple[str, str], ...]:
    """The role of every parameter of a function that runs on a target: target, spark or run."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a builtin without a signature
        return ()
    needed = [p for p in parameters if p.kind not in _SEVERAL]
    if len(needed) == 1 and needed[0].name not in _INJECTED:
        return () if needed[0].default is not needed[0].empty else ((needed[0].name, "target"),)
    roles = []
    for parameter in needed:
        if parameter.name in _TARGET_NAMES:
            roles.append((parameter.name, "target"))
        elif parameter.name in ("spark", "run"):
            roles.append((parameter.name, parameter.name))
        elif parameter.default is parameter.empty:
            raise DeclarationError(
                f"the function {shown(function)} has a parameter {parameter.name!r} that nothing "
                "can be put into",
                fix=f"use the names {', '.join(_INJECTED)}",
            )
    return tuple(roles)


def shown(value: object) -> str:
    """A value that does not belong somewhere, for a message."""
    if isinstance(value, str):
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))
