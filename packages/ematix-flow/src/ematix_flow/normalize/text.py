"""Normalizers from text to text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ematix_flow.errors import DeclarationError
from ematix_flow.normalize.base import WHITESPACE, TextNormalizer, checked_count, checked_text

# The two letters whose lower case depends on their place or is longer than one character. With
# them fixed, lower() maps each character to one character, and so do databases.
LOWER_FIRST = ("Σİ", "σi")
PHONE_CHARACTERS = "0123456789+"


@dataclass(frozen=True, repr=False)
class Trim(TextNormalizer):
    """Whitespace of every kind is removed at both ends."""

    name: ClassVar[str] = "trim"

    def _rewrite(self, text: str) -> str:
        return text.strip(WHITESPACE)


@dataclass(frozen=True, repr=False)
class Lower(TextNormalizer):
    """Lower case, character by character."""

    name: ClassVar[str] = "lower"

    def _rewrite(self, text: str) -> str:
        return text.translate(str.maketrans(*LOWER_FIRST)).lower()


@dataclass(frozen=True, repr=False)
class Upper(TextNormalizer):
    """Upper case; ß becomes SS."""

    name: ClassVar[str] = "upper"

    def _rewrite(self, text: str) -> str:
        return text.upper()


@dataclass(frozen=True, repr=False)
class EmptyToNull(TextNormalizer):
    """The empty text becomes NULL."""

    name: ClassVar[str] = "empty_to_null"

    def _rewrite(self, text: str) -> str | None:
        return text or None


@dataclass(frozen=True, repr=False)
class WhitespaceToNull(TextNormalizer):
    """A text of nothing but whitespace becomes NULL; any other is left as it is."""

    name: ClassVar[str] = "whitespace_to_null"

    def _rewrite(self, text: str) -> str | None:
        return text if text.strip(WHITESPACE) else None


@dataclass(frozen=True, repr=False)
class Replace(TextNormalizer):
    """Every occurrence of a text is replaced."""

    name: ClassVar[str] = "replace"
    old: str
    new: str

    def __post_init__(self) -> None:
        checked_text("replace()", "new", self.new)
        if not checked_text("replace()", "old", self.old):
            raise DeclarationError("replace(): old is empty", fix="name the text to be replaced")

    def _rewrite(self, text: str) -> str:
        return text.replace(self.old, self.new)


@dataclass(frozen=True, repr=False)
class Truncate(TextNormalizer):
    """The first ``n`` characters."""

    name: ClassVar[str] = "truncate"
    n: int

    def __post_init__(self) -> None:
        checked_count("truncate()", "n", self.n)

    def _rewrite(self, text: str) -> str:
        return text[: self.n]


@dataclass(frozen=True, repr=False)
class EmailNormalize(TextNormalizer):
    """Lower case without whitespace at the ends."""

    name: ClassVar[str] = "email_normalize"

    def _rewrite(self, text: str) -> str:
        return Lower()._rewrite(text).strip(WHITESPACE)


@dataclass(frozen=True, repr=False)
class PhoneNormalize(TextNormalizer):
    """Only the digits 0 to 9 and plus signs remain."""

    name: ClassVar[str] = "phone_normalize"

    def _rewrite(self, text: str) -> str:
        return "".join(c for c in text if c in PHONE_CHARACTERS)


def trim() -> Trim:
    """Remove whitespace of every kind at both ends."""
    return Trim()


def lower() -> Lower:
    """Lower case, character by character (``Σ`` → ``σ``, ``İ`` → ``i``)."""
    return Lower()


def upper() -> Upper:
    """Upper case (``ß`` → ``SS``)."""
    return Upper()


def empty_to_null() -> EmptyToNull:
    """Turn the empty text into NULL."""
    return EmptyToNull()


def whitespace_to_null() -> WhitespaceToNull:
    """Turn a text that is empty or only whitespace into NULL; leave others as they are."""
    return WhitespaceToNull()


def replace(old: str, new: str) -> Replace:
    """Replace every occurrence of ``old``."""
    return Replace(old, new)


def truncate(n: int) -> Truncate:
    """Keep the first ``n`` characters."""
    return Truncate(n)


def email_normalize() -> EmailNormalize:
    """Lower case, no whitespace at the ends."""
    return EmailNormalize()


def phone_normalize() -> PhoneNormalize:
    """Keep the digits 0–9 and plus signs, drop everything else."""
    return PhoneNormalize()
