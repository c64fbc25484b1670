"""Each normalizer and random chains of them, against the oracle, in all four engines."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from conformance_normalizers.engines import Case, Run, disagreements, in_spark
from conformance_normalizers.strategies import (
    BOOLEAN_TEXTS,
    MOMENT_TEXTS,
    NUMBER_TEXTS,
    ONE_OF_EACH,
    PLAIN_TEXTS,
    chains,
    examples,
    near,
    values_of,
)
from ematix_flow import normalize as n
from ematix_flow import types as t


def known_values(kind: t.ColumnType) -> tuple[object, ...]:
    if kind.kind != "text":
        return (None,)
    return (None, *PLAIN_TEXTS, *NUMBER_TEXTS, *BOOLEAN_TEXTS, *MOMENT_TEXTS)


def test_each_normalizer(engine_run: tuple[str, Run]) -> None:
    dialect, run = engine_run
    drawn: dict[str, list[Any]] = {}
    cases = []
    for normalizer, kind in ONE_OF_EACH:
        if str(kind) not in drawn:
            drawn[str(kind)] = examples(values_of(kind), 200)
        cases.append(Case((normalizer,), kind, (*known_values(kind), *drawn[str(kind)])))
    found, taken = disagreements(cases, dialect, run)
    assert not found, "\n".join(found[:20])
    assert taken >= {"spark": len(cases), "postgres": 120, "duckdb": 120, "sqlite": 50}[dialect]


def test_chains(engine_run: tuple[str, Run]) -> None:
    dialect, run = engine_run
    found, _ = disagreements(examples(chains(), 120), dialect, run)
    assert not found, "\n".join(found[:20])


ZONES = {
    "Europe/Berlin": datetime(2024, 3, 31, 1, tzinfo=timezone.utc),
    "America/New_York": datetime(2024, 11, 3, 6, tzinfo=timezone.utc),
    "Asia/Kathmandu": datetime(1985, 12, 31, 18, 30, tzinfo=timezone.utc),
    "Australia/Lord_Howe": datetime(2024, 4, 6, 15, tzinfo=timezone.utc),
    "Pacific/Apia": datetime(2011, 12, 30, 10, tzinfo=timezone.utc),
}


def test_time_zones_around_changes_of_the_clocks(spark: Any) -> None:
    cases = [
        Case(
            (n.to_timezone(zone), n.date_trunc("minute")),
            t.TimestampTZ(),
            tuple(examples(near(change), 100)),
        )
        for zone, change in ZONES.items()
    ]
    found, taken = disagreements(cases, "spark", in_spark(spark))
    assert not found, "\n".join(found[:20])
    assert taken == len(ZONES)
