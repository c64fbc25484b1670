"""The logical column types a user declares, and which type may be assigned to which.

Each is a small frozen value: ``BigInt``, ``String[256]``, ``Numeric[10, 2]``, ``Array[Text]``.
How a backend stores a type lives with that backend.
"""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from typing import Any, ClassVar

from ematix_flow.errors import DeclarationError


@dataclass(frozen=True)
class ColumnType:
    """Base of all column types; compared and hashed by value."""

    kind: ClassVar[str] = ""

    def __str__(self) -> str:
        return type(self).__name__

    def __or__(self, other: object) -> NullableType:
        if other is None or other is type(None):
            return NullableType(self)
        return NotImplemented

    __ror__ = __or__

    def __call__(self) -> ColumnType:
        """Itself: typing of Python 3.10 lets only callables stand in annotations."""
        return self

    def to_spec(self) -> dict[str, Any]:
        """The type as plain data."""
        return {"kind": self.kind, **self.__dict__}


@dataclass(frozen=True)
class NullableType:
    """What ``String[256] | None`` evaluates to."""

    type: ColumnType

    def __call__(self) -> ColumnType:
        """The type, as for the types themselves."""
        return self.type


class SmallInt(ColumnType):
    """Signed, 16 bits."""

    kind = "small_int"


class Integer(ColumnType):
    """Signed, 32 bits."""

    kind = "integer"


class BigInt(ColumnType):
    """Signed, 64 bits."""

    kind = "big_int"


class Float(ColumnType):
    """IEEE 754, 32 bits."""

    kind = "float"


class Double(ColumnType):
    """IEEE 754, 64 bits."""

    kind = "double"


class Boolean(ColumnType):
    """True or false."""

    kind = "boolean"


class Text(ColumnType):
    """Text of any length."""

    kind = "text"


@dataclass(frozen=True)
class String(ColumnType):
    """Text of at most ``length`` characters; longer values are refused, never cut."""

    length: int

    kind: ClassVar[str] = "string"

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or isinstance(self.length, bool) or self.length <= 0:
            raise DeclarationError(
                f"String length must be a whole number above 0, not {self.length!r}",
                fix="write for example String[256]",
            )

    def __class_getitem__(cls, length: int) -> String:
        return cls(length)

    def __str__(self) -> str:
        return f"String[{self.length}]"


@dataclass(frozen=True)
class Numeric(ColumnType):
    """Exact decimal of ``precision`` digits, ``scale`` of them after the point."""

    precision: int
    scale: int

    kind: ClassVar[str] = "numeric"
    max_precision: ClassVar[int] = 38

    def __post_init__(self) -> None:
        whole = all(
            isinstance(n, int) and not isinstance(n, bool) for n in (self.precision, self.scale)
        )
        if not whole or not 0 < self.precision <= self.max_precision:
            raise DeclarationError(
                f"Numeric precision must be from 1 to {self.max_precision}, not {self.precision!r}",
                fix="write for example Numeric[12, 2]",
            )
        if not 0 <= self.scale <= self.precision:
            raise DeclarationError(
                f"Numeric scale must be from 0 to the precision {self.precision}, "
                f"not {self.scale!r}",
                fix="write for example Numeric[12, 2]",
            )

    def __class_getitem__(cls, parameters: tuple[int, int]) -> Numeric:
        if not isinstance(parameters, tuple) or len(parameters) != 2:  # noqa: PLR2004 - p and s
            raise DeclarationError(
                "Numeric takes a precision and a scale", fix="write for example Numeric[12, 2]"
            )
        return cls(*parameters)

    def __str__(self) -> str:
        return f"Numeric[{self.precision}, {self.scale}]"


class AnyNumeric(ColumnType):
    """An exact decimal whose precision the source does not state; never declared in a table."""

    kind = "any_numeric"


class Date(ColumnType):
    """A calendar day."""

    kind = "date"


class Time(ColumnType):
    """A time of day, to the microsecond, without zone."""

    kind = "time"


class Timestamp(ColumnType):
    """Date and time without zone, to the microsecond."""

    kind = "timestamp"


class TimestampTZ(ColumnType):
    """An instant, to the microsecond; shown in UTC."""

    kind = "timestamp_tz"


class JSON(ColumnType):
    """A JSON document."""

    kind = "json"


class JSONB(ColumnType):
    """A JSON document in the database's binary form where it has one."""

    kind = "jsonb"


class UUID(ColumnType):
    """A UUID."""

    kind = "uuid"


class Bytes(ColumnType):
    """Raw bytes."""

    kind = "bytes"


@dataclass(frozen=True)
class Array(ColumnType):
    """A list of values of one type; elements may be NULL."""

    element: ColumnType

    kind: ClassVar[str] = "array"

    def __class_getitem__(cls, element: object) -> Array:
        parsed, _ = parse_annotation(element)
        return cls(parsed)

    def __str__(self) -> str:
        return f"Array[{self.element}]"


def parse_annotation(annotation: object) -> tuple[ColumnType, bool]:
    """The column type behind an annotation, and whether ``| None`` makes it nullable."""
    if isinstance(annotation, NullableType):
        return annotation.type, True
    if isinstance(annotation, ColumnType):
        return annotation, False
    if isinstance(annotation, type) and issubclass(annotation, ColumnType):
        if annotation is AnyNumeric:
            raise DeclarationError(
                "AnyNumeric cannot be declared", fix="write for example Numeric[38, 10]"
            )
        if annotation in (String, Numeric, Array):
            example = {String: "String[256]", Numeric: "Numeric[12, 2]", Array: "Array[Text]"}
            raise DeclarationError(
                f"{annotation.__name__} needs its parameters",
                fix=f"write for example {example[annotation]}",
            )
        return annotation(), False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [m for m in typing.get_args(annotation) if m is not type(None)]
        if len(members) == 1 and len(typing.get_args(annotation)) == 2:  # noqa: PLR2004 - T | None
            return parse_annotation(members[0])[0], True
    raise DeclarationError(
        f"{_shown(annotation)} is not a column type",
        fix="use a type of ematix_flow.types, such as BigInt, Text or String[256]",
    )


def _shown(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else repr(annotation)


_INTEGERS = ("small_int", "integer", "big_int")
_TEXTS = ("text", "string")
_FLOATS = ("float", "double")
_JSONS = ("json", "jsonb")

# What a value of the kind on the left may be assigned to without losing what it says. Text is
# read as any type (a value that cannot be read is refused with its text); the rest is widening,
# or narrowing that every engine checks value by value.
_ASSIGNABLE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_INTEGERS, (*_INTEGERS, "numeric", *_FLOATS, *_TEXTS)),
    "numeric": ("numeric", *_FLOATS, *_TEXTS),
    "any_numeric": ("numeric", *_INTEGERS, *_FLOATS, *_TEXTS),
    **dict.fromkeys(_FLOATS, (*_FLOATS, *_TEXTS)),
    "boolean": ("boolean", *_TEXTS),
    "date": ("date", "timestamp", "timestamp_tz", *_TEXTS),
    "time": ("time", *_TEXTS),
    "timestamp": ("timestamp", "timestamp_tz", *_TEXTS),
    "timestamp_tz": ("timestamp_tz", *_TEXTS),
    "uuid": ("uuid", *_TEXTS),
    "bytes": ("bytes",),
    **dict.fromkeys(_JSONS, (*_JSONS, *_TEXTS)),
}


def assignable(source: ColumnType, target: ColumnType) -> bool:
    """Whether a column of type ``source`` may be loaded into one of type ``target``."""
    if source.kind in _TEXTS:
        return True
    if isinstance(source, Array):
        if isinstance(target, Array):
            return assignable(source.element, target.element)
        return target.kind in _JSONS
    return target.kind in _ASSIGNABLE[source.kind]
