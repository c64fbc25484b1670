"""The checks behind ``@ematix.pipeline``: functions, schedules, targets."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.config import DEFAULT_CONNECTION
from ematix_flow.connections import Connection, nearest
from ematix_flow.declaring_columns import check_column_options
from ematix_flow.declaring_options import (
    TARGET_OPTIONS,
    check_mode,
    is_text,
    load_options,
)
from ematix_flow.declaring_transforms import shown
from ematix_flow.errors import ConfigError, DeclarationError
from ematix_flow.model import LoadOptions, Table, TargetSpec
from ematix_flow.peers import Placement, check_master, check_peers
from ematix_flow.pipeline import Pipeline
from ematix_flow.registry import active_registry
from ematix_flow.table import ManagedTable
from ematix_flow.target import Target

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
    if source_table is not None and not is_text(source_table):
        raise DeclarationError("source_table= must be a text", fix='write "schema.table"')
    return function_shape(function)


def target_specs(given: Mapping[str, Any], options: LoadOptions) -> tuple[TargetSpec, ...]:
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
        spec = TargetSpec(table, name, given["mode"], options, given["prefix"])
        return (_mapped(spec, given["column_map"]),)
    if not isinstance(targets, list | tuple) or not targets:
        raise DeclarationError(
            "targets= must be a list of at least one Target",
            fix='write [Target(table=…, connection="…")]',
        )
    specs = tuple(_from_target(entry, given) for entry in targets)
    places = [(s.connection, s.table.name, s.prefix) for s in specs]
    for place in places:
        if places.count(place) > 1:
            raise DeclarationError(
                f"targets= names {place[1]} in {place[0]!r} twice", fix="remove one of them"
            )
    return specs


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
    own = {o: getattr(entry, o) for o in TARGET_OPTIONS if getattr(entry, o) is not None}
    merged = {**given, **own}
    check_column_options(merged, table)
    spec = TargetSpec(
        table,
        _target_connection(entry.connection),
        check_mode(merged["mode"]),
        load_options(merged),
        entry.prefix,
        files,
    )
    return _mapped(spec, given["column_map"] if entry.column_map is None else entry.column_map)


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


def _target_connection(value: str | Connection | None) -> str:
    return connection_name("target_connection", value) or DEFAULT_CONNECTION


def connection_name(option: str, value: object) -> str | None:
    """The name behind a connection or its name; a connection given as such is registered."""
    if value is None or is_text(value):
        return value  # type: ignore[return-value]  # a text, or nothing
    if not isinstance(value, Connection):
        raise DeclarationError(
            f"{option}= takes a connection or its name, not {shown(value)}",
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


def _mapped(spec: TargetSpec, value: object) -> TargetSpec:
    """``column_map=``: from columns of the target to columns of the source."""
    if value is None:
        return spec
    if not isinstance(value, Mapping) or not all(map(is_text, (*value, *value.values()))):
        raise DeclarationError(
            f"column_map= must be a dictionary of texts, not {value!r}",
            fix='write {"column of the target": "column of the source"}',
        )
    for column in value:
        if column not in spec.table.column_names:
            raise DeclarationError(
                f"column_map names {column!r}, which is not a column of {spec.table.name}",
                fix=nearest(column, spec.table.column_names),
            )
    return dataclasses.replace(spec, column_map=dict(value))


def placement(given: Mapping[str, Any]) -> Placement:
    """Where the pipeline is to run, from ``engine=``, ``peers=`` and ``master=``."""
    engine, master = given["engine"], given["master"]
    try:
        peers = check_peers(given["peers"] or ())
        if master is not None:
            check_master(master)
    except ConfigError as error:
        raise DeclarationError(error.what, fix=error.fix) from error
    if peers and master is not None:
        raise DeclarationError("both peers= and master= are given", fix="keep one of them")
    if engine not in ("auto", "distributed") and (peers or master):
        option = "peers=" if peers else "master="
        raise DeclarationError(
            f"{option} does not go with engine={engine!r}", fix='use engine="distributed"'
        )
    named = None if engine == "auto" else engine
    return Placement(named, peers, master, engine_by=f"engine={engine!r} of the pipeline")
