"""Normalizers in DuckDB."""

from __future__ import annotations

from typing import ClassVar

from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.normalize.base import TEXTS, WHITESPACE, Step
from ematix_flow.normalize.formats import Format
from ematix_flow.normalize.numbers import INTEGER_TEXT
from ematix_flow.normalize.patterns import RegexReplace, parsed
from ematix_flow.normalize.regex import greatest_repeat
from ematix_flow.normalize.text import LOWER_FIRST
from ematix_flow.normalize.times import WITHIN_A_DAY, DateTrunc, ParseDate, ParseTimestamp
from ematix_flow.sql.normalizers import building as sql
from ematix_flow.sql.normalizers.compiler import Compiler

_MOST_REPEATS = 255
_ZONE_NAMES = ("Z", "UTC", "GMT")


class DuckDBCompiler(Compiler):
    """DuckDB, whatever the session's time zone."""

    dialect = "duckdb"
    product = "DuckDB"
    types: ClassVar[dict[str, str]] = {
        "text": "TEXT",
        "string": "TEXT",
        "small_int": "SMALLINT",
        "integer": "INT",
        "big_int": "BIGINT",
        "float": "REAL",
        "double": "DOUBLE",
        "numeric": "DECIMAL",
        "boolean": "BOOLEAN",
        "date": "DATE",
        "timestamp": "TIMESTAMP",
        "timestamp_tz": "TIMESTAMPTZ",
    }

    def opened(self, column: exp.Expression, source: t.ColumnType) -> exp.Expression:
        """Text by its bytes, whatever collation the column has."""
        if source.kind in TEXTS:
            return sql.collated(column, exp.to_identifier("C", quoted=True))
        return super().opened(column, source)

    def _matches(self, value: exp.Expression, regex: str) -> sql.Condition:
        return sql.call("REGEXP_FULL_MATCH", value, self.text(regex))

    def _trim(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        return sql.call("TRIM", value, self.text(WHITESPACE))

    def _lower(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        first = [self.text(letters) for letters in LOWER_FIRST]
        return sql.call("LOWER", sql.call("TRANSLATE", value, *first))

    def _upper(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        raise self.cannot("leaves letters such as ß out of upper case")

    def _regex_replace(
        self, normalizer: RegexReplace, value: exp.Expression, step: Step
    ) -> exp.Expression:
        pattern, replacement = parsed(normalizer)
        if greatest_repeat(pattern) > _MOST_REPEATS:
            raise self.cannot(f"may not count beyond {_MOST_REPEATS} in a pattern")
        regex, new = self.text(pattern.render("re2")), self.text(replacement.render("re2"))
        flags = [self.text("g")] if normalizer.everywhere else []
        return sql.call("REGEXP_REPLACE", value, regex, new, *flags)

    def _read_int(self, text: exp.Expression) -> exp.Expression:
        number = sql.try_cast(text, "BIGINT", self.dialect)
        return sql.when(self._matches(text, INTEGER_TEXT), number)

    def _read_numeric(self, text: exp.Expression, numeric: t.Numeric) -> exp.Expression:
        # TRY_CAST('1E-3' AS DECIMAL(3, 3)) is NULL, and '2.4e4' overflows DECIMAL(5, 1) unseen.
        raise self.cannot("misreads decimal numbers with an exponent")

    def _read_moment(
        self, normalizer: ParseTimestamp | ParseDate, value: exp.Expression, step: Step
    ) -> exp.Expression:
        text = self._trimmed(value, step)
        only_date = isinstance(normalizer, ParseDate)
        return sql.coalesce(
            [self._read_as(f, text, only_date=only_date) for f in normalizer.read_formats()]
        )

    def _read_as(self, read: Format, text: exp.Expression, *, only_date: bool) -> exp.Expression:
        strptime = self.text(read.strptime)
        if read.zoned:
            if any(name in read.literals for name in _ZONE_NAMES):
                raise self.cannot("would take text of the format for a time zone")
            names, offset = self.text("|".join(_ZONE_NAMES)), self.text("+00:00")
            plain = sql.call("REGEXP_REPLACE", text, names, offset)
            found = self._in_range(sql.call("TRY_STRPTIME", plain, strptime))
        else:
            clock = sql.call("TRY_STRPTIME", text, strptime)
            found = self.cast(clock, t.Date()) if only_date else sql.at_utc(clock)
        return sql.when(self._matches(text, read.regex), found)

    def _date_trunc(
        self, normalizer: DateTrunc, value: exp.Expression, step: Step
    ) -> exp.Expression:
        unit = normalizer.precision
        if unit == "microsecond" or (step.source.kind == "date" and unit in WITHIN_A_DAY):
            return value
        cut = sql.call("DATE_TRUNC", self.text(unit), self._utc_clock(value, step.source))
        return (
            sql.at_utc(cut) if step.source.kind == "timestamp_tz" else self.cast(cut, step.source)
        )
