"""``ManagedTable`` and what ``@ematix.table`` builds: a class body becomes a frozen ``Table``."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, ClassVar

from ematix_flow.connections import nearest
from ematix_flow.errors import (
    DeclarationError,
    DuplicateName,
    EmatixError,
    SourceLocation,
    UnknownName,
)
from ematix_flow.markers import NaturalKey, Nullable, PrimaryKey, RenamedFrom
from ematix_flow.model import LOADED_AT_COLUMN, RUN_ID_COLUMN, Column, Table, TableName
from ematix_flow.registry import active_registry, caller_frame, caller_location
from ematix_flow.types import ColumnType, NullableType, parse_annotation

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


def declare_table(
    cls: type, *, schema: str | None, name: str | None, unknown: Mapping[str, Any]
) -> type[ManagedTable]:
    """Turn an annotated class into a ``ManagedTable``."""
    where = caller_location()
    if not isinstance(cls, type):
        raise DeclarationError("@ematix.table goes on a class", where=where)
    bases = tuple(b for b in cls.__bases__ if b is not object)
    if not issubclass(cls, ManagedTable):
        bases = (*bases, ManagedTable)
    # What a class with __slots__ keeps in its dictionary belongs to that class alone.
    slots = [n for n, v in vars(cls).items() if isinstance(v, types.MemberDescriptorType)]
    own = {"__dict__", "__weakref__", "__slots__", "__table__", "__broken__", *slots}
    body = {k: v for k, v in vars(cls).items() if k not in own}
    body["__schema__"] = schema
    body["__tablename__"] = snake_case(cls.__name__) if name is None else name
    for keyword in unknown:
        known = ("schema", "name")
        error = UnknownName(
            f"@ematix.table of {cls.__name__} has no option {keyword!r}",
            fix=nearest(keyword, known),
        )
        body["__broken__"] = active_registry().refuse(cls.__name__, error, where)
        body["__abstract__"] = True
    return type(cls.__name__, bases, body)


def snake_case(name: str) -> str:
    """``CustomerDim`` → ``customer_dim``, ``HTTPServer`` → ``http_server``."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return split.lower()


def _table_of(
    cls: type[ManagedTable], schema: str | None, name: str | None, where: SourceLocation
) -> Table:
    annotations = _annotations(cls)
    _check_attributes(cls, annotations)
    columns, natural = _collect_columns(cls, annotations)
    if not columns:
        raise DeclarationError(
            f"table {cls.__name__} declares no columns",
            fix="add columns such as event_id: Annotated[BigInt, pk()]",
        )
    table_name = TableName(schema, snake_case(cls.__name__) if name is None else name)
    for part in (schema, table_name.name):
        if part is not None:
            _check_identifier(part, f"table {cls.__name__}")
    table = Table(
        name=table_name,
        columns=tuple(columns),
        natural_keys=tuple(tuple(group) for group in natural.values()),
        unique_constraints=_column_groups(cls),
        merge_keys=_column_group("__merge_keys__", cls, cls.__merge_keys__ or ()),
        doc=(cls.__doc__ or "") if "__doc__" in cls.__dict__ else "",
        location=where,
    )
    _check_names(table, cls.__name__)
    return table


_SETTINGS = (
    "__abstract__",
    "__merge_keys__",
    "__schema__",
    "__tablename__",
    "__unique_constraints__",
)


def _check_attributes(cls: type[ManagedTable], annotations: Mapping[str, Any]) -> None:
    """Refuse class attributes that look meant but would have no effect."""
    for name, value in vars(cls).items():
        if isinstance(value, Table | Column):
            continue
        if name.startswith("__"):
            close = difflib.get_close_matches(name, _SETTINGS, n=1, cutoff=0.8)
            if close and name not in _SETTINGS and not hasattr(type, name):
                raise UnknownName(
                    f"table {cls.__name__} has no setting {name}", fix=f"did you mean {close[0]}?"
                )
        elif isinstance(value, ColumnType | NullableType) or (
            isinstance(value, type) and issubclass(value, ColumnType)
        ):
            raise DeclarationError(
                f"column {name!r} of table {cls.__name__} is assigned, not annotated",
                fix=f"write a colon: {name}: …",
            )
        elif name in annotations and not is_dataclass(cls):
            raise DeclarationError(
                f"column {name!r} of table {cls.__name__} has a value, which a table ignores",
                fix="to replace NULL write Annotated[…, default(…)]; otherwise remove it",
            )


def _column_groups(cls: type[ManagedTable]) -> tuple[tuple[str, ...], ...]:
    groups = cls.__unique_constraints__
    if isinstance(groups, str) or any(isinstance(g, str) for g in groups):
        raise DeclarationError(
            f"__unique_constraints__ of table {cls.__name__} must be a list of lists of columns",
            fix='write for example (("order_id", "line"),)',
        )
    return tuple(_column_group("__unique_constraints__", cls, group) for group in groups)


def _column_group(setting: str, cls: type, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(n, str) for n in names):
        raise DeclarationError(
            f"{setting} of table {cls.__name__} must be a list of column names, not {names!r}",
            fix=f'write for example {setting} = ("order_id",)',
        )
    return tuple(names)


def _collect_columns(
    cls: type[ManagedTable], annotations: Mapping[str, Any]
) -> tuple[list[Column], dict[str, list[str]]]:
    columns: list[Column] = []
    natural: dict[str, list[str]] = {}
    for name, annotation in annotations.items():
        try:
            column, groups = _column_of(name, annotation)
        except EmatixError as error:
            error.what = f"column {name!r} of table {cls.__name__}: {error.what}"
            raise
        columns.append(column)
        for group in groups:
            natural.setdefault(group, []).append(name)
    held: dict[str, Column] = {}
    for base in reversed(cls.__mro__):
        held |= {n: v for n, v in vars(base).items() if isinstance(v, Column)}
    for name, value in held.items():
        try:
            columns.append(_assigned_column(name, value))
        except EmatixError as error:
            error.what = f"column {name!r} of table {cls.__name__}: {error.what}"
            raise
    return columns, natural


def _assigned_column(name: str, column: Column) -> Column:
    column_type, optional = parse_annotation(column.type)
    for marker in column.normalizers:
        if not _is_normalizer(marker):
            raise _not_a_marker(marker)
    return replace(
        column,
        type=column_type,
        name=column.name or name,
        nullable=(column.nullable or optional) and not column.primary_key,
        normalizers=tuple(column.normalizers),
    )


def _annotations(cls: type[ManagedTable]) -> dict[str, Any]:
    """The annotated columns of the class and of its abstract bases, theirs first."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        own = inspect.get_annotations(base)
        if own and base is not ManagedTable:
            found |= _evaluated(base, own)
    return {
        name: hint
        for name, hint in found.items()
        if ClassVar not in (hint, typing.get_origin(hint))
    }


def _evaluated(cls: type, annotations: dict[str, Any]) -> dict[str, Any]:
    holder = type(cls.__name__, (), {"__annotations__": annotations})
    module = sys.modules.get(cls.__module__)
    try:
        return typing.get_type_hints(
            holder,
            globalns=vars(module) if module else None,
            localns=dict(caller_frame().f_locals),
            include_extras=True,
        )
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise DeclarationError(
            f"table {cls.__name__}: cannot read its annotations: {error}",
            fix="import the types it uses",
        ) from error


def _column_of(name: str, annotation: Any) -> tuple[Column, list[str]]:
    markers: tuple[Any, ...] = ()
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *rest = typing.get_args(annotation)
        markers = tuple(rest)
    column_type, optional = parse_annotation(annotation)
    primary = False
    former: str | None = None
    groups: list[str] = []
    chain: list[Any] = []
    for marker in markers:
        if isinstance(marker, PrimaryKey):
            primary = True
        elif isinstance(marker, NaturalKey):
            groups.append(marker.group)
        elif isinstance(marker, Nullable):
            optional = True
        elif isinstance(marker, RenamedFrom):
            former = marker.name
        elif _is_normalizer(marker):
            chain.append(marker)
        else:
            raise _not_a_marker(marker)
    if primary and optional:
        raise DeclarationError(
            "a part of the primary key cannot be nullable",
            fix="remove | None or pk()",
        )
    column = Column(
        type=column_type,
        nullable=optional,
        primary_key=primary,
        name=name,
        normalizers=tuple(chain),
        renamed_from=former,
    )
    return column, groups


def _not_a_marker(marker: object) -> DeclarationError:
    shown = getattr(marker, "__name__", repr(marker))
    return DeclarationError(
        f"{shown} is not a column marker",
        fix=f"call it: {shown}()" if callable(marker) else "use pk(), trim() and the like",
    )


def _is_normalizer(marker: object) -> bool:
    # Whoever holds a normalizer has loaded them; a table without any need not.
    from ematix_flow.normalize.base import is_normalizer

    return is_normalizer(marker)


def _check_names(table: Table, cls: str) -> None:
    seen: set[str] = set()
    spelled: dict[str, str] = {}
    for column in table.columns:
        _check_identifier(column.name, f"column {column.name!r} of table {cls}")
        if column.name in _ADDED_COLUMNS:
            raise DeclarationError(
                f"column {column.name!r} of table {cls} is a name this system adds itself",
                fix="rename it",
            )
        if column.name in seen:
            raise DuplicateName(f"table {cls} declares column {column.name!r} twice")
        alike = spelled.setdefault(column.name.lower(), column.name)
        if alike != column.name:
            raise DuplicateName(
                f"columns {alike!r} and {column.name!r} of table {cls} differ in case only, which "
                "most databases take for one name",
                fix="rename one of them",
            )
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


def _check_identifier(name: object, what: str) -> None:
    if (
        not isinstance(name, str)
        or not name
        or "\x00" in name
        or len(name.encode()) > _MAX_NAME_BYTES
    ):
        raise DeclarationError(
            f"{what}: a name must have from 1 to {_MAX_NAME_BYTES} bytes and no NUL",
            fix="shorten or rename it",
        )
