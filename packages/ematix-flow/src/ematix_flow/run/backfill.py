"""A range of a pipeline's target loaded again: slice by slice, each exactly once.

The target itself remembers the slices it has taken, in the same commit as their rows; so a
backfill that was cut short goes on where it stopped, whoever starts it again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timezone, tzinfo
from typing import Any

from ematix_flow import types as t
from ematix_flow.backends.base import Backend
from ematix_flow.backends.loading import load_backend
from ematix_flow.config import resolve_connection
from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError, UnknownName, Unsupported
from ematix_flow.model import PipelineSpec, TargetSpec
from ematix_flow.modes.window import Window, refuse_window
from ematix_flow.run.batch import run_pipeline
from ematix_flow.run.fingerprints import declaration_fingerprint, digest
from ematix_flow.run.log import RunLog
from ematix_flow.run.purpose import Purpose
from ematix_flow.run.result import RunResult, joined
from ematix_flow.run.slices import read_bound, read_step, sliced
from ematix_flow.watermark import KINDS

_ID_LENGTH = 12


@dataclass(frozen=True)
class Request:
    """What a user asks for, as typed."""

    start: str
    end: str
    slice: str | None = None
    zone: str | None = None
    column: str | None = None

    def to_parameters(self) -> dict[str, str]:
        """The request as run parameters, from which a later process can resume it."""
        held = {f"backfill_{name}": value for name, value in vars(self).items()}
        return {name: value for name, value in held.items() if value is not None}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Request:
        """The request behind a run of its backfill."""
        given = {name: parameters.get(f"backfill_{name}") for name in cls.__dataclass_fields__}
        start, end = given.pop("start"), given.pop("end")
        return cls(start or "", end or "", **given)


@dataclass(frozen=True)
class Backfill:
    """A range that is cut into slices and ready to be loaded."""

    id: str
    spec: PipelineSpec
    request: Request
    kind: t.ColumnType
    windows: tuple[Window, ...]
    to_the_end: bool

    @property
    def column(self) -> str:
        """The column whose range it is."""
        return self.windows[0].column

    def batch(self, window: Window) -> str:
        """The name under which a target remembers a slice."""
        start = window.start
        if self.kind.kind in ("text", "string"):
            start = digest(start)[:_ID_LENGTH]
        return f"backfill:{self.id}:{start}"

    def applied(self) -> set[str]:
        """The slices that every target has taken."""
        batches = [self.batch(window) for window in self.windows]
        return set.intersection(*(_applied(t, batches) for t in self.spec.targets))

    def forgotten(self) -> bool:
        """Whether a target that took slices of it has been dropped since."""
        batches = [self.batch(window) for window in self.windows]
        return any(not _exists(t) and _applied(t, batches) for t in self.spec.targets)

    def refuse_others(self, replacing: Collection[str]) -> None:
        """Refuse tables that other pipelines load too: a row in a range may be one of theirs."""
        others: dict[str, str] = {}
        for target in self.spec.targets:
            name = target.table.name
            found = _sink(target).pipelines(name, target.prefix) if _exists(target) else set()
            others |= {pipeline: str(name) for pipeline in found - {self.spec.name}}
        for pipeline in sorted(set(replacing) - set(others)):
            raise UnknownName(
                f"no pipeline {pipeline!r} has loaded what {self.spec.name!r} loads",
                fix=nearest(pipeline, others) if others else "leave --replace-rows-of out",
            )
        left = sorted(set(others) - set(replacing))
        if left:
            tables = joined(others[n] for n in left)
            raise Unsupported(
                f"{', '.join(map(repr, left))} also loaded {tables}, and a backfill of "
                f"{self.spec.name!r} would delete their rows in the range, too",
                fix="give each pipeline a table of its own; if it is an earlier name of this one, "
                f"say so with {' '.join(f'--replace-rows-of {n}' for n in left)}",
            )


@dataclass(frozen=True)
class SliceResult:
    """What became of one slice; ``result`` is None where it had been loaded before."""

    window: Window
    result: RunResult | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        status = "applied" if self.result is None else self.result.status
        run = None if self.result is None else self.result.to_dict()
        return {"start": self.window.start, "end": self.window.end, "status": status, "run": run}


def plan_backfill(
    spec: PipelineSpec, request: Request, *, resumed: str | None = None, again: bool = False
) -> Backfill:
    """Cut the range into slices. The same request of the same declaration has the same id."""
    for target in spec.targets:
        refuse_window(target.mode, target.options)
    column, kind = _ranged_column(spec, request.column)
    zone = _zone(request.zone, kind, spec)
    start, end = (read_bound(text, kind, zone) for text in (request.start, request.end))
    step = None if request.slice is None else read_step(request.slice)
    pieces = sliced(start, end, step, kind, zone)
    events = any(_by_events(target) for target in spec.targets)
    if events:
        # Every later version depends on what comes before it, so there is but one slice.
        pieces = ((pieces[0][0], pieces[-1][1]),)
    asked = [column, pieces, declaration_fingerprint(spec)]
    windows = tuple(Window(column, *piece) for piece in pieces)
    own = digest(asked)[:_ID_LENGTH]
    made = Backfill(resumed or own, spec, request, kind, windows, to_the_end=events)
    if resumed is None and (again or made.forgotten()):
        return dataclasses.replace(made, id=os.urandom(_ID_LENGTH // 2).hex())
    return made


def run_slices(
    backfill: Backfill,
    *,
    replacing: Collection[str] = (),
    run_log: RunLog | None = None,
    dry_run: bool = False,
    progress: bool = False,
    announce: Callable[[str], None] = lambda point: None,
) -> Iterator[SliceResult]:
    """Load the slices that are missing, in order; each is one run and one commit.

    Tables that other pipelines have loaded are refused, unless ``replacing`` names these.
    """
    backfill.refuse_others(replacing)
    return _slices(backfill, run_log, dry_run=dry_run, progress=progress, announce=announce)


def _slices(
    backfill: Backfill,
    run_log: RunLog | None,
    *,
    dry_run: bool,
    progress: bool,
    announce: Callable[[str], None],
) -> Iterator[SliceResult]:
    applied = backfill.applied()
    told = {"backfill": backfill.id, **backfill.request.to_parameters()}
    for window in backfill.windows:
        batch = backfill.batch(window)
        if batch in applied:
            yield SliceResult(window, None)
            continue
        result = run_pipeline(
            backfill.spec,
            trigger="backfill",
            parameters={**told, "slice_start": window.start, "slice_end": window.end or ""},
            dry_run=dry_run,
            run_log=run_log,
            progress=progress,
            announce=announce,
            purpose=Purpose(window=window, batch=batch),
        )
        yield SliceResult(window, result)


def find_request(run_log: RunLog, pipeline: str, backfill: str) -> Request:
    """The request of an earlier backfill, by its id."""
    for record in run_log.list(pipeline=pipeline, limit=100_000):
        if record.parameters.get("backfill") == backfill:
            return Request.from_parameters(record.parameters)
    raise UnknownName(
        f"there is no backfill {backfill!r} of {pipeline!r} in the run log",
        fix="give --from, --to and --slice as well",
    )


def _by_events(target: TargetSpec) -> bool:
    return target.mode == "scd2" and target.options.event_timestamp_column is not None


def _ranged_column(spec: PipelineSpec, asked: str | None) -> tuple[str, t.ColumnType]:
    found: dict[str, t.ColumnType] = {}
    for target in spec.targets:
        event = target.options.event_timestamp_column if _by_events(target) else None
        column = event or asked or target.options.watermark_column
        if column is None:
            raise ConfigError(
                f"pipeline {spec.name!r} has no watermark_column= that a range could be of",
                fix="name one with --column",
            )
        if event is not None and asked not in (None, event):
            raise Unsupported(
                f"a history by {event!r} cannot be loaded again by {asked!r}",
                fix="leave --column out",
            )
        types = {c.name: c.type for c in target.table.columns}
        if column not in types:
            raise UnknownName(
                f"table {target.table.name} has no column {column!r}", fix=nearest(column, types)
            )
        found[column] = types[column]
    if len(found) > 1:
        raise Unsupported(
            f"the targets of pipeline {spec.name!r} have ranges of different columns: "
            f"{', '.join(found)}",
            fix="name one that all have with --column",
        )
    column, kind = next(iter(found.items()))
    if kind.kind not in KINDS:
        raise ConfigError(
            f"column {column!r} is a {kind}, which has no ranges",
            fix="use a number, a date, a timestamp or a text",
        )
    return column, kind


def _zone(asked: str | None, kind: t.ColumnType, spec: PipelineSpec) -> tzinfo:
    if asked is not None and not isinstance(kind, t.TimestampTZ):
        raise ConfigError(
            f"--timezone does not go with a column of type {kind}, which has no zone",
            fix="leave it out",
        )
    name = asked or (spec.schedule.zone if spec.schedule else None)
    if name is None:
        return timezone.utc
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(
            f"time zone {name!r} does not exist", fix='use an IANA name such as "Europe/Berlin"'
        ) from error


def _sink(target: TargetSpec) -> Backend:
    return load_backend(resolve_connection(target.connection).connection)


def _exists(target: TargetSpec) -> bool:
    return _sink(target).inspect(target.table.name, target.prefix) is not None


def _applied(target: TargetSpec, batches: list[str]) -> set[str]:
    return _sink(target).applied(batches, target.table.name, target.prefix)
