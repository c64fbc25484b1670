"""What the commands print: results on stdout, everything else on stderr, secrets nowhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TextIO

import click

from ematix_flow.redaction import redact_text

_STDOUT = "ematix_flow.stdout"


def complain(text: str, *, as_: str = "flow: error") -> None:
    """One line on stderr."""
    click.echo(f"{as_}: {redact_text(' '.join(text.split()))}", err=True)


def warn(text: str) -> None:
    """One line of warning on stderr."""
    complain(text, as_="flow: warning")


def say(text: str = "") -> None:
    """A line of the result."""
    click.echo(redact_text(text))


def say_json(document: object, *, indent: int | None = 2) -> None:
    """The result as a JSON document on stdout; without ``indent``, one of many, in a line."""
    stream: TextIO = click.get_current_context().meta.get(_STDOUT) or sys.stdout
    text = json.dumps(_safe(document), indent=indent, ensure_ascii=False, default=str)
    click.echo(text, file=stream)


def keep_stdout_for_json() -> None:
    """Let whatever else is printed, by a user's module for example, go to stderr."""
    context = click.get_current_context()
    context.meta[_STDOUT] = sys.stdout
    stdout, sys.stdout = sys.stdout, sys.stderr

    def put_back() -> None:
        sys.stdout = stdout

    context.call_on_close(put_back)


def say_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows in aligned columns."""
    shown = [[_cell(value) for value in row] for row in rows]
    lines = [list(headings), *shown]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(headings))]
    for line in lines:
        padded = (
            text + " " * (width - _width(text)) for text, width in zip(line, widths, strict=True)
        )
        say("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return when(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def when(moment: datetime) -> str:
    """A moment as this machine's clock shows it."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def took(seconds: float | None) -> str:
    """A duration, short."""
    if seconds is None:
        return "-"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {str(k): _safe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(v) for v in value]
    return value
