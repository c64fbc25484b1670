"""What is loaded in each mode: tables, batches that change them in every way, and the oracles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

from ematix_flow import BigInt, Text, TimestampTZ, ematix, natural_key
from oracle.events import EventHistory, tally
from oracle.hashing import row_hash
from oracle.incremental import Increment, append_new
from oracle.merge import Merge
from oracle.run_time import RunTimeHistory
from oracle.state import Row, Run, Tally


@ematix.table(schema="app")
class Logged:
    id: BigInt
    a: Text | None


@ematix.table(schema="app")
class Replaced:
    id: BigInt
    a: Text | None


@ematix.table(schema="app")
class Merged:
    id: BigInt
    a: Text | None


@ematix.table(schema="app")
class Versions:
    id: Annotated[BigInt, natural_key()]
    a: Text | None


@ematix.table(schema="app")
class Happenings:
    k: Annotated[BigInt, natural_key()]
    at: TimestampTZ
    a: Text | None


@ematix.table(schema="app")
class Readings:
    at: BigInt
    a: Text | None


@dataclass(frozen=True)
class State:
    """A table as its commits have left it, with all they were given and the watermark."""

    rows: list[Row] = field(default_factory=list)
    seen: list[Row] = field(default_factory=list)
    mark: int | None = None


Rule = Callable[[State, list[Row], Run], tuple[State, Tally]]


@dataclass(frozen=True)
class Tale:
    """One mode: ``source(n)`` is what the n-th run is given, ``rule`` what it makes of a table."""

    name: str
    table: type
    schema: str
    mode: str
    verb: str
    source: Callable[[int], list[Row]]
    rule: Rule
    options: Mapping[str, Any] = field(default_factory=dict)
    ignoring: tuple[str, ...] = ("_loaded_at",)

    def order(self, rows: Sequence[Row]) -> dict[str, Any]:
        """A run of this tale, as the details of an order."""
        return {
            "table": self.table,
            "schema": self.schema,
            "mode": self.mode,
            "pipeline": f"tell_{self.name}",
            "options": dict(self.options),
            "rows": [tuple(row.values()) for row in rows],
        }


ID_AND_TEXT = "id BIGINT, a STRING"


def _few(turn: int) -> list[Row]:
    return [{"id": 10 * turn + n, "a": text} for n, text in enumerate(("x", None, ""))]


def _append(state: State, rows: list[Row], run: Run) -> tuple[State, Tally]:
    return State([*state.rows, *rows]), Tally(inserted=len(rows))


def _replace(state: State, rows: list[Row], run: Run) -> tuple[State, Tally]:
    return State(rows), Tally(inserted=len(rows), deleted=len(state.rows))


def _snapshot(turn: int) -> list[Row]:
    """Two keys go and two come with every turn; of the others some change, to NULL and back."""
    texts = ("same", None if turn % 2 else "was NULL", f"turn {turn}")
    return [{"id": n, "a": texts[n % 3]} for n in range(2 * turn, 2 * turn + 7)]


def _fold(rule: Merge | RunTimeHistory) -> Rule:
    def load(state: State, rows: list[Row], run: Run) -> tuple[State, Tally]:
        outcome = rule.load(state.rows, rows, run)
        return State(outcome.rows), outcome.tally

    return load


START = datetime(2024, 10, 27, tzinfo=timezone.utc)


def _happened(turn: int) -> list[Row]:
    """For each key one event in time and one late; for one a tombstone between them."""

    def event(k: int, hour: int, a: str | None, op: str | None = None) -> Row:
        return {"k": k, "at": START + timedelta(hours=hour), "a": a, "op": op}

    made = []
    for k in range(3):
        made.append(event(k, 10 * turn, f"state {turn % 2}"))
        made.append(event(k, 10 * turn - 13 + k, f"state {(turn + k) % 2}"))
    made.append(event(turn % 3, 10 * turn - 8, None, "D"))
    return made


def _delivered(turn: int) -> list[Row]:
    """What happened since, and what was delivered before once more."""
    return [*(_happened(turn - 1) if turn else ()), *_happened(turn)]


_EVENTS = EventHistory(
    key=("k",),
    columns=("k", "at", "a"),
    at="at",
    row_hash=lambda row: row_hash({c: row[c] for c in ("k", "at", "a")}),
    delete_when=lambda row: row["op"] == "D",
)


def _history(state: State, rows: list[Row], run: Run) -> tuple[State, Tally]:
    seen = [*state.seen, *rows]
    versions = _EVENTS.versions(seen, run.moment)
    return State(versions, seen), tally(state.rows, versions, _EVENTS.key)


def _grown(turn: int) -> list[Row]:
    """A source that only grows; every turn adds to the boundary of the one before it."""
    return [{"at": n + more, "a": f"turn {n}"} for n in range(turn + 1) for more in (0, 0, 1)]


_INCREMENT = Increment("at")


def _increment(state: State, rows: list[Row], run: Run) -> tuple[State, Tally]:
    added = append_new(state.rows, _INCREMENT.taken(rows, state.mark), ())
    moved = State([*state.rows, *added], mark=_INCREMENT.moved(rows, state.mark))
    return moved, Tally(inserted=len(added))


TALES = (
    Tale("append", Logged, ID_AND_TEXT, "append", "insert", _few, _append),
    Tale("truncate", Replaced, ID_AND_TEXT, "truncate", "replace", _few, _replace),
    Tale(
        "merge",
        Merged,
        ID_AND_TEXT,
        "merge",
        "revise",
        _snapshot,
        _fold(Merge(("id",), ("id", "a"), handle_deletes="hard", max_delete_fraction=1)),
        {"keys": ("id",), "handle_deletes": "hard", "max_delete_fraction": 1},
    ),
    Tale(
        "scd2",
        Versions,
        ID_AND_TEXT,
        "scd2",
        "revise",
        _snapshot,
        _fold(RunTimeHistory(("id",), ("id", "a"), handle_deletes="soft", max_delete_fraction=1)),
        {"handle_deletes": "soft", "max_delete_fraction": 1},
    ),
    Tale(
        "events",
        Happenings,
        "k BIGINT, at TIMESTAMP, a STRING, op STRING",
        "scd2",
        "revise",
        _delivered,
        _history,
        {"event_timestamp_column": "at", "delete_when": "op = 'D'"},
        ("_loaded_at", "_run_id"),
    ),
    Tale(
        "incremental",
        Readings,
        "at BIGINT, a STRING",
        "append",
        "revise",
        _grown,
        _increment,
        {"incremental": True, "watermark_column": "at"},
    ),
)


def tale(name: str) -> Tale:
    """The tale of that name."""
    (found,) = (t for t in TALES if t.name == name)
    return found
