"""``flow diff`` and ``flow why``: what they find, what they say, how they exit."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from ematix_flow.engine.session import without_engine
from ematix_flow.run import diff
from ematix_flow.run.diff import diff_tables
from ematix_flow.run.sqlite_log import SqliteRunLog

from .conftest import Flow

pytestmark = pytest.mark.usefixtures("engine")

SECRET = "hunter22-x"


@pytest.fixture
def shop(project: Path) -> Path:
    """The project with one more connection of each kind."""
    with (project / ".ematix-flow.toml").open("a") as file:
        file.write(
            '[connections.one]\nkind = "duckdb"\npath = "one.duckdb"\n'
            '[connections.two]\nkind = "sqlite"\npath = "two.db"\n'
            '[connections.lake]\nkind = "object_store_local"\npath = "lake"\nformat = "csv"\n'
        )
    (project / "lake").mkdir()
    return project


def in_duckdb(folder: Path, *statements: str) -> None:
    with duckdb.connect(str(folder / "one.duckdb")) as raw:
        for statement in statements:
            raw.execute(statement)


def in_sqlite(folder: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "two.db")) as raw:
        for statement in statements:
            raw.execute(statement)
        raw.commit()


ORDERS = "(id INTEGER PRIMARY KEY, amount DECIMAL(10, 2), name VARCHAR, note VARCHAR)"
ROWS = "(1, 1.50, 'one', NULL), (2, 2.00, 'two', 'x'), (3, 3.00, 'three', NULL)"


def test_equal_tables_exit_with_0(flow: Flow, shop: Path) -> None:
    in_duckdb(shop, f"CREATE TABLE orders {ORDERS}", f"INSERT INTO orders VALUES {ROWS}")
    in_sqlite(
        shop,
        "CREATE TABLE orders (note TEXT, name TEXT, amount DECIMAL(12, 4), id BIGINT PRIMARY KEY)",
        "INSERT INTO orders VALUES (NULL, 'one', '1.5000', 1), ('x', 'two', '2', 2), "
        "(NULL, 'three', '3.0', 3)",
    )
    said = flow("diff", "one:orders", "two:orders")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "a    one:orders: 3 rows",
        "b    two:orders: 3 rows",
        "key  id; 3 other columns compared",
        "equal",
    ]


def test_differences_exit_with_1(flow: Flow, shop: Path) -> None:
    in_duckdb(
        shop,
        f"CREATE TABLE orders {ORDERS}",
        f"INSERT INTO orders VALUES {ROWS}",
        "CREATE TABLE later AS FROM orders",
        "UPDATE later SET note = 'new', amount = 1.75 WHERE id = 1",
        "DELETE FROM later WHERE id = 2",
        "INSERT INTO later SELECT n, n, 'more', NULL FROM range(10, 15) AS r(n)",
    )
    said = flow("diff", "one:orders", "one:later", "--key", "id", "--limit", "2")
    assert (said.code, said.err) == (1, "")
    assert said.out.splitlines()[3:] == [
        "",
        "only in a: 1 row",
        "  id=2  amount=2, name=two, note=x",
        "",
        "only in b: 5 rows",
        "  id=10  amount=10, name=more, note=NULL",
        "  id=11  amount=11, name=more, note=NULL",
        "  … and 3 more",
        "",
        "different: 1 row (amount 1, note 1)",
        "  id=1  amount: 1.5 → 1.75, note: NULL → new",
    ]
    found = flow("diff", "one:orders", "one:later", "--key", "id", "--format", "json").json
    assert (found["equal"], found["rows_a"], found["rows_b"]) == (False, 3, 7)
    assert (found["only_in_a"], found["only_in_b"], found["different"]) == (1, 5, 1)
    assert found["sample_different"] == [
        {
            "key": {"id": 1},
            "values": {"amount": {"a": "1.5", "b": "1.75"}, "note": {"a": None, "b": "new"}},
        }
    ]
    some = flow("diff", "one:orders", "one:orders", "--columns", "name,note")
    assert some.code == 0
    assert "2 other columns compared" in some.out


def test_columns_of_one_side_only_are_a_difference(flow: Flow, shop: Path) -> None:
    in_duckdb(
        shop,
        "CREATE TABLE a (id INTEGER PRIMARY KEY, x INTEGER, old VARCHAR)",
        "CREATE TABLE b (id INTEGER PRIMARY KEY, x INTEGER, new VARCHAR)",
        "INSERT INTO a VALUES (1, 1, 'o')",
        "INSERT INTO b VALUES (1, 1, 'n')",
    )
    said = flow("diff", "one:a", "one:b")
    assert said.code == 1
    assert said.out.splitlines()[3:] == ["columns only in a: old", "columns only in b: new"]
    assert flow("diff", "one:a", "one:b", "--columns", "x").code == 0


def test_other_types_are_compared_by_value_with_a_note(flow: Flow, shop: Path) -> None:
    in_duckdb(
        shop,
        "CREATE TABLE a (id INTEGER PRIMARY KEY, at TIMESTAMP, doc JSON, n VARCHAR)".replace(
            " at ", ' "at" '
        ),
        'CREATE TABLE b (id BIGINT PRIMARY KEY, "at" TIMESTAMPTZ, doc VARCHAR, n INTEGER)',
        """INSERT INTO a VALUES (1, '2024-03-31 02:30:00.000001', '{"a": 1, "b": [ ]}', '5'),
        (2, NULL, NULL, 'five')""",
        """INSERT INTO b VALUES (1, '2024-03-31 04:30:00.000001+02', '{"b":[],"a":1}', 5),
        (2, NULL, NULL, 5)""",
    )
    said = flow("diff", "one:a", "one:b")
    assert said.code == 1
    assert said.out.splitlines()[3:] == [
        "note: at is Timestamp in a and TimestampTZ in b, compared as TimestampTZ",
        "note: doc is JSON in a and Text in b, compared as Text",
        "note: n is Text in a and Integer in b, compared as Text",
        "",
        "different: 1 row (n 1)",
        "  id=2  n: five → 5",
    ]


def test_files_and_a_pipelines_target(flow: Flow, shop: Path) -> None:
    assert flow("run", "load_numbers").code == 0
    (shop / "lake" / "part-1.csv").write_text("number,word\n1,one\n2,zwei\n")
    (shop / "lake" / "part-2.csv").write_text("number,word\n3,three\n")
    said = flow("diff", "load_numbers", "lake:./part-*.csv", "--key", "number", "--format", "json")
    assert said.code == 1
    assert said.json["columns_only_in_a"] == []
    (changed,) = said.json["sample_different"]
    assert changed["values"] == {"word": {"a": "two", "b": "zwei"}}
    everything = flow("diff", "load_numbers", "warehouse:shop.numbers", "--with-bookkeeping")
    assert everything.code == 0
    assert "3 other columns compared" in everything.out


def test_rows_without_a_key_value_are_compared_too(flow: Flow, shop: Path) -> None:
    in_duckdb(
        shop,
        "CREATE TABLE a AS FROM (VALUES (1, 'x', 1), (NULL, 'x', 2), (NULL, NULL, 3)) t(k, l, v)",
        "CREATE TABLE b AS FROM (VALUES (1, 'x', 1), (NULL, 'x', 9), (1, NULL, 3)) t(k, l, v)",
    )
    found = flow("diff", "one:a", "one:b", "--key", "k,l", "--format", "json").json
    assert found["sample_only_in_a"] == [{"k": None, "l": None, "v": 3}]
    assert found["sample_only_in_b"] == [{"k": 1, "l": None, "v": 3}]
    assert [row["key"] for row in found["sample_different"]] == [{"k": None, "l": "x"}]
    in_duckdb(shop, "DELETE FROM a WHERE l IS NULL", "DELETE FROM b WHERE l IS NULL")
    found = flow("diff", "one:a", "one:b", "--key", "k,l", "--limit", "0", "--format", "json").json
    assert (found["different"], found["sample_different"]) == (1, [])
    found = flow("diff", "one:a", "one:b", "--key", "k", "--format", "json").json
    assert [row["key"] for row in found["sample_different"]] == [{"k": None}]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("one:a", "one:b"), "no primary key is known of one:b; name the key with --key id,…"),
        (("one:a", "one:c"), "the primary keys differ: one:a has (id) and one:c has (x)"),
        (("one:a", "one:b", "--key", "idd"), "one:a has no key column 'idd'; did you mean 'id'?"),
        (("one:a", "one:b", "--key", "id", "--columns", "y"), "one:a has no column 'y'"),
        (("one:a", "one:nothing", "--key", "id"), "nothing"),
        (("one:a", "on:b", "--key", "id"), "there is no connection 'on'; did you mean 'one'?"),
        (("one:a", "load_number"), "did you mean 'load_numbers'?"),
        (("one:a", "one:"), "'one:' names no table"),
        (("one:a", "one:b", "--key", "x"), "(x) is not a key of one:a: several rows have x=7"),
    ],
)
def test_mistakes_exit_with_2(
    flow: Flow, shop: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    in_duckdb(
        shop,
        "CREATE TABLE a (id INTEGER PRIMARY KEY, x INTEGER)",
        "INSERT INTO a VALUES (1, 7), (2, 7)",
        "CREATE TABLE b (id INTEGER, x INTEGER)",
        "CREATE TABLE c (id INTEGER, x INTEGER PRIMARY KEY)",
    )
    said = flow("diff", *arguments)
    assert (said.code, said.out) == (2, "")
    assert complaint in said.err
    assert len(said.err.splitlines()) == 1


def test_a_module_that_does_not_load_is_the_reason_given(flow: Flow, shop: Path) -> None:
    with (shop / "pipelines.py").open("a") as file:
        file.write("\nraise ValueError('not today')\n")
    for said in (flow("diff", "load_more", "one:a"), flow("why", "load_more", "1")):
        assert (said.code, said.out) == (2, "")
        assert "not today" in said.err


@pytest.mark.services("postgres")
def test_two_databases(flow: Flow, shop: Path, postgres: object, tmp_path: Path) -> None:
    url = postgres.create_database()  # type: ignore[attr-defined]
    try:
        with (shop / ".ematix-flow.toml").open("a") as file:
            file.write(f'[connections.pg]\nkind = "postgres"\nurl = "{url}"\n')
        with psycopg.connect(url) as raw:
            raw.execute(
                "CREATE TABLE orders (id int PRIMARY KEY, at timestamptz, doc jsonb, n numeric, "
                "tags text[], raw bytea, code uuid, clock time)"
            )
            raw.execute(
                "INSERT INTO orders SELECT i, timestamptz '2024-01-01 00:00+00' + i * interval "
                "'1 second', '{\"b\": 2, \"a\": 1}', i + 0.50, ARRAY['x', NULL], '\\x0102', "
                "'6F9619FF-8B86-D011-B42D-00C04FC964FF', '10:30' FROM generate_series(1, 400) i"
            )
        in_duckdb(
            shop,
            'CREATE TABLE orders (id BIGINT PRIMARY KEY, "at" TIMESTAMPTZ, doc JSON, '
            "n DECIMAL(38, 10), tags VARCHAR[], raw BLOB, code UUID, clock TIME)",
            "INSERT INTO orders SELECT i, timestamptz '2024-01-01 00:00:00+00' + to_seconds(i), "
            "'{\"a\":1,\"b\":2}', i + 0.5, ['x', NULL], '\\x01\\x02'::BLOB, "
            "'6f9619ff-8b86-d011-b42d-00c04fc964ff', '10:30:00' FROM range(1, 401) r(i)",
        )
        assert flow("diff", "pg:orders", "one:orders").out.endswith("\nequal\n")
        in_duckdb(shop, "UPDATE orders SET tags = [NULL, 'x'], clock = '10:31' WHERE id = 399")
        said = flow("diff", "pg:orders", "one:orders", "--format", "json")
        assert said.code == 1
        (row,) = said.json["sample_different"]
        assert (row["key"], set(row["values"])) == ({"id": 399}, {"tags", "clock"})
        assert said.json["rows_read_again"] <= 2 * 20
    finally:
        postgres.drop_database(url.rsplit("/", 1)[1])  # type: ignore[attr-defined]


@pytest.mark.services("postgres")
def test_databases_compute_the_same_digests(flow: Flow, shop: Path, postgres: object) -> None:
    url = postgres.create_database()  # type: ignore[attr-defined]
    rows = (
        "(1, '2024-02-29', '2024-02-29 23:59:59.999999', '2024-03-31 01:30:00.000001+00', -0.5, "
        "true, '6F9619FF-8B86-D011-B42D-00C04FC964FF', 'a~;b''\\ 日付 é'), "
        "(2, '0001-01-01', '9999-12-30 00:00:00', '1969-12-31 23:59:59.5+00', 123456789.125, "
        "false, '00000000-0000-0000-0000-000000000000', ''), "
        "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (-4, NULL, NULL, NULL, 0, NULL, NULL, ' ')"
    )
    try:
        with (shop / ".ematix-flow.toml").open("a") as file:
            file.write(f'[connections.pg]\nkind = "postgres"\nurl = "{url}"\n')
        with psycopg.connect(url) as raw:
            raw.execute(
                "CREATE TABLE t (id int PRIMARY KEY, d date, l timestamp, z timestamptz, "
                "n numeric(12, 3), b boolean, u uuid, s varchar(40))"
            )
            raw.execute(f"INSERT INTO t VALUES {rows}")
        in_duckdb(
            shop,
            "SET TimeZone = 'UTC'",
            "CREATE TABLE t (id BIGINT PRIMARY KEY, d DATE, l TIMESTAMP, z TIMESTAMPTZ, "
            "n DECIMAL(20, 6), b BOOLEAN, u UUID, s VARCHAR)",
            f"INSERT INTO t VALUES {rows}",
        )
        for key in ("id", "s"):
            with without_engine():
                found = diff_tables("pg:t", "one:t", key=[key])
            assert found.equal
            assert found.digested_by == {"a": "database", "b": "database"}
        in_duckdb(shop, "UPDATE t SET z = z + INTERVAL 1 MICROSECOND WHERE id = 2")
        for key in ("id", "s"):
            (row,) = diff_tables("pg:t", "one:t", key=[key]).sample_different
            assert row.values == {
                "z": ("1969-12-31 23:59:59.500000+00:00", "1969-12-31 23:59:59.500001+00:00")
            }
    finally:
        postgres.drop_database(url.rsplit("/", 1)[1])  # type: ignore[attr-defined]


def test_a_table_that_changes_meanwhile_is_told(
    flow: Flow, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_duckdb(shop, f"CREATE TABLE a {ORDERS}", f"INSERT INTO a VALUES {ROWS}")
    in_sqlite(shop, f"CREATE TABLE b {ORDERS}", f"INSERT INTO b VALUES {ROWS}")
    in_sqlite(shop, "UPDATE b SET name = 'zwei' WHERE id = 2")
    plain = diff.query_of

    def written_meanwhile(*arguments: Any) -> Any:
        in_sqlite(shop, "UPDATE b SET name = 'deux' WHERE id = 2")
        return plain(*arguments)

    monkeypatch.setattr(diff, "query_of", written_meanwhile)
    said = flow("diff", "one:a", "two:b")
    assert (said.code, said.out) == (2, "")
    assert "two:b changed while it was compared; compare again" in said.err


@pytest.fixture
def told(tmp_path: Path, shop: Path, flow: Flow) -> Iterator[str]:
    """A run whose source is in the run log, with a secret in it; gives its id."""
    ran = flow("run", "load_numbers", "--format", "json").json["ran"][0]["run_id"]
    log = SqliteRunLog(tmp_path / "home" / "run_log.db")
    (record,) = log.get(ran)
    source = f"warehouse: SELECT 1\nfiles: a.csv, s3://me:{SECRET}@bucket/b.csv"
    log.finish(dataclasses.replace(record, source=source))
    yield ran
    log.close()


def test_why_names_run_pipeline_and_source(flow: Flow, told: str) -> None:
    for table in ("warehouse:shop.numbers", "load_numbers"):
        for key in ("2", "number=2"):
            said = flow("why", table, key)
            assert (said.code, said.err) == (0, "")
            assert said.out.startswith(f"{table} number=2: 1 row\n")
            assert f"  run       {told}\n  pipeline  load_numbers (mode truncate)\n" in said.out
            assert "  source    warehouse: SELECT 1\n            files: a.csv, " in said.out
            assert SECRET not in said.out
    found = flow("why", "load_numbers", "word=two", "--format", "json").json
    (version,) = found["versions"]
    assert version["values"] == {"number": 2, "word": "two"}
    assert version["run"]["pipeline"] == "load_numbers"
    assert version["run"]["recorded_in"] == "run log"


def test_why_asks_the_target_where_the_run_log_does_not_know(flow: Flow, told: str) -> None:
    (version,) = flow("why", "load_numbers", "2", "--no-run-log", "--format", "json").json[
        "versions"
    ]
    assert version["run"]["run_id"] == told
    assert (version["run"]["pipeline"], version["run"]["mode"]) == ("load_numbers", "truncate")
    assert (version["run"]["recorded_in"], version["run"]["source"]) == ("target", None)
    said = flow("why", "load_numbers", "2", "--no-run-log")
    assert "source    not known: the run is not in this run log" in said.out


def test_why_shows_every_version_in_order(flow: Flow, shop: Path, told: str) -> None:
    in_duckdb(
        shop,
        "CREATE TABLE history (id INTEGER, valid_from TIMESTAMPTZ, valid_to TIMESTAMPTZ, "
        "is_current BOOLEAN, name VARCHAR, _run_id UUID, _loaded_at TIMESTAMPTZ, "
        "PRIMARY KEY (id, valid_from))",
        f"INSERT INTO history VALUES (7, '2024-02-01', NULL, true, 'new', '{told}', now()), "
        f"(7, '2024-01-01', '2024-02-01', false, 'old', '{told}', now()), "
        f"(8, '2024-01-01', NULL, true, 'other', '{told}', now())",
    )
    found = flow("why", "one:history", "7", "--format", "json").json
    assert [v["values"]["name"] for v in found["versions"]] == ["old", "new"]
    assert {v["run"]["run_id"] for v in found["versions"]} == {told}
    text = flow("why", "one:history", "id=7").out
    assert text.count("  valid     from ") == 2
    assert text.count(" to now\n") == 1


STEPS = """

from ematix_flow import natural_key


@ematix.table(schema="shop")
class Prices:
    item: Annotated[Text, natural_key()]
    price: BigInt


@ematix.pipeline(target=Prices, target_connection="warehouse", mode="scd2")
def load_prices(conn, run):
    return f"SELECT 'tea' AS item, {run.parameters['price']} AS price"
"""


def test_why_tells_who_opened_a_version_and_who_closed_it(flow: Flow, shop: Path) -> None:
    with (shop / "pipelines.py").open("a") as file:
        file.write(STEPS)
    ran = []
    for price in ("3", "3", "4"):
        said = flow("run", "load_prices", "--param", f"price={price}", "--format", "json")
        assert said.code == 0, said.err
        ran.append(said.json["ran"][0]["run_id"])
    old, new = flow("why", "load_prices", "tea", "--format", "json").json["versions"]
    assert (old["values"]["price"], new["values"]["price"]) == (3, 4)
    assert (old["opened_by"]["run_id"], old["run"]["run_id"]) == (ran[0], ran[2])
    assert (new["opened_by"]["run_id"], new["run"]["run_id"]) == (ran[2], ran[2])
    assert old["opened_by"]["source"] == "warehouse: SELECT 'tea' AS item, 3 AS price"
    text = flow("why", "load_prices", "tea").out
    assert text.count("  opened by\n") == text.count("  closed by\n") == 1


def test_why_of_a_table_of_somebody_else(flow: Flow, shop: Path) -> None:
    in_duckdb(shop, "CREATE TABLE theirs (a INTEGER, b VARCHAR, PRIMARY KEY (a, b))")
    in_duckdb(shop, "INSERT INTO theirs VALUES (1, 'x=y')")
    said = flow("why", "one:theirs", "a=1", "b=x=y")
    assert said.code == 0
    assert "was not created by ematix-flow" in said.out


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("one:t", "9"), 1, "one:t has no row with id=9"),
        (("one:t", "nine"), 2, "id=nine is not a Integer"),
        (("one:t", "idd=9"), 2, "one:t has no column 'idd'; did you mean 'id'?"),
        (("one:t", "1", "2"), 2, "'1' names no column; write column=value for each"),
        (("one:pairs", "1"), 2, "the key of one:pairs is (a, b); write column=value for each"),
        (("one:loose", "1"), 2, "the key of one:loose is not known; write column=value"),
    ],
)
def test_why_refuses(
    flow: Flow, shop: Path, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    in_duckdb(
        shop,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, _run_id UUID)",
        "CREATE TABLE pairs (a INTEGER, b INTEGER, PRIMARY KEY (a, b))",
        "CREATE TABLE loose (a INTEGER)",
    )
    said = flow("why", *arguments)
    assert (said.code, said.out) == (code, "")
    assert complaint in said.err
    assert len(said.err.splitlines()) == 1
