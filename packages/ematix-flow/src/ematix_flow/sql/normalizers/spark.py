"""Normalizers in Spark SQL, with ANSI on and UTC as the session's zone: all of them."""

from __future__ import annotations

from typing import ClassVar

import sqlglot
from sqlglot import exp

from ematix_flow import types as t
from ematix_flow.errors import DeclarationError
from ematix_flow.normalize.base import FLOATS, Step
from ematix_flow.normalize.expressions import Expression
from ematix_flow.normalize.formats import Format
from ematix_flow.normalize.numbers import INTEGER_TEXT, NUMERIC_TEXT, Round
from ematix_flow.normalize.parsing import Parser
from ematix_flow.normalize.patterns import RegexReplace, parsed
from ematix_flow.normalize.text import LOWER_FIRST
from ematix_flow.normalize.times import (
    WITHIN_A_DAY,
    DateTrunc,
    ParseDate,
    ParseTimestamp,
    ToTimezone,
)
from ematix_flow.sql.normalizers import building as sql
from ematix_flow.sql.normalizers.compiler import Compiler

_SHOWN_CHARACTERS = 80


class SparkCompiler(Compiler):
    """Spark is the reference: nothing is refused."""

    dialect = "spark"
    product = "Spark"
    types: ClassVar[dict[str, str]] = {
        "text": "STRING",
        "string": "STRING",
        "small_int": "SMALLINT",
        "integer": "INT",
        "big_int": "BIGINT",
        "float": "FLOAT",
        "double": "DOUBLE",
        "numeric": "DECIMAL",
        "boolean": "BOOLEAN",
        "date": "DATE",
        "timestamp": "TIMESTAMP_NTZ",
        "timestamp_tz": "TIMESTAMP",
    }

    def _matches(self, value: exp.Expression, regex: str) -> sql.Condition:
        return sql.call("REGEXP_LIKE", value, self.text(f"\\A(?:{regex})\\z"))

    def _lower(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        first = [self.text(letters) for letters in LOWER_FIRST]
        return sql.call("LOWER", sql.call("TRANSLATE", value, *first))

    def _upper(self, normalizer: object, value: exp.Expression, step: Step) -> exp.Expression:
        return sql.call("UPPER", value)

    def _regex_replace(
        self, normalizer: RegexReplace, value: exp.Expression, step: Step
    ) -> exp.Expression:
        pattern, replacement = parsed(normalizer)
        regex, new = pattern.render("java"), replacement.render("java")
        if not normalizer.everywhere:
            # Spark replaces every match; anchored with what comes before, there is only one.
            regex = f"\\A([\\s\\S]*?)({regex})"
            new = "$1" + replacement.render("java", shift=2)
        return sql.call("REGEXP_REPLACE", value, self.text(regex), self.text(new))

    def _round(self, normalizer: Round, value: exp.Expression, step: Step) -> exp.Expression:
        if step.source.kind in FLOATS:
            return sql.call("ROUND", value, sql.number(normalizer.precision))
        return super()._round(normalizer, value, step)

    def _read_int(self, text: exp.Expression) -> exp.Expression:
        number = sql.try_cast(text, "BIGINT", self.dialect)
        return sql.when(self._matches(text, INTEGER_TEXT), number)

    def _read_numeric(self, text: exp.Expression, numeric: t.Numeric) -> exp.Expression:
        number = sql.try_cast(text, self.sql_type(numeric), self.dialect)
        return sql.when(self._matches(text, NUMERIC_TEXT), number)

    def _read_moment(
        self, normalizer: ParseTimestamp | ParseDate, value: exp.Expression, step: Step
    ) -> exp.Expression:
        text = self._trimmed(value, step)
        instant = sql.coalesce([self._read_as(f, text) for f in normalizer.read_formats()])
        return self.cast(instant, t.Date()) if isinstance(normalizer, ParseDate) else instant

    def _read_as(self, read: Format, text: exp.Expression) -> exp.Expression:
        given, pattern = text, read.java
        if read.fraction_adjoins:
            apart = read.with_point()
            groups = self.text(_rebuilt(apart))
            given = sql.call("REGEXP_REPLACE", text, self.text(f"\\A{read.regex}\\z"), groups)
            pattern = apart.java
        instant = sql.call("TRY_TO_TIMESTAMP", given, self.text(pattern))
        if read.zoned:
            instant = self._in_range(instant)
        return sql.when(self._matches(text, read.regex), instant)

    def _midnight(self, value: exp.Expression) -> exp.Expression:
        return self.cast(value, t.TimestampTZ())

    def _utc_clock(self, value: exp.Expression, source: t.ColumnType) -> exp.Expression:
        return self.cast(value, t.Timestamp()) if source.kind == "timestamp_tz" else value

    def _to_timezone(
        self, normalizer: ToTimezone, value: exp.Expression, step: Step
    ) -> exp.Expression:
        clock = self._utc_clock(value, step.source)
        return sql.call("CONVERT_TIMEZONE", self.text("UTC"), self.text(normalizer.tz), clock)

    def _date_trunc(
        self, normalizer: DateTrunc, value: exp.Expression, step: Step
    ) -> exp.Expression:
        unit = normalizer.precision
        if unit == "microsecond":
            return value
        if step.source.kind == "date":
            small = unit in WITHIN_A_DAY or unit == "day"
            return value if small else sql.call("TRUNC", value, self.text(unit.upper()))
        cut = sql.call("DATE_TRUNC", self.text(unit.upper()), value)
        return self.cast(cut, step.source)

    def _raised(self, parser: Parser, value: exp.Expression, step: Step) -> exp.Expression:
        shown = sql.call("LEFT", value, sql.number(_SHOWN_CHARACTERS))
        before, after = self.text(f"{parser.name}() cannot read the value '"), self.text("'")
        return sql.call("RAISE_ERROR", sql.call("CONCAT", before, shown, after))

    def _sql(self, normalizer: Expression, value: exp.Expression, step: Step) -> exp.Expression:
        written = read_expression(normalizer)

        def placed(node: exp.Expression) -> exp.Expression:
            named = isinstance(node, exp.Column) and not node.table
            if named and node.name.lower() == "col" and not node.this.quoted:
                return sql.enclosed(value)
            return node

        return self._returned(normalizer, written.transform(placed))

    def _derive(self, normalizer: Expression, value: exp.Expression, step: Step) -> exp.Expression:
        return self._returned(normalizer, read_expression(normalizer))

    def _returned(self, normalizer: Expression, value: exp.Expression) -> exp.Expression:
        known = normalizer.returns is not None and normalizer.returns.kind in self.types
        if normalizer.returns is not None and known:
            return self.cast(value, normalizer.returns)
        return sql.enclosed(value)


def _rebuilt(read: Format) -> str:
    """A replacement that writes the matched text anew, with every letter of it escaped."""
    numbers = iter(range(1, len(read.fields) + 1))
    return "".join(
        "".join(f"\\{c}" for c in part) if isinstance(part, str) else f"${next(numbers)}"
        for part in read.parts
    )


def read_expression(normalizer: Expression) -> exp.Expression:
    """The Spark SQL of sql() or derive(), or an error that says what is wrong with it."""
    who = f"{normalizer.name}()"
    try:
        statements = sqlglot.parse(f"SELECT {normalizer.expression}", dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        first = str(error).splitlines()[0]
        raise DeclarationError(
            f"{who}: {normalizer.expression!r} is not Spark SQL: {first}",
            fix="correct the expression",
        ) from error
    select = statements[0]
    lone = len(statements) == 1 and isinstance(select, exp.Select)
    if not lone or not isinstance(select, exp.Select) or _more_than_one_value(select):
        raise DeclarationError(
            f"{who}: {normalizer.expression!r} is not one expression",
            fix="write one Spark SQL expression, such as upper(col)",
        )
    value: exp.Expression = select.expressions[0].unalias()
    return value


def _more_than_one_value(select: exp.Select) -> bool:
    clauses = [key for key, value in select.args.items() if value and key != "expressions"]
    return len(select.expressions) != 1 or select.is_star or bool(clauses)
