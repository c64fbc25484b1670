"""Everything that is decided before a row moves: source, columns, path, target, change."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import (
    ADDED_TYPES,
    Backend,
    FoundTable,
    LiveConnection,
    Load,
    RunRow,
    SourceColumn,
)
from ematix_flow.backends.loading import load_backend
from ematix_flow.backends.spool import spooling
from ematix_flow.backends.visibility import check_visible
from ematix_flow.config import resolve_connection
from ematix_flow.engine.placing import placed
from ematix_flow.engine.session import EngineChoice, on_engine, shared_engine
from ematix_flow.errors import EmatixError, Unsupported
from ematix_flow.model import PipelineSpec, Table, TargetSpec
from ematix_flow.modes.base import Shape, load_mode
from ematix_flow.modes.window import window_change
from ematix_flow.run.engines import chosen_engine, refuse_frame, settled_engine
from ematix_flow.run.evolution import reconcile
from ematix_flow.run.function import OnlyAsking, RunInfo
from ematix_flow.run.incoming import (
    COMPUTED,
    PlannedColumn,
    assigned_early,
    normalized,
    plan_columns,
    staged,
)
from ematix_flow.run.paths import choose_path, direct_path
from ematix_flow.run.purpose import ORDINARY, Purpose
from ematix_flow.run.ranges import Slice, slice_of
from ematix_flow.run.reading import Reading, holding_rows, read_plan
from ematix_flow.run.row_conditions import check_conditions
from ematix_flow.run.row_transforms import apply_row_transforms, check_row_transforms
from ematix_flow.run.transforms import post_steps
from ematix_flow.run.watermarks import Since, since
from ematix_flow.sql.normalizers import CannotMatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine


@dataclass(frozen=True)
class Plan:
    """A load of one target that is ready to run."""

    spec: PipelineSpec
    target: TargetSpec
    reading: Reading
    sink: Backend
    columns: tuple[PlannedColumn, ...]
    path: str
    path_reason: str
    select: str | None
    found: FoundTable | None
    load: Load
    since: Since | Slice | None
    notes: tuple[str, ...]
    engine: EngineChoice
    label: str = ""

    @property
    def source(self) -> Backend:
        """Where the rows come from."""
        return self.reading.source

    @property
    def shown_engine(self) -> str:
        """What moves the rows: ``sail``, ``spark``, or ``none`` where the databases do."""
        if self.select is not None:
            return "none"
        return "sail" if self.engine.is_sail else "spark"

    def incoming(self, engine: Engine) -> DataFrame:
        """The rows as they are staged: read, normalized, transformed, assigned."""
        rows = normalized(self.reading.rows(engine), self.columns)
        columns, limit = self.columns, self.since
        if self.spec.transforms_pre:
            if limit is not None:
                # What a run is not to load must not take part in what is done to the others.
                name = limit.column if isinstance(limit, Since) else limit.window.column
                rows, columns = assigned_early(rows, columns, name)
                rows, limit = limit.filtered(rows), None
            rows, columns = apply_row_transforms(rows, columns, self.spec.transforms_pre)
        assigned = staged(rows, columns, self.load.incoming, self.target.options)
        return assigned if limit is None else limit.filtered(assigned)


@dataclass(frozen=True)
class Asked:
    """What a run is planned with, whatever the target."""

    spec: PipelineSpec
    run: RunInfo
    announce: Callable[[str], None]
    started_at: datetime
    purpose: Purpose
    engine: EngineChoice


@contextlib.contextmanager
def planned(
    spec: PipelineSpec,
    run: RunInfo,
    *,
    asking: bool = False,
    announce: Callable[[str], None] = lambda point: None,
    started_at: datetime | None = None,
    purpose: Purpose = ORDINARY,
    failures: dict[str, EmatixError] | None = None,
    engine: EngineChoice | None = None,
) -> Iterator[tuple[Plan, ...]]:
    """The plan of each target; live connections and spooled rows stay as long as the block.

    With ``asking`` nothing will be written, so they refuse ``execute``. A target that cannot be
    planned ends it, or is left out and told in ``failures``.
    """
    source = load_backend(resolve_connection(spec.source).connection)
    if not source.capabilities.source:
        raise Unsupported(f"{source.kind} cannot be read by a batch pipeline")
    sinks = [_sink(target) for target in spec.targets]
    post_steps(spec, sinks[0])
    engine = engine or chosen_engine(spec)
    begun = started_at or datetime.now(timezone.utc)
    asked = Asked(spec, run, announce, begun, purpose, engine)
    with contextlib.ExitStack() as stack:
        stack.enter_context(placed(spec))
        stack.enter_context(on_engine(engine))
        check_visible((source, *sinks))
        stack.enter_context(spooling())
        stack.enter_context(holding_rows())
        for backend in (source, *sinks):
            stack.enter_context(backend.kept())
        givers: dict[str, Callable[[], Any]] = {
            "source": lambda: _opened(stack, source, asking=asking),
            "target": lambda: _opened(stack, sinks[0], asking=asking),
            "spark": lambda: shared_engine().spark,
            "run": lambda: run,
        }
        tables = [t.table for t in spec.targets]
        reading = read_plan(spec, tables, source=source, givers=givers)
        if not asking:
            stack.enter_context(_ready_to_copy(spec, reading, sinks[0]))
        refuse_frame(spec, engine, reading)
        plans = []
        for target, sink, label in zip(spec.targets, sinks, spec.target_labels, strict=True):
            try:
                plan = _plan_target(asked, target, sink, reading, label)
            except EmatixError as error:
                if failures is None:
                    raise
                failures[label] = error
            else:
                plans.append(dataclasses.replace(plan, label=label))
        settled = settled_engine(engine, plans)
        stack.enter_context(on_engine(settled))
        yield tuple(dataclasses.replace(plan, engine=settled) for plan in plans)


def _ready_to_copy(
    spec: PipelineSpec, reading: Reading, sink: Backend
) -> contextlib.AbstractContextManager[object]:
    """What can be done for a copy before it is known in detail."""
    if reading.query is not None and spec.options.force_path != "spark":
        with contextlib.suppress(CannotMatch):
            if direct_path(spec, reading.source, sink)[0] == "copy":
                return sink.copying_from(reading.source)
    return contextlib.nullcontext()


def _sink(target: TargetSpec) -> Backend:
    sink = load_backend(resolve_connection(target.connection).connection)
    if not sink.capabilities.target:
        raise Unsupported(f"{sink.kind} cannot be written by a batch pipeline")
    sink.check_table(target.table)
    return sink


def _plan_target(
    asked: Asked, target: TargetSpec, sink: Backend, reading: Reading, label: str
) -> Plan:
    spec, options = asked.spec, target.options
    mode = load_mode(target.mode)
    shape = mode.shape(target.table, options)
    found = sink.inspect(target.table.name, target.prefix)
    evolution = reconcile(sink, target, shape, found)
    if evolution.left_out:
        target = dataclasses.replace(target, table=evolution.declared(target.table))
        shape = mode.shape(target.table, options)
    shape = dataclasses.replace(evolution.held(shape), unique=_unique(shape.key, found, sink))
    given = [c for c in shape.incoming if c.name not in COMPUTED]
    reading = reading.named_for(target)
    columns = plan_columns(spec, given, reading.described)
    known = [*(c.name for c in reading.described), *(c.name for c in given)]
    check_row_transforms(spec.transforms_pre, known)
    kinds = {c.name: c.type for c in reading.described}
    normal = {c.column.name: c.normalized_type for c in columns}
    check_conditions(options, given, kinds | normal)
    purpose, exists = asked.purpose, found is not None
    limit: Since | Slice | None = (
        since(spec.name, target, sink, exists=exists)
        if purpose.window is None
        else slice_of(purpose.window, spec.name, target, sink, exists=exists)
    )
    if limit is not None and reading.transform is None and not reading.aliases:
        reading = limit.narrowed(reading, columns)
    path, reason, select = choose_path(
        spec, options, reading, sink, shape.incoming, whole=limit is None
    )
    landing = _landing(shape, found)
    names = [name for name, _ in landing]
    if isinstance(limit, Slice):
        select = limit.selected(select, sink)
        change = window_change(target.mode, shape, names, options, limit.window)
    else:
        change = mode.plan(shape, names, options, None if limit is None else limit.reach)
    if isinstance(limit, Since):
        guards = (*limit.guards(), *change.assertions)
        change = dataclasses.replace(change, assertions=guards)
    if not change.verbs <= sink.capabilities.verbs:
        missing = ", ".join(sorted(change.verbs - sink.capabilities.verbs))
        raise Unsupported(f"{sink.kind} cannot do mode={target.mode!r}: no {missing}")
    now = datetime.now(timezone.utc)
    load = Load(
        table=shape.table,
        name=target.table.name,
        columns=landing,
        incoming=shape.incoming,
        change=change,
        run=RunRow(asked.run.id, spec.name, target.mode, path, asked.started_at, now),
        creates=found is None,
        files=target.files,
        prefix=target.prefix,
        key=shape.key,
        side=shape.side,
        watermark=None if limit is None else limit.move,
        batch=purpose.batch,
        alterations=evolution.alterations,
        found=found,
        inspect=purpose.onlooker(label),
        announce=asked.announce,
    )
    notes = (*evolution.notes, *_notes(target.table, reading.described, spec))
    return Plan(
        *(spec, target, reading, sink, columns, path, reason, select, found, load, limit, notes),
        engine=asked.engine,
    )


def _unique(key: Sequence[str], found: FoundTable | None, sink: Backend) -> bool:
    """Whether no key can stand twice in the table as it was found."""
    if found is None:
        return True
    held = set(found.primary_key)
    return sink.capabilities.constraints and bool(held) and held <= set(key)


def _landing(shape: Shape, found: FoundTable | None) -> tuple[tuple[str, Any], ...]:
    """All columns that land; a table that is not ours is never altered to hold our own."""
    added = [
        (name, kind)
        for name, kind in ADDED_TYPES.items()
        if found is None or name in found.column_names
    ]
    return (*((c.name, c.type) for c in shape.table.columns), *added)


def _opened(stack: contextlib.ExitStack, backend: Backend, *, asking: bool) -> LiveConnection:
    live = stack.enter_context(backend.lend())
    return OnlyAsking(live) if asking else live


def _notes(table: Table, described: Sequence[SourceColumn], spec: PipelineSpec) -> tuple[str, ...]:
    used = set(table.column_names)
    extra = [c.name for c in described if c.name not in used]
    notes = [f"columns of the source that are not loaded: {', '.join(extra)}"] if extra else []
    if spec.retry is not None:
        notes.append("retry= applies to scheduled runs; a run by hand is tried once")
    return tuple(notes)
