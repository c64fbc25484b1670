"""The regex_replace() normalizer, and how its pattern and replacement are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from ematix_flow.errors import DeclarationError
from ematix_flow.normalize.base import TextNormalizer, checked_text
from ematix_flow.normalize.regex import (
    Characters,
    Choice,
    Edge,
    Flavour,
    Group,
    Node,
    Repeat,
    Sequence,
)

FLAGS = "gi"
MOST_REPEATS = 1000
MOST_GROUPS = 9
_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE = ((9, 13), (32, 32))
_CLASSES = {"d": ((48, 57),), "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_HEX_DIGITS = {"x": 2, "u": 4}
_QUANTIFIER = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")


@dataclass(frozen=True, repr=False)
class RegexReplace(TextNormalizer):
    """Matches of a pattern are replaced: all of them with flag g, else the first."""

    name: ClassVar[str] = "regex_replace"
    pattern: str
    replacement: str
    flags: str = "g"

    def __post_init__(self) -> None:
        for parameter in ("pattern", "replacement", "flags"):
            checked_text("regex_replace()", parameter, getattr(self, parameter))
        for flag in self.flags:
            if flag not in FLAGS:
                raise DeclarationError(
                    f"regex_replace(): unknown flag {flag!r}",
                    fix="use g (every match) and i (case of ASCII letters does not matter)",
                )
        if parsed(self)[0].empty():
            # Engines disagree on where nothing is found, and Java finds it inside characters.
            raise DeclarationError(
                f"regex_replace(): the pattern {self.pattern!r} can match the empty text",
                fix="let it match at least one character, such as x+ instead of x*",
            )

    @property
    def everywhere(self) -> bool:
        """Whether every match is replaced."""
        return "g" in self.flags

    def _rewrite(self, text: str) -> str:
        node, replacement = parsed(self)
        count = 0 if self.everywhere else 1
        return re.sub(node.render("python"), replacement.expand, text, count=count)


@lru_cache(maxsize=256)
def parsed(normalizer: RegexReplace) -> tuple[Node, Replacement]:
    """The pattern and the replacement, read once."""
    parser = PatternParser(normalizer.pattern, ignore_case="i" in normalizer.flags)
    node = parser.parse()
    return node, Replacement.parse(normalizer.replacement, parser.groups)


def regex_replace(pattern: str, replacement: str, flags: str = "g") -> RegexReplace:
    r"""Replace what a pattern matches; ``\1`` in the replacement is the first group."""
    return RegexReplace(pattern, replacement, flags)


class PatternParser:
    """Reads a pattern; every refusal names the place."""

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        self.pattern = pattern
        self.ignore_case = ignore_case
        self.position = 0
        self.groups = 0

    def parse(self) -> Node:
        """The whole pattern."""
        node = self._choice()
        if self.position < len(self.pattern):
            raise self._refused("has a ) without its (")
        if self.groups > MOST_GROUPS:
            raise self._refused(f"has more than {MOST_GROUPS} groups; write (?:…) where possible")
        return node

    def _refused(self, why: str) -> DeclarationError:
        return DeclarationError(
            f"regex_replace(): the pattern {self.pattern!r} {why} (at character {self.position})",
            fix="correct it, or use sql() for what only Spark's regular expressions can do",
        )

    def _peek(self) -> str:
        return self.pattern[self.position : self.position + 1]

    def _take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, body: Node) -> Node:
        counted = self._count()
        if counted is None:
            return body
        least, most = counted
        if isinstance(body, Edge) or body.empty():
            raise self._refused("repeats something that can be empty")
        if max(least, most or 0) > MOST_REPEATS or (most is not None and least > most):
            raise self._refused(
                f"has a count that is not from 0 to {MOST_REPEATS} or runs backwards"
            )
        lazy = self._take("?")
        if self._peek() in ("*", "+", "?", "{"):
            raise self._refused("repeats a repetition")
        return Repeat(body, least, most, lazy)

    def _count(self) -> tuple[int, int | None] | None:
        for sign, counted in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counted
        if self._peek() != "{":
            return None
        match = _QUANTIFIER.match(self.pattern, self.position)
        if match is None:
            raise self._refused("has a { that starts no count; write \\{")
        self.position = match.end()
        least, comma, most = match.groups()
        if comma is None:
            return int(least), int(least)
        return int(least), int(most) if most else None

    def _atom(self) -> Node:
        character = self._peek()
        if character in "*+?{":
            raise self._refused("repeats nothing")
        if character in "]}":
            raise self._refused(f"has a lone {character}; write \\{character}")
        self.position += 1
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character == ".":
            return Characters(((10, 10),), negated=True)
        if character == "^":
            return Edge("start")
        if character == "$":
            return Edge("end")
        return self._characters([(ord(character), ord(character))])

    def _group(self) -> Node:
        index = None
        if self._take("?:"):
            pass
        elif self._peek() == "?":
            raise self._refused("uses (?…), of which only (?:…) means the same everywhere")
        else:
            self.groups += 1
            index = self.groups
        body = self._choice()
        if not self._take(")"):
            raise self._refused("has a ( without its )")
        return Group(body, index)

    def _escape(self) -> Node:
        letter = self._peek()
        if letter == "b":
            self.position += 1
            return Edge("word")
        if letter.lower() in _CLASSES and letter:
            self.position += 1
            return Characters(_CLASSES[letter.lower()], negated=letter.isupper())
        code = self._escaped_code()
        return self._characters([(code, code)])

    def _escaped_code(self) -> int:
        letter = self._peek()
        self.position += 1
        if letter in _HEX_DIGITS:
            width = _HEX_DIGITS[letter]
            digits = self.pattern[self.position : self.position + width]
            if re.fullmatch(f"[0-9a-fA-F]{{{width}}}", digits):
                self.position += width
                return self._whole(int(digits, 16))
        elif letter in _CONTROLS and letter:
            return ord(_CONTROLS[letter])
        elif letter and ord(letter) < 128 and not letter.isalnum():  # noqa: PLR2004 - ASCII
            return ord(letter)
        raise self._refused(f"has \\{letter}, which does not mean the same everywhere")

    def _whole(self, code: int) -> int:
        if 0xD800 <= code <= 0xDFFF:  # noqa: PLR2004 - the surrogates
            raise self._refused("names half a character (a lone surrogate)")
        return code

    def _class(self) -> Node:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            if not self._peek():
                raise self._refused("has a [ without its ]")
            ranges.extend(self._class_item())
        if not ranges:
            raise self._refused("has an empty class; write \\] for a bracket")
        return self._characters(ranges, negated=negated)

    def _class_item(self) -> tuple[tuple[int, int], ...]:
        if self._peek() == "\\" and self.pattern[self.position + 1 : self.position + 2] in (
            "d",
            "w",
            "s",
        ):
            self.position += 2
            return _CLASSES[self.pattern[self.position - 1]]
        low = self._class_character()
        following = self.pattern[self.position + 1 : self.position + 2]
        if self._peek() != "-" or following in ("]", ""):
            return ((low, low),)
        self.position += 1
        high = self._class_character()
        if high < low:
            raise self._refused("has a range that runs backwards")
        return ((low, high),)

    def _class_character(self) -> int:
        character = self._peek()
        if character == "[":
            raise self._refused("has a [ inside a class; write \\[")
        self.position += 1
        return self._escaped_code() if character == "\\" else ord(character)

    def _characters(self, ranges: list[tuple[int, int]], *, negated: bool = False) -> Characters:
        if self.ignore_case:
            ranges = [*ranges, *(other for one in ranges for other in _other_case(one))]
        return Characters(tuple(sorted(set(ranges))), negated)


def _other_case(codes: tuple[int, int]) -> Iterator[tuple[int, int]]:
    low, high = codes
    for first, last, shift in ((65, 90, 32), (97, 122, -32)):
        start, end = max(low, first), min(high, last)
        if start <= end:
            yield start + shift, end + shift


@dataclass(frozen=True)
class Replacement:
    """What a match is replaced by: texts and numbers of groups, 0 being the whole match."""

    parts: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str, groups: int) -> Replacement:
        r"""Reads ``\1`` … ``\9``, ``\&`` and ``\\``; everything else stands for itself."""
        parts: list[str | int] = []
        position = 0
        while position < len(text):
            character = text[position]
            following = text[position + 1 : position + 2]
            if character != "\\":
                parts.append(character)
                position += 1
                continue
            if following == "\\":
                parts.append("\\")
            elif following == "&":
                parts.append(0)
            elif following in tuple("123456789") and int(following) <= groups:
                parts.append(int(following))
            else:
                raise DeclarationError(
                    f"regex_replace(): the replacement {text!r} has \\{following}, and the "
                    f"pattern has {groups} groups",
                    fix="write \\1 to \\9 for a group, \\& for the match, \\\\ for a backslash",
                )
            position += 2
        return cls(tuple(parts))

    @property
    def captures(self) -> bool:
        """Whether it uses a group."""
        return any(isinstance(part, int) and part > 0 for part in self.parts)

    def expand(self, match: re.Match[str]) -> str:
        """The text that replaces a match."""
        return "".join(p if isinstance(p, str) else match[p] or "" for p in self.parts)

    def render(self, flavour: Flavour, *, shift: int = 0) -> str:
        """As an engine writes it; ``shift`` groups were added in front of the pattern."""
        return "".join(self._part(part, flavour, shift) for part in self.parts)

    @staticmethod
    def _part(part: str | int, flavour: Flavour, shift: int) -> str:
        if isinstance(part, int):
            if flavour == "java":
                return f"${part + shift}"
            return "\\&" if flavour == "postgres" and part == 0 else f"\\{part}"
        if part == "\\":
            return "\\\\"
        # Java would read a digit after a group's number as part of it.
        return f"\\{part}" if flavour == "java" and part in tuple("$0123456789") else part
