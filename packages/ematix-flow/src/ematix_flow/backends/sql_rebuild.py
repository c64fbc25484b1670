"""A table's own CREATE statement with some columns changed, everything else left as it stands.

For databases that cannot alter a column in place: the table is created anew, filled and renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot.dialects.dialect import Dialect

_TABLE_CONSTRAINTS = ("PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "CONSTRAINT")
_COLUMN_CONSTRAINTS = (
    *_TABLE_CONSTRAINTS,
    "NOT",
    "NULL",
    "DEFAULT",
    "COLLATE",
    "REFERENCES",
    "GENERATED",
    "AS",
)


@dataclass(frozen=True)
class ColumnChange:
    """What becomes of one column: its new type, and NOT NULL put or taken away (None: kept)."""

    type: str | None = None
    nullable: bool | None = None


def rebuilt(
    create: str,
    name: str,
    changes: Mapping[str, ColumnChange],
    added: Sequence[str] = (),
    *,
    dialect: str,
) -> str:
    """The statement for a table ``name`` that differs by these columns only."""
    tokens = Dialect.get_or_raise(dialect).tokenize(create)
    start = next(i for i, token in enumerate(tokens) if token.text == "(" and _is_mark(token))
    edits: list[tuple[int, int, str]] = []
    last_column = tokens[start].end
    for part in _parts(tokens, start):
        if _is_word(create, part[0], _TABLE_CONSTRAINTS):
            continue
        last_column = part[-1].end
        change = changes.get(part[0].text)
        if change is not None:
            edits += _edits(create, part, change)
    if added:
        edits.append((last_column + 1, last_column + 1, "".join(f", {line}" for line in added)))
    text = create
    for begin, end, replacement in sorted(edits, reverse=True):
        text = text[:begin] + replacement + text[end:]
    return f"CREATE TABLE {name} {text[tokens[start].start :].rstrip().rstrip(';')}"


def _parts(tokens: Sequence[Any], start: int) -> list[list[Any]]:
    """The entries between the outermost brackets."""
    depth = 0
    parts: list[list[Any]] = [[]]
    for token in tokens[start:]:
        if token.text in (")", "]") and _is_mark(token):
            depth -= 1
            if depth == 0:
                return [part for part in parts if part]
        if token.text == "," and depth == 1 and _is_mark(token):
            parts.append([])
        elif depth >= 1:
            parts[-1].append(token)
        if token.text in ("(", "[") and _is_mark(token):
            depth += 1
    return [part for part in parts if part]


def _is_mark(token: Any) -> bool:
    """Whether it is punctuation, and not a name or a text that looks like it."""
    return bool(token.end - token.start == 0)


def _is_word(create: str, token: Any, words: Sequence[str]) -> bool:
    """Whether a token is one of these words, not a quoted name that looks like it."""
    spelled = create[token.start : token.end + 1].upper()
    return bool(spelled.split()) and spelled.split()[0] in words


def _edits(create: str, part: Sequence[Any], change: ColumnChange) -> list[tuple[int, int, str]]:
    rest = [i for i, token in enumerate(part) if i and _is_word(create, token, _COLUMN_CONSTRAINTS)]
    after = rest[0] if rest else len(part)
    edits = []
    end = part[after - 1].end + 1
    if change.type is not None:
        begin = part[1].start if after > 1 else end
        edits.append((begin, end, change.type if after > 1 else f" {change.type}"))
    if change.nullable is True:
        for i in rest:
            if _is_word(create, part[i], ("NOT",)):
                edits.append((part[i].start, part[_null_after(part, i)].end + 1, ""))
    elif change.nullable is False:
        edits.append((part[-1].end + 1, part[-1].end + 1, " NOT NULL"))
    return edits


def _null_after(part: Sequence[Any], i: int) -> int:
    """Where NOT NULL ends: some tokenizers take it for one word."""
    is_next = i + 1 < len(part) and part[i + 1].text.upper() == "NULL"
    return i + 1 if is_next else i
