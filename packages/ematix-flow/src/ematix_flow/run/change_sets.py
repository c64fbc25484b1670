"""``plan``: the change set of a run before it is made, kept in a file and applied as it was seen.

A plan is a dry run that is looked into while its change sets exist. Applying it is a run that
compares what it is about to commit with what was planned, and refuses if anything has moved.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import ADDED_TYPES, Ask, Load
from ematix_flow.backends.loading import load_backend
from ematix_flow.change import CURRENT, INCOMING, OPERATION, Counts, Replace, Revise
from ematix_flow.config import resolve_connection
from ematix_flow.engine.session import run_session
from ematix_flow.errors import ConfigError, DataError, EmatixError
from ematix_flow.model import PipelineSpec
from ematix_flow.modes.sql import name, parsed, same
from ematix_flow.run.batch import run_pipeline
from ematix_flow.run.fingerprints import declaration_fingerprint, digest, rows_fingerprint
from ematix_flow.run.log import RunLog
from ematix_flow.run.preview import preview_of
from ematix_flow.run.purpose import Purpose
from ematix_flow.run.records import utc_now
from ematix_flow.run.result import RunResult

if TYPE_CHECKING:
    from sqlglot import exp

    from ematix_flow.run.plan import Plan
    from ematix_flow.types import ColumnType

FORMAT = 1
SAMPLE = 5
_NATIVE = (
    *("small_int", "integer", "big_int", "float", "double"),
    *("boolean", "text", "string", "bytes"),
)


@dataclass(frozen=True)
class RowChange:
    """One row that changes: the values that differ, or all of a row that comes or goes."""

    key: Mapping[str, Any]
    old: Mapping[str, Any]
    new: Mapping[str, Any]


@dataclass(frozen=True)
class Operation:
    """What happens to some rows, how many they are, and a few of them."""

    name: str
    rows: int
    sample: tuple[RowChange, ...]


@dataclass
class TargetChanges:
    """Everything that a run would change in one target."""

    target: str
    connection: str
    mode: str
    path: str
    path_reason: str
    ddl: list[str]
    counts: Counts = field(default_factory=Counts)
    operations: tuple[Operation, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChangePlan:
    """The changes of one run, target by target, before any of them is made."""

    pipeline: str
    planned_at: datetime
    declaration: str
    targets: tuple[TargetChanges, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        plain = dataclasses.asdict(self)
        plain["planned_at"] = self.planned_at.isoformat()
        for target in plain["targets"]:
            del target["fingerprints"]
        del plain["declaration"]
        return plain

    def save(self, path: Path) -> None:
        """Keep the plan: its counts and what tells whether anything has moved, but no rows."""
        targets = [
            {
                "target": t.target,
                "connection": t.connection,
                "counts": dataclasses.asdict(t.counts),
                "fingerprints": dict(t.fingerprints),
            }
            for t in self.targets
        ]
        document = {
            "format": FORMAT,
            "pipeline": self.pipeline,
            "planned_at": self.planned_at.isoformat(),
            "declaration": self.declaration,
            "targets": targets,
        }
        try:
            path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"plan {path} cannot be written: {error.strerror}", fix="name another with --out"
            ) from error


@dataclass(frozen=True)
class SavedPlan:
    """A plan as it was kept."""

    path: Path
    pipeline: str
    declaration: str
    fingerprints: Mapping[str, Mapping[str, str]]
    batch: str


def read_plan_file(path: Path) -> SavedPlan:
    """Read a plan that was kept."""
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ConfigError(
                f"{path} is a plan of format {document['format']}, this version knows {FORMAT}",
                fix="make it again with this version",
            )
        return SavedPlan(
            path,
            str(document["pipeline"]),
            str(document["declaration"]),
            {str(t["target"]): dict(t["fingerprints"]) for t in document["targets"]},
            f"plan:{digest(document)[:32]}",
        )
    except OSError as error:
        raise ConfigError(f"plan {path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a plan", fix="make one with: flow plan NAME --out FILE"
        ) from error


@run_session()
def plan_changes(
    spec: PipelineSpec, *, sample: int = SAMPLE, kept: bool = False, progress: bool = False
) -> ChangePlan:
    """Compute the change sets of a run and look into them; nothing is written.

    With ``kept``, incoming and stored rows are fingerprinted too, so that the plan can be applied.
    """
    seen: dict[str, TargetChanges] = {}
    dialects: dict[str, str] = {}
    planned_at = utc_now()

    def note(plan: Plan) -> None:
        dialects[plan.label] = plan.sink.dialect
        seen[plan.label] = TargetChanges(
            target=plan.label,
            connection=plan.sink.name,
            mode=plan.target.mode,
            path=plan.path,
            path_reason=plan.path_reason,
            ddl=preview_of(plan).ddl,
        )

    def look(label: str, load: Load, ask: Ask) -> None:
        seen[label].operations = _operations(load, ask, sample)
        if kept:
            seen[label].fingerprints = _fingerprints(load, ask, dialects[label])

    result = run_pipeline(
        spec,
        trigger="cli",
        dry_run=True,
        progress=progress,
        on_plan=note,
        purpose=Purpose(inspect=look),
    )
    for label, changes in seen.items():
        changes.counts = result.targets[label].counts
    return ChangePlan(spec.name, planned_at, declaration_fingerprint(spec), tuple(seen.values()))


def apply_plan(
    saved: SavedPlan, spec: PipelineSpec, *, run_log: RunLog | None = None, progress: bool = False
) -> RunResult:
    """Make the changes of a plan, or refuse if they would not be those that were planned."""
    if declaration_fingerprint(spec) != saved.declaration:
        raise _refusal(
            saved, f"the declaration of pipeline {spec.name!r} has changed since it was made"
        )
    for target in spec.targets:
        sink = load_backend(resolve_connection(target.connection).connection)
        if sink.applied([saved.batch], target.table.name, target.prefix):
            raise _refusal(saved, f"{target.table.name} has taken it already")
    dialects: dict[str, str] = {}

    def note(plan: Plan) -> None:
        dialects[plan.label] = plan.sink.dialect

    def compare(label: str, load: Load, ask: Ask) -> None:
        found = _fingerprints(load, ask, dialects[label])
        planned = saved.fingerprints.get(label, {})
        if found[INCOMING] != planned.get(INCOMING):
            raise _refusal(
                saved, f"the source of pipeline {spec.name!r} has changed since it was made"
            )
        if found[CURRENT] != planned.get(CURRENT):
            raise _refusal(saved, f"table {label} has changed since it was made")

    return run_pipeline(
        spec,
        trigger="apply",
        run_log=run_log,
        progress=progress,
        on_plan=note,
        purpose=Purpose(batch=saved.batch, inspect=compare),
    )


def _refusal(saved: SavedPlan, what: str) -> EmatixError:
    return DataError(
        f"plan {saved.path} is not applied: {what}",
        fix=f"make it again: flow plan {saved.pipeline} --out {saved.path}",
    )


def _fingerprints(load: Load, ask: Ask, dialect: str) -> dict[str, str]:
    given = [(column.name, column.type) for column in load.incoming]
    found = {
        relation: ask(rows_fingerprint(relation, columns, dialect))[0]
        for relation, columns in ((INCOMING, given), (CURRENT, load.columns))
    }
    shown = {relation: digest([int(n or 0) for n in row]) for relation, row in found.items()}
    return {**shown, CURRENT: "missing" if load.creates else shown[CURRENT]}


def _operations(load: Load, ask: Ask, sample: int) -> tuple[Operation, ...]:
    """What the steps do to the table; what is kept beside it is of no concern to anybody."""
    made: list[Operation] = []
    for step in load.change.steps:
        if isinstance(step, Revise):
            made += _revised(step, load, ask, sample) if step.relation == CURRENT else ()
            continue
        if isinstance(step, Replace):
            stored = parsed(f"SELECT * FROM {CURRENT}")
            made += _whole("delete", stored, load, ask, sample)
        made += _whole("insert", step.rows, load, ask, sample)
    return tuple(operation for operation in made if operation.rows)


def _whole(
    operation: str, rows: exp.Query, load: Load, ask: Ask, sample: int
) -> tuple[Operation, ...]:
    """Rows that come or go as they are."""
    from sqlglot import exp

    inner = rows.subquery("held")
    count = ask(exp.select(exp.Count(this=exp.Star())).from_(inner.copy()))[0][0]
    columns = _shown_columns(load)
    listed = exp.select(*(_shown(c, kind) for c, kind in columns)).from_(inner).limit(sample)
    found = [_named(columns, row) for row in ask(listed)] if sample else []
    gone = operation == "delete"
    changes = [
        RowChange(
            {k: row[k] for k in load.key if k in row}, row if gone else {}, {} if gone else row
        )
        for row in found
    ]
    return (Operation(operation, int(count), tuple(changes)),)


def _revised(step: Revise, load: Load, ask: Ask, sample: int) -> list[Operation]:
    counted = parsed(f"SELECT {OPERATION}, COUNT(*) AS n FROM {step.changes} GROUP BY {OPERATION}")
    found = {str(operation): int(n) for operation, n in ask(counted)}
    made = []
    for operation, effect in step.effects.items():
        rows = _pairs(step, operation, load, ask, sample) if operation in found and sample else []
        changes = [_difference(step, effect.act, old, new) for old, new in rows]
        made.append(Operation(operation, found.get(operation, 0), tuple(changes)))
    return made


def _pairs(
    step: Revise, operation: str, load: Load, ask: Ask, sample: int
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Some rows of a change set, each as it is and as it will be."""
    from sqlglot import exp

    columns = _shown_columns(load)
    items = [_shown(c, kind, of) for of in ("c", "x") for c, kind in columns]
    text = (
        f"SELECT 1 FROM {step.changes} AS x LEFT JOIN {CURRENT} AS c "
        f"ON {same('c', 'x', step.identity)} WHERE x.{OPERATION} = '{operation}' "
        f"ORDER BY {', '.join(name(k, 'x') for k in step.identity)} LIMIT {sample}"
    )
    query = parsed(text)
    assert isinstance(query, exp.Select)  # noqa: S101 - for the type checker
    width = len(columns)
    return [
        (_named(columns, row[:width]), _named(columns, row[width:]))
        for row in ask(query.select(*items, append=False))
    ]


def _difference(step: Revise, act: str, old: dict[str, Any], new: dict[str, Any]) -> RowChange:
    key = {k: new[k] for k in step.identity if k in new}
    if act == "insert":
        return RowChange(key, {}, new)
    if act == "delete":
        return RowChange(key, old, {})
    changed = [c for c in new if old[c] != new[c]]
    return RowChange(key, {c: old[c] for c in changed}, {c: new[c] for c in changed})


def _shown_columns(load: Load) -> list[tuple[str, ColumnType]]:
    return [(c, kind) for c, kind in load.columns if c not in ADDED_TYPES]


def _shown(column: str, kind: ColumnType, of: str | None = None) -> exp.Expression:
    """A value as people read it: what a driver would make an object of comes as text."""
    from sqlglot import exp

    value = exp.column(exp.to_identifier(column, quoted=True), table=of)
    return value if kind.kind in _NATIVE else exp.cast(value, "text")


def _named(columns: Sequence[tuple[str, ColumnType]], row: Sequence[Any]) -> dict[str, Any]:
    return {
        column: None if value is None else _plain(value, kind)
        for (column, kind), value in zip(columns, row, strict=True)
    }


def _plain(value: Any, kind: ColumnType) -> Any:
    if kind.kind == "bytes":
        return bytes(value).hex()
    return bool(value) if kind.kind == "boolean" else value
