"""What a normalizer is, and how a chain of them is typed and applied.

``apply`` is the meaning: plain Python that every compiled form has to equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import ClassVar

from ematix_flow.errors import BadValue, DeclarationError
from ematix_flow.types import ColumnType, Text

# The characters with Unicode's White_Space property, a set that no longer grows.
WHITESPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

TEXTS = ("text", "string")
INTEGERS = ("small_int", "integer", "big_int")
FLOATS = ("float", "double")
NUMBERS = (*INTEGERS, *FLOATS, "numeric")
INSTANTS = ("timestamp", "timestamp_tz")


@dataclass(frozen=True, repr=False)
class Normalizer:
    """One step of a chain; a value object that shows itself as the user typed it."""

    name: ClassVar[str] = ""

    def apply(self, value: object) -> object:
        """The normalized value; NULL stays NULL."""
        return None if value is None else self._meaning(value)

    def _meaning(self, value: object) -> object:
        """What happens to a value that is not NULL."""
        raise NotImplementedError

    def resolve(self, source: ColumnType) -> Step:
        """This step on a column of type ``source``, or the reason why it cannot be."""
        raise NotImplementedError

    def refusal(self, source: ColumnType, wanted: str, fix: str = "") -> DeclarationError:
        """The error for a column of the wrong type."""
        return DeclarationError(f"{self!r} works on {wanted}, not on {source}", fix=fix)

    def __repr__(self) -> str:
        positional, named = [], []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING:
                positional.append(repr(value))
            elif value != field.default:
                named.append(f"{field.name}={value!r}")
        return f"{self.name}({', '.join(positional + named)})"


@dataclass(frozen=True)
class Step:
    """A normalizer placed in its chain: constants converted, types known.

    ``result`` is None when only the engine knows it (``sql()`` without ``returns``).
    """

    normalizer: Normalizer
    source: ColumnType
    result: ColumnType | None


@dataclass(frozen=True, repr=False)
class TextNormalizer(Normalizer):
    """A step from text to text."""

    def resolve(self, source: ColumnType) -> Step:
        """This step on a column of type ``source``, or the reason why it cannot be."""
        if source.kind not in TEXTS:
            raise self.refusal(
                source, "text", fix="remove it, or use sql() to turn the value into text first"
            )
        return Step(self, source, Text())

    def _meaning(self, value: object) -> object:
        if not isinstance(value, str):
            raise BadValue(f"{self!r} works on text, not on {value!r}")
        return self._rewrite(value)

    def _rewrite(self, text: str) -> str | None:
        """What happens to a text."""
        raise NotImplementedError


def resolve_chain(
    chain: Sequence[Normalizer], source: ColumnType, *, column: str = ""
) -> tuple[Step, ...]:
    """Every step with its types, left to right; an error names ``column``."""
    steps: list[Step] = []
    current: ColumnType | None = source
    for position, normalizer in enumerate(chain):
        try:
            if normalizer.name == "derive" and position > 0:
                raise DeclarationError(
                    f"{normalizer!r} computes a new value and would discard {chain[0]!r}",
                    fix="put derive() first in the chain",
                )
            step = normalizer.resolve(current or Text())
        except DeclarationError as error:
            if not column:
                raise
            raise DeclarationError(f"column {column!r}: {error.what}", fix=error.fix) from error
        steps.append(step)
        current = step.result
    return tuple(steps)


def apply_chain(chain: Sequence[Normalizer], value: object, source: ColumnType) -> object:
    """The meaning of a whole chain for one value of a column of type ``source``."""
    for step in resolve_chain(chain, source):
        value = step.normalizer.apply(value)
    return value


def is_normalizer(marker: object) -> bool:
    """Whether a marker of an ``Annotated`` column is a normalizer."""
    return isinstance(marker, Normalizer)


def checked_text(who: str, parameter: str, value: object) -> str:
    """A text parameter, or an error that names it."""
    if not isinstance(value, str):
        raise DeclarationError(f"{who}: {parameter} must be text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DeclarationError(
            f"{who}: {parameter} holds half a character (a lone surrogate)"
        ) from error
    return value


def checked_count(who: str, parameter: str, value: object) -> int:
    """A whole number of at least 0, or an error that names the parameter."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DeclarationError(
            f"{who}: {parameter} must be a whole number of at least 0, not {value!r}"
        )
    return value
