"""Normalizers of numbers and booleans."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import ClassVar

from ematix_flow import types as t
from ematix_flow.errors import DeclarationError
from ematix_flow.normalize.base import (
    INSTANTS,
    INTEGERS,
    NUMBERS,
    TEXTS,
    WHITESPACE,
    Normalizer,
    Step,
    checked_count,
    checked_text,
)
from ematix_flow.normalize.constants import checked_constant, fitted, single
from ematix_flow.normalize.parsing import Parser

# Written with explicit classes and bounds, so that every engine reads them alike.
INTEGER_TEXT = "[+-]?[0-9]{1,60}"
NUMERIC_TEXT = "[+-]?(?:[0-9]{1,60}(?:[.][0-9]{0,60})?|[.][0-9]{1,60})(?:[eE][+-]?[0-9]{1,3})?"
_EXACT = Context(prec=3000, rounding=ROUND_HALF_UP)
_LOWER_ASCII = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, repr=False)
class ParseInt(Parser):
    """A sign and digits, within 64 bits."""

    name: ClassVar[str] = "parse_int"

    @property
    def parsed_type(self) -> t.ColumnType:
        """The type that text becomes."""
        return t.BigInt()

    def _passed(self, source: t.ColumnType) -> t.ColumnType:
        if source.kind in INTEGERS:
            return source
        raise self.refusal(source, "text and whole numbers")

    def _read(self, text: str) -> object:
        if not re.fullmatch(INTEGER_TEXT, text):
            return None
        number = int(text)
        return number if -(1 << 63) <= number < 1 << 63 else None


@dataclass(frozen=True, repr=False)
class ParseNumeric(Parser):
    """A decimal number, rounded half away from zero to ``scale`` digits after the point."""

    name: ClassVar[str] = "parse_numeric"
    precision: int
    scale: int

    def __post_init__(self) -> None:
        t.Numeric(self.precision, self.scale)
        super().__post_init__()

    @property
    def parsed_type(self) -> t.Numeric:
        """The type that text becomes."""
        return t.Numeric(self.precision, self.scale)

    def _passed(self, source: t.ColumnType) -> t.ColumnType:
        if source.kind in NUMBERS:
            return source
        raise self.refusal(source, "text and numbers")

    def _read(self, text: str) -> object:
        if not re.fullmatch(NUMERIC_TEXT, text):
            return None
        number = round_decimal(Decimal(text), self.scale)
        limit = Decimal(10) ** (self.precision - self.scale)
        return number if number.copy_abs() < limit else None


@dataclass(frozen=True, repr=False)
class ParseBool(Parser):
    """True or false from lists of words; the case of ASCII letters does not matter."""

    name: ClassVar[str] = "parse_bool"
    truthy: tuple[str, ...] = ("true", "1", "yes", "y")
    falsy: tuple[str, ...] = ("false", "0", "no", "n")

    def __post_init__(self) -> None:
        for parameter in ("truthy", "falsy"):
            object.__setattr__(self, parameter, self._words(parameter))
        both = sorted(set(self.truthy) & set(self.falsy))
        if both:
            raise DeclarationError(f"parse_bool(): {both[0]!r} is both truthy and falsy")
        super().__post_init__()

    def _words(self, parameter: str) -> tuple[str, ...]:
        words = getattr(self, parameter)
        if isinstance(words, str) or not isinstance(words, Sequence):
            raise DeclarationError(
                f"parse_bool(): {parameter} must be a list of words, not {words!r}"
            )
        for word in words:
            if checked_text("parse_bool()", parameter, word) != word.strip(WHITESPACE):
                raise DeclarationError(
                    f"parse_bool(): {word!r} never matches, as whitespace around a text is ignored",
                    fix=f"write {word.strip(WHITESPACE)!r}",
                )
        return tuple(dict.fromkeys(word.translate(_LOWER_ASCII) for word in words))

    @property
    def parsed_type(self) -> t.ColumnType:
        """The type that text becomes."""
        return t.Boolean()

    def _passed(self, source: t.ColumnType) -> t.ColumnType:
        if source.kind == "boolean" or source.kind in INTEGERS:
            return t.Boolean()
        raise self.refusal(source, "text, booleans and whole numbers")

    def _read(self, text: str) -> object:
        word = text.translate(_LOWER_ASCII)
        if word in self.truthy:
            return True
        return False if word in self.falsy else None

    def _convert(self, value: object) -> object:
        return value if isinstance(value, bool) else self._meaning(str(value))


@dataclass(frozen=True, repr=False)
class Round(Normalizer):
    """Half away from zero, on the number as it is written in decimal."""

    name: ClassVar[str] = "round"
    precision: int

    def __post_init__(self) -> None:
        if checked_count("round()", "precision", self.precision) > t.Numeric.max_precision:
            raise DeclarationError(
                f"round(): precision must be at most {t.Numeric.max_precision}, "
                f"not {self.precision}"
            )

    def resolve(self, source: t.ColumnType) -> Step:
        """This step on a column of type ``source``, or the reason why it cannot be."""
        if source.kind not in NUMBERS:
            fix = "put parse_numeric() before it" if source.kind in TEXTS else ""
            raise self.refusal(source, "numbers", fix)
        result = source
        if isinstance(source, t.Numeric) and self.precision < source.scale:
            whole = source.precision - source.scale
            result = t.Numeric(whole + self.precision + 1, self.precision)
        step: Normalizer = RoundSingle(self.precision) if source.kind == "float" else self
        return Step(step, source, result)

    def _meaning(self, value: object) -> object:
        if isinstance(value, Decimal):
            return round_decimal(value, self.precision)
        if isinstance(value, float) and math.isfinite(value):
            return float(round_decimal(Decimal(repr(value)), self.precision)) + 0.0
        return value


@dataclass(frozen=True, repr=False)
class RoundSingle(Round):
    """Rounding of a 32-bit number, whose result is again one of 32 bits."""

    def _meaning(self, value: object) -> object:
        rounded = super()._meaning(value)
        return single(rounded) if isinstance(rounded, float) else rounded


@dataclass(frozen=True, repr=False)
class Clamp(Normalizer):
    """Nothing below ``low``, nothing above ``high``; NaN stays NaN."""

    name: ClassVar[str] = "clamp"
    low: object = None
    high: object = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise DeclarationError("clamp(): low and high are both missing")
        for parameter in ("low", "high"):
            bound = getattr(self, parameter)
            if bound is not None:
                checked_constant("clamp()", bound, parameter=parameter)
            if bound != bound:  # noqa: PLR0124 - only NaN differs from itself
                raise DeclarationError(f"clamp(): {parameter} is NaN")

    def resolve(self, source: t.ColumnType) -> Step:
        """This step on a column of type ``source``, or the reason why it cannot be."""
        if source.kind not in (*NUMBERS, "date", *INSTANTS):
            raise self.refusal(source, "numbers, dates and timestamps")
        low, high = (
            None if bound is None else fitted(repr(self), bound, source)
            for bound in (self.low, self.high)
        )
        if low is not None and high is not None and low > high:  # type: ignore[operator]
            raise DeclarationError(f"{self!r}: low is above high")
        return Step(Clamp(low, high), source, source)

    def _meaning(self, value: object) -> object:
        if self.low is not None and value < self.low:  # type: ignore[operator]
            return self.low
        if self.high is not None and value > self.high:  # type: ignore[operator]
            return self.high
        return value


def round_decimal(number: Decimal, digits: int) -> Decimal:
    """Half away from zero; a number that needs no rounding is left as it is."""
    if -_exponent(number) <= digits:
        return number
    return number.quantize(Decimal(1).scaleb(-digits), context=_EXACT)


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def parse_int(on_failure: str = "null", default: int | None = None) -> ParseInt:
    """Read a whole number of at most 64 bits."""
    return ParseInt(on_failure=on_failure, default=default)


def parse_numeric(
    precision: int, scale: int, on_failure: str = "null", default: object = None
) -> ParseNumeric:
    """Read a decimal number, rounded to ``scale`` digits after the point."""
    return ParseNumeric(precision, scale, on_failure=on_failure, default=default)


def parse_bool(
    truthy: Sequence[str] = ("true", "1", "yes", "y"),
    falsy: Sequence[str] = ("false", "0", "no", "n"),
    *,
    on_failure: str = "null",
    default: bool | None = None,
) -> ParseBool:
    """Read true or false from lists of words."""
    return ParseBool(
        on_failure=on_failure,
        default=default,
        truthy=truthy,  # type: ignore[arg-type]  # __post_init__ checks it and makes a tuple
        falsy=falsy,  # type: ignore[arg-type]
    )


def round(precision: int) -> Round:
    """Round half away from zero to ``precision`` digits after the point."""
    return Round(precision)


def clamp(low: object = None, high: object = None) -> Clamp:
    """Keep a value between ``low`` and ``high``; either may be left out."""
    return Clamp(low, high)
