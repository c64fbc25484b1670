"""Normalizers in PostgreSQL, independent of the database's locale and of session settings."""

from __future__ import annotations

from typing import ClassVar

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.normalize.base import TEXTS, Step
from ematix_flow.normalize.formats import MONTHS, Format
from ematix_flow.normalize.numbers import INTEGER_TEXT, NUMERIC_TEXT
from ematix_flow.normalize.patterns import RegexReplace, parsed
from ematix_flow.normalize.regex import greatest_repeat, longest_is_first
from ematix_flow.normalize.text import LOWER_FIRST
from ematix_flow.normalize.times import WITHIN_A_DAY, DateTrunc, ParseDate, ParseTimestamp
from ematix_flow.sql.normalizers import building as sql
from ematix_flow.sql.normalizers.compiler import Compiler

_MOST_REPEATS = 255
_MATCH = exp.column(exp.to_identifier("match", quoted=True))
_MONTH_LETTERS = "".join(month[:3] for month in MONTHS)


class PostgresCompiler(Compiler):
    """PostgreSQL 12 or newer with ICU."""

    dialect = "postgres"
    product = "PostgreSQL"
    types: ClassVar[dict[str, str]] = {
        "text": "TEXT",
        "string": "TEXT",
        "small_int": "SMALLINT",
        "integer": "INT",
        "big_int": "BIGINT",
        "float": "REAL",
        "double": "DOUBLE PRECISION",
        "numeric": "DECIMAL",
        "boolean": "BOOLEAN",
        "date": "DATE",
        "timestamp": "TIMESTAMP",
        "timestamp_tz": "TIMESTAMPTZ",
    }

    def opened(self, column: exp.Expression, source: t.ColumnType) -> exp.Expression:
        """Text by its bytes, whatever collation or case-insensitive type the column has."""
        if source.kind in TEXTS:
            return _collated(self.cast(column, t.Text()), "C")
        return super().opened(column, source)

    def text(self, value: str) -> exp.Expression:
        """A text constant."""
        if "\0" in value:
            raise self.cannot("has no text with a NUL character")
        return super().text(value)

    def _matches(self, value: exp.Expression, regex: str) -> sql.Condition:
        return exp.RegexpLike(this=value.copy(), expression=self.text(f"^(?:{regex})$"))

    def _lower(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        first = [self.text(letters) for letters in LOWER_FIRST]
        return sql.call("LOWER", _collated(sql.call("TRANSLATE", value, *first), "und-x-icu"))

    def _upper(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        return sql.call("UPPER", _collated(value, "und-x-icu"))

    def _ascii_lower(self, value: exp.Expression) -> exp.Expression:
        return sql.call("LOWER", _collated(value, "C"))

    def _regex_replace(
        self, normalizer: RegexReplace, value: exp.Expression, step: Step
    ) -> exp.Expression:
        pattern, replacement = parsed(normalizer)
        if not longest_is_first(pattern, captures=replacement.captures):
            raise self.cannot("looks for the longest match instead of the first")
        if greatest_repeat(pattern) > _MOST_REPEATS:
            raise self.cannot(f"counts only up to {_MOST_REPEATS} in a pattern")
        regex, new = (
            self.text(pattern.render("postgres")),
            self.text(replacement.render("postgres")),
        )
        flags = self.text("g" if normalizer.everywhere else "")
        return sql.call("REGEXP_REPLACE", value, regex, new, flags)

    def _is_nan(self, value: exp.Expression, step: Step) -> sql.Condition:
        return sql.compared(exp.EQ, value, self.constant(float("nan"), step.source))

    def _read_int(self, text: exp.Expression) -> exp.Expression:
        number = sql.cast(text, "DECIMAL", self.dialect)
        low, high = exp.Literal.number(-(2**63)), exp.Literal.number(2**63 - 1)
        fits = sql.when(sql.between(number, low, high), self.cast(number, t.BigInt()))
        return sql.when(self._matches(text, INTEGER_TEXT), fits)

    def _read_numeric(self, text: exp.Expression, numeric: t.Numeric) -> exp.Expression:
        number = sql.cast(text, "DECIMAL", self.dialect)
        rounded = sql.call("ROUND", number, sql.number(numeric.scale))
        limit = exp.Literal.number("1" + "0" * (numeric.precision - numeric.scale))
        fits = sql.compared(exp.LT, sql.call("ABS", rounded), limit)
        return sql.when(
            self._matches(text, NUMERIC_TEXT), sql.when(fits, self.cast(rounded, numeric))
        )

    def _read_moment(
        self, normalizer: ParseTimestamp | ParseDate, value: exp.Expression, step: Step
    ) -> exp.Expression:
        text = self._trimmed(value, step)
        only_date = isinstance(normalizer, ParseDate)
        return sql.coalesce(
            [self._read_as(f, text, only_date=only_date) for f in normalizer.read_formats()]
        )

    def _read_as(self, read: Format, text: exp.Expression, *, only_date: bool) -> exp.Expression:
        """The pattern admits days 1 to 31; what is left to check is that the month has the day."""
        found = _Found(read)
        first = sql.call("MAKE_DATE", found.number("year"), found.month(), sql.number(1))
        past = exp.Sub(this=found.number("day"), expression=sql.number(1))
        day = exp.Paren(this=exp.Add(this=first, expression=exp.Paren(this=past)))
        there = sql.compared(
            exp.EQ, sql.call("DATE_PART", self.text("day"), day), found.number("day")
        )
        value = day if only_date else self._instant(read, found, day)
        match = sql.call("REGEXP_MATCH", text, self.text(f"^(?:{read.regex})$"))
        checked = sql.when(sql.present(_MATCH), sql.when(there, value))
        return sql.bound("match", match, checked)

    def _instant(self, read: Format, found: _Found, day: exp.Expression) -> exp.Expression:
        clock = sql.call(
            "MAKE_INTERVAL",
            *(sql.number(0) for _ in range(4)),
            found.hour(),
            found.number("minute"),
            found.second(),
        )
        local = exp.Paren(this=exp.Add(this=self.cast(day, t.Timestamp()), expression=clock))
        if not read.zoned:
            return sql.at_utc(local)
        shifted = exp.Paren(this=exp.Sub(this=local, expression=found.offset()))
        return self._in_range(sql.at_utc(shifted))

    def _date_trunc(
        self, normalizer: DateTrunc, value: exp.Expression, step: Step
    ) -> exp.Expression:
        unit = normalizer.precision
        if unit == "microsecond":
            return value
        if step.source.kind == "date":
            if unit in WITHIN_A_DAY:
                return value
            cut = sql.call("DATE_TRUNC", self.text(unit), self.cast(value, t.Timestamp()))
            return self.cast(cut, step.source)
        zone = [self.text("UTC")] if step.source.kind == "timestamp_tz" else []
        return sql.call("DATE_TRUNC", self.text(unit), value, *zone)


class _Found:
    """The parts of a text that a format's pattern has matched."""

    def __init__(self, read: Format) -> None:
        self.read = read

    def part(self, name: str) -> exp.Expression:
        """A part as text."""
        place = sql.number(self.read.group(name))
        # ``offset`` tells sqlglot that the place counts from 1, as PostgreSQL does.
        return exp.Bracket(this=_MATCH.copy(), expressions=[place], offset=1)

    def number(self, name: str) -> exp.Expression:
        """A part as a whole number; 0 when the format does not have it."""
        if not self.read.has(name):
            return sql.number(0)
        return sql.cast(self.part(name), "INT", "postgres")

    def month(self) -> exp.Expression:
        """The month, by number or by name."""
        if self.read.has("month"):
            return self.number("month")
        letters = sql.call(
            "LEFT", sql.call("LOWER", _collated(self.part("month_name"), "C")), sql.number(3)
        )
        place = sql.call("STRPOS", exp.Literal.string(_MONTH_LETTERS), letters)
        return exp.Div(
            this=exp.Paren(this=exp.Add(this=place, expression=sql.number(2))),
            expression=sql.number(3),
            typed=True,  # whole numbers divide to whole numbers
        )

    def hour(self) -> exp.Expression:
        """The hour from 0 to 23."""
        if not self.read.has("half_hour"):
            return self.number("hour")
        half = exp.Mod(this=self.number("half_hour"), expression=sql.number(12))
        letter = sql.call("LEFT", self.part("meridiem"), sql.number(1))
        later = sql.one_of(letter, [exp.Literal.string("P"), exp.Literal.string("p")])
        return exp.Add(this=half, expression=sql.case([(later, sql.number(12))], sql.number(0)))

    def second(self) -> exp.Expression:
        """The second with its fraction."""
        if not self.read.has("second"):
            return sql.number(0)
        text = self.part("second")
        if self.read.has("fraction"):
            text = sql.call("CONCAT", text, exp.Literal.string("."), self.part("fraction"))
        return sql.cast(text, "DOUBLE PRECISION", "postgres")

    def offset(self) -> exp.Expression:
        """The zone's offset as an interval."""
        digits = sql.call(
            "REGEXP_REPLACE",
            self.part("zone"),
            exp.Literal.string("^([+-])([0-9]{2}):?([0-9]{2})?$"),
            exp.Literal.string("\\1\\2:\\3"),
        )
        named = sql.one_of(self.part("zone"), [exp.Literal.string(z) for z in ("Z", "UTC", "GMT")])
        padded = sql.call("RPAD", digits, sql.number(6), exp.Literal.string("0"))
        text = sql.case([(named, exp.Literal.string("+00:00"))], padded)
        return sql.cast(text, "INTERVAL", "postgres")


def _collated(value: exp.Expression, collation: str) -> exp.Expression:
    return sql.collated(value, exp.to_identifier(collation, quoted=True))
