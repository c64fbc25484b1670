"""``flow backfill``: slices by the calendar, each once, and nothing outside the range."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pytest

from ematix_flow.discovery import load_project
from ematix_flow.run.backfill import Request, plan_backfill
from ematix_flow.run.function import RunInfo
from ematix_flow.run.plan import planned
from ematix_flow.run.purpose import Purpose
from ematix_flow.run.slices import read_bound, read_step, sliced
from ematix_flow.types import TimestampTZ

from .conftest import Flow

DECLARED = """
from typing import Annotated

from ematix_flow import (
    BigInt, Date, DuckDBConnection, Target, Text, TimestampTZ, ematix, natural_key, pk,
    register_connection,
)

register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))
register_connection(DuckDBConnection(name="lake", path="lake.duckdb"))


@ematix.table(schema="shop")
class Readings:
    number: BigInt
    seen: TimestampTZ


@ematix.table(schema="shop")
class Moments:
    number: Annotated[BigInt, pk()]
    seen: TimestampTZ


@ematix.table(schema="shop")
class Counted:
    number: Annotated[BigInt, pk()]
    word: Text


@ematix.table(schema="shop")
class Days:
    number: Annotated[BigInt, natural_key()]
    day: Date


@ematix.pipeline(
    target=Readings, target_connection="warehouse", incremental=True, watermark_column="seen"
)
def load_readings(conn):
    return "SELECT number, seen FROM raw.readings"


@ematix.pipeline(
    source_connection="warehouse",
    targets=[
        Target(table=Readings, connection="warehouse", mode="append"),
        Target(table=Moments, connection="warehouse", mode="merge"),
    ],
)
def load_both(conn):
    return "SELECT number, seen FROM raw.readings"


@ematix.pipeline(
    target=Moments, source_connection="warehouse", target_connection="lake", mode="merge"
)
def load_elsewhere(conn):
    return "SELECT number, seen FROM raw.readings"


@ematix.pipeline(target=Counted, target_connection="warehouse", mode="merge")
def load_counted(conn):
    return "SELECT number, 'x' AS word FROM raw.readings"


@ematix.pipeline(target=Days, target_connection="warehouse", mode="scd2")
def seen_days(conn):
    return "SELECT number, CAST(seen AS DATE) AS day FROM raw.readings"


@ematix.pipeline(target=Counted, target_connection="warehouse", mode="truncate")
def all_counted(conn):
    return "SELECT number, 'x' AS word FROM raw.readings"
"""
BERLIN = ZoneInfo("Europe/Berlin")
# The night in which Berlin's clocks went forward.
RANGE = ("--from", "2024-03-30", "--to", "2024-04-02", "--timezone", "Europe/Berlin")


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(folder / "warehouse.duckdb")) as raw:
        raw.execute("SET TimeZone = 'UTC'")
        return raw.execute(sql).fetchall()


@pytest.fixture
def shop(folder: Path) -> Path:
    """A reading every half hour, numbered, over five days of UTC."""
    (folder / "pipelines.py").write_text(DECLARED)
    (folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')
    query(folder, "CREATE SCHEMA raw")
    query(
        folder,
        "CREATE TABLE raw.readings AS SELECT n AS number, "
        "TIMESTAMPTZ '2024-03-29 00:00:00+00' + n * INTERVAL 30 minute AS seen "
        "FROM range(240) AS t(n)",
    )
    return folder


def midnights(*days: str) -> list[str]:
    """Local midnights, in UTC, as the command shows them."""
    local = [datetime.fromisoformat(day).replace(tzinfo=BERLIN) for day in days]
    return [f"{d.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}+00:00" for d in local]


def numbers_between(folder: Path, start: str, end: str) -> list[int]:
    found = query(
        folder,
        f"SELECT number FROM raw.readings WHERE seen >= TIMESTAMPTZ '{start}' "
        f"AND seen < TIMESTAMPTZ '{end}' ORDER BY number",
    )
    return [number for (number,) in found]


def stored(folder: Path) -> list[tuple[Any, ...]]:
    return query(folder, "SELECT * FROM shop.readings ORDER BY number, seen, _run_id")


def spans(slices: Sequence[dict[str, Any]]) -> list[timedelta]:
    return [datetime.fromisoformat(s["end"]) - datetime.fromisoformat(s["start"]) for s in slices]


def test_days_are_cut_by_the_clock_on_the_wall(shop: Path, flow: Flow) -> None:
    said = flow("backfill", "load_readings", *RANGE, "--slice", "1d", "--format", "json")
    assert said.code == 0, said.err
    slices = said.json["slices"]
    bounds = midnights("2024-03-30", "2024-03-31", "2024-04-01", "2024-04-02")
    assert [s["start"] for s in slices] == bounds[:-1]
    assert [s["end"] for s in slices] == bounds[1:]
    assert spans(slices) == [timedelta(hours=h) for h in (24, 23, 24)]
    assert [s["run"]["rows_inserted"] for s in slices] == [48, 46, 48]
    assert [n for n, *_ in stored(shop)] == numbers_between(shop, bounds[0], bounds[-1])


def test_only_the_range_is_replaced_and_only_once(shop: Path, flow: Flow) -> None:
    assert flow("run", "load_readings").code == 0
    before = stored(shop)
    start, end = midnights("2024-03-30", "2024-04-02")
    inside = set(numbers_between(shop, start, end))
    query(shop, "UPDATE raw.readings SET number = number + 1000 WHERE number % 2 = 0")
    query(shop, "DELETE FROM raw.readings WHERE number % 5 = 0")
    mark = flow("watermark", "show", "load_readings").out

    counted = flow("backfill", "load_readings", *RANGE, "--slice", "12h", "--dry-run")
    assert counted.code == 0, counted.err
    assert stored(shop) == before
    first = flow("backfill", "load_readings", *RANGE, "--slice", "12h")
    assert first.code == 0, first.err
    assert counted.out.splitlines()[-1] == first.out.splitlines()[-1].replace("loaded", "counted")
    after = stored(shop)
    assert [r for r in after if r[0] % 1000 not in inside] == [
        r for r in before if r[0] not in inside
    ]
    assert [r[0] for r in after if r[0] % 1000 in inside] == numbers_between(shop, start, end)
    assert flow("watermark", "show", "load_readings").out == mark

    again = flow("backfill", "load_readings", *RANGE, "--slice", "12h")
    assert "Nothing to do" in again.out
    assert stored(shop) == after
    query(shop, "DELETE FROM raw.readings")
    forced = flow("backfill", "load_readings", *RANGE, "--slice", "12h", "--again")
    assert forced.code == 0, forced.err
    assert {r[0] for r in stored(shop)} == {r[0] for r in before} - inside


def test_a_failed_backfill_goes_on_where_it_stopped(shop: Path, flow: Flow) -> None:
    # A number that is none, in the second of three days.
    query(shop, "ALTER TABLE raw.readings ALTER number TYPE VARCHAR")
    (shop / "pipelines.py").write_text(
        DECLARED.replace(
            "SELECT number, seen FROM", "SELECT CAST(number AS BIGINT) AS number, seen FROM"
        )
    )
    query(shop, "UPDATE raw.readings SET number = 'none' WHERE number = '100'")
    command = ("backfill", "load_readings", *RANGE, "--slice", "1d")
    failed = flow(*command, "--format", "json")
    assert failed.code == 1
    assert [s["status"] for s in failed.json["slices"]] == ["succeeded"]
    resumed = failed.json["backfill"]
    assert (
        f"1 of 3 slices are loaded; go on with: flow backfill load_readings --resume {resumed}"
        in failed.err
    )
    assert len(stored(shop)) == 48
    status = flow(*command, "--status", "--format", "json").json["slices"]
    assert [s["status"] for s in status] == ["loaded", "missing", "missing"]

    query(shop, "UPDATE raw.readings SET number = '100' WHERE number = 'none'")
    rest = flow("backfill", "load_readings", "--resume", resumed, "--format", "json")
    assert rest.code == 0, rest.err
    assert [s["status"] for s in rest.json["slices"]] == ["applied", "succeeded", "succeeded"]
    assert [n for n, *_ in stored(shop)] == list(range(46, 188))
    runs = flow("runs", "list", "--format", "json").json["runs"]
    assert [r["trigger"] for r in runs] == ["backfill"] * 4


def test_every_target_gets_the_range(shop: Path, flow: Flow) -> None:
    assert flow("run", "load_both").code == 0
    query(shop, "DELETE FROM raw.readings WHERE number % 3 = 0")
    start, end = midnights("2024-03-30", "2024-04-02")
    span = (*RANGE, "--column", "seen", "--slice", "1d")
    said = flow("backfill", "load_both", *span, "--format", "json")
    assert said.code == 0, said.err
    outside = [n for n in range(240) if not 46 <= n < 188]
    expected = sorted([*outside, *numbers_between(shop, start, end)])
    for table in ("readings", "moments"):
        found = query(shop, f"SELECT number FROM shop.{table} ORDER BY number")
        assert [n for (n,) in found] == expected
    assert [s["status"] for s in said.json["slices"]] == ["succeeded"] * 3
    assert "Nothing to do" in flow("backfill", "load_both", *span).out


def test_another_pipelines_rows_go_only_if_it_is_named(shop: Path, flow: Flow) -> None:
    assert flow("run", "load_readings").code == 0
    assert flow("run", "load_both").code == 0
    before = stored(shop)
    said = flow("backfill", "load_readings", *RANGE, "--slice", "1d")
    assert (said.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert "'load_both' also loaded shop.readings, and a backfill of 'load_readings'" in line
    assert line.endswith("--replace-rows-of load_both")
    assert stored(shop) == before
    named = ("--replace-rows-of", "load_both")
    said = flow("backfill", "load_readings", *RANGE, "--slice", "1d", *named)
    assert said.code == 0, said.err
    assert [n for n, *_ in stored(shop)] == sorted([*range(240), *range(46), *range(188, 240)])


def test_a_source_is_asked_for_the_range_only(shop: Path) -> None:
    """On the Spark path too, so that a slice costs what it is worth."""
    with load_project(("pipelines.py",)) as project:
        spec = project.pipeline("load_elsewhere").spec
        request = Request("2024-03-30", "2024-04-02", "1d", "Europe/Berlin", "seen")
        window = plan_backfill(spec, request).windows[1]
        purpose = Purpose(window=window)
        with planned(spec, RunInfo(id="none"), asking=True, purpose=purpose) as (plan,):
            assert plan.path == "spark"
            assert plan.reading.query is not None
            sql = plan.reading.query.sql
    found = [n for n, _ in query(shop, f"{sql} ORDER BY number")]
    assert found == numbers_between(shop, window.start, window.end or "")


DIES = """
import os, signal, sys

from ematix_flow.discovery import load_project
from ematix_flow.run.backfill import Request, plan_backfill, run_slices

point, times = sys.argv[1], int(sys.argv[2])
request = Request("2024-03-30", "2024-04-02", "1d", "Europe/Berlin")


def announce(reached):
    global times
    times -= reached == point
    if not times:
        os.kill(os.getpid(), signal.SIGKILL)


with load_project(()) as project:
    planned = plan_backfill(project.pipeline("load_readings").spec, request)
    for slice_ in run_slices(planned, announce=announce):
        pass
"""


@pytest.mark.parametrize(
    ("point", "slices_before"), [("committing", 1), ("applied rewrite", 1), ("committed", 2)]
)
def test_a_killed_backfill_ends_as_one_that_was_not(
    shop: Path, flow: Flow, point: str, slices_before: int
) -> None:
    """SIGKILL in the second slice, before, in and right after its commit; then the same command."""
    assert flow("run", "load_readings").code == 0
    query(shop, "UPDATE raw.readings SET number = number + 1000 WHERE number % 2 = 0")
    died = subprocess.run(
        [sys.executable, "-c", DIES, point, "2"],
        cwd=shop,
        check=False,
        timeout=300,
    )
    assert died.returncode == -signal.SIGKILL
    start, end = midnights("2024-03-30", "2024-04-02")
    bounds = midnights("2024-03-30", "2024-03-31", "2024-04-01", "2024-04-02")
    done = bounds[slices_before]
    inside = set(numbers_between(shop, start, done))
    assert {n for n, *_ in stored(shop) if n >= 1000} == {n for n in inside if n >= 1000}

    rest = flow("backfill", "load_readings", *RANGE, "--slice", "1d", "--format", "json")
    assert rest.code == 0, rest.err
    states = ["applied"] * slices_before + ["succeeded"] * (3 - slices_before)
    assert [s["status"] for s in rest.json["slices"]] == states
    inside = set(numbers_between(shop, start, end))
    unmoved = [n for n in range(240) if n not in {i % 1000 for i in inside}]
    assert [n for n, *_ in stored(shop)] == sorted([*unmoved, *inside])
    runs = flow("runs", "list", "--format", "json").json["runs"]
    assert [r["status"] for r in runs].count("failed") == (0 if point == "committed" else 1)
    assert {r["status"] for r in runs} <= {"failed", "succeeded"}


def test_a_watermark_moves_forward_only_where_nothing_is_passed_over(
    shop: Path, flow: Flow
) -> None:
    query(shop, "CREATE TABLE kept AS SELECT * FROM raw.readings")
    query(shop, "DELETE FROM raw.readings WHERE number >= 48")
    assert flow("run", "load_readings").code == 0
    query(shop, "INSERT INTO raw.readings SELECT * FROM kept WHERE number >= 48")

    def mark() -> str:
        shown = flow("watermark", "show", "load_readings", "--format", "json")
        return str(shown.json["watermarks"][0]["value"])

    before = mark()
    far = ("--from", "2024-03-31", "--to", "2024-04-01")
    assert flow("backfill", "load_readings", *far).code == 0
    assert mark() == before
    near = ("--from", "2024-03-29T12:00", "--to", "2024-03-30T12:00")
    assert flow("backfill", "load_readings", *near).code == 0
    assert mark() == "2024-03-30 11:30:00.000000+00:00"
    assert flow("run", "load_readings").code == 0


def test_a_dropped_table_is_filled_anew(shop: Path, flow: Flow) -> None:
    assert flow("backfill", "load_readings", *RANGE).code == 0
    rows = [r[:2] for r in stored(shop)]
    query(shop, "DROP TABLE shop.readings")
    assert flow("backfill", "load_readings", *RANGE).code == 0
    assert [r[:2] for r in stored(shop)] == rows


def test_a_merged_range_loses_what_the_source_has_lost(shop: Path, flow: Flow) -> None:
    assert flow("run", "load_counted").code == 0
    query(shop, "DELETE FROM raw.readings WHERE number IN (10, 20, 30)")
    query(shop, "UPDATE raw.readings SET number = 500 WHERE number = 40")
    span = ("--column", "number", "--from", "15", "--to", "45", "--slice", "10")
    said = flow("backfill", "load_counted", *span, "--format", "json")
    assert said.code == 0, said.err
    assert [(s["start"], s["end"]) for s in said.json["slices"]] == [
        ("15", "25"),
        ("25", "35"),
        ("35", "45"),
    ]
    deleted = [s["run"]["rows_deleted"] for s in said.json["slices"]]
    assert deleted == [1, 1, 1]
    found = {n for (n,) in query(shop, "SELECT number FROM shop.counted")}
    assert found == set(range(240)) - {20, 30, 40}


ZONES = ("UTC", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Beirut")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("step", ["1d", "1w", "1mo", "6h", "90m"])
def test_slices_are_the_whole_range_and_never_overlap(zone: str, step: str) -> None:
    """Whole years, so that every change of the clocks is in it, also those at midnight."""
    local = ZoneInfo(zone)
    kind = TimestampTZ()
    start, end = (read_bound(f"{year}-01-31", kind, local) for year in (2018, 2019))
    pieces = sliced(start, end, read_step(step), kind, local)
    ends = [(datetime.fromisoformat(a), datetime.fromisoformat(b)) for a, b in pieces]
    assert (ends[0][0], ends[-1][1]) == (start, end)
    assert all(a < b for a, b in ends)
    assert [b for _, b in ends[:-1]] == [a for a, _ in ends[1:]]
    walls = [a.astimezone(local) for a, _ in ends]
    if step == "1d":
        days = [start.astimezone(local).date() + timedelta(days=n) for n in range(len(ends))]
        assert [w.date() for w in walls] == days
    if step == "1mo":
        assert [(w.month, w.day) for w in walls][:4] == [(1, 31), (2, 28), (3, 31), (4, 30)]
    if step == "6h":
        assert {b - a for a, b in ends} == {timedelta(hours=6)}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["load_readings", "--from", "2024-04-02", "--to", "2024-04-02"], "is empty"),
        (["load_readings", "--from", "soon", "--to", "2024-04-02"], "'soon' is not a TimestampTZ"),
        (["load_readings", *RANGE, "--slice", "1000"], "does not go with a column of type"),
        (["load_readings", *RANGE, "--slice", "1fortnight"], "is not a slice"),
        (["load_readings", *RANGE, "--slice", "1s"], "more than 10,000 slices"),
        (["load_readings", *RANGE[:4], "--timezone", "Europe/Bern"], "does not exist"),
        (["load_readings", "--from", "2024-04-02"], "give --from and --to, or --resume ID"),
        (["load_readings", "--resume", "nothing"], "there is no backfill 'nothing'"),
        (["load_counted", *RANGE[:4]], "name one with --column"),
        (["load_counted", *RANGE[:4], "--column", "numbr"], "did you mean 'number'?"),
        (["seen_days", *RANGE[:4], "--column", "day"], "no run can see it again as it was"),
        (["all_counted", "--from", "1", "--to", "2", "--column", "number"], "has no ranges"),
    ],
)
def test_what_has_no_range_is_refused(
    shop: Path, flow: Flow, arguments: list[str], complaint: str
) -> None:
    said = flow("backfill", *arguments)
    assert said.code == 2, said.out
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert query(shop, "SELECT 1 FROM information_schema.tables WHERE table_schema = 'shop'") == []
