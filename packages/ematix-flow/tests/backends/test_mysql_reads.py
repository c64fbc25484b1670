"""MySQL and MariaDB read through Spark, in parts that begin together or in one stream."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from ematix_flow.backends import mysql, mysql_reads, splits
from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.mysql import MySQL
from ematix_flow.backends.mysql_reads import Gate
from ematix_flow.backends.spool import spooling
from ematix_flow.connections import MySQLConnection
from ematix_flow.engine.settings import derive
from harness.mysql import MariaDBHarness, MySQLHarness, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.session import Engine

ROWS = 12_000
BOTH = [
    pytest.param(cls, id=cls.name, marks=pytest.mark.services(cls.service))
    for cls in (MySQLHarness, MariaDBHarness)
]
ALL = "SELECT * FROM held"
TABLES = {
    "a key": ("id BIGINT PRIMARY KEY, x INT", "g * 3, g", "id"),
    "an unsigned key": (
        "id BIGINT UNSIGNED PRIMARY KEY, x INT",
        "9223372036854775000 - g, g",
        "id",
    ),
    "a skewed key": ("id BIGINT PRIMARY KEY, x INT", "IF(g % 100 = 0, g * 1000000, g), g", "id"),
    "a composite key": ("a INT, b INT, x INT, PRIMARY KEY (b, a)", "g % 7, g, g", "b"),
    "instants": (
        "seen TIMESTAMP(6) PRIMARY KEY, id CHAR(36)",
        "TIMESTAMP '2026-03-29 00:00:00' + INTERVAL g * 61 SECOND, UUID()",
        "seen",
    ),
    "days": ("day DATE PRIMARY KEY, x INT", "DATE '1999-12-31' + INTERVAL g DAY, g", "day"),
    "odd names": ("`日 付` INT PRIMARY KEY, `select` INT", "g, g", "日 付"),
}


@pytest.fixture(params=BOTH)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    product = request.param
    held = product(tmp_path, request.getfixturevalue(product.service))
    with contextlib.closing(held):
        yield held.place("origin")


@pytest.fixture
def source(place: Place, monkeypatch: pytest.MonkeyPatch) -> MySQL:
    """The source; two tasks at a time are enough for it, and few rows to be cut."""
    monkeypatch.setattr(splits, "_LEAST_ROWS", ROWS // 12)
    monkeypatch.setattr(mysql_reads, "_LEAST_SLOTS", 2)
    # However busy the machine is.
    monkeypatch.setattr(mysql_reads, "_GATHER_SECONDS", 60.0)
    monkeypatch.setattr(mysql_reads, "_BEGIN_SECONDS", 60.0)
    for module in (mysql, mysql_reads):
        monkeypatch.setattr(module, "configured", lambda: derive(master="local[2]"))
    return MySQL(MySQLConnection(name="origin", url=place.url))


@pytest.fixture
def run_sql(place: Place) -> Callable[..., list[tuple[Any, ...]]]:
    """Asks by a driver of its own, in the source's database."""
    database = place.url.rsplit("/", 1)[1]

    def run(sql: str) -> list[tuple[Any, ...]]:
        with place.connect() as raw, raw.cursor() as cursor:
            cursor.execute(f"USE {database}")
            cursor.execute(sql)
            return list(cursor.fetchall())

    return run


def fill(run_sql: Callable[..., Any], columns: str, values: str) -> None:
    run_sql("CREATE TABLE digits (d INT PRIMARY KEY)")
    run_sql("INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)")
    run_sql(f"CREATE TABLE held ({columns})")
    counted = "SELECT 1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS g " + (
        "FROM digits a, digits b, digits c, digits e, digits f HAVING g <= "
    )
    run_sql(f"INSERT INTO held SELECT {values} FROM ({counted} {ROWS}) AS n ORDER BY g")
    run_sql("ANALYZE TABLE held")


def plain(rows: list[Any]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(str(value) for value in row) for row in rows)


def files(frame: DataFrame) -> int:
    return len([name for name in frame.inputFiles() if name.endswith(".parquet")])


@pytest.mark.parametrize("name", TABLES)
def test_all_parts_together_are_the_table(
    name: str, source: MySQL, run_sql: Callable[..., Any], engine: Engine
) -> None:
    columns, values, splits_by = TABLES[name]
    fill(run_sql, columns, values)
    how = source.how_read(SourceQuery(ALL))
    assert how == f"in 2 splits by {splits_by}, begun together while the table is locked"
    with source.session(read_only=True) as session:
        cuts = mysql_reads.in_parts(source, session, SourceQuery(ALL), 2, spread=False)
        sizes = [
            session.one(f"SELECT count(*) FROM {cuts.rows} WHERE {condition}")
            for condition in cuts.conditions
        ]
    assert sum(sizes) == ROWS
    assert max(sizes) < ROWS * 0.7
    with spooling():
        frame = source.read(engine, SourceQuery(ALL))
        assert files(frame) == 2
        assert plain(frame.collect()) == plain(run_sql(ALL))


def test_a_key_that_may_be_null_has_a_part_for_that(
    source: MySQL, run_sql: Callable[..., Any]
) -> None:
    fill(run_sql, "id INT NULL, KEY (id)", "IF(g % 5 = 0, NULL, g)")
    with source.session(read_only=True) as session:
        cuts = mysql_reads.in_parts(source, session, SourceQuery(ALL), 4, spread=False)
        sizes = [
            session.one(f"SELECT count(*) FROM {cuts.rows} WHERE {condition}")
            for condition in cuts.conditions
        ]
        few = mysql_reads.in_parts(source, session, SourceQuery(ALL), 2, spread=False)
    assert len(sizes) == 4
    assert sum(sizes) == ROWS
    assert sizes[-1] == ROWS // 5
    assert few.how == "in one stream: no index of numbers or times cuts its table evenly"


def test_parts_without_a_row_are_waited_for_too(
    source: MySQL, run_sql: Callable[..., Any], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(run_sql, "id INT PRIMARY KEY, x INT", "g, g")
    cut = mysql_reads.Parts(
        rows="(SELECT id, x, id AS ematix_part FROM held) AS source_query",
        how="",
        conditions=("(ematix_part >= 0)", "(ematix_part < 0)"),
        table="held",
    )
    monkeypatch.setattr(mysql_reads, "in_parts", lambda *_, **__: cut)
    with spooling():
        frame = source.read(engine, SourceQuery(ALL))
        assert files(frame) > 0
        assert plain(frame.collect()) == plain(run_sql(ALL))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT * FROM seen", "it reads a view"),
        ("SELECT * FROM old", "it reads MyISAM"),
        ("SELECT DISTINCT x FROM held", "more than a SELECT from one table"),
        ("SELECT id FROM held ORDER BY id LIMIT 9000", "more than a SELECT from one table"),
        ("SELECT id, UTC_TIMESTAMP() AS x FROM held", "more than a SELECT from one table"),
        ("SELECT * FROM held WHERE id < 100", "there is little to read"),
        ("SELECT * FROM held WHERE id < 4000", "the smaller part of a table"),
        ("SELECT 1 AS ematix_part, id FROM held", "the server says: "),
        ("SELECT * FROM texts", "no index of numbers or times"),
    ],
)
def test_other_queries_are_read_in_one_stream(
    sql: str, reason: str, source: MySQL, run_sql: Callable[..., Any], engine: Engine
) -> None:
    fill(run_sql, "id INT PRIMARY KEY, x INT", "g, g % 9")
    run_sql("CREATE VIEW seen AS SELECT * FROM held")
    run_sql("CREATE TABLE old (id INT PRIMARY KEY) ENGINE=MyISAM")
    run_sql("CREATE TABLE texts (t CHAR(9) PRIMARY KEY)")
    run_sql("INSERT INTO texts SELECT CONCAT('t', id) FROM held")
    run_sql("ANALYZE TABLE texts")
    how = source.how_read(SourceQuery(sql))
    assert how.startswith("in one stream: ")
    assert reason in how
    if "UTC_TIMESTAMP" not in sql:
        rows = source.read(engine, SourceQuery(sql)).collect()
        assert plain(rows) == plain(run_sql(sql))


def test_too_few_tasks_and_a_cluster_are_said(source: MySQL, run_sql: Callable[..., Any]) -> None:
    fill(run_sql, "id INT PRIMARY KEY, x INT", "g, g")
    with source.session(read_only=True) as session:
        one = mysql_reads.in_parts(source, session, SourceQuery(ALL), 1, spread=False)
        far = mysql_reads.in_parts(source, session, SourceQuery(ALL), 8, spread=True)
    assert one.how == "in one stream: Spark runs fewer than 2 tasks at a time"
    assert far.how == "in one stream: the machines of a cluster cannot begin it together"


def test_a_user_who_may_not_lock_reads_in_one_stream(
    place: Place, source: MySQL, run_sql: Callable[..., Any], engine: Engine
) -> None:
    fill(run_sql, "id INT PRIMARY KEY, x INT", "g, g")
    database = place.url.rsplit("/", 1)[1]
    run_sql("CREATE USER IF NOT EXISTS reader IDENTIFIED BY 'only reads'")
    run_sql(f"GRANT SELECT ON {database}.* TO reader")
    where = f"{place.server.host}:{place.server.port}/{database}"
    try:
        reader = MySQL(MySQLConnection(name="reader", url=f"mysql://reader:only%20reads@{where}"))
        assert reader.how_read(SourceQuery(ALL)) == "in one stream: this user may not lock tables"
        assert reader.read(engine, SourceQuery(ALL)).count() == ROWS
    finally:
        run_sql("DROP USER reader")


def test_nobody_writes_while_the_parts_begin(
    place: Place, source: MySQL, run_sql: Callable[..., Any], engine: Engine
) -> None:
    """However long one of them takes: an update waits until all see the same rows."""
    fill(run_sql, "id INT PRIMARY KEY, x INT", "g, g")
    tried: list[str] = []
    gather = Gate._gather

    def writing(gate: Gate, what: str, seconds: float, late: str) -> None:
        if what == "begun":
            with place.connect() as raw, raw.cursor() as cursor:
                cursor.execute(f"USE {place.url.rsplit('/', 1)[1]}")
                cursor.execute("SET SESSION lock_wait_timeout = 1")
                try:
                    cursor.execute("UPDATE held SET x = 0")
                    tried.append("written")
                except pymysql.OperationalError as error:
                    tried.append(str(error.args[0]))
        gather(gate, what, seconds, late)

    with pytest.MonkeyPatch.context() as patch, spooling():
        patch.setattr(Gate, "_gather", writing)
        frame = source.read(engine, SourceQuery(ALL))
        assert tried == ["1205"]
        assert files(frame) == 2
        assert sum(row["x"] for row in frame.collect()) == ROWS * (ROWS + 1) // 2


def test_a_sum_that_writers_keep_is_the_same_in_every_read(
    source: MySQL, run_sql: Callable[..., Any], engine: Engine
) -> None:
    """The writer moves amounts from one part to the other, so any other moment has another sum."""
    fill(run_sql, "id INT PRIMARY KEY, amount INT", "g, 100")
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            run_sql(f"UPDATE held SET amount = amount + IF(id <= {ROWS // 2}, -1, 1)")

    assert " splits by id" in source.how_read(SourceQuery(ALL))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            with spooling():
                frame = source.read(engine, SourceQuery(ALL))
                assert files(frame) == 2
                rows = frame.collect()
                assert sorted(row["id"] for row in rows) == list(range(1, ROWS + 1))
                assert sum(row["amount"] for row in rows) == 100 * ROWS
                # However often they are asked for, they are the rows of that moment.
                assert plain(frame.collect()) == plain(rows)
    finally:
        ended.set()
        writer.join()


def test_one_stream_sees_one_moment_too(
    source: MySQL, run_sql: Callable[..., Any], engine: Engine
) -> None:
    fill(run_sql, "id CHAR(9) PRIMARY KEY, amount INT", "CONCAT('n', g), 100")
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            run_sql("UPDATE held SET amount = amount + IF(id < 'n3', -1, 1)")
            run_sql("UPDATE held SET amount = amount + IF(id < 'n3', 1, -1)")

    found = run_sql("SELECT sum(IF(id < 'n3', -1, 1)) FROM held")[0][0]
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            rows = source.read(engine, SourceQuery(ALL)).collect()
            assert len(rows) == ROWS
            assert sum(row["amount"] for row in rows) - 100 * ROWS in (0, found)
    finally:
        ended.set()
        writer.join()


def test_a_table_that_cannot_be_locked_soon_is_read_in_one_stream(
    place: Place,
    source: MySQL,
    run_sql: Callable[..., Any],
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(run_sql, "id INT PRIMARY KEY, amount INT", "g, 100")
    with place.connect() as raw, raw.cursor() as cursor:
        cursor.execute(f"USE {place.url.rsplit('/', 1)[1]}")
        cursor.execute("BEGIN")
        cursor.execute("UPDATE held SET amount = 0 WHERE id = 7")
        with spooling():
            rows = source.read(engine, SourceQuery(ALL)).collect()
        cursor.execute("ROLLBACK")
    assert sum(row["amount"] for row in rows) == 100 * ROWS
    assert "read in one stream: the server says: " in caplog.text
    # Nobody holds the table any longer.
    run_sql("UPDATE held SET amount = 1 WHERE id = 7")


def test_who_comes_late_is_not_let_in(source: MySQL, run_sql: Callable[..., Any]) -> None:
    fill(run_sql, "id INT PRIMARY KEY, x INT", "g, g")
    table = ".".join(f"`{part}`" for part in (source.address()["database"], "held"))
    gate = Gate(source, table, 2)
    parts = [source.connect() for _ in range(2)]
    failed: list[Exception] = []

    def begin(part: int) -> None:
        try:
            for statement in gate.before(part):
                source.run(parts[part], statement, ())
        except Exception as error:  # noqa: BLE001 - looked at below
            failed.append(error)

    tasks = [threading.Thread(target=begin, args=(part,)) for part in range(2)]
    with gate.watched():
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
        # The table is locked only while they begin.
        run_sql("UPDATE held SET x = -1 WHERE id = 5")
    assert failed == []
    assert gate.missed is None
    for raw in parts:
        assert source.rows(raw, "SELECT x FROM held WHERE id = 5", ()) == [(5,)]
        raw.close()
    *others, last, _ = gate.before(0)
    with contextlib.closing(source.connect()) as late:
        for statement in others:
            source.run(late, statement, ())
        with pytest.raises(pymysql.OperationalError, match="1242"):
            source.run(late, last, ())
