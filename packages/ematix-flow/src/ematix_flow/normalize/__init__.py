"""Normalizers: what happens to a column's values on their way to the target.

They stand in a column's annotation and apply from left to right, as in
``Annotated[String[256] | None, lower(), trim(), empty_to_null()]``. NULL stays NULL, except for
``default()`` and ``not_null_or()``. ``ematix_flow.sql.normalizers`` turns them into SQL.
"""

from __future__ import annotations

from ematix_flow.normalize.base import (
    WHITESPACE,
    Normalizer,
    Step,
    apply_chain,
    is_normalizer,
    resolve_chain,
)
from ematix_flow.normalize.expressions import derive, sql
from ematix_flow.normalize.numbers import clamp, parse_bool, parse_int, parse_numeric, round
from ematix_flow.normalize.patterns import regex_replace
from ematix_flow.normalize.text import (
    email_normalize,
    empty_to_null,
    lower,
    phone_normalize,
    replace,
    trim,
    truncate,
    upper,
    whitespace_to_null,
)
from ematix_flow.normalize.times import (
    DEFAULT_DATE_FORMATS,
    DEFAULT_TIMESTAMP_FORMATS,
    date_trunc,
    parse_date,
    parse_timestamp,
    to_timezone,
)
from ematix_flow.normalize.values import default, not_null_or, nullif

__all__ = [
    "DEFAULT_DATE_FORMATS",
    "DEFAULT_TIMESTAMP_FORMATS",
    "WHITESPACE",
    "Normalizer",
    "Step",
    "apply_chain",
    "clamp",
    "date_trunc",
    "default",
    "derive",
    "email_normalize",
    "empty_to_null",
    "is_normalizer",
    "lower",
    "not_null_or",
    "nullif",
    "parse_bool",
    "parse_date",
    "parse_int",
    "parse_numeric",
    "parse_timestamp",
    "phone_normalize",
    "regex_replace",
    "replace",
    "resolve_chain",
    "round",
    "sql",
    "to_timezone",
    "trim",
    "truncate",
    "upper",
    "whitespace_to_null",
]
