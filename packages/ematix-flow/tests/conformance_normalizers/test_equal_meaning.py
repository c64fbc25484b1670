"""Each normalizer and random chains of them, against the oracle, in all four engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from conformance_normalizers.engines import (
    Case,
    Run,
    comparable,
    compiled,
    in_duckdb,
    in_postgres,
    in_spark,
    in_sqlite,
)
from conformance_normalizers.strategies import (
    MOMENT_TEXTS,
    ONE_OF_EACH,
    PLAIN_TEXTS,
    NUMBER_TEXTS,
    BOOLEAN_TEXTS,
    chains,
    near,
    values_of,
)
from ematix_flow import normalize as n
from ematix_flow import types as t
from ematix_flow.normalize import apply_chain
from ematix_flow.sql.normalizers import CannotMatch

# One example is hundreds of values in one job, so a few examples are many; and shrinking would
# start a job for every attempt, while the failure already names the value.
BATCHES = settings(
    max_examples=4,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
ENGINES = ("spark", "postgres", "duckdb", "sqlite")
# What a dialect may refuse, so that a refusal too many is noticed.
NEVER_REFUSED = ("spark",)


@pytest.fixture(params=ENGINES)
def engine_run(request: pytest.FixtureRequest) -> tuple[str, Run]:
    runs: dict[str, Any] = {
        "spark": lambda: in_spark(request.getfixturevalue("spark")),
        "postgres": lambda: in_postgres(request.getfixturevalue("postgres").url),
        "duckdb": lambda: in_duckdb,
        "sqlite": lambda: in_sqlite,
    }
    return request.param, runs[request.param]()


def storable(case: Case, dialect: str) -> Case:
    """The case without values that the database cannot hold at all."""
    if dialect == "postgres":
        return replace(
            case,
            values=tuple(v for v in case.values if not (isinstance(v, str) and "\0" in v)),
        )
    return case


def disagreements(cases: Sequence[Case], dialect: str, run: Run) -> tuple[list[str], int]:
    """Every value on which an engine and the oracle differ, and how many cases it took on."""
    taken = []
    for case in cases:
        try:
            taken.append(compiled(storable(case, dialect), dialect))
        except CannotMatch as reason:
            assert dialect not in NEVER_REFUSED, reason
    if not taken:
        return [], 0
    found = []
    for (case, expression, kind), results in zip(taken, run(taken), strict=True):
        assert len(results) == len(case.values)
        for value, result in zip(case.values, results, strict=True):
            expected = comparable(apply_chain(case.chain, value, case.source))
            if comparable(result) != expected:
                found.append(
                    f"{list(case.chain)} on {case.source} {value!r}: {result!r}, not {expected!r}"
                    f" [{kind}]: {expression[:300]}"
                )
    return found, len(taken)


def known_values(kind: t.ColumnType) -> tuple[object, ...]:
    if kind.kind != "text":
        return (None,)
    return (None, *PLAIN_TEXTS, *NUMBER_TEXTS, *BOOLEAN_TEXTS, *MOMENT_TEXTS)


@BATCHES
@given(data=st.data())
def test_each_normalizer(engine_run: tuple[str, Run], data: st.DataObject) -> None:
    dialect, run = engine_run
    drawn: dict[str, list[Any]] = {}
    cases = []
    for normalizer, kind in ONE_OF_EACH:
        if str(kind) not in drawn:
            drawn[str(kind)] = data.draw(st.lists(values_of(kind), min_size=120, max_size=160))
        cases.append(Case((normalizer,), kind, (*known_values(kind), *drawn[str(kind)])))
    found, taken = disagreements(cases, dialect, run)
    assert not found, "\n".join(found[:20])
    assert taken >= {"spark": len(cases), "postgres": 150, "duckdb": 150, "sqlite": 60}[dialect]


@BATCHES
@given(cases=st.lists(chains(), min_size=30, max_size=40))
def test_chains(engine_run: tuple[str, Run], cases: list[Case]) -> None:
    dialect, run = engine_run
    found, _ = disagreements(cases, dialect, run)
    assert not found, "\n".join(found[:20])


ZONES = {
    "Europe/Berlin": datetime(2024, 3, 31, 1, tzinfo=timezone.utc),
    "America/New_York": datetime(2024, 11, 3, 6, tzinfo=timezone.utc),
    "Asia/Kathmandu": datetime(1985, 12, 31, 18, 30, tzinfo=timezone.utc),
    "Australia/Lord_Howe": datetime(2024, 4, 6, 15, tzinfo=timezone.utc),
    "Pacific/Apia": datetime(2011, 12, 30, 10, tzinfo=timezone.utc),
}


@BATCHES
@given(data=st.data())
def test_time_zones_around_changes_of_the_clocks(spark: Any, data: st.DataObject) -> None:
    cases = [
        Case(
            (n.to_timezone(zone), n.date_trunc("minute")),
            t.TimestampTZ(),
            tuple(data.draw(st.lists(near(change), min_size=50, max_size=60))),
        )
        for zone, change in ZONES.items()
    ]
    found, taken = disagreements(cases, "spark", in_spark(spark))
    assert not found, "\n".join(found[:20])
    assert taken == len(ZONES)
