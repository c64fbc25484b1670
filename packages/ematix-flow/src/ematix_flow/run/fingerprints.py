"""Short digests that tell whether a declaration or a table's rows are still the same."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.model import PipelineSpec
from ematix_flow.modes.sql import name, parsed
from ematix_flow.sql.spark import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlglot import exp

    from ematix_flow.types import ColumnType

# Sums of so many hexadecimal digits: two tables that differ agree once in 2**64 times.
_DIGITS = 16
_NULL = "'~'"
# Newer servers of MySQL no longer have MD5, and SQLite has only what this system gives it.
_HASHES = {"mysql": "SHA2(line, 256)", "sqlite": "ematix_sha256(line)"}
# What only tells where a declaration stands, and when and where it runs.
_BESIDE = (
    "location",
    "doc",
    "schedule",
    "depends_on",
    "retry",
    "placement",
    "tags",
    "freshness_sla_seconds",
    "freshness_column",
)


def declaration_fingerprint(spec: PipelineSpec) -> str:
    """A digest of everything in a declaration that decides what a run does."""
    return digest(spec)


def digest(document: object) -> str:
    """A digest of plain data and of declarations."""
    text = json.dumps(document, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """What JSON does not know, without addresses in memory."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.name not in _BESIDE]
        return {"is": type(value).__name__, **{name: getattr(value, name) for name in fields}}
    return _text_of(value) if callable(value) else repr(value)


def _text_of(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        # Typed into a prompt, perhaps: its code is all there is.
        code = getattr(function, "__code__", None)
        return repr(function) if code is None else repr((code.co_code.hex(), code.co_names))


def rows_fingerprint(
    relation: str, columns: Sequence[tuple[str, ColumnType]], dialect: str
) -> exp.Query:
    """A query for numbers that depend on every value of a relation, and not on its order."""
    from sqlglot import exp

    texts = []
    for column, kind in columns:
        text = f"CAST({name(column)} AS TEXT)"
        if kind.kind == "bytes" and dialect in ("spark", "mysql", "sqlite"):
            text = f"HEX({name(column)})"
        # With its length before it, no value can run into the next.
        shown = f"CONCAT(CAST(LENGTH({text}) AS TEXT), ':', {text})"
        texts.append(f"CASE WHEN {name(column)} IS NULL THEN {_NULL} ELSE {shown} END")
    whole = parsed(f"SELECT {_concat(texts)} AS line FROM {relation}")
    hashed = _HASHES.get(dialect, "MD5(line)")
    rows = parsed(f"SELECT {hashed} AS digest FROM lines")
    items: list[exp.Expression] = [exp.Count(this=exp.Star())]
    for place in range(1, _DIGITS + 1):
        digit = exp.Substring(
            this=exp.column("digest"),
            start=exp.Literal.number(place),
            length=exp.Literal.number(1),
        )
        found = exp.StrPosition(this=exp.Literal.string("0123456789abcdef"), substr=digit)
        items.append(exp.Sum(this=found))
    query = exp.select(*items).from_("digests")
    return query.with_("lines", as_=whole).with_("digests", as_=rows)


def frame_fingerprint(rows: DataFrame) -> list[int]:
    """The same kind of numbers for the rows of a DataFrame."""
    from pyspark.sql.types import ArrayType

    names = [quote(field.name) for field in rows.schema.fields]
    lists = [quote(f.name) for f in rows.schema.fields if isinstance(f.dataType, ArrayType)]
    # A hash passes NULLs over, so where they stand is told beside the values.
    held = [f"to_json({column})" if column in lists else column for column in names]
    values = ", ".join([*held, *(f"isnull({column})" for column in names)])
    sums = [f"sum(CAST(xxhash64({seed}, {values}) AS DECIMAL(38, 0)))" for seed in (1, 2)]
    found = rows.selectExpr("count(*)", *sums).collect()[0]
    return [int(number or 0) for number in found]


def _concat(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"CONCAT({', '.join(texts)})"
