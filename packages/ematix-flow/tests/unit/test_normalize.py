"""What each normalizer means, and which declarations are refused."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow import normalize as n
from ematix_flow import types as t
from ematix_flow.errors import BadValue, DeclarationError
from ematix_flow.normalize import Normalizer, apply_chain, resolve_chain

UTC = timezone.utc
ALL: tuple[Normalizer, ...] = (
    n.trim(),
    n.lower(),
    n.upper(),
    n.empty_to_null(),
    n.whitespace_to_null(),
    n.replace("a", "b"),
    n.regex_replace(r"\d+", "#"),
    n.truncate(3),
    n.email_normalize(),
    n.phone_normalize(),
    n.parse_timestamp(),
    n.parse_date(),
    n.to_timezone("Europe/Berlin"),
    n.date_trunc("day"),
    n.parse_int(),
    n.parse_numeric(10, 2),
    n.round(2),
    n.clamp(0, 1),
    n.parse_bool(),
    n.default(0),
    n.nullif(0),
    n.not_null_or(0),
    n.sql("upper(col)"),
    n.derive("a + b"),
)


# Value objects


@pytest.mark.parametrize("one", ALL, ids=str)
def test_it_is_a_value(one: Normalizer) -> None:
    again = eval(repr(one), vars(n).copy())  # noqa: S307 - it shows itself as it was typed
    assert again == one
    assert hash(again) == hash(one)
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own bytes
    assert n.is_normalizer(one)
    with pytest.raises(FrozenInstanceError):
        one.anything = 1  # type: ignore[attr-defined]


def test_every_factory_is_exported_under_its_own_name() -> None:
    for one in ALL:
        assert getattr(n, one.name)
        assert one.name in n.__all__


def test_a_marker_is_no_normalizer() -> None:
    assert not n.is_normalizer("trim")


@pytest.mark.parametrize("one", ALL, ids=str)
def test_null_stays_null(one: Normalizer) -> None:
    if one.name in ("sql", "derive"):
        return
    filled = one.name in ("default", "not_null_or")
    assert one.apply(None) == (0 if filled else None)


# Meaning, by example


TEXT_MEANINGS: tuple[tuple[list[Normalizer], str, str | None], ...] = (
    ([n.trim()], "\u3000\t a b\xa0\r\n", "a b"),
    ([n.trim()], "\u200bx\ufeff", "\u200bx\ufeff"),
    ([n.lower()], "ÀÉ ΣΟΦΟΣ İ", "àé σοφοσ i"),
    ([n.upper()], "straße ﬁ", "STRASSE FI"),
    ([n.empty_to_null()], "", None),
    ([n.empty_to_null()], " ", " "),
    ([n.whitespace_to_null()], "\xa0\t", None),
    ([n.whitespace_to_null()], " x ", " x "),
    ([n.replace("aa", "a")], "aaaaa", "aaa"),
    ([n.truncate(2)], "😀e\u0301", "😀e"),
    ([n.truncate(0)], "abc", ""),
    ([n.email_normalize()], "\tAnna.Ü@Example.COM ", "anna.ü@example.com"),
    ([n.phone_normalize()], "+49 (0)30 – 12٣", "+4903012"),
    ([n.lower(), n.trim(), n.empty_to_null()], "  \n", None),
    ([n.regex_replace(r"\s+", " ")], "a \t b\n\nc", "a b c"),
    ([n.regex_replace("A", "-", "i")], "banana", "b-nana"),
    ([n.regex_replace("a|ab", r"<\&>")], "ab", "<a>b"),
    ([n.regex_replace(r"(\d)(x)?", r"\2\1\\")], "1x2", "x1\\2\\"),
    ([n.regex_replace("b.", "")], "ab\nbc", "ab\n"),
    ([n.regex_replace("c$", "")], "c\nc", "c\n"),
    ([n.regex_replace(r"\bK", "", "gi")], "kit \u212ait", "it \u212ait"),
)


@pytest.mark.parametrize(("chain", "value", "expected"), TEXT_MEANINGS)
def test_texts(chain: list[Normalizer], value: str, expected: str | None) -> None:
    assert apply_chain(chain, value, t.Text()) == expected


@given(st.integers())
def test_parse_int_reads_what_64_bits_hold(number: int) -> None:
    expected = number if -(2**63) <= number < 2**63 else None
    assert n.parse_int().apply(f" {number}\n") == expected
    assert n.parse_int("default", 7).apply(str(number)) == (7 if expected is None else expected)


@pytest.mark.parametrize("text", ["", "1.0", "1_000", "٣", "0x1", "1e3", "- 1", "+"])
def test_parse_int_reads_nothing_else(text: str) -> None:
    assert n.parse_int().apply(text) is None
    with pytest.raises(BadValue, match=re.escape(f"parse_int() cannot read {text!r}")):
        n.parse_int("error").apply(text)


@given(st.decimals(-(10**9), 10**9, places=6), st.integers(0, 6))
def test_parse_numeric_rounds_half_away_from_zero(number: Decimal, scale: int) -> None:
    shifted = abs(int(number.scaleb(6))) * 2 + 10 ** (6 - scale)
    whole = shifted // (2 * 10 ** (6 - scale))
    expected = Decimal(whole if number >= 0 else -whole).scaleb(-scale)
    assert n.parse_numeric(38, scale).apply(str(number)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("99.994", Decimal("99.99")),
        ("99.995", None),
        ("-.5e1", Decimal(-5)),
        ("5.", Decimal(5)),
        ("1E-900", Decimal(0)),
        ("1e1000", None),
        ("NaN", None),
        ("1,5", None),
        ("0" * 61, None),
    ],
)
def test_parse_numeric_keeps_to_its_digits(text: str, expected: Decimal | None) -> None:
    assert n.parse_numeric(4, 2).apply(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("TRUE", True), (" y ", True), ("0", False), ("No", False), ("2", None), ("", None)],
)
def test_parse_bool(text: str, expected: bool | None) -> None:
    assert n.parse_bool().apply(text) is expected
    assert n.parse_bool(on_failure="default", default=True).apply(text) is (expected is not False)


def test_parse_bool_reads_numbers_and_takes_own_words() -> None:
    assert apply_chain([n.parse_bool()], 1, t.Integer()) is True
    own = n.parse_bool(["JA", "да"], ["nein", ""])
    assert [own.apply(word) for word in ("ja", "да", "ДА", " ", "yes")] == [
        True,
        True,
        None,
        False,
        None,
    ]


@given(st.datetimes(timezones=st.just(UTC)))
def test_parse_timestamp_reads_iso_by_default(moment: datetime) -> None:
    read = n.parse_timestamp().apply
    assert read(moment.isoformat()) == moment
    assert read(moment.isoformat(sep=" ", timespec="microseconds")) == moment
    assert read(moment.replace(tzinfo=None).isoformat()) == moment
    assert read(moment.strftime(f"{moment.year:04}-%m-%dT%H:%M:%SZ")) == moment.replace(
        microsecond=0
    )


@pytest.mark.parametrize(
    ("layout", "text", "expected"),
    [
        ("DD Mon YYYY HH12:MI pm", "29 fEB 2024 12:30 Am", datetime(2024, 2, 29, 0, 30)),
        ("Month DD, YYYY", "september 01, 2024", datetime(2024, 9, 1)),
        ("YYYYMMDDHH24MISSUS", "202402290102035", datetime(2024, 2, 29, 1, 2, 3, 500000)),
        ('YYYY"Y"MM"M"DD', "2024Y02M29", datetime(2024, 2, 29)),
        ("YYYY-MM-DD HH24:MI TZ", "2024-01-01 00:30 -0130", datetime(2024, 1, 1, 2)),
        ("YYYY-MM-DD HH24:MI TZ", "2024-01-01 00:30 GMT", datetime(2024, 1, 1, 0, 30)),
        ("YYYY-MM-DD HH24:MITZH:TZM", "2024-01-01 00:30+00:30", datetime(2024, 1, 1)),
        ("YYYY-MM-DD", "2023-02-29", None),
        ("YYYY-MM-DD", "2024-2-9", None),
        ("YYYY-MM-DD HH24:MIOF", "0001-01-01 00:00+01", None),
    ],
)
def test_formats(layout: str, text: str, expected: datetime | None) -> None:
    moment = None if expected is None else expected.replace(tzinfo=UTC)
    assert n.parse_timestamp(layout).apply(text) == moment


def test_formats_are_tried_in_order() -> None:
    day_first = n.parse_date(formats=["DD/MM/YYYY", "MM/DD/YYYY"])
    assert day_first.apply("03/04/2024") == date(2024, 4, 3)
    assert day_first.apply("03/14/2024") == date(2024, 3, 14)
    assert day_first.apply("31/02/2024") is None


def test_typed_values_pass_through_the_parsers() -> None:
    instant = datetime(2024, 3, 1, 0, 30, tzinfo=timezone(timedelta(hours=1)))
    assert apply_chain([n.parse_timestamp()], instant, t.TimestampTZ()) is instant
    assert apply_chain([n.parse_date()], instant, t.TimestampTZ()) == date(2024, 2, 29)
    assert apply_chain([n.parse_timestamp()], date(2024, 3, 1), t.Date()) == datetime(
        2024, 3, 1, tzinfo=UTC
    )
    assert apply_chain([n.parse_int()], 5, t.SmallInt()) == 5
    assert apply_chain([n.parse_numeric(5, 2)], Decimal("1.234"), t.Numeric(9, 3)) == Decimal(
        "1.234"
    )


@given(st.datetimes(datetime(1970, 1, 2), datetime(2037, 1, 1), timezones=st.just(UTC)))
def test_to_timezone_gives_the_wall_clock(instant: datetime) -> None:
    clock = apply_chain([n.to_timezone("America/New_York")], instant, t.TimestampTZ())
    assert isinstance(clock, datetime)
    assert clock.tzinfo is None
    assert clock == instant.astimezone(ZoneInfo("America/New_York")).replace(tzinfo=None)
    naive = instant.replace(tzinfo=None)
    assert apply_chain([n.to_timezone("America/New_York")], naive, t.Timestamp()) == clock


@given(st.datetimes())
def test_date_trunc_gives_the_start_of_the_unit(moment: datetime) -> None:
    starts = {unit: n.date_trunc(unit).apply(moment) for unit in ("hours", "week", "quarter")}
    assert starts["hours"] == moment.replace(minute=0, second=0, microsecond=0)
    week, quarter = starts["week"], starts["quarter"]
    assert isinstance(week, datetime)
    assert week.weekday() == 0
    assert timedelta() <= moment - week < timedelta(days=7)
    assert isinstance(quarter, datetime)
    assert (quarter.month, quarter.day) in ((1, 1), (4, 1), (7, 1), (10, 1))
    assert 0 <= moment.month - quarter.month < 3
    assert n.date_trunc("hour").apply(moment.date()) == moment.date()


@given(st.floats(), st.integers(0, 10))
def test_round_is_never_further_than_half_a_unit(number: float, digits: int) -> None:
    rounded = n.round(digits).apply(number)
    assert isinstance(rounded, float)
    if not math.isfinite(number):
        assert repr(rounded) == repr(number)
    else:
        assert abs(rounded - number) <= 0.5 * 10**-digits * (1 + 1e-9) + abs(number) * 1e-15


def test_round_works_on_what_is_written() -> None:
    assert n.round(2).apply(2.675) == 2.68
    assert n.round(0).apply(Decimal("-0.5")) == -1
    assert n.round(2).apply(7) == 7


@given(st.floats(), st.floats(-10, 10), st.floats(0, 10))
def test_clamp(number: float, low: float, width: float) -> None:
    clamped = n.clamp(low, low + width).apply(number)
    if math.isnan(number):
        assert clamped is number
    else:
        assert clamped == sorted((low, number, low + width))[1]


def test_constants_take_the_type_of_their_column() -> None:
    assert apply_chain([n.default("2024-02-29")], None, t.Date()) == date(2024, 2, 29)
    assert apply_chain([n.default(0.1)], None, t.Numeric(3, 1)) == Decimal("0.1")
    assert apply_chain([n.nullif(0.1)], 0.10000000149011612, t.Float()) is None
    assert apply_chain([n.nullif(math.nan)], math.nan, t.Double()) is None
    midnight = datetime(2024, 1, 1, tzinfo=UTC)
    assert apply_chain([n.not_null_or("2024-01-01T00:00:00Z")], None, t.TimestampTZ()) == midnight
    assert apply_chain([n.nullif(datetime(2024, 1, 1))], midnight, t.TimestampTZ()) is None


# Types


def test_a_chain_is_typed_step_by_step() -> None:
    chain = [n.trim(), n.parse_numeric(9, 4), n.round(1), n.clamp(0, 10)]
    kinds = [step.result for step in resolve_chain(chain, t.String(20))]
    assert kinds == [t.Text(), t.Numeric(9, 4), t.Numeric(7, 1), t.Numeric(7, 1)]


@pytest.mark.parametrize(
    ("chain", "source", "said"),
    [
        ([n.trim()], t.BigInt(), "column 'x': trim() works on text, not on BigInt"),
        ([n.parse_int(), n.lower()], t.Text(), "lower() works on text, not on BigInt"),
        ([n.round(2)], t.Text(), "round(2) works on numbers, not on Text; put parse_numeric()"),
        ([n.parse_int()], t.Double(), "parse_int() works on text and whole numbers, not on Double"),
        ([n.parse_bool()], t.Date(), "parse_bool() works on text, booleans and whole numbers"),
        ([n.parse_date()], t.BigInt(), "parse_date() works on text, dates and timestamps"),
        ([n.date_trunc("day")], t.Text(), "put parse_timestamp() before it"),
        ([n.to_timezone("UTC")], t.Date(), "to_timezone('UTC') works on timestamps, not on Date"),
        ([n.default("x")], t.BigInt(), "default('x'): 'x' does not suit a column of type BigInt"),
        ([n.default(70000)], t.SmallInt(), "70000 does not suit a column of type SmallInt"),
        ([n.default(True)], t.Integer(), "True does not suit"),
        ([n.nullif(Decimal("1.234"))], t.Numeric(5, 2), "does not suit a column of type Numeric"),
        ([n.nullif(1)], t.JSON(), "does not suit a column of type JSON; write sql() instead"),
        ([n.clamp("a", "b")], t.Text(), "works on numbers, dates and timestamps, not on Text"),
        ([n.clamp(0, 1.5)], t.Integer(), "1.5 does not suit a column of type Integer"),
        ([n.clamp(5, 1)], t.Integer(), "low is above high"),
        ([n.trim(), n.derive("a")], t.Text(), "put derive() first in the chain"),
    ],
)
def test_a_chain_that_does_not_suit_its_column(
    chain: list[Normalizer], source: t.ColumnType, said: str
) -> None:
    with pytest.raises(DeclarationError) as refused:
        resolve_chain(chain, source, column="x")
    assert said in str(refused.value)
    assert str(refused.value).startswith("column 'x': ")


# Refused when they are written


MISTAKES: tuple[tuple[Callable[[], Normalizer], str], ...] = (
    (lambda: n.replace("", "x"), "replace(): old is empty"),
    (lambda: n.replace(1, "x"), "old must be text, not 1"),  # type: ignore[arg-type]
    (lambda: n.replace("\ud800", ""), "half a character"),
    (lambda: n.truncate(-1), "n must be a whole number of at least 0, not -1"),
    (lambda: n.truncate(True), "not True"),
    (lambda: n.regex_replace("(", ""), "has a ( without its )"),
    (lambda: n.regex_replace("a)", ""), "has a ) without its ("),
    (lambda: n.regex_replace("[a", ""), "has a [ without its ]"),
    (lambda: n.regex_replace("[z-a]", ""), "has a range that runs backwards"),
    (lambda: n.regex_replace("[[:alpha:]]", ""), "has a [ inside a class"),
    (lambda: n.regex_replace("a{,3}", ""), "has a { that starts no count"),
    (lambda: n.regex_replace("a{3,1}", ""), "runs backwards"),
    (lambda: n.regex_replace("a**", ""), "repeats a repetition"),
    (lambda: n.regex_replace("*a", ""), "repeats nothing"),
    (lambda: n.regex_replace("(a?)+b", ""), "repeats something that can be empty"),
    (lambda: n.regex_replace("a*", ""), "can match the empty text"),
    (lambda: n.regex_replace("", ""), "can match the empty text"),
    (lambda: n.regex_replace(r"(a)\1", ""), "has \\1, which does not mean the same everywhere"),
    (lambda: n.regex_replace(r"\p{L}", ""), "has \\p"),
    (lambda: n.regex_replace("(?<=a)b", ""), "only (?:…) means the same everywhere"),
    (lambda: n.regex_replace("a\\", ""), "has \\, which"),
    (lambda: n.regex_replace("a", r"\1"), "has \\1, and the pattern has 0 groups"),
    (lambda: n.regex_replace("a", "b", "gx"), "unknown flag 'x'"),
    (lambda: n.regex_replace("()" * 10 + "a", ""), "has more than 9 groups"),
    (lambda: n.parse_int("raise"), "on_failure must be 'null', 'error' or 'default'"),
    (lambda: n.parse_int("default"), "on_failure='default' needs a value; add default="),
    (lambda: n.parse_int(default=3), "default= has no effect with on_failure='null'"),
    (lambda: n.parse_int("default", 2**63), "does not suit a column of type BigInt"),
    (lambda: n.parse_numeric(0, 0), "precision must be from 1 to 38"),
    (lambda: n.parse_numeric(5, 6), "scale must be from 0 to the precision"),
    (lambda: n.parse_numeric(3, 1, "default", 100), "does not suit a column of type Numeric"),
    (lambda: n.parse_bool(("a",), ("A",)), "'a' is both truthy and falsy"),
    (lambda: n.parse_bool("yes"), "truthy must be a list of words"),
    (lambda: n.parse_bool((" yes",)), "never matches"),
    (lambda: n.parse_timestamp("%Y-%m-%d"), "which is no field"),
    (lambda: n.parse_timestamp("YYYY-MM"), "lacks a year (YYYY), a month (MM or MON) or a day"),
    (lambda: n.parse_timestamp("YYYY-MM-DD HH12:MI"), "has HH12 without AM or PM"),
    (lambda: n.parse_timestamp("YYYY-MM-DD MI"), "has MI without HH24 or HH12"),
    (lambda: n.parse_timestamp("YYYY-MM-DD DD"), "names one part twice"),
    (lambda: n.parse_timestamp("YYYY-MM-DD OF"), "has a time zone but no hour"),
    (lambda: n.parse_timestamp("MSYYYY-MM-DD HH24:MI:SS"), "digits right after MS or US"),
    (lambda: n.parse_timestamp('YYYY-MM-DD"T'), "has a quote without its end"),
    (lambda: n.parse_timestamp("YYYY-MM-DD", formats=["YYYYMMDD"]), "are both given"),
    (lambda: n.parse_timestamp(formats=[]), "formats must be a list of formats"),
    (lambda: n.parse_timestamp(on_failure="default", default="soon"), "does not suit"),
    (lambda: n.parse_date("YYYY-MM-DD HH24OF"), "has a time zone, which a date cannot have"),
    (lambda: n.to_timezone("Europe/Berln"), "did you mean 'Europe/Berlin'?"),
    (lambda: n.to_timezone("../etc/passwd"), "unknown time zone"),
    (lambda: n.date_trunc("weak"), "did you mean 'week'?"),
    (lambda: n.date_trunc("xyz"), "use microsecond, millisecond"),
    (lambda: n.round(-1), "precision must be a whole number of at least 0"),
    (lambda: n.round(39), "at most 38"),
    (n.clamp, "low and high are both missing"),
    (lambda: n.clamp(math.nan, 1), "low is NaN"),
    (lambda: n.default(None), "value must be text, a number"),
    (lambda: n.nullif([1]), "not [1]"),
    (lambda: n.sql(" "), "the expression is empty"),
    (lambda: n.derive("a", returns="text"), "is not a column type"),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_refused_when_it_is_written(
    mistake: Callable[[], Normalizer], said: str
) -> None:
    with pytest.raises(DeclarationError) as refused:
        mistake()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
