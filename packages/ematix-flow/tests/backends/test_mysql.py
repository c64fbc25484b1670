"""What is particular to MySQL and MariaDB: tables before transactions, collations, types."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlglot import exp, parse_one

from crash.line import connect
from ematix_flow import (
    JSON,
    BigInt,
    Bytes,
    DuckDBConnection,
    EmatixError,
    MySQLConnection,
    String,
    Text,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.backends import mysql
from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.loading import load_backend
from ematix_flow.backends.mysql import MySQL
from ematix_flow.backends.mysql_session import Server, arguments, sql_mode
from ematix_flow.backends.mysql_windows import windows_apart
from ematix_flow.errors import (
    BadValue,
    ConfigError,
    EmptySource,
    Permanent,
    Transient,
    Unsupported,
)
from ematix_flow.pipeline import Pipeline
from ematix_flow.run.batch import run_pipeline
from harness.mysql import MariaDBHarness, MySQLHarness

BOTH = [
    pytest.param(cls, id=cls.name, marks=pytest.mark.services(cls.service))
    for cls in (MySQLHarness, MariaDBHarness)
]
SCHEMA = "event_id BIGINT, name STRING"
Load = Callable[..., Pipeline]


@ematix.table(schema="shop")
class Events:
    event_id: BigInt
    name: Text | None


@ematix.table(schema="shop")
class Named:
    name: Annotated[Text, pk()]
    size: BigInt | None


@pytest.fixture(params=BOTH)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MySQLHarness]:
    held = request.param(tmp_path, request.getfixturevalue(request.param.service))
    with contextlib.closing(held):
        yield held


@pytest.fixture
def load(backend: MySQLHarness, engine: object) -> Load:
    """Declares a pipeline that loads Python rows."""
    register_connection(backend.connection("target"))
    register_connection(DuckDBConnection(name="rows", path=str(backend.folder / "rows.duckdb")))

    def declare(table: Any, rows: list[tuple[Any, ...]], schema: str, **options: Any) -> Pipeline:
        @ematix.pipeline(
            target=table, source_connection="rows", target_connection="target", **options
        )
        def loading(spark: Any) -> Any:
            return spark.createDataFrame(rows, schema)

        return loading

    return declare


def asked(backend: MySQLHarness, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return backend.place("target").run(sql, *parameters)[1]


def product(backend: MySQLHarness) -> MySQL:
    found = load_backend(backend.connection("target"))
    assert isinstance(found, MySQL)
    return found


def databases(backend: MySQLHarness) -> set[str]:
    found = asked(backend, "SELECT schema_name FROM information_schema.schemata")
    return {name for (name,) in found}


def test_a_first_commit_that_is_refused_leaves_no_table(backend: MySQLHarness, load: Load) -> None:
    with pytest.raises(EmptySource):
        load(Events, [], SCHEMA, mode="truncate").sync()
    assert not backend.exists(backend.connection("target"), Events.__table__.name)
    load(Events, [(1, "a")], SCHEMA, mode="truncate").sync()
    with pytest.raises(EmptySource):
        load(Events, [], SCHEMA, mode="truncate").sync()
    assert asked(backend, "SELECT event_id FROM shop.events") == [(1,)]


def test_a_run_goes_on_from_a_table_that_a_killed_one_has_created(
    backend: MySQLHarness, load: Load
) -> None:
    pipeline = load(Events, [(1, "a"), (2, None)], SCHEMA)
    for statement in pipeline.preview().ddl:
        asked(backend, statement)
    assert pipeline.sync().counts.inserted == 2
    assert asked(backend, "SELECT count(*) FROM shop.events") == [(2,)]


def test_a_dry_run_leaves_no_database_behind(backend: MySQLHarness, load: Load) -> None:
    before = databases(backend)
    assert load(Events, [(1, "a")], SCHEMA).dry_run().counts.inserted == 1
    assert databases(backend) == before


def test_a_server_that_takes_no_files_gets_statements(backend: MySQLHarness, load: Load) -> None:
    @ematix.table(schema="shop")
    class Mixed:
        number: BigInt
        text: Text | None
        raw: Bytes | None

    texts = ["", None, "\\N", "\\", "'", "tab\tline\nreturn\r", "nul\0", "😀", "%s"]
    rows = [(n, text, text if text is None else text.encode()) for n, text in enumerate(texts)]
    asked(backend, "SET GLOBAL local_infile = 0")
    try:
        load(Mixed, rows, "number BIGINT, text STRING, raw BINARY").sync()
    finally:
        asked(backend, "SET GLOBAL local_infile = 1")
    assert asked(backend, "SELECT number, text, raw FROM shop.mixed ORDER BY number") == [
        (n, text, text if text is None else text.encode()) for n, text in enumerate(texts)
    ]


def test_a_value_that_the_column_cannot_hold_is_no_warning(
    backend: MySQLHarness, load: Load
) -> None:
    """A file that a client sends is loaded with what fits, unless somebody looks."""

    @ematix.table(schema="shop")
    class Dated:
        at: Annotated[String[40], pk()]

    asked(backend, "CREATE DATABASE shop")
    asked(backend, "CREATE TABLE shop.dated (at varchar(40) CHARACTER SET latin1 NOT NULL)")
    asked(backend, "ALTER TABLE shop.dated ADD PRIMARY KEY (at)")
    with pytest.raises(EmatixError, match="at"):
        load(Dated, [("日付",)], "at STRING", mode="merge").sync()
    assert asked(backend, "SELECT * FROM shop.dated") == []
    assert backend.litter(backend.connection("target")) == []


def test_text_may_be_a_key(backend: MySQLHarness, load: Load) -> None:
    rows = [("a", 1), ("A", 2), ("a ", 3), ("á", 4)]
    load(Named, rows, "name STRING, size BIGINT", mode="merge").sync()
    again = load(Named, [("a", 10), ("a ", 3)], "name STRING, size BIGINT", mode="merge").sync()
    assert (again.counts.updated, again.counts.unchanged) == (1, 1)
    found = asked(backend, "SELECT name, size FROM shop.named ORDER BY size")
    assert found == [("A", 2), ("a ", 3), ("á", 4), ("a", 10)]
    with pytest.raises(BadValue, match="name"):
        load(Named, [("x" * 256, 1)], "name STRING, size BIGINT", mode="merge").sync()


def test_keys_that_no_index_can_hold_are_refused(backend: MySQLHarness, load: Load) -> None:
    @ematix.table(schema="shop")
    class Long:
        code: Annotated[String[800], pk()]

    @ematix.table(schema="shop")
    class Documents:
        body: Annotated[JSON, pk()]

    with pytest.raises(Unsupported, match="3200 bytes"):
        load(Long, [("a",)], "code STRING").sync()
    with pytest.raises(Unsupported, match="'body'"):
        load(Documents, [("{}",)], "body STRING").sync()


def test_a_foreign_table_keeps_its_own_idea_of_keys_and_loses_no_change(
    backend: MySQLHarness, load: Load
) -> None:
    @ematix.table(schema="shop")
    class Codes:
        code: Annotated[String[20], pk()]
        label: String[20] | None

    asked(backend, "CREATE DATABASE shop")
    asked(
        backend,
        "CREATE TABLE shop.codes (code varchar(20) PRIMARY KEY, label varchar(20)) "
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    )
    asked(backend, "INSERT INTO shop.codes VALUES ('ab', 'same'), ('cd', 'case')")
    result = load(
        Codes,
        [("AB", "same"), ("cd", "Case"), ("ef", "new")],
        "code STRING, label STRING",
        mode="merge",
    ).sync()
    counts = result.counts
    assert (counts.inserted, counts.updated, counts.unchanged) == (1, 1, 1)
    found = asked(backend, "SELECT code, label FROM shop.codes ORDER BY code")
    assert found == [("ab", "same"), ("cd", "Case"), ("ef", "new")]


def test_a_column_that_comes_to_allow_null_keeps_all_else(
    backend: MySQLHarness, load: Load
) -> None:
    @ematix.table(schema="shop")
    class Labels:
        id: Annotated[BigInt, pk()]
        label: String[20] | None

    asked(backend, "CREATE DATABASE shop")
    asked(
        backend,
        "CREATE TABLE shop.labels (id bigint PRIMARY KEY, label varchar(20) CHARACTER SET latin1 "
        "NOT NULL DEFAULT 'none' COMMENT 'NOT NULL once')",
    )
    load(Labels, [(1, None)], "id BIGINT, label STRING", on_drift="evolve").sync()
    found = asked(
        backend,
        "SELECT is_nullable, character_set_name, column_comment, column_default LIKE '%none%' "
        "FROM information_schema.columns WHERE table_name = 'labels' AND column_name = 'label'",
    )
    assert found == [("YES", "latin1", "NOT NULL once", 1)]
    assert asked(backend, "SELECT * FROM shop.labels") == [(1, None)]


def test_windows_inside_expressions_are_computed_right(backend: MySQLHarness) -> None:
    asked(backend, "CREATE DATABASE shop")
    asked(backend, "CREATE TABLE shop.states (t int, gone boolean, a int)")
    asked(backend, "INSERT INTO shop.states VALUES (1, FALSE, 7), (2, FALSE, 7), (3, FALSE, 8)")
    query = parse_one(
        "SELECT s.t, CASE WHEN s.gone IS DISTINCT FROM LAG(s.gone) OVER (ORDER BY s.t) "
        "OR (NOT s.gone AND s.a IS DISTINCT FROM LAG(s.a) OVER (ORDER BY s.t)) THEN 1 ELSE 0 END "
        "AS starts FROM shop.states AS s WHERE s.t > 0"
    )
    apart = windows_apart(query)
    assert isinstance(apart, exp.Select)
    assert asked(backend, apart.order_by("t").sql(dialect="mysql")) == [(1, 1), (2, 0), (3, 1)]


FOREIGN = """
CREATE TABLE shop.foreign_types (
  tiny TINYINT, tiny_u TINYINT UNSIGNED, medium MEDIUMINT UNSIGNED, whole_u INT UNSIGNED,
  big_u BIGINT UNSIGNED, flag BOOLEAN, bits BIT(8), one BIT(1), year_of YEAR, choice ENUM('x', 'y'),
  several SET('p', 'q'), short_text TINYTEXT, fixed CHAR(5), raw VARBINARY(9),
  huge DECIMAL(50, 2), plain DATETIME, moment TIMESTAMP(3) NULL, clock TIME, day DATE, single FLOAT
) CHARACTER SET utf8mb4
"""


def test_foreign_types_are_read_for_what_they_are(
    backend: MySQLHarness, engine: Any, tmp_path: Path
) -> None:
    asked(backend, "CREATE DATABASE shop")
    asked(backend, FOREIGN)
    asked(
        backend,
        "INSERT INTO shop.foreign_types VALUES (-128, 255, 16777215, 4294967295, "
        "18446744073709551615, TRUE, b'11111111', b'1', 2155, 'y', 'p,q', 'é', 'ab', x'00ff', "
        "123456789012345678901234567890123456789012345678.25, '2024-02-29 01:02:03', "
        "'2024-02-29 01:02:03.123', '23:59:59', '1999-12-31', 0.1)",
    )
    query = SourceQuery("SELECT * FROM shop.foreign_types")
    kinds = {c.name: str(c.type) for c in product(backend).describe(query)}
    assert kinds["big_u"] == "Numeric[20, 0]"
    assert kinds["huge"] == "AnyNumeric"
    assert (kinds["flag"], kinds["one"], kinds["tiny"]) == ("Boolean", "Boolean", "SmallInt")
    assert (kinds["plain"], kinds["moment"]) == ("Timestamp", "TimestampTZ")
    (row,) = product(backend).read(engine, query).collect()
    found = row.asDict()
    assert {k: found[k] for k in ("tiny", "tiny_u", "medium", "whole_u", "year_of")} == {
        "tiny": -128,
        "tiny_u": 255,
        "medium": 16777215,
        "whole_u": 4294967295,
        "year_of": 2155,
    }
    assert found["big_u"] == Decimal("18446744073709551615")
    assert (found["flag"], found["one"], found["bits"]) == (True, True, 255)
    assert (found["choice"], found["several"]) == ("y", "p,q")
    assert (found["short_text"], found["fixed"], bytes(found["raw"])) == ("é", "ab", b"\x00\xff")
    assert found["huge"] == "123456789012345678901234567890123456789012345678.25"
    assert (found["plain"], found["day"]) == (datetime(2024, 2, 29, 1, 2, 3), date(1999, 12, 31))
    instant = found["moment"].astimezone(timezone.utc)
    assert instant == datetime(2024, 2, 29, 1, 2, 3, 123000, tzinfo=timezone.utc)
    assert found["clock"].startswith("23:59:59")
    assert found["single"] == pytest.approx(0.1, rel=1e-7)


def test_the_stage_of_a_dead_run_is_swept_and_that_of_a_living_one_is_not(
    backend: MySQLHarness, load: Load
) -> None:
    load(Events, [(1, "a")], SCHEMA).sync()
    dead, alive = (f"01900000-0000-7000-8000-00000000000{n}" for n in (1, 2))
    with backend.place("target").connect() as other, other.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", (f"ematix_flow.{alive}",))
        for run in (dead, alive):
            asked(backend, f"CREATE TABLE ematix_flow.`stage_{run}` (a int)")
            asked(backend, f"CREATE TABLE ematix_flow.`stage_{run}_changes` (a int)")
        load(Events, [(2, "b")], SCHEMA).sync()
        found = sorted(backend.litter(backend.connection("target")))
        assert found == [f"stage_{alive}", f"stage_{alive}_changes"]


def test_a_load_that_outlives_its_run_does_not_keep_its_stage(
    backend: MySQLHarness, load: Load
) -> None:
    load(Events, [(1, "a")], SCHEMA).sync()
    stage = "ematix_flow.`stage_01900000-0000-7000-8000-000000000003`"
    parts = "ematix_flow.`stage_01900000-0000-7000-8000-000000000003_parts`"
    asked(backend, f"CREATE TABLE {stage} (a int)")
    asked(backend, f"CREATE TABLE {parts} (part bigint NULL UNIQUE, session bigint NULL)")
    orphan = backend.place("target").connect()
    with orphan.cursor() as cursor:
        cursor.execute("USE ematix_flow")
        cursor.execute(f"INSERT INTO {parts} (session) VALUES (CONNECTION_ID())")
        orphan.begin()
        cursor.execute(f"INSERT INTO {stage} VALUES (1)")
    load(Events, [(2, "b")], SCHEMA).sync()
    assert backend.litter(backend.connection("target")) == []
    with pytest.raises(Exception, match=r"2013|2006|1927|4031"):
        orphan.ping(reconnect=False)
    orphan._force_close()


def test_what_is_wrong_with_a_connection_is_said_plainly(backend: MySQLHarness) -> None:
    url = backend.place("target").url
    server = backend.place("target").server
    wrong = MySQLConnection(name="wh", url=url.replace(server.password, "guess"))
    with pytest.raises(Permanent, match="check user and password") as caught:
        load_backend(wrong).open()
    assert "guess" not in str(caught.value)
    missing = MySQLConnection(name="wh", url=server.url_of("nowhere"))
    with pytest.raises(Permanent, match="nowhere"):
        load_backend(missing).open()
    silent = MySQLConnection(name="wh", url="mysql://u:p@127.0.0.1:1/db")
    with pytest.raises(Transient, match=r"nothing answers at 127\.0\.0\.1:1"):
        load_backend(silent).open()


def test_mistakes_in_sql_are_explained(backend: MySQLHarness) -> None:
    asked(backend, "CREATE DATABASE shop")
    source = product(backend)
    for sql, said in (
        ("SELECT * FROM shop.nothing", "nothing"),
        ("SELECT 1 AS a, 2 AS a", "another name with AS"),
        ("SELEC 1", "correct the SQL"),
    ):
        with pytest.raises(Permanent, match=said):
            source.describe(SourceQuery(sql))


def test_a_session_behaves_the_same_whatever_the_server_prefers(backend: MySQLHarness) -> None:
    with product(backend).open() as live:
        (row,) = live.query('SELECT @@time_zone AS zone, @@sql_mode AS mode, "a" AS quoted')
        assert row["zone"] == "+00:00"
        assert "STRICT_ALL_TABLES" in row["mode"]
        assert row["quoted"] == "a"
        assert live.query("SELECT 1 AS n UNION ALL SELECT 2", max_rows=1) == [{"n": 1}]
        assert live.query("SELECT 3 AS n") == [{"n": 3}]


def test_the_mode_is_the_servers_own_where_it_can_be() -> None:
    kept = sql_mode("ANSI_QUOTES,ONLY_FULL_GROUP_BY,NO_BACKSLASH_ESCAPES,STRICT_TRANS_TABLES")
    modes = kept.split(",")
    assert modes[0] == "ONLY_FULL_GROUP_BY"
    assert len(modes) == len(set(modes)) == 4
    assert "STRICT_ALL_TABLES" in modes


def test_the_collation_is_one_that_the_server_has() -> None:
    assert Server(True, (10, 11, 19)).collation == "utf8mb4_nopad_bin"
    assert Server(False, (9, 7, 4)).collation == "utf8mb4_0900_bin"
    assert Server(False, (5, 7, 44)).collation == "utf8mb4_bin"


def test_options_of_the_url_are_read_or_refused() -> None:
    def given(url: str) -> dict[str, Any]:
        return arguments(MySQLConnection(name="wh", url=url).address(), "wh")

    read = given("mariadb://u:p@h:3307/db?connect_timeout=3&ssl_disabled=true")
    assert (read["connect_timeout"], read["ssl_disabled"], read["port"]) == (3, True, 3307)
    with pytest.raises(ConfigError, match="ssl_ca"):
        given("mysql://u:p@h/db?ssl_caa=/x.pem")


def test_a_driver_that_falls_silent_inside_its_commit_loses_its_locks(
    backend: MySQLHarness, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[Any, ...]] = [(1, "a")]
    load(Events, rows, SCHEMA).sync()
    monkeypatch.setattr(mysql, "COMMIT_SECONDS", 1)

    def fall_silent(point: str) -> None:
        if point == "applied insert":
            with connect(backend.connection("target")) as raw, raw.cursor() as cursor:
                # As long as the locks are held, this waits.
                assert cursor.execute("SELECT * FROM ematix_flow.fences FOR UPDATE") == 1

    with pytest.raises(Transient):
        run_pipeline(load(Events, rows, SCHEMA).spec, trigger="python", announce=fall_silent)
    monkeypatch.undo()
    assert len(backend.rows(backend.connection("target"), Events.__table__)) == 1
