"""From one PostgreSQL database to another: rows are copied as they are, and land as by Spark."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest

from ematix_flow import (
    JSON,
    UUID,
    Array,
    BigInt,
    Boolean,
    Bytes,
    Date,
    Double,
    Float,
    Integer,
    ManagedTable,
    Numeric,
    PostgresConnection,
    SmallInt,
    SQLiteConnection,
    String,
    Text,
    Time,
    Timestamp,
    TimestampTZ,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.postgres import Postgres
from ematix_flow.backends.postgres_relay import Line, Relay, require_known
from ematix_flow.backends.spool import spooling
from ematix_flow.engine.failures import translate
from ematix_flow.engine.session import shared_engine
from ematix_flow.errors import BadValue, DataError, DuplicateKeys, EmatixError, Transient
from ematix_flow.run.backfill import Request, plan_backfill, run_slices
from ematix_flow.run.batch import run_pipeline
from ematix_flow.run.change_sets import apply_plan, plan_changes, read_plan_file
from ematix_flow.sql.normalizers import CannotMatch
from harness.postgres import PostgresHarness
from oracle.hashing import row_hash

pytestmark = pytest.mark.services("postgres")

SOURCE = """
CREATE SCHEMA app;
CREATE TABLE app.things (
    id bigint PRIMARY KEY, small smallint, whole integer, single real, double double precision,
    exact numeric(38, 10), flag boolean, words text, short varchar(8), day date, clock time,
    naive timestamp, instant timestamptz, document json, identity uuid, raw bytea,
    numbers bigint[], labels varchar(4)[]
);
INSERT INTO app.things (id) VALUES (1);
INSERT INTO app.things VALUES
    (2, -32768, -2147483648, 1.5, 0.1, -1234567890123456789012345678.0123456789, false, '', '',
     '1600-01-01', '00:00', '1900-01-01', '1900-01-01Z', '{}',
     '00000000-0000-0000-0000-000000000000', '', '{}', '{}'),
    (3, 32767, 2147483647, '-0', 1.7976931348623157e308, 0.0000000001, true,
     E'日付 😀 "quoted", ''single'' \\\\ back \t tab\n line; ~ = ', 'ünïcode', '9999-12-31',
     '23:59:59.999999', '2024-02-29 12:34:56.123456', '2038-01-19 03:14:08.000001Z',
     '{"a": [1, 2.5, null, "x"]}', '6ba7b810-9dad-11d1-80b4-00c04fd430c8', '\\x00ff7e3b',
     '{1,NULL,-9223372036854775808}', '{"",NULL,"a,b","{}"}'),
    (4, 0, 0, 'NaN', '-Infinity', 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL),
    (5, 1, 1, 1e-45, 5e-324, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL),
    (6, 1, 1, 16777217, 2.2250738585072014e-308, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL);
"""


def things(name: str) -> type[ManagedTable]:
    class Things:
        id: Annotated[BigInt, pk()]
        small: SmallInt | None
        whole: Integer | None
        single: Float | None
        double: Double | None
        exact: Numeric[38, 10] | None
        flag: Boolean | None
        words: Text | None
        short: String[8] | None
        day: Date | None
        clock: Time | None
        naive: Timestamp | None
        instant: TimestampTZ | None
        document: JSON | None
        identity: UUID | None
        raw: Bytes | None
        numbers: Array[BigInt] | None
        labels: Array[String[4]] | None

    return ematix.table(schema="mart", name=name)(Things)


def hashed(name: str) -> type[ManagedTable]:
    """What PostgreSQL can compute a row's hash of."""

    class Hashed:
        id: Annotated[BigInt, pk()]
        single: Float | None
        double: Double | None
        exact: Numeric[38, 10] | None
        flag: Boolean | None
        words: Text | None
        short: String[8] | None
        day: Date | None
        naive: Timestamp | None
        instant: TimestampTZ | None
        identity: UUID | None
        raw: Bytes | None

    return ematix.table(schema="mart", name=name)(Hashed)


@ematix.table(schema="mart")
class Numbers:
    id: Annotated[BigInt, pk()]
    note: String[8]
    ratio: Double | None


@pytest.fixture
def server(tmp_path: Path, postgres: Any) -> Iterator[PostgresHarness]:
    with contextlib.closing(PostgresHarness(tmp_path, postgres)) as held:
        register_connection(held.connection("origin"))
        register_connection(held.connection("target"))
        yield held


def asked(server: PostgresHarness, name: str, sql: str) -> list[tuple[Any, ...]]:
    url = server.connection(name).resolved().fields()["url"]
    with psycopg.connect(url, autocommit=True, options="-c TimeZone=UTC -c DateStyle=ISO") as raw:
        cursor = raw.execute(sql)
        return cursor.fetchall() if cursor.description else []


def pipeline(table: Any, sql: str, **options: Any) -> Any:
    options = {"source_connection": "origin", **options}

    @ematix.pipeline(target=table, target_connection="target", **options)
    def copied(conn: Any) -> str:
        return sql

    return copied


def landed(server: PostgresHarness, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
    # As text, so that NaN and minus zero are seen.
    return asked(server, "target", f"SELECT t::text FROM (SELECT {columns} FROM mart.{name}) t")


LISTED = (
    "id, small, whole, single, double, exact, flag, words, short, day, clock, naive, instant, "
    "document, identity, raw, numbers, labels"
)
HASHED = (
    "id, single, double, exact, flag, words, short, day, naive, instant, identity, raw, "
    "row_hash, is_current"
)


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
def test_copied_and_through_spark_land_alike(
    server: PostgresHarness, engine: object, mode: str
) -> None:
    asked(server, "origin", SOURCE)
    columns = HASHED if mode == "scd2" else LISTED
    found = {}
    for path, forced in (("copy", None), ("spark", "spark")):
        table = (hashed if mode == "scd2" else things)(f"things_{path}")
        load = pipeline(table, "SELECT * FROM app.things", mode=mode, force_path=forced, name=path)
        first = load.sync()
        assert (first.path, first.counts.inserted) == (path, 6)
        seen = [sorted(landed(server, f"things_{path}", columns))]
        if mode != "append":
            asked(server, "origin", "UPDATE app.things SET double = double + 1 WHERE id = 2")
            again = load.sync()
            assert again.path == path
            seen.append(sorted(landed(server, f"things_{path}", columns)))
            asked(server, "origin", "UPDATE app.things SET double = 0.1 WHERE id = 2")
        found[path] = seen
    assert found["copy"] == found["spark"]
    assert server.litter(server.connection("target")) == []


def in_latin(server: PostgresHarness, name: str) -> None:
    """A database beside the others that does not hold its text in UTF-8."""
    url = f"{server.connection('origin').resolved().fields()['url']}_{name}"
    made = url.rsplit("/", 1)[1]
    asked(
        server,
        "origin",
        f"CREATE DATABASE {made} ENCODING LATIN1 TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
    )
    server._urls[name] = url
    register_connection(server.connection(name))


TIMES = """
CREATE TABLE times AS SELECT g::bigint id, date '2026-02-03' + g AS day,
    timestamp '2026-02-03 04:05:06' + g * interval '0.0103 s' AS naive,
    timestamptz '2026-02-03 23:05:06+05' + g * interval '0.25 s' AS instant, 'é😀;~=' || g AS words
FROM generate_series(1, 200) g
"""


PREFERRED = (
    "datestyle = 'SQL, DMY'",
    "timezone = 'Asia/Tokyo'",
    # Rows are then read by workers, which know less of what a session was told.
    "min_parallel_table_scan_size = 0",
    "parallel_leader_participation = off",
)


@pytest.mark.parametrize("source", ["origin", "target", "latin"])
def test_a_hash_is_the_same_whatever_a_database_prefers(
    server: PostgresHarness, source: str
) -> None:
    times = TIMES
    if source == "latin":
        in_latin(server, source)
        times = TIMES.replace("😀", "")
    asked(server, source, times)
    for name in {source, "target"}:
        for preferred in PREFERRED:
            database = server.connection(name).resolved().fields()["url"].rsplit("/", 1)[1]
            asked(server, name, f'ALTER DATABASE "{database}" SET {preferred}')

    @ematix.table(schema="mart", name="times")
    class Times:
        id: Annotated[BigInt, pk()]
        day: Date
        naive: Timestamp
        instant: TimestampTZ
        words: Text

    result = pipeline(Times, "SELECT * FROM times", mode="scd2", source_connection=source).sync()
    assert result.path == ("same_db" if source == "target" else "copy")
    names = ("id", "day", "naive", "instant", "words")
    rows = asked(server, "target", f"SELECT {', '.join(names)}, row_hash FROM mart.times")
    assert len(rows) == 200
    for *values, found in rows:
        assert found == row_hash(dict(zip(names, values, strict=True)))


def test_a_new_table_has_everything_that_was_declared(server: PostgresHarness) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")
    result = pipeline(Numbers, "SELECT * FROM n", mode="merge").sync()
    assert (result.path, result.counts.read, result.counts.inserted) == ("copy", 1, 1)
    columns = asked(
        server,
        "target",
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, atthasdef "
        "FROM pg_attribute "
        "WHERE attrelid = 'mart.numbers'::regclass AND attnum > 0 ORDER BY attnum",
    )
    assert columns == [
        ("id", "bigint", True, False),
        ("note", "character varying(8)", True, False),
        ("ratio", "double precision", False, False),
        ("_run_id", "uuid", True, False),
        ("_loaded_at", "timestamp with time zone", True, False),
    ]
    kept = asked(
        server,
        "target",
        "SELECT conname, contype::text, relpersistence::text FROM pg_constraint c "
        "JOIN pg_class t ON t.oid = c.conrelid WHERE conrelid = 'mart.numbers'::regclass",
    )
    assert kept == [("numbers_pkey", "p", "p")]
    assert asked(server, "target", "SELECT _run_id::text FROM mart.numbers") == [(result.run_id,)]


@pytest.fixture
def loose(tmp_path: Path) -> sqlite3.Connection:
    """A database whose columns hold any text, whatever their type."""
    register_connection(SQLiteConnection(name="loose", path=str(tmp_path / "loose.db")))
    database = sqlite3.connect(tmp_path / "loose.db", isolation_level=None)
    database.execute("CREATE TABLE held (id INTEGER PRIMARY KEY, identity UUID, clock TIME)")
    return database


@pytest.mark.parametrize("wrong", [("n/a", "09:30:00"), (None, "12:75:00"), (None, "soon")])
def test_text_that_only_claims_to_be_of_a_type_is_refused(
    server: PostgresHarness, loose: sqlite3.Connection, engine: object, wrong: tuple[Any, ...]
) -> None:
    @ematix.table(schema="mart", name="held")
    class Held:
        id: BigInt
        identity: UUID | None
        clock: Time | None

    query = "SELECT id, identity, clock FROM held"
    load = pipeline(Held, query, source_connection="loose", name="held")
    loose.execute("INSERT INTO held VALUES (1, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '09:30')")
    result = load.sync()
    assert (result.path, result.counts.inserted) == ("spark", 1)
    assert result.bytes > 0
    rows = landed(server, "held", "id, identity, clock")
    assert rows == [("(1,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,09:30:00)",)]
    loose.execute("INSERT INTO held VALUES (2, ?, ?)", wrong)
    with pytest.raises(DataError, match=r"column '(identity|clock)': the value .* is not a valid"):
        load.sync()
    assert landed(server, "held", "id, identity, clock") == rows
    loose.close()


REFUSED = {
    "a key twice": ("SELECT 7::bigint id, 'a' note FROM generate_series(1, 2)", DuplicateKeys),
    "too long": ("SELECT 1::bigint id, 'much too long' note", BadValue),
    "missing": ("SELECT 1::bigint id, NULL::text note", BadValue),
    "source fails": ("SELECT 1::bigint / (id - 3) id, 'a' note FROM n", BadValue),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_leaves_nothing(server: PostgresHarness, case: str) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT g::bigint id FROM generate_series(1, 9) g")
    sql, kind = REFUSED[case]
    load = pipeline(Numbers, f"SELECT id, note, NULL::float8 ratio FROM ({sql}) x", mode="merge")
    with pytest.raises(kind) as refused:
        load.sync()
    told = str(refused.value)
    assert "stage_" not in told
    assert ("'origin'" in told) == (case == "source fails")
    if case == "a key twice":
        assert "id=7 (2 rows)" in told
    assert not server.exists(server.connection("target"), Numbers.__table__.name)
    assert server.litter(server.connection("target")) == []


def test_a_schema_that_grants_by_default_grants_on_the_new_table(server: PostgresHarness) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")
    asked(server, "target", "CREATE SCHEMA mart")
    asked(
        server, "target", "ALTER DEFAULT PRIVILEGES IN SCHEMA mart GRANT SELECT ON TABLES TO public"
    )
    assert pipeline(Numbers, "SELECT * FROM n").sync().path == "copy"
    granted = "SELECT has_table_privilege('public', 'mart.numbers', 'select')"
    assert asked(server, "target", granted) == [(True,)]


def test_a_dry_run_counts_and_leaves_nothing(server: PostgresHarness) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")
    load = pipeline(Numbers, "SELECT * FROM n", mode="merge")
    counted = run_pipeline(load.spec, trigger="python", dry_run=True)
    assert (counted.path, counted.counts.inserted) == ("copy", 1)
    assert not server.exists(server.connection("target"), Numbers.__table__.name)
    assert asked(server, "target", "SELECT 1 FROM pg_namespace WHERE nspname = 'mart'") == []
    assert server.litter(server.connection("target")) == []


def test_preview_says_that_rows_are_copied(server: PostgresHarness) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")
    preview = pipeline(Numbers, "SELECT * FROM n").preview()
    assert preview.path == "copy"
    assert preview.path_reason == (
        "source and target are both postgres databases, and nothing needs Spark"
    )
    assert any("copied from this query of origin" in step for step in preview.steps)


def test_what_only_libpq_understands_goes_through_spark(
    server: PostgresHarness, engine: object
) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")
    url = server.connection("origin").resolved().fields()["url"]
    register_connection(PostgresConnection(name="tuned", url=f"{url}?keepalives_idle=30"))
    preview = pipeline(Numbers, "SELECT * FROM n", source_connection="tuned").preview()
    assert (preview.path, "keepalives_idle" in preview.path_reason) == ("spark", True)


@pytest.mark.parametrize(
    ("version", "given", "copied"),
    [
        ((3, 10, 13), {}, False),
        ((3, 10, 13), {"sslmode": "require"}, False),
        ((3, 10, 13), {"sslmode": "disable"}, True),
        ((3, 10, 13), {"host": "/run/postgresql"}, True),
        ((3, 11, 0), {"sslmode": "require"}, True),
    ],
)
def test_what_asyncpg_cannot_do_on_an_old_python_is_not_asked_of_it(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], given: dict[str, str], copied: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", version)
        with contextlib.nullcontext() if copied else pytest.raises(CannotMatch, match="Python 3"):
            require_known({"host": "db", **given})


def test_a_source_that_goes_away_leaves_nothing(server: PostgresHarness) -> None:
    busy = "SELECT g::bigint id, 'a' note, 0.5::float8 ratio FROM generate_series(1, 50000000) g"

    def cut(point: str) -> None:
        if point == "staging":
            cutter.start()

    url = server.connection("origin").resolved().fields()["url"]

    def terminate() -> None:
        with psycopg.connect(url, autocommit=True) as raw:
            ended: list[Any] = []
            while not ended:
                ended = raw.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE query LIKE 'COPY %' AND state = 'active' AND pid <> pg_backend_pid() "
                    "AND datname = current_database()"
                ).fetchall()

    cutter = threading.Thread(target=terminate)
    load = pipeline(Numbers, busy)
    with pytest.raises(Transient):
        run_pipeline(load.spec, trigger="python", announce=cut)
    cutter.join()
    assert not server.exists(server.connection("target"), Numbers.__table__.name)
    assert server.litter(server.connection("target")) == []


CHILD = """
import os, signal, sys
from typing import Annotated
from ematix_flow import BigInt, Double, PostgresConnection, String, ematix, pk, register_connection
from ematix_flow.run.backfill import Request, plan_backfill, run_slices
from ematix_flow.run.batch import run_pipeline
register_connection(PostgresConnection(name="origin", url=sys.argv[1]))
register_connection(PostgresConnection(name="target", url=sys.argv[2]))

@ematix.table(schema="mart", name="numbers")
class Numbers:
    id: Annotated[BigInt, pk()]
    note: String[8]
    ratio: Double | None

@ematix.pipeline(target=Numbers, source_connection="origin", target_connection="target",
                 mode="merge", name="copied")
def copied(conn):
    return "SELECT * FROM n"

def killed(point):
    if point == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

run_pipeline(copied.spec, trigger="python", announce=killed)
"""


@pytest.mark.parametrize("point", ["staging", "staged", "committing", "applied revise"])
def test_a_killed_copy_is_swept_and_done_again(server: PostgresHarness, point: str) -> None:
    asked(
        server,
        "origin",
        "CREATE TABLE n AS SELECT g::bigint id, 'a' note, 0.5::float8 ratio "
        "FROM generate_series(1, 1000) g",
    )
    urls = [server.connection(n).resolved().fields()["url"] for n in ("origin", "target")]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *urls, point], check=False, env=dict(os.environ)
    )
    assert child.returncode == -signal.SIGKILL
    result = pipeline(Numbers, "SELECT * FROM n", mode="merge", name="copied").sync()
    assert result.counts.inserted == 1000
    assert asked(server, "target", "SELECT count(*), sum(id) FROM mart.numbers") == [(1000, 500500)]
    assert server.litter(server.connection("target")) == []


def test_a_copy_works_inside_a_running_loop(server: PostgresHarness) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")

    async def notebook() -> str:
        return str(pipeline(Numbers, "SELECT * FROM n").sync().path)

    assert asyncio.run(notebook()) == "copy"


def test_a_server_that_does_not_answer_is_named(server: PostgresHarness) -> None:
    origin, target = (Postgres(server.connection(name)) for name in ("origin", "target"))
    line = Line({**origin.conninfo(), "port": 1}, target.conninfo())
    relay = Relay(line, source_error=origin.translate, target_error=target.translate)
    relay.begin("SELECT 1")
    with pytest.raises(Transient, match=r"connection 'origin'.*check that the server is up"):
        relay.copy("public", "nowhere", ["n"])
    assert not relay.done


def test_settings_that_both_drivers_know_are_kept(server: PostgresHarness) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")
    url = server.connection("origin").resolved().fields()["url"]
    register_connection(
        PostgresConnection(
            name="plain", url=f"{url}?sslmode=disable&connect_timeout=5&application_name=mine"
        )
    )
    loaded = pipeline(Numbers, "SELECT * FROM n", source_connection="plain").sync()
    assert (loaded.path, loaded.counts.inserted) == ("copy", 1)


def test_settings_that_only_libpq_knows_are_kept(server: PostgresHarness, engine: object) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")
    url = server.connection("target").resolved().fields()["url"]
    register_connection(
        PostgresConnection(
            name="tuned", url=f"{url}?application_name=mine&options=-c%20statement_timeout%3D60000"
        )
    )

    @ematix.pipeline(target=Numbers, source_connection="origin", target_connection="tuned")
    def copied(conn: Any) -> str:
        return "SELECT * FROM n"

    loaded = copied.sync()
    assert (loaded.path, loaded.counts.inserted) == ("spark", 1)


def test_what_the_url_demands_of_the_line_is_demanded_by_spark_too(
    server: PostgresHarness, engine: object
) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")
    origin = Postgres(server.connection("origin"))
    url = server.connection("origin").resolved().fields()["url"]
    # The server speaks no TLS: whoever insists on it must not read.
    strict = Postgres(PostgresConnection(name="strict", url=f"{url}?sslmode=require"))
    strict.session = origin.session  # type: ignore[method-assign]
    with spooling():
        assert origin.read(shared_engine(), SourceQuery("SELECT id FROM n")).count() == 1
        with pytest.raises(Exception, match="JDBC") as refused:
            strict.read(shared_engine(), SourceQuery("SELECT id FROM n")).count()
    assert "does not support SSL" in str(translate(refused.value))


EVENTS = """
CREATE TABLE events (k bigint, at timestamptz, name text, op text);
INSERT INTO events VALUES (1, '2026-01-01Z', 'a', 'I'), (1, '2026-01-03Z', 'c', 'U'),
    (2, '2026-01-01Z', 'x', 'I'), (2, '2026-01-02Z', 'x', 'D'), (3, '2026-01-01Z', 'same', 'I');
"""
LATE = """
INSERT INTO events VALUES (1, '2026-01-02Z', 'b', 'U'), (2, '2026-01-04Z', 'y', 'I'),
    (3, '2026-01-05Z', 'same', 'U')
"""


def events(name: str) -> type[ManagedTable]:
    class Events:
        k: Annotated[BigInt, pk()]
        at: TimestampTZ
        name: Text | None

    return ematix.table(schema="mart", name=name)(Events)


def test_a_history_of_copied_events_is_the_same(server: PostgresHarness, engine: object) -> None:
    asked(server, "origin", EVENTS)
    loads = {
        path: pipeline(
            events(f"events_{path}"),
            "SELECT * FROM events",
            name=path,
            mode="scd2",
            event_timestamp_column="at",
            delete_when="op = 'D'",
            force_path=forced,
        )
        for path, forced in (("copy", None), ("spark", "spark"))
    }
    columns = "k, at, name, valid_from, valid_to, is_current, row_hash"
    for late in ("", LATE):
        if late:
            asked(server, "origin", late)
        found = {}
        for path, load in loads.items():
            assert load.sync().path == path
            found[path] = sorted(landed(server, f"events_{path}", columns))
        assert found["copy"] == found["spark"]
    assert len(found["copy"]) == 6
    assert server.litter(server.connection("target")) == []


def test_a_plan_of_copied_rows_is_applied(server: PostgresHarness, tmp_path: Path) -> None:
    asked(server, "origin", "CREATE TABLE n AS SELECT 1::bigint id, 'a' note, 0.5::float8 ratio")
    load = pipeline(Numbers, "SELECT * FROM n", mode="merge")
    load.sync()
    asked(server, "origin", "UPDATE n SET note = 'b'; INSERT INTO n VALUES (2, 'c', NULL)")
    made = plan_changes(load.spec, kept=True)
    (changes,) = made.targets
    assert (changes.path, changes.counts.inserted, changes.counts.updated) == ("copy", 1, 1)
    assert asked(server, "target", "SELECT note FROM mart.numbers") == [("a",)]
    made.save(tmp_path / "plan.json")
    saved = read_plan_file(tmp_path / "plan.json")
    asked(server, "origin", "UPDATE n SET note = 'd' WHERE id = 2")
    with pytest.raises(EmatixError, match="source"):
        apply_plan(saved, load.spec)
    assert asked(server, "target", "SELECT note FROM mart.numbers") == [("a",)]
    asked(server, "origin", "UPDATE n SET note = 'c' WHERE id = 2")
    assert apply_plan(saved, load.spec).path == "copy"
    assert asked(server, "target", "SELECT note FROM mart.numbers ORDER BY id") == [("b",), ("c",)]


@ematix.table(schema="mart")
class Visits:
    id: Annotated[BigInt, pk()]
    at: TimestampTZ


def test_a_range_is_copied_again(server: PostgresHarness) -> None:
    asked(
        server,
        "origin",
        "CREATE TABLE visits AS SELECT g::bigint id, timestamptz '2026-01-01Z' + g * interval "
        "'12 hours' AS at FROM generate_series(0, 9) g",
    )
    load = pipeline(
        Visits, "SELECT * FROM visits", mode="merge", incremental=True, watermark_column="at"
    )
    assert load.sync().path == "copy"
    asked(server, "origin", "DELETE FROM visits WHERE id IN (1, 3, 8)")
    planned = plan_backfill(load.spec, Request("2026-01-02", "2026-01-03"), again=True)
    assert [one.result.path for one in run_slices(planned)] == ["copy"]
    # Of the rows that are gone, only the one in the range is missed.
    kept = asked(server, "target", "SELECT id FROM mart.visits ORDER BY id")
    assert [number for (number,) in kept] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
