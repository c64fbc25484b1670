"""Which engine runs a pipeline, and why: known from its declaration and its columns' types.

Sail takes what tests have shown it to do as Spark does. All else runs on Spark, and before a row
has moved it is known which of the two it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ematix_flow import types as t
from ematix_flow.backends.loading import load_backend
from ematix_flow.config import ENGINES, SAIL, placement_of, resolve_connection
from ematix_flow.declaring import function_shape
from ematix_flow.engine.session import EngineChoice, has_other_session
from ematix_flow.errors import Unsupported
from ematix_flow.model import ROW_HASH_COLUMN, PipelineSpec, TargetSpec

if TYPE_CHECKING:
    from ematix_flow.run.plan import Plan
    from ematix_flow.run.reading import Reading

# Normalizers that do to every value there what they do in Spark.
PROVEN_NORMALIZERS = frozenset(
    {"trim", "empty_to_null", "whitespace_to_null", "replace", "truncate"}
)
# Sail takes more than JSON for JSON.
UNPROVEN_TYPES = frozenset({"json", "jsonb"})
ASKS_FOR_SPARK = "its function asks for spark"
_TEXTS = frozenset({"text", "string"})
_INTEGERS = ("small_int", "integer", "big_int")
_FLOATS = frozenset({"float", "double"})
# What a value of a type can be put into beside a column of the same type.
_PROVEN_CASTS: dict[str, frozenset[str]] = {
    **{
        kind: frozenset({*_TEXTS, *_INTEGERS[place:], "numeric"})
        for place, kind in enumerate(_INTEGERS)
    },
    **{
        kind: frozenset({*_TEXTS, *_INTEGERS, *_FLOATS})
        | {"boolean", "date", "timestamp", "timestamp_tz", "time", "uuid"}
        for kind in _TEXTS
    },
    **dict.fromkeys(("boolean", "date", "timestamp", "timestamp_tz", "time", "uuid"), _TEXTS),
    "numeric": frozenset({*_TEXTS, "numeric"}),
}


def chosen_engine(spec: PipelineSpec) -> EngineChoice:
    """The engine that was asked for, or Spark where Sail would not do the same."""
    placement = placement_of(spec.name, spec.placement)
    name, who = placement.engine or ENGINES[0], placement.engine_by or "the default"
    if name != SAIL:
        return EngineChoice(name, who)
    from ematix_flow.engine.sail import require_sail

    require_sail()
    reason = next(reasons_in(spec), None)
    return EngineChoice(SAIL, who) if reason is None else _spark_instead(who, reason)


def settled_engine(chosen: EngineChoice, plans: Sequence[Plan]) -> EngineChoice:
    """The same once the types of all columns are known."""
    moving = [plan for plan in plans if plan.select is None]
    if not chosen.is_sail or not moving:
        return chosen
    reason = next((found for plan in moving for found in reasons_of(plan)), None)
    return chosen if reason is None else _spark_instead(chosen.reason, reason)


def _spark_instead(who: str, reason: str) -> EngineChoice:
    return EngineChoice("auto", f"{who} asks for Sail, but {reason}")


def refuse_frame(spec: PipelineSpec, engine: EngineChoice, reading: Reading) -> None:
    """Only when it has been called is it known that a function gives a DataFrame."""
    if engine.is_sail and reading.frame is not None:
        raise Unsupported(
            f"the function of pipeline {spec.name!r} gives a DataFrame without asking for spark, "
            "and Sail may compute it otherwise than Spark",
            fix="let the function take spark, return SQL, or run it with engine='local'",
            where=spec.location,
        )


def reasons_in(spec: PipelineSpec) -> Iterator[str]:
    """Everything in a declaration for which only Apache Spark will do."""
    if not sys.platform.startswith("linux"):
        yield "only on Linux can it have a network of its own"
    if has_other_session():
        yield "this process has a Spark session already"
    if len(spec.targets) > 1:
        yield "it has several targets, for which Spark keeps the rows"
    yield from _user_code(spec)
    asked = function_shape(spec.function).wants
    source = load_backend(resolve_connection(spec.source).connection)
    if "source" in asked and source.dialect == "spark":
        yield f"its function may query {source.name!r} in Spark SQL"
    yield from _told(source.needs_spark_to_read(spec))
    for target in spec.targets:
        sink = load_backend(resolve_connection(target.connection).connection)
        if "target" in asked and sink.dialect == "spark":
            yield f"its function may query {sink.name!r} in Spark SQL"
        yield from _told(sink.needs_spark_to_write(target))
        yield from _normalizers(target)


def _told(reason: str | None) -> Sequence[str]:
    return () if reason is None else (reason,)


def _user_code(spec: PipelineSpec) -> Iterator[str]:
    """SQL of Spark means what Spark makes of it: Sail lets numbers overflow, for one."""
    if spec.transform_sql is not None:
        yield "transform_sql= is Spark SQL"
    if "spark" in function_shape(spec.function).wants:
        yield ASKS_FOR_SPARK
    if spec.transforms_pre:
        yield "it has transforms_pre="
    if any(target.options.delete_when is not None for target in spec.targets):
        yield "delete_when= is a condition in Spark SQL"


def _normalizers(target: TargetSpec) -> Iterator[str]:
    for column in target.table.columns:
        for normalizer in column.normalizers:
            if normalizer.name not in PROVEN_NORMALIZERS:
                yield f"column {column.name!r} uses {normalizer.name}()"


def reasons_of(plan: Plan) -> Iterator[str]:
    """Columns of a plan whose values only Spark brings into their final form."""
    for planned in plan.columns:
        column, given = planned.column, planned.normalized_type
        if given is not None and given.kind in _TEXTS and column.type.kind == "numeric":
            # Sail does not know the 1e3 that Spark takes for a thousand.
            if not plan.source.has_plain_numbers(plan.spec):
                yield f"column {column.name!r} is a number in words of any kind"
        elif given is None or not casts_alike(given, column.type):
            yield f"column {column.name!r} is made {column.type} from {given or 'its source'}"
    hashed = any(column.name == ROW_HASH_COLUMN for column in plan.load.incoming)
    for column in plan.load.incoming if hashed else ():
        if column.type.kind in {*_FLOATS, "array"}:
            yield f"the row hash of column {column.name!r} is Spark's"


def casts_alike(source: t.ColumnType, target: t.ColumnType) -> bool:
    """Whether Sail is known to put a value into a column as Spark does."""
    if {source.kind, target.kind} & UNPROVEN_TYPES:
        return False
    if source.kind == target.kind != "array":
        return True
    if isinstance(source, t.Array) and isinstance(target, t.Array):
        return source == target and source.element.kind in {*_TEXTS, *_INTEGERS}
    return target.kind in _PROVEN_CASTS.get(source.kind, ())
