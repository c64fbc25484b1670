"""Normalizers in SQLite, which has no regular expressions, decimals or dates of its own."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import ClassVar

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.normalize.base import FLOATS, TEXTS, WHITESPACE, Step
from ematix_flow.normalize.text import Truncate
from ematix_flow.sql.normalizers import building as sql
from ematix_flow.sql.normalizers.compiler import Compiler

_EXACT_DIGITS = 15
_EXACT_EXPONENT = 22


class SQLiteCompiler(Compiler):
    """SQLite without extensions."""

    dialect = "sqlite"
    product = "SQLite"
    types: ClassVar[dict[str, str]] = {
        "text": "TEXT",
        "string": "TEXT",
        "small_int": "INTEGER",
        "integer": "INTEGER",
        "big_int": "INTEGER",
        "float": "REAL",
        "double": "REAL",
        "boolean": "INTEGER",
    }

    def opened(self, column: exp.Expression, source: t.ColumnType) -> exp.Expression:
        """Text by its bytes, whatever collation the column has."""
        if source.kind in TEXTS:
            return sql.collated(column, exp.to_identifier("BINARY", quoted=True))
        return super().opened(column, source)

    def text(self, value: str) -> exp.Expression:
        """A text constant."""
        if "\0" in value:
            raise self.cannot("cuts SQL at a NUL character")
        return super().text(value)

    def constant(self, value: object, column: t.ColumnType) -> exp.Expression:
        """A constant of the column's type, if SQLite reads it exactly."""
        if isinstance(value, float) and column.kind in FLOATS and not _exact(value):
            raise self.cannot(f"may not read {value!r} exactly")
        return super().constant(value, column)

    def _trim(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        return sql.call("TRIM", value, self.text(WHITESPACE))

    def _lower(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        raise self.cannot("changes the case of ASCII letters only")

    _upper = _lower

    def _ascii_lower(self, value: exp.Expression) -> exp.Expression:
        return sql.call("LOWER", value)

    def _truncate(self, normalizer: Truncate, value: exp.Expression, step: Step) -> exp.Expression:
        raise self.cannot("cuts text at a NUL character")

    def _above(self, value: exp.Expression, high: exp.Expression, step: Step) -> sql.Condition:
        # SQLite stores NULL in place of NaN.
        return sql.compared(exp.GT, value, high)

    def _utc_clock(self, value: exp.Expression, source: t.ColumnType) -> exp.Expression:
        raise self.cannot("has no timestamps")

    def _midnight(self, value: exp.Expression) -> exp.Expression:
        raise self.cannot("has no timestamps")


def _exact(number: float) -> bool:
    if not math.isfinite(number):
        return False
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    return (
        len(digits) <= _EXACT_DIGITS
        and isinstance(exponent, int)
        and abs(exponent) <= _EXACT_EXPONENT
    )
