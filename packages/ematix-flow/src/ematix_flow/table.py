"""``ManagedTable`` and what ``@ematix.table`` builds: a class body becomes a frozen ``Table``."""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from ematix_flow.errors import DeclarationError, DuplicateName, EmatixError, SourceLocation
from ematix_flow.markers import NaturalKey, Nullable, PrimaryKey
from ematix_flow.model import LOADED_AT_COLUMN, RUN_ID_COLUMN, Column, Table, TableName
from ematix_flow.normalize import Normalizer
from ematix_flow.registry import active_registry, caller_location
from ematix_flow.types import parse_annotation

_ADDED_COLUMNS = (RUN_ID_COLUMN, LOADED_AT_COLUMN)
_MAX_NAME_BYTES = 63


class ManagedTable:
    """Base of declared tables: annotate columns, or assign ``Column`` objects.

    Set ``__schema__`` and ``__tablename__``; ``__abstract__ = True`` makes a base for others.
    """

    __schema__: ClassVar[str | None] = None
    __tablename__: ClassVar[str | None] = None
    __unique_constraints__: ClassVar[tuple[tuple[str, ...], ...]] = ()
    __merge_keys__: ClassVar[tuple[str, ...] | None] = None
    __abstract__: ClassVar[bool] = False
    __table__: ClassVar[Table]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.__dict__.get("__abstract__", False):
            return
        where = caller_location()
        try:
            cls.__table__ = _table_of(cls, cls.__schema__, cls.__tablename__, where)
        except EmatixError as error:
            cls.__broken__ = active_registry().refuse(cls.__name__, error, where)  # type: ignore[attr-defined]  # only set on a class whose declaration failed


def declare_table(cls: type, *, schema: str | None, name: str | None) -> type[ManagedTable]:
    """Turn a plain annotated class into a ``ManagedTable``."""
    where = caller_location()
    if not isinstance(cls, type):
        raise DeclarationError("@ematix.table goes on a class", where=where)
    body = {k: v for k, v in cls.__dict__.items() if k not in ("__dict__", "__weakref__")}
    body["__schema__"] = schema
    body["__tablename__"] = name or snake_case(cls.__name__)
    return type(cls.__name__, (ManagedTable,), body)


def snake_case(name: str) -> str:
    """``CustomerDim`` → ``customer_dim``, ``HTTPServer`` → ``http_server``."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return split.lower()


def _table_of(
    cls: type[ManagedTable], schema: str | None, name: str | None, where: SourceLocation
) -> Table:
    columns, natural = _collect_columns(cls)
    if not columns:
        raise DeclarationError(
            f"table {cls.__name__} declares no columns",
            fix="add columns such as event_id: Annotated[BigInt, pk()]",
        )
    table_name = TableName(schema, name or snake_case(cls.__name__))
    for part in (schema, table_name.name):
        if part is not None:
            _check_identifier(part, f"table {cls.__name__}")
    table = Table(
        name=table_name,
        columns=tuple(columns),
        natural_keys=tuple(tuple(group) for group in natural.values()),
        unique_constraints=tuple(tuple(u) for u in cls.__unique_constraints__),
        merge_keys=tuple(cls.__merge_keys__ or ()),
        doc=(cls.__doc__ or "") if "__doc__" in cls.__dict__ else "",
        location=where,
    )
    _check_names(table, cls.__name__)
    return table


def _collect_columns(
    cls: type[ManagedTable],
) -> tuple[list[Column], dict[str, list[str]]]:
    columns: list[Column] = []
    natural: dict[str, list[str]] = {}
    for name, annotation in _annotations(cls).items():
        column, key_group = _column_of(name, annotation)
        columns.append(column)
        if key_group is not None:
            natural.setdefault(key_group, []).append(name)
    for name, value in cls.__dict__.items():
        if isinstance(value, Column):
            columns.append(replace(value, name=value.name or name, nullable=_nullable(value)))
    return columns, natural


def _nullable(column: Column) -> bool:
    return column.nullable and not column.primary_key


def _annotations(cls: type[ManagedTable]) -> dict[str, Any]:
    """The annotated columns of the class and of its abstract bases, theirs first."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        own = base.__dict__.get("__annotations__", {})
        if own and base is not ManagedTable:
            found |= _evaluated(base, own)
    return {n: hint for n, hint in found.items() if typing.get_origin(hint) is not ClassVar}


def _evaluated(cls: type, annotations: dict[str, Any]) -> dict[str, Any]:
    holder = type(cls.__name__, (), {"__annotations__": annotations})
    module = sys.modules.get(cls.__module__)
    try:
        return typing.get_type_hints(
            holder,
            globalns=vars(module) if module else None,
            localns=_calling_locals(),
            include_extras=True,
        )
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise DeclarationError(
            f"table {cls.__name__}: cannot read its annotations: {error}",
            fix="import the types it uses",
        ) from error


def _calling_locals() -> dict[str, Any]:
    """Names of the function a table may be declared in, for string annotations."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        "ematix_flow"
    ):
        frame = frame.f_back
    return frame.f_locals


def _column_of(name: str, annotation: Any) -> tuple[Column, str | None]:
    markers: tuple[Any, ...] = ()
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *rest = typing.get_args(annotation)
        markers = tuple(rest)
    column_type, optional = parse_annotation(annotation)
    primary, key_group, chain = False, None, []
    for marker in markers:
        if isinstance(marker, PrimaryKey):
            primary = True
        elif isinstance(marker, NaturalKey):
            key_group = marker.group
        elif isinstance(marker, Nullable):
            optional = True
        elif isinstance(marker, Normalizer):
            chain.append(marker)
        else:
            shown = getattr(marker, "__name__", repr(marker))
            raise DeclarationError(
                f"column {name!r}: {shown} is not a column marker",
                fix=f"call it: {shown}()" if callable(marker) else "use pk(), trim() and the like",
            )
    if primary and optional:
        raise DeclarationError(
            f"column {name!r} is part of the primary key and cannot be nullable",
            fix="remove | None or pk()",
        )
    column = Column(
        type=column_type,
        nullable=optional,
        primary_key=primary,
        name=name,
        normalizers=tuple(chain),
    )
    return column, key_group


def _check_names(table: Table, cls: str) -> None:
    seen: set[str] = set()
    for column in table.columns:
        _check_identifier(column.name, f"column {column.name!r} of table {cls}")
        if column.name in _ADDED_COLUMNS:
            raise DeclarationError(
                f"column {column.name!r} of table {cls} is a name this system adds itself",
                fix="rename it",
            )
        if column.name in seen:
            raise DuplicateName(f"table {cls} declares column {column.name!r} twice")
        seen.add(column.name)
    groups: Iterable[tuple[str, tuple[str, ...]]] = [
        ("__merge_keys__", table.merge_keys),
        *(("__unique_constraints__", group) for group in table.unique_constraints),
    ]
    for attribute, group in groups:
        for name in group:
            if name not in seen:
                raise DeclarationError(
                    f"{attribute} of table {cls} names {name!r}, which is not one of its columns",
                    fix=f"use one of {', '.join(sorted(seen))}",
                )


def _check_identifier(name: str, what: str) -> None:
    if not name or "\x00" in name or len(name.encode()) > _MAX_NAME_BYTES:
        raise DeclarationError(
            f"{what}: a name must have from 1 to {_MAX_NAME_BYTES} bytes and no NUL",
            fix="shorten or rename it",
        )
