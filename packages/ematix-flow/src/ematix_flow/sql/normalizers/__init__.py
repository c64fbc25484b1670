"""Normalizers as SQL: a chain becomes one expression in a dialect, equal to its meaning.

The meaning is ``apply`` of ``ematix_flow.normalize``. Where a dialect cannot equal it,
``CannotMatch`` says why, and the load takes the Spark path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.normalize.base import Normalizer, resolve_chain
from ematix_flow.sql.normalizers.compiler import CannotMatch, Compiler
from ematix_flow.sql.normalizers.duckdb import DuckDBCompiler
from ematix_flow.sql.normalizers.postgres import PostgresCompiler
from ematix_flow.sql.normalizers.spark import SparkCompiler
from ematix_flow.sql.normalizers.sqlite import SQLiteCompiler
from ematix_flow.types import ColumnType, Text

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["CannotMatch", "Compiled", "compile_chain"]

_COMPILERS: dict[str, Compiler] = {
    compiler.dialect: compiler
    for compiler in (SparkCompiler(), PostgresCompiler(), DuckDBCompiler(), SQLiteCompiler())
}


@dataclass(frozen=True)
class Compiled:
    """A value after its chain; ``type`` is None when only Spark knows it (``sql()``)."""

    expression: exp.Expression
    type: ColumnType | None


def compile_chain(
    chain: Sequence[Normalizer],
    column: exp.Expression,
    source_type: ColumnType,
    *,
    dialect: str,
) -> Compiled:
    """The chain over ``column`` as one expression in ``dialect``.

    Raises ``DeclarationError`` when the chain does not suit the type, and ``CannotMatch`` when
    the dialect cannot equal its meaning.
    """
    steps = resolve_chain(chain, source_type, column=column.name)
    if dialect not in _COMPILERS:
        raise CannotMatch(f"normalizers are not written for {dialect}")
    if not steps:
        return Compiled(column.copy(), source_type)
    compiler = _COMPILERS[dialect]
    value = compiler.opened(column, source_type)
    known: ColumnType | None = source_type
    for step in steps:
        if known is None:
            value = compiler.cast(value, Text())
        value = compiler.step(step, value)
        known = step.result
    return Compiled(value, known)
