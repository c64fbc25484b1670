"""Values and chains: what people store, what breaks software, and anything at all."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from conformance_normalizers.engines import Case
from ematix_flow import normalize as n
from ematix_flow import types as t
from ematix_flow.errors import DeclarationError
from ematix_flow.normalize import WHITESPACE, Normalizer, resolve_chain

T = TypeVar("T")

# Letters whose case pair entered Unicode after the oldest version we support: engines differ.
NEW_PAIRS = "\u019b\u0264\ua7d3\ua7d5"
_CASED = "ßẞİıΣσςÅÅKﬀŉǅΐᾳაᲐЖж"
_NASTY = "\0\x01\x1f\x7f\x85\xa0\u180e\u200b\u2028\ufeff\ufffd\ufffe😀é\u0301👩\u200d👧'\"\\%$`;"

characters = st.one_of(
    st.sampled_from("abcxyzABCXYZ0123456789 .,-+_"),
    st.sampled_from(WHITESPACE),
    st.sampled_from(_CASED),
    st.sampled_from(_NASTY),
    st.characters(exclude_categories=("Cs", "Cn"), exclude_characters=NEW_PAIRS),
)
PLAIN_TEXTS = (
    "", " ", "\t\n", "\xa0", "\u3000x\u2003", " Alice@Example.COM ", "+49 (30) 123-45", "İSTANBUL",
    "ΑΣ ΟΔΥΣΣΕΥΣ", "straße", "naïve", "a\0b", "\0", "NULL", "null", "-", "🇩🇪", "e\u0301",
)  # fmt: skip
NUMBER_TEXTS = (
    "0", "-0", "+7", "007", " 42 ", "4 2", "1_000", "1,000", "٣", "９", "1.0", "1.", ".5", "-.5",
    ".",
    "+", "1e3", "1E-3", "1e+03", "1e0003", "12e", "e5", "NaN", "Infinity", "0x1F", "1.005",
    "-1.005",
    "2.5", "-2.5", "0.5", "999.995", "-999.995", "99999999.99", "99999999.995", "1e38", "1e-60",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "0" * 59 + "5", "0" * 60 + "5", "1" * 38, "1" * 39, "0." + "4" * 60, "0." + "9" * 61, "١٢",
)  # fmt: skip
BOOLEAN_TEXTS = (
    "true", "TRUE", " Yes ", "y", "N", "no", "0", "1", "2", "tru", "t", "on", "\u212aey", "ok",
    "OK",
    "o\u212a", "ja", "JA", "да", "ДА", "true\0",
)  # fmt: skip
MOMENT_TEXTS = (
    "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2024-04-31", "2024-13-01",
    "2024-00-10",
    "2024-1-1", "0000-01-01", "0001-01-01", "9999-12-31", "12024-01-01", "+2024-01-01",
    "-2024-01-01",
    "02/29/2024", "29/02/2024", "20240229", "20230229", " 2024-01-01 ", "2024-01-01x",
    "2024-01-01 00:00:00", "2024-01-01 24:00:00", "2024-01-01 23:60:00", "2024-01-01 23:59:60",
    "2024-01-01T10:20:30", "2024-01-01t10:20:30", "2024-01-01 10:20:30.5",
    "2024-01-01 10:20:30.123",
    "2024-01-01 10:20:30.123456", "2024-01-01 10:20:30.1234567", "2024-01-01 10:20:30.",
    "2024-01-01T10:20:30Z", "2024-01-01T10:20:30z", "2024-01-01T10:20:30+05",
    "2024-01-01T10:20:30+05:30",
    "2024-01-01T10:20:30-0530", "2024-01-01T10:20:30+5", "2024-01-01T10:20:30+15:59",
    "2024-01-01T10:20:30+16:00", "2024-01-01T10:20:30+05:60", "2024-01-01T10:20:30.000001+00:00",
    "0001-01-01T00:00:00+05", "0001-01-01T05:00:00+05", "9999-12-31T23:59:59-01",
    "9999-12-31T23:59:59Z",
    "2024-03-31 02:30:00", "2024-11-03 01:30:00", "1969-12-31 23:59:59.999999", "1582-10-10",
    "1500-02-29", "2016-12-31T23:59:60Z", "31 Jan 2024", "31 jan 2024", "31 JANUARY 2024",
    "31 Sept 2024",
    "31 MAY 2024 12:05 am", "31 May 2024 12:05 PM", "31 May 2024 00:05 PM", "31 May 2024 13:05 PM",
    "2024-01-01 10:20:30 UTC", "2024-01-01 10:20:30 GMT", "2024-01-01 10:20:30 utc", "٢٠٢٤-٠١-٠١",
    "2024-01-01 10:20:30 +0200", "2024-01-01 10:20:30 CET", "20240102030405678",
)  # fmt: skip
TIMESTAMP_FORMATS = (
    "YYYY-MM-DD HH24:MI:SS.US", "YYYY-MM-DDTHH24:MI:SS.USOF", "YYYY-MM-DDTHH24:MI:SSOF", "YYYYMMDD",
    "DD Mon YYYY", "DD Month YYYY HH12:MI AM", 'DD"/"MM"/"YYYY', "YYYY-MM-DD HH24:MI:SS TZ",
    "YYYY-MM-DD HH24:MI:SS TZHTZM", "yyyy-mm-dd\"T\"hh24:mi:ssTZH:TZM", "YYYYMMDDHH24MISSMS",
    "MM/DD/YYYY", "YYYY-MM-DDTHH24:MI:SSTZH", "HH24:MI DD.MM.YYYY", "YYYY-MM-DD",
)  # fmt: skip
DATE_FORMATS = (
    "YYYY-MM-DD", "YYYYMMDD", "MM/DD/YYYY", "DD Mon YYYY", "Month DD, YYYY",
    "YYYY-MM-DD HH24:MI:SS",
    "DD.MM.YYYY", "DD/MM/YYYY", "Mon-DD-YYYY",
)  # fmt: skip

moments = st.datetimes(
    min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31, 23, 59, 59, 999999)
)


@st.composite
def moment_texts(draw: st.DrawFn) -> str:
    """A moment written in one of the formats, sometimes damaged."""
    moment = draw(moments)
    layout = draw(
        st.sampled_from(
            ("%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%d", "%m/%d/%Y", "%Y%m%d",
             "%d %b %Y", "%d %B %Y %I:%M %p", "%d/%m/%Y", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y")
        )
    )  # fmt: skip
    # strftime does not pad the year everywhere.
    text = moment.strftime(layout.replace("%Y", f"{moment.year:04}"))
    text += draw(st.sampled_from(("", "", "", "Z", "+05:30", "-0800", "+02", " UTC", " ")))
    if draw(st.integers(0, 9)) == 0 and text:
        place = draw(st.integers(0, len(text) - 1))
        text = text[:place] + draw(characters) + text[place + 1 :]
    return text


texts = st.one_of(
    st.sampled_from(PLAIN_TEXTS),
    st.sampled_from(NUMBER_TEXTS),
    st.sampled_from(BOOLEAN_TEXTS),
    st.sampled_from(MOMENT_TEXTS),
    st.text(characters, max_size=12),
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=4).map(str),
    st.from_regex(r"[+-]?[0-9]{0,5}\.?[0-9]{0,6}([eE][+-]?[0-9]{1,2})?", fullmatch=True),
    moment_texts(),
)


def values_of(kind: t.ColumnType) -> st.SearchStrategy[Any]:
    """Values that a column of this type holds."""
    bits = {"small_int": 16, "integer": 32, "big_int": 64}.get(kind.kind)
    if bits:
        edges = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1, 0, 1, -1)
        return st.one_of(
            st.sampled_from(edges), st.integers(-10, 10), st.integers(edges[0], edges[1])
        )
    if isinstance(kind, t.Numeric):
        top, scale = 10**kind.precision - 1, kind.scale
        digits = st.one_of(
            st.sampled_from((top, -top, 0, 5)), st.integers(-(10**6), 10**6), st.integers(-top, top)
        )
        # By its text, as arithmetic on decimals would round to 28 digits.
        return digits.filter(lambda i: abs(i) <= top).map(lambda i: Decimal(f"{i}e-{scale}"))
    if kind.kind == "date":
        return st.one_of(
            st.sampled_from((date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29))), st.dates()
        )
    aware = st.just(timezone.utc) if kind.kind == "timestamp_tz" else st.none()
    return {
        "text": texts,
        "boolean": st.booleans(),
        "float": st.floats(width=32),
        "double": st.one_of(st.sampled_from((0.5, 2.675, -2.675, 1e16, -0.0)), st.floats()),
        "timestamp": st.datetimes(timezones=aware),
        "timestamp_tz": st.datetimes(timezones=aware),
    }[kind.kind]


ONE_OF_EACH: tuple[tuple[Normalizer, t.ColumnType], ...] = (
    *(
        (one, t.Text())
        for one in (
            n.trim(), n.lower(), n.upper(), n.empty_to_null(), n.whitespace_to_null(),
            n.replace("a", "bb"), n.replace("\\", "/"), n.replace("'", "''"), n.replace("\0", "0"),
            n.replace("😀", ""), n.truncate(0), n.truncate(3), n.truncate(2**40),
            n.email_normalize(),
            n.phone_normalize(), n.parse_int(), n.parse_int("default", -1), n.parse_numeric(10, 2),
            n.parse_numeric(38, 0), n.parse_numeric(38, 38), n.parse_numeric(3, 3),
            n.parse_numeric(5, 1, "default", Decimal("0.5")), n.parse_bool(),
            n.parse_bool(("ja", "ok", "да"), ("nein", "")), n.parse_bool((), ("0",)),
            n.parse_bool(on_failure="default", default=False), n.default("\\'\n%s"), n.default(""),
            n.not_null_or("😀"), n.nullif("NULL"), n.nullif(""), n.nullif("a\0b"),
            n.parse_timestamp(), n.parse_date(),
            n.parse_timestamp(on_failure="default", default=datetime(1999, 12, 31, 23, 59, 59, 7)),
            n.parse_date(on_failure="default", default="2000-02-29"),
            *(n.parse_timestamp(layout) for layout in TIMESTAMP_FORMATS),
            *(n.parse_date(layout) for layout in DATE_FORMATS),
            n.parse_timestamp(formats=("DD Mon YYYY", "YYYYMMDD", "YYYY-MM-DD")),
        )
    ),
    *(
        (one, kind)
        for kind in (t.SmallInt(), t.Integer(), t.BigInt())
        for one in (
            n.parse_int(), n.parse_numeric(9, 2), n.parse_bool(), n.round(0), n.clamp(-3, 7),
            n.clamp(low=0), n.clamp(high=-32768), n.default(-5), n.nullif(0),
        )
    ),
    *(
        (one, t.BigInt())
        for one in (n.default(-(2**63)), n.nullif(2**63 - 1), n.clamp(-(2**63), 2**62))
    ),
    *(
        (one, kind)
        for kind in (t.Numeric(10, 2), t.Numeric(38, 10), t.Numeric(5, 5), t.Numeric(38, 0))
        for one in (
            n.round(0), n.round(1), n.round(4), n.parse_numeric(9, 2), n.default(0), n.nullif(0),
        )
    ),
    *(
        (one, t.Numeric(10, 2))
        for one in (
            n.clamp(-1.5, Decimal("99999999.99")), n.default(0.25), n.nullif(Decimal("-0.01")),
        )
    ),
    *(
        (one, kind)
        for kind in (t.Float(), t.Double())
        for one in (
            n.round(0), n.round(2), n.round(7), n.clamp(-1, 1.5), n.clamp(low=0.1), n.default(0.1),
            n.default(float("nan")), n.nullif(0), n.nullif(float("nan")), n.nullif(float("inf")),
            n.default(float("-inf")), n.clamp(high=0.3),
        )
    ),
    (n.parse_bool(), t.Boolean()),
    (n.default(True), t.Boolean()),
    (n.nullif(False), t.Boolean()),
    *(
        (one, t.Date())
        for one in (
            n.parse_date(), n.parse_timestamp(), n.default("2024-02-29"), n.nullif(date(1, 1, 1)),
            n.clamp(date(1970, 1, 1), "2038-01-19"),
            *(n.date_trunc(unit) for unit in ("hours", "day", "week", "month", "quarter", "year")),
        )
    ),
    *(
        (one, kind)
        for kind in (t.Timestamp(), t.TimestampTZ())
        for one in (
            n.parse_timestamp(), n.parse_date(), n.to_timezone("UTC"),
            n.default(datetime(2024, 2, 29, 1, 2, 3, 4)), n.nullif("1970-01-01"),
            n.clamp("1970-01-01T00:00:00", high=datetime(2038, 1, 19, 3, 14, 8)),
            *(
                n.date_trunc(unit)
                for unit in (
                    "microseconds", "milliseconds", "second", "minute", "hour", "day", "week",
                    "month", "quarter", "year",
                )
            ),
        )
    ),
)  # fmt: skip

SOURCES = (
    t.Text(), t.Text(), t.Text(), t.SmallInt(), t.Integer(), t.BigInt(), t.Numeric(10, 2),
    t.Numeric(38, 10), t.Float(), t.Double(), t.Boolean(), t.Date(), t.Timestamp(), t.TimestampTZ(),
)  # fmt: skip


def _fits(one: Normalizer, kind: t.ColumnType) -> bool:
    try:
        resolve_chain([one], kind)
    except DeclarationError:
        return False
    return True


@st.composite
def chains(draw: st.DrawFn) -> Case:
    """A chain of up to five steps that suit each other, with values for its start."""
    source = draw(st.sampled_from(SOURCES))
    current: t.ColumnType = source
    chain: list[Normalizer] = []
    for _ in range(draw(st.integers(1, 5))):
        fitting = [one for one, _ in ONE_OF_EACH if _fits(one, current)]
        chain.append(draw(st.sampled_from(fitting)))
        current = resolve_chain(chain, source)[-1].result or t.Text()
    values = draw(st.lists(st.none() | values_of(source), min_size=5, max_size=12))
    return Case(tuple(chain), source, tuple(values))


def examples(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Many examples at once, to be checked together in one job of an engine."""
    found: list[T] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    return found


def near(moment: datetime) -> st.SearchStrategy[datetime]:
    """Instants around one, such as a change of the clocks."""
    return st.integers(-7200 * 10**6, 7200 * 10**6).map(
        lambda shift: moment + timedelta(microseconds=shift)
    )
