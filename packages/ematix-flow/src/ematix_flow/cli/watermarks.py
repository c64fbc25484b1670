"""``flow watermark``: how far incremental pipelines have loaded, shown and moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ematix_flow.cli.options import (
    common_options,
    complete_pipeline,
    examples,
    load,
    module_option,
)
from ematix_flow.cli.output import say, say_json, say_table
from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.model import PipelineSpec, TargetSpec

if TYPE_CHECKING:
    from ematix_flow.backends.base import Backend
    from ematix_flow.types import ColumnType


@dataclass(frozen=True)
class _Mark:
    """The watermark of a pipeline in one of its targets."""

    pipeline: str
    target: TargetSpec
    sink: Backend
    column: str
    loaded: bool
    value: str | None

    @property
    def kind(self) -> ColumnType:
        return next(c.type for c in self.target.table.columns if c.name == self.column)

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": str(self.target.table.name),
            "connection": self.target.connection,
            "column": self.column,
            "type": str(self.kind),
            "value": self.value,
        }


def _with_target(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--target", metavar="TABLE", help="Only this target; by default every one it has."
    )(command)


@click.group()
def watermark() -> None:
    """Show and move the watermarks of incremental pipelines."""


@watermark.command(
    epilog=examples(
        "flow watermark show load_orders", "flow watermark show load_orders --format json"
    )
)
@click.argument("name", shell_complete=complete_pipeline)
@_with_target
@module_option
@common_options
def show(*, name: str, target: str | None, modules: tuple[str, ...], output: str) -> None:
    """Show the value from which the next run reads on, for every target."""
    spec = load(modules).pipeline(name).spec
    marks = _marks(spec, target)
    if output == "json":
        say_json({"pipeline": spec.name, "watermarks": [mark.to_dict() for mark in marks]})
        return
    say_table(
        ["TARGET", "CONNECTION", "COLUMN", "TYPE", "WATERMARK"],
        [list(mark.to_dict().values()) for mark in marks],
    )


@watermark.command(
    "set",
    epilog=examples(
        "flow watermark set load_orders --value 2026-01-31T00:00:00Z",
        "flow watermark set load_orders --value 4200 --target shop.orders",
    ),
)
@click.argument("name", shell_complete=complete_pipeline)
@click.option("--value", required=True, metavar="V", help="The new value, as in the source.")
@_with_target
@module_option
@common_options
def set_value(
    *, name: str, value: str, target: str | None, modules: tuple[str, ...], output: str
) -> None:
    """Move a watermark, forward or back; the next run reads from there on.

    Moved forward, the rows between are never read; moved back, append with a key and merge
    find what they have already.
    """
    from ematix_flow.watermark import canonical_value, read_value

    spec = load(modules).pipeline(name).spec
    marks = _marks(spec, target)
    # All are read before the first is moved, so that a wrong value moves none.
    moved = [(m, canonical_value(_finite(read_value(value, m.kind), value), m.kind)) for m in marks]
    for mark in marks:
        _require_loaded(mark)
    _move(spec, moved, output)


@watermark.command(
    epilog=examples(
        "flow watermark reset load_orders", "flow watermark reset load_orders --target shop.orders"
    )
)
@click.argument("name", shell_complete=complete_pipeline)
@_with_target
@module_option
@common_options
def reset(*, name: str, target: str | None, modules: tuple[str, ...], output: str) -> None:
    """Forget a watermark; the next run reads everything, as the first one did.

    With mode="append" that would load rows again that the target has.
    """
    spec = load(modules).pipeline(name).spec
    _move(spec, [(mark, None) for mark in _marks(spec, target)], output)


def _marks(spec: PipelineSpec, wanted: str | None) -> list[_Mark]:
    from ematix_flow.backends.loading import load_backend
    from ematix_flow.config import resolve_connection

    marks = []
    for target in _chosen(spec, wanted):
        column = target.options.watermark_column
        if not target.options.incremental or column is None:
            raise ConfigError(
                f"pipeline {spec.name!r} has no watermark: it is not incremental",
                fix="declare incremental=True and watermark_column=",
            )
        sink = load_backend(resolve_connection(target.connection).connection)
        loaded = sink.inspect(target.table.name, target.prefix) is not None
        held = sink.watermarks(spec.name, target.table.name, target.prefix) if loaded else {}
        marks.append(_Mark(spec.name, target, sink, column, loaded, held.get(column)))
    return marks


def _chosen(spec: PipelineSpec, wanted: str | None) -> Sequence[TargetSpec]:
    if wanted is None:
        return spec.targets
    chosen = [t for t in spec.targets if wanted in (str(t.table.name), t.table.name.name)]
    if not chosen:
        known = [str(t.table.name) for t in spec.targets]
        raise UnknownName(
            f"pipeline {spec.name!r} has no target {wanted!r}", fix=nearest(wanted, known)
        )
    return chosen


def _require_loaded(mark: _Mark) -> None:
    if not mark.loaded:
        raise ConfigError(
            f"table {mark.target.table.name} does not exist yet, so it cannot hold a watermark",
            fix=f"load it first: flow run {mark.pipeline}",
        )


def _finite(value: Any, text: str) -> Any:
    from decimal import Decimal

    if isinstance(value, Decimal) and not value.is_finite():
        raise ConfigError(f"{text!r} is not a number that has an order", fix="write its digits")
    return value


def _move(spec: PipelineSpec, moved: Sequence[tuple[_Mark, str | None]], output: str) -> None:
    for mark, value in moved:
        if value != mark.value:
            name, prefix = mark.target.table.name, mark.target.prefix
            mark.sink.set_watermark(spec.name, name, mark.column, value, prefix)
        if output == "text":
            before, after = mark.value or "none", value or "none"
            say(f"{spec.name} → {mark.target.table.name}: {mark.column} {before} → {after}")
    if output == "json":
        found = [{**mark.to_dict(), "value": value, "was": mark.value} for mark, value in moved]
        say_json({"pipeline": spec.name, "watermarks": found})
