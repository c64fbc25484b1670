r"""A small regular-expression language with one meaning, written out for each engine.

Python, Java, RE2 and PostgreSQL disagree on what ``.``, ``$``, ``\w`` or case mean. Patterns are
parsed here and rendered with every such thing spelled out, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

Flavour = Literal["python", "java", "re2", "postgres"]

_WORD_EDGE = "(?:(?<=[0-9A-Z_a-z])(?![0-9A-Z_a-z])|(?<![0-9A-Z_a-z])(?=[0-9A-Z_a-z]))"


@dataclass(frozen=True)
class Node:
    """A piece of a pattern."""

    def length(self) -> int | None:
        """How many characters it matches, when that is always the same."""
        raise NotImplementedError

    def empty(self) -> bool:
        """Whether it can match nothing."""
        return self.length() == 0

    def children(self) -> tuple[Node, ...]:
        """The pieces inside."""
        return ()

    def walk(self) -> Iterator[Node]:
        """This piece and all inside it."""
        yield self
        for child in self.children():
            yield from child.walk()

    def render(self, flavour: Flavour) -> str:
        """The piece as an engine writes it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Characters(Node):
    """One character, in or outside these ranges."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False

    def length(self) -> int:
        """How many characters it matches, when that is always the same."""
        return 1

    def render(self, flavour: Flavour) -> str:
        """The piece as an engine writes it."""
        ranges = self.ranges
        if flavour == "postgres":
            # Its text never holds NUL, and its patterns cannot name it.
            ranges = tuple((max(low, 1), high) for low, high in ranges if high)
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and not self.negated:
            return _escaped(ranges[0][0], flavour)
        if not ranges:
            return "[\\u0001-\\U0010FFFF]" if self.negated else "[^\\u0001-\\U0010FFFF]"
        inside = "".join(
            _escaped(low, flavour) + (f"-{_escaped(high, flavour)}" if high > low else "")
            for low, high in ranges
        )
        return f"[{'^' if self.negated else ''}{inside}]"


@dataclass(frozen=True)
class Edge(Node):
    """The start or the end of the text, or the edge of a word of ASCII characters."""

    kind: Literal["start", "end", "word"]

    spelling: ClassVar[dict[Flavour, dict[str, str]]] = {
        "python": {"start": r"\A", "end": r"\Z", "word": _WORD_EDGE},
        "java": {"start": r"\A", "end": r"\z", "word": _WORD_EDGE},
        "re2": {"start": r"\A", "end": r"\z", "word": r"\b"},
        "postgres": {"start": r"\A", "end": r"\Z", "word": ""},
    }

    def length(self) -> int:
        """How many characters it matches, when that is always the same."""
        return 0

    def render(self, flavour: Flavour) -> str:
        """The piece as an engine writes it."""
        return self.spelling[flavour][self.kind]


@dataclass(frozen=True)
class Sequence(Node):
    """Pieces one after the other."""

    parts: tuple[Node, ...]

    def length(self) -> int | None:
        """How many characters it matches, when that is always the same."""
        total = 0
        for part in self.parts:
            size = part.length()
            if size is None:
                return None
            total += size
        return total

    def empty(self) -> bool:
        """Whether it can match nothing."""
        return all(part.empty() for part in self.parts)

    def children(self) -> tuple[Node, ...]:
        """The pieces inside."""
        return self.parts

    def render(self, flavour: Flavour) -> str:
        """The piece as an engine writes it."""
        return "".join(part.render(flavour) for part in self.parts)


@dataclass(frozen=True)
class Choice(Node):
    """The first alternative that leads to a match."""

    options: tuple[Node, ...]

    def length(self) -> int | None:
        """How many characters it matches, when that is always the same."""
        sizes = {option.length() for option in self.options}
        return sizes.pop() if len(sizes) == 1 else None

    def empty(self) -> bool:
        """Whether it can match nothing."""
        return any(option.empty() for option in self.options)

    def children(self) -> tuple[Node, ...]:
        """The pieces inside."""
        return self.options

    def render(self, flavour: Flavour) -> str:
        """The piece as an engine writes it."""
        return "|".join(option.render(flavour) for option in self.options)


@dataclass(frozen=True)
class Group(Node):
    """Pieces in parentheses; ``index`` numbers a captured one."""

    body: Node
    index: int | None

    def length(self) -> int | None:
        """How many characters it matches, when that is always the same."""
        return self.body.length()

    def empty(self) -> bool:
        """Whether it can match nothing."""
        return self.body.empty()

    def children(self) -> tuple[Node, ...]:
        """The pieces inside."""
        return (self.body,)

    def render(self, flavour: Flavour) -> str:
        """The piece as an engine writes it."""
        return f"({'' if self.index else '?:'}{self.body.render(flavour)})"


@dataclass(frozen=True)
class Repeat(Node):
    """A piece several times; as often as possible unless ``lazy``."""

    body: Node
    least: int
    most: int | None
    lazy: bool

    def length(self) -> int | None:
        """How many characters it matches, when that is always the same."""
        size = self.body.length()
        return size * self.least if size is not None and self.least == self.most else None

    def empty(self) -> bool:
        """Whether it can match nothing."""
        return self.least == 0 or self.body.empty()

    def children(self) -> tuple[Node, ...]:
        """The pieces inside."""
        return (self.body,)

    def render(self, flavour: Flavour) -> str:
        """The piece as an engine writes it."""
        if self.most is None:
            count = {0: "*", 1: "+"}.get(self.least, f"{{{self.least},}}")
        elif (self.least, self.most) == (0, 1):
            count = "?"
        elif self.least == self.most:
            count = f"{{{self.least}}}"
        else:
            count = f"{{{self.least},{self.most}}}"
        return f"{self.body.render(flavour)}{count}{'?' if self.lazy else ''}"


def _escaped(code: int, flavour: Flavour) -> str:
    character = chr(code)
    if code < 32 or code == 127:  # noqa: PLR2004 - the control characters
        return f"\\u{code:04x}" if flavour == "postgres" else f"\\x{code:02x}"
    if code < 128 and not character.isalnum() and character not in " _":  # noqa: PLR2004 - ASCII
        return f"\\{character}"
    return character


def greatest_repeat(node: Node) -> int:
    """The greatest number of copies that nested counts ask for."""
    inner = max((greatest_repeat(child) for child in node.children()), default=1)
    return inner * max(node.least, node.most or 0, 1) if isinstance(node, Repeat) else inner


def longest_is_first(pattern: Node, *, captures: bool) -> bool:
    """Whether an engine that takes the longest match finds the same as one that takes the first.

    True for a row of single characters with greedy counts (a path that falls behind another one
    must cross it, and can follow it from there), and for a pattern of one fixed length.
    """
    if any(isinstance(node, Edge) and node.kind == "word" for node in pattern.walk()):
        return False
    if pattern.length() is not None:
        return not any(
            isinstance(inner, Group) and inner.index
            for node in pattern.walk()
            if isinstance(node, Choice | Repeat)
            for inner in node.walk()
        )
    parts = pattern.parts if isinstance(pattern, Sequence) else (pattern,)
    return not captures and all(
        isinstance(part, Characters | Edge)
        or (isinstance(part, Repeat) and isinstance(part.body, Characters) and not part.lazy)
        for part in parts
    )
