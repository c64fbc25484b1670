"""How a chain becomes SQL: what all dialects share, and the hooks where they differ."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import ClassVar

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.normalize.base import FLOATS, INSTANTS, INTEGERS, TEXTS, WHITESPACE, Step
from ematix_flow.normalize.expressions import Expression
from ematix_flow.normalize.numbers import Clamp, ParseBool, ParseInt, ParseNumeric, Round
from ematix_flow.normalize.parsing import Parser
from ematix_flow.normalize.patterns import RegexReplace
from ematix_flow.normalize.text import Lower, Replace, Trim, Truncate
from ematix_flow.normalize.times import DateTrunc, ParseDate, ParseTimestamp, ToTimezone
from ematix_flow.normalize.values import Default, NullIf
from ematix_flow.sql.normalizers import building as sql

EARLIEST = "0001-01-01 00:00:00+00:00"
LATEST = "9999-12-31 23:59:59.999999+00:00"


class CannotMatch(Exception):
    """A dialect has no expression that equals the meaning; ``reason`` is one clause."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Compiler:
    """One dialect. A method ``_<normalizer>`` turns a value into the normalized value.

    What is defined here is right in every dialect; a dialect overrides a method to spell it, and
    leaves alone what it cannot do.
    """

    dialect: ClassVar[str]
    product: ClassVar[str]
    types: ClassVar[dict[str, str]]

    def opened(self, column: exp.Expression, source: t.ColumnType) -> exp.Expression:
        """The column as the first step takes it."""
        return sql.enclosed(column)

    def step(self, step: Step, value: exp.Expression) -> exp.Expression:
        """The value after one more step."""
        method: Callable[[object, exp.Expression, Step], exp.Expression]
        method = getattr(self, f"_{step.normalizer.name}")
        return method(step.normalizer, value, step)

    def cannot(self, reason: str) -> CannotMatch:
        """The refusal of this dialect."""
        return CannotMatch(f"{self.product} {reason}")

    # Pieces

    def text(self, value: str) -> exp.Expression:
        """A text constant."""
        return exp.Literal.string(value)

    def cast(self, value: exp.Expression, column: t.ColumnType) -> exp.Expression:
        """The value in the dialect's form of a type."""
        return sql.cast(value, self.sql_type(column), self.dialect)

    def sql_type(self, column: t.ColumnType) -> str:
        """A type as the dialect writes it."""
        if isinstance(column, t.Numeric) and "numeric" in self.types:
            return f"{self.types['numeric']}({column.precision}, {column.scale})"
        if column.kind not in self.types:
            raise self.cannot(f"has no type for {column}")
        return self.types[column.kind]

    def constant(self, value: object, column: t.ColumnType) -> exp.Expression:
        """A constant of exactly the column's type."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bool):
            return exp.Boolean(this=value)
        if isinstance(value, int) and column.kind == "integer":
            return sql.number(value)
        return self.cast(self._spelled(value, column), column)

    def _spelled(self, value: object, column: t.ColumnType) -> exp.Expression:
        if isinstance(value, datetime):
            return self.text(value.isoformat(sep=" ", timespec="microseconds"))
        if isinstance(value, date):
            return self.text(value.isoformat())
        if isinstance(value, float):
            return self.text(
                {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))
            )
        shown = f"{value:f}" if isinstance(value, Decimal) else str(value)
        return self.text(shown) if column.kind in FLOATS else exp.Literal.number(shown)

    # Text

    def _trim(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        return sql.call("BTRIM", value, self.text(WHITESPACE))

    def _trimmed(self, value: exp.Expression, step: Step) -> exp.Expression:
        return self._trim(Trim(), value, step)

    def _lower(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        raise self.cannot("does not know the lower case of every letter")

    def _upper(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        raise self.cannot("does not know the upper case of every letter")

    def _email_normalize(
        self, normalizer: object, value: exp.Expression, step: Step
    ) -> exp.Expression:
        return self._trimmed(self._lower(Lower(), value, step), step)

    def _phone_normalize(
        self, normalizer: object, value: exp.Expression, step: Step
    ) -> exp.Expression:
        return self._regex_replace(RegexReplace("[^0-9+]", ""), value, step)

    def _empty_to_null(
        self, normalizer: object, value: exp.Expression, step: Step
    ) -> exp.Expression:
        return sql.call("NULLIF", value, self.text(""))

    def _whitespace_to_null(
        self, normalizer: object, value: exp.Expression, step: Step
    ) -> exp.Expression:
        trimmed = self._trimmed(value, step)
        return sql.when(sql.compared(exp.NEQ, trimmed, self.text("")), value)

    def _replace(self, normalizer: Replace, value: exp.Expression, step: Step) -> exp.Expression:
        old, new = self.text(normalizer.old), self.text(normalizer.new)
        return sql.call("REPLACE", value, old, new)

    def _truncate(self, normalizer: Truncate, value: exp.Expression, step: Step) -> exp.Expression:
        return sql.call("LEFT", value, sql.number(min(normalizer.n, 2**31 - 1)))

    def _regex_replace(
        self, normalizer: RegexReplace, value: exp.Expression, step: Step
    ) -> exp.Expression:
        raise self.cannot("has no regular expressions")

    # Constants

    def _default(self, normalizer: Default, value: exp.Expression, step: Step) -> exp.Expression:
        return sql.call("COALESCE", value, self.constant(normalizer.value, step.source))

    _not_null_or = _default

    def _nullif(self, normalizer: NullIf, value: exp.Expression, step: Step) -> exp.Expression:
        return sql.call("NULLIF", value, self.constant(normalizer.value, step.source))

    def _clamp(self, normalizer: Clamp, value: exp.Expression, step: Step) -> exp.Expression:
        branches = []
        if normalizer.low is not None:
            low = self.constant(normalizer.low, step.source)
            branches.append((sql.compared(exp.LT, value, low), low))
        if normalizer.high is not None:
            high = self.constant(normalizer.high, step.source)
            branches.append((self._above(value, high, step), high))
        return sql.case(branches, value)

    def _above(self, value: exp.Expression, high: exp.Expression, step: Step) -> sql.Condition:
        above = sql.compared(exp.GT, value, high)
        if step.source.kind in FLOATS:
            # Databases sort NaN above every number; here it stays what it is.
            return sql.both(above, sql.negated(self._is_nan(value, step)))
        return above

    def _is_nan(self, value: exp.Expression, step: Step) -> sql.Condition:
        return sql.call("ISNAN", value)

    # Numbers

    def _round(self, normalizer: Round, value: exp.Expression, step: Step) -> exp.Expression:
        if step.source.kind in INTEGERS or step.source == step.result:
            if step.source.kind not in FLOATS:
                return value
            raise self.cannot("does not round floating-point numbers in decimal")
        rounded = sql.call("ROUND", value, sql.number(normalizer.precision))
        return self.cast(rounded, step.result or step.source)

    def _parse_int(self, normalizer: ParseInt, value: exp.Expression, step: Step) -> exp.Expression:
        if step.source.kind not in TEXTS:
            return value
        return self._parsed(normalizer, value, step, self._read_int(self._trimmed(value, step)))

    def _parse_numeric(
        self, normalizer: ParseNumeric, value: exp.Expression, step: Step
    ) -> exp.Expression:
        if step.source.kind not in TEXTS:
            return value
        read = self._read_numeric(self._trimmed(value, step), normalizer.parsed_type)
        return self._parsed(normalizer, value, step, read)

    def _read_int(self, text: exp.Expression) -> exp.Expression:
        raise self.cannot("does not read numbers strictly")

    def _read_numeric(self, text: exp.Expression, numeric: t.Numeric) -> exp.Expression:
        raise self.cannot("does not read numbers strictly")

    def _parse_bool(
        self, normalizer: ParseBool, value: exp.Expression, step: Step
    ) -> exp.Expression:
        if step.source.kind == "boolean":
            return value
        if step.source.kind in TEXTS:
            word = self._ascii_lower(self._trimmed(value, step))
        else:
            word = self.cast(value, t.Text())
        branches = [
            (sql.one_of(word, [self.text(w) for w in words]), exp.Boolean(this=truth))
            for words, truth in ((normalizer.truthy, True), (normalizer.falsy, False))
            if words
        ]
        read = sql.case(branches) if branches else self.cast(exp.Null(), t.Boolean())
        return self._parsed(normalizer, value, step, read)

    def _ascii_lower(self, value: exp.Expression) -> exp.Expression:
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        return sql.call("TRANSLATE", value, self.text(letters), self.text(letters.lower()))

    # Dates and timestamps

    def _parse_timestamp(
        self, normalizer: ParseTimestamp, value: exp.Expression, step: Step
    ) -> exp.Expression:
        if step.source.kind in INSTANTS:
            return value
        if step.source.kind == "date":
            return self._midnight(value)
        return self._parsed(normalizer, value, step, self._read_moment(normalizer, value, step))

    def _parse_date(
        self, normalizer: ParseDate, value: exp.Expression, step: Step
    ) -> exp.Expression:
        if step.source.kind == "date":
            return value
        if step.source.kind in INSTANTS:
            return self.cast(self._utc_clock(value, step.source), t.Date())
        return self._parsed(normalizer, value, step, self._read_moment(normalizer, value, step))

    def _read_moment(
        self, normalizer: ParseTimestamp | ParseDate, value: exp.Expression, step: Step
    ) -> exp.Expression:
        raise self.cannot("does not read dates strictly")

    def _midnight(self, value: exp.Expression) -> exp.Expression:
        return sql.at_utc(self.cast(value, t.Timestamp()))

    def _utc_clock(self, value: exp.Expression, source: t.ColumnType) -> exp.Expression:
        return sql.at_utc(value) if source.kind == "timestamp_tz" else value

    def _to_timezone(
        self, normalizer: ToTimezone, value: exp.Expression, step: Step
    ) -> exp.Expression:
        if normalizer.tz not in ("UTC", "Etc/UTC"):
            raise self.cannot("has time zone rules of its own")
        return self._utc_clock(value, step.source)

    def _date_trunc(
        self, normalizer: DateTrunc, value: exp.Expression, step: Step
    ) -> exp.Expression:
        raise self.cannot("has no dates")

    def _in_range(self, instant: exp.Expression) -> exp.Expression:
        """The instant, or NULL where UTC leaves the years 1 to 9999."""
        low, high = (self.cast(self.text(e), t.TimestampTZ()) for e in (EARLIEST, LATEST))
        return sql.when(sql.between(instant, low, high), instant)

    # Failure, and SQL of the user's own

    def _parsed(
        self, parser: Parser, value: exp.Expression, step: Step, read: exp.Expression
    ) -> exp.Expression:
        if parser.on_failure == "null":
            return read
        if parser.on_failure == "error":
            fallback = self._raised(parser, value, step)
        else:
            fallback = self.constant(parser.default, parser.parsed_type)
        return sql.when(sql.present(value), sql.coalesce([read, fallback]))

    def _raised(self, parser: Parser, value: exp.Expression, step: Step) -> exp.Expression:
        raise self.cannot("cannot stop with the value that it could not read")

    def _sql(self, normalizer: Expression, value: exp.Expression, step: Step) -> exp.Expression:
        raise CannotMatch(f"{normalizer.name}() is Spark SQL")

    _derive = _sql
