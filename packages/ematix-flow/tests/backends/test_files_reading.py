"""Spark SQL over files that this system did not write, and over tables that it did."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import orc

from backends.file_loads import land, load, rows_of, store
from ematix_flow import types as t
from ematix_flow.backends import file_sources
from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.files import Files
from ematix_flow.engine import session
from ematix_flow.errors import DataError, Permanent, Unsupported

if TYPE_CHECKING:
    from ematix_flow.engine.session import Engine


def described(files: Files, sql: str) -> list[tuple[str, t.ColumnType]]:
    return [(c.name, c.type) for c in files.describe(SourceQuery(sql))]


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for Spark is an error, as in a process that never started it."""

    def refuse(settings: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "current_engine", lambda: None)
    monkeypatch.setattr(session, "open_engine", refuse)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/customers").mkdir()
    (tmp_path / "raw/customers/a.csv").write_text('id,name\n1,"Ann, B"\n2,\n')
    (tmp_path / "raw/customers/b.csv").write_text('name,id\n"",3\n')
    (tmp_path / "raw/customers/_hidden.csv").write_text("nothing\n")
    pq.write_table(
        pa.table({"customer": pa.array([1, 1, 3], pa.int32()), "total": pa.array(
            [Decimal("1.10"), Decimal("2.20"), None], pa.decimal128(10, 2))}),
        tmp_path / "orders.parquet",
    )  # fmt: skip
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "raw.customers", "`raw`.`customers`", '"raw"."customers"', "`raw/customers`",
        '"raw/customers/"', "`raw/customers/*.csv`", "'raw/**/[ab].csv'", "csv.`raw/customers`",
        "`{root}/raw/customers`", "raw.customers AS c", "(SELECT * FROM raw.customers)",
    ],
)  # fmt: skip
def test_all_ways_to_name_files(lake: Path, engine: Engine, name: str) -> None:
    sql = f"SELECT id, name FROM {name.format(root=lake)} -- {{braces}}; and a comment"
    expected = [("1", "Ann, B"), ("2", None), ("3", "")]
    files = store(lake, "csv")
    assert sorted(rows_of(files, engine, sql)) == expected
    assert described(files, sql) == [("id", t.Text()), ("name", t.Text())]


def test_joins_subqueries_and_ctes(lake: Path, engine: Engine) -> None:
    sql = """
        WITH spent AS (
            SELECT customer, sum(total) AS total, '{x}' AS mark FROM `orders.parquet`
            GROUP BY customer
        ), customers AS (SELECT 1 AS shadows_nothing)
        SELECT raw.customers.name, s.total, s.mark, orders.n
        FROM raw.customers
        JOIN spent s ON CAST(raw.customers.id AS INT) = s.customer
        CROSS JOIN (SELECT count(*) AS n FROM "orders.parquet") AS orders
        WHERE EXISTS (SELECT 1 FROM `orders.parquet` o WHERE o.customer = customers.id)
        ORDER BY name DESC;
    """
    files = store(lake, "csv")
    assert rows_of(files, engine, sql) == [
        ("Ann, B", Decimal("3.30"), "{x}", 3),
        ("", None, "{x}", 3),
    ]
    assert described(files, sql) == [
        ("name", t.Text()), ("total", t.Numeric(20, 2)), ("mark", t.Text()), ("n", t.BigInt()),
    ]  # fmt: skip


def test_queries_without_files(lake: Path, engine: Engine) -> None:
    files = store(lake)
    sql = "SELECT id AS n, '{}' AS b FROM range(2) UNION ALL SELECT * FROM VALUES (9L, 'z')"
    assert rows_of(files, engine, sql) == [(0, "{}"), (1, "{}"), (9, "z")]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM raw.customers", [("id", t.Text()), ("name", t.Text())]),
        ("SELECT total AS t, customer FROM `orders.parquet`",
         [("t", t.Numeric(10, 2)), ("customer", t.Integer())]),
        ("SELECT CAST(id AS BIGINT) AS id, upper(name) AS u, name IS NULL AS n FROM raw.customers",
         [("id", t.BigInt()), ("u", t.Text()), ("n", t.Boolean())]),
        ("SELECT q.c AS c FROM (SELECT customer AS c FROM `orders.parquet` o) q",
         [("c", t.Integer())]),
        ("WITH q AS (SELECT customer, count(*) AS n FROM `orders.parquet` GROUP BY 1) "
         "SELECT * FROM q", [("customer", t.Integer()), ("n", t.BigInt())]),
        ("SELECT name FROM raw.customers UNION ALL SELECT id FROM raw.customers",
         [("name", t.Text())]),
        ("SELECT CAST(total AS DECIMAL(20, 4)) AS d, CAST('a' AS TIMESTAMP) AS z, "
         "CAST('b' AS TIMESTAMP_NTZ) AS w FROM `orders.parquet`",
         [("d", t.Numeric(20, 4)), ("z", t.TimestampTZ()), ("w", t.Timestamp())]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_engine")
def test_described_without_spark(
    lake: Path, sql: str, expected: list[tuple[str, t.ColumnType]]
) -> None:
    assert described(store(lake, "csv"), sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT *, upper(name) AS u, id || name AS c, length(name) > 1 AS l FROM raw.customers",
        "SELECT customer, count(*) AS n, max(total) AS m FROM `orders.parquet` GROUP BY customer",
        "SELECT DISTINCT name AS n, CAST(id AS INT) AS i FROM raw.customers ORDER BY 1 LIMIT 1",
        "SELECT total * 2 AS d, total / 3 AS q, customer * 1.5 AS m FROM `orders.parquet`",
        "SELECT count(*), max(id) FROM raw.customers",
        "SELECT current_date() AS d, array(1, 2) AS a, named_struct('x', 1) AS s FROM range(1)",
    ],
)
def test_descriptions_are_what_spark_gives(lake: Path, engine: Engine, sql: str) -> None:
    from ematix_flow.sql.spark import spark_ddl

    files = store(lake, "csv")
    rows = files.read(engine, SourceQuery(sql))
    found = described(files, sql)
    assert [name for name, _ in found] == rows.columns
    shown = [f.dataType.simpleString().upper() for f in rows.schema]
    assert [spark_ddl(kind).replace(", ", ",") for _, kind in found] == [
        s.replace("TIMESTAMP_LTZ", "TIMESTAMP") for s in shown
    ]


def test_table_queries(lake: Path, engine: Engine) -> None:
    files = store(lake, "csv")
    mapped = files.table_query("raw.customers", {"key": "id"})
    assert sorted(rows_of(files, engine, mapped.sql)) == [("1",), ("2",), ("3",)]
    assert rows_of(files, engine, files.table_query("orders.parquet", None).sql)[0][0] == 1
    assert len(rows_of(files, engine, files.table_query("raw/customers/*.csv", None).sql)) == 3


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM raw.custmers", r"no table raw\.custmers.*there is: customers"),
        ("SELECT * FROM nowhere.x", r"does not exist either"),
        ("SELECT * FROM `none/*.csv`", r"no file matches .*none/\*\.csv"),
        ("SELECT * FROM `x.csv`", r"there is no file or folder .*x\.csv"),
        ("SELECT * FROM raw", r"different columns|no data files|cannot be read as one"),
        ("SELECT nme FROM raw.customers", r"column 'nme', which is in none .* 'name'"),
        ("SELECT FROM WHERE", r"cannot be read"),
        ("DROP TABLE raw.customers", r"not a query"),
    ],
)
@pytest.mark.usefixtures("no_engine")
def test_mistakes_are_said_before_spark_starts(lake: Path, sql: str, message: str) -> None:
    (lake / "raw/other.csv").write_text("z\n1\n")
    with pytest.raises((DataError, Permanent), match=message):
        store(lake, "csv").describe(SourceQuery(sql))


def test_two_columns_of_one_name(lake: Path, engine: Engine) -> None:
    with pytest.raises(DataError, match="two columns named"):
        rows_of(store(lake, "csv"), engine, "SELECT id, id FROM raw.customers")


def test_every_parquet_type(tmp_path: Path, engine: Engine) -> None:
    moment, key = dt.datetime(2026, 1, 2, 3, 4, 5, 600000), uuid.uuid4()
    columns: dict[str, tuple[pa.Array[Any], t.ColumnType, Any]] = {
        "i8": (pa.array([1], pa.int8()), t.SmallInt(), 1),
        "u8": (pa.array([200], pa.uint8()), t.SmallInt(), 200),
        "u16": (pa.array([60000], pa.uint16()), t.Integer(), 60000),
        "u32": (pa.array([2**32 - 1], pa.uint32()), t.BigInt(), 2**32 - 1),
        "u64": (pa.array([2**64 - 1], pa.uint64()), t.Numeric(20, 0), Decimal(2**64 - 1)),
        "ns": (pa.array([moment], pa.timestamp("ns")), t.Timestamp(), moment),
        "ms": (pa.array([moment], pa.timestamp("ms")), t.Timestamp(), moment),
        "clock": (pa.array([dt.time(1, 2, 3)], pa.time64("us")), t.Time(), "01:02:03.000000"),
        "clock_ms": (pa.array([dt.time(1, 2, 3)], pa.time32("ms")), t.Time(), "01:02:03.000000"),
        "clock_ns": (pa.array([dt.time(1, 2, 3)], pa.time64("ns")), t.Time(), "01:02:03.000000"),
        "day": (pa.array([dt.date(2026, 1, 2)], pa.date64()), t.Date(), dt.date(2026, 1, 2)),
        "fixed": (pa.array([b"ab"], pa.binary(2)), t.Bytes(), bytearray(b"ab")),
        "word": (pa.array(["x"]).dictionary_encode(), t.Text(), "x"),
        "nothing": (pa.array([None], pa.null()), t.Text(), None),
        "list": (pa.array([[1, None]], pa.list_(pa.int32())), t.Array(t.Integer()), [1, None]),
        "moments": (pa.array([[moment]], pa.list_(pa.timestamp("ns"))),
                    t.Array(t.Timestamp()), [moment]),
        "struct": (pa.array([{"a": 1, "b": ["x"]}]), t.JSON(), '{"a":1,"b":["x"]}'),
        "map": (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), t.JSON(), '{"k":1}'),
        "uuid": (pa.array([key.bytes], pa.uuid()), t.UUID(), str(key)),
        "json": (pa.array(['{"a":1}'], pa.json_()), t.JSON(), '{"a":1}'),
    }  # fmt: skip
    pq.write_table(pa.table({n: a for n, (a, _, _) in columns.items()}), tmp_path / "x.parquet")
    files = store(tmp_path)
    assert described(files, "SELECT * FROM `x.parquet`") == [
        (name, kind) for name, (_, kind, _) in columns.items()
    ]
    [row] = rows_of(files, engine, "SELECT * FROM `x.parquet`")
    assert dict(zip(columns, row, strict=True)) == {n: v for n, (_, _, v) in columns.items()}
    assert rows_of(files, engine, "SELECT x.struct.a FROM `x.parquet`") == [(1,)]


def test_instants_of_old_and_new_parquet(tmp_path: Path, engine: Engine) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=dt.timezone.utc)
    old = pa.table({"at": pa.array([moment], pa.timestamp("us", "UTC"))})
    pq.write_table(old, tmp_path / "old.parquet", use_deprecated_int96_timestamps=True)
    zoned = pa.table({"at": pa.array([moment], pa.timestamp("us", "Europe/Paris"))})
    pq.write_table(zoned, tmp_path / "new.parquet")
    files = store(tmp_path)
    for name in ("old", "new"):
        assert described(files, f"SELECT at FROM `{name}.parquet`") == [("at", t.TimestampTZ())]
        sql = f"SELECT unix_micros(at) AS u FROM `{name}.parquet`"
        assert rows_of(files, engine, sql) == [(int(moment.timestamp() * 1e6),)]


def test_fractions_that_would_be_cut_are_refused(tmp_path: Path, engine: Engine) -> None:
    table = pa.table({"at": pa.array([1_000_000_001], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(Exception, match="finer than a microsecond"):
        rows_of(store(tmp_path), engine, "SELECT * FROM `x.parquet`")


def test_orc_of_other_programs(tmp_path: Path, engine: Engine) -> None:
    moment = dt.datetime(2026, 7, 2, 3, 4, 5, 600000)
    table = pa.table({
        "local": pa.array([moment], pa.timestamp("us")),
        "instant": pa.array([moment], pa.timestamp("us", "UTC")),
        "n": pa.array([1], pa.int8()),
    })  # fmt: skip
    orc.write_table(table, tmp_path / "x.orc")
    files = store(tmp_path, "orc")
    assert described(files, "SELECT * FROM `x.orc`") == [
        ("local", t.Timestamp()), ("instant", t.TimestampTZ()), ("n", t.SmallInt()),
    ]  # fmt: skip
    sql = "SELECT local, unix_micros(instant) AS u, n FROM `x.orc`"
    instant = moment.replace(tzinfo=dt.timezone.utc).timestamp()
    assert rows_of(files, engine, sql) == [(moment, int(instant * 1e6), 1)]


def test_json_lines_of_other_programs(tmp_path: Path, engine: Engine) -> None:
    records: list[dict[str, Any]] = [
        {"id": 1, "x": 1, "tags": [], "doc": {"a": [1, 2]}, "mixed": 1, "big": 2**64},
        {"id": 2, "x": 1.5, "tags": ["a", None], "doc": None, "mixed": "é\n", "late": True},
    ]
    text = "".join(json.dumps(r) + "\n" for r in records)
    (tmp_path / "a.jsonl").write_text(text + "\n")
    (tmp_path / "b.ndjson").write_text('{"id": 3, "doc": {"z": 1.50}}\n')
    files = store(tmp_path, "json_lines")
    sql = "SELECT * FROM `*.*json*` ORDER BY id"
    assert described(files, sql) == [
        ("id", t.BigInt()), ("x", t.Double()), ("tags", t.Array(t.Text())), ("doc", t.JSON()),
        ("mixed", t.Text()), ("big", t.Numeric(38, 0)), ("late", t.Boolean()),
    ]  # fmt: skip
    assert rows_of(files, engine, sql) == [
        (1, 1.0, [], '{"a": [1, 2]}', "1", Decimal(2**64), None),
        (2, 1.5, ["a", None], None, "é\n", None, True),
        (3, None, None, '{"z": 1.50}', None, None, None),
    ]


def test_csv_dialects(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "a.tsv").write_bytes(b'\xef\xbb\xbfid\tname\r\n1\t"x\r\ny"\r\n2\tNA\r\n')
    files = store(tmp_path, "csv", csv_read_options={"null_regex": "^(NA|NULL)$"})
    assert rows_of(files, engine, "SELECT id, name FROM `a.tsv`") == [("1", "x\r\ny"), ("2", None)]
    (tmp_path / "b.csv").write_text("# hello\n'1';'a\\'b'\n# mid\n2\n")
    options = {
        "has_header": False, "delimiter": ";", "quote": "'", "escape": "\\", "comment": "#",
        "truncated_rows_ok": True, "schema_infer_max_records": 10,
    }  # fmt: skip
    files = store(tmp_path, "csv", csv_read_options=options)
    assert rows_of(files, engine, "SELECT column_1, column_2 FROM `b.csv`") == [
        ("1", "a'b"),
        ("2", None),
    ]
    (tmp_path / "c.csv").write_text("a;b\n1;2;3\n")
    with pytest.raises(Exception, match="more fields than its header"):
        rows_of(
            store(tmp_path, "csv", csv_delimiter=";", csv_read_options={"truncated_rows_ok": True}),
            engine,
            "SELECT a FROM `c.csv`",
        )


def test_compressed_text(tmp_path: Path, engine: Engine) -> None:
    text = b"id,name\n1,\xc3\xa9\n"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.csv.bz2").write_bytes(bz2.compress(text))
    (tmp_path / "c.csv.zst").write_bytes(zstandard.compress(text))
    assert rows_of(store(tmp_path, "csv"), engine, "SELECT * FROM `*.csv.*`") == [("1", "é")] * 3
    (tmp_path / "d.csv.lz4").write_bytes(b"x")
    with pytest.raises(Unsupported, match=r"d\.csv\.lz4 is compressed"):
        store(tmp_path, "csv").describe(SourceQuery("SELECT * FROM `d.csv.lz4`"))


def test_big_csv_is_split_only_where_no_field_spans_lines(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sources, "_SMALL_BYTES", 10)
    (tmp_path / "plain.csv").write_text("id,name\n" + "1,abc\n" * 100)
    (tmp_path / "quoted.csv").write_text("id,name\n" + '1,"a\nc"\n' * 100)
    files = store(tmp_path, "csv")
    assert rows_of(files, engine, "SELECT DISTINCT name FROM `plain.csv`") == [("abc",)]
    assert rows_of(files, engine, "SELECT DISTINCT name FROM `quoted.csv`") == [("a\nc",)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.parquet", b"PAR1" + b"x" * 50, r"cut\.parquet is not a readable Parquet file"),
        ("cut.orc", b"ORC garbage", r"cut\.orc is not a readable ORC file"),
        ("latin.csv", b"name\nM\xfcller\n", r"latin\.csv is not UTF-8"),
        ("latin.jsonl", b'{"a": 1}\n' * 20_000 + b'{"a": "\xfc"}\n', r"latin\.jsonl is not UTF-8"),
        ("bad.jsonl", b'{"a": 1}\n{"a": \n', r"bad\.jsonl: record 2 is not a JSON object"),
        ("list.jsonl", b"[1]\n", r"list\.jsonl: record 1"),
        ("twice.csv", b"a,a\n1,2\n", r"twice\.csv has two columns named 'a'"),
        ("empty.csv", b"", r"empty\.csv has no columns"),
        ("empty.jsonl", b"", r"empty\.jsonl has no records"),
    ],
)
def test_damaged_files_are_named(
    tmp_path: Path, engine: Engine, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        rows_of(store(tmp_path), engine, f"SELECT * FROM `{name}`")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("short.csv", b"a,b\n" + b"1,2\n" * 50 + b"3\n"),
        ("long.csv", b"a,b\n" + b"1,2\n" * 50 + b"3,4,5\n"),
        ("late.jsonl", b'{"a": 1, "b": 2}\n' * 20_000 + b'{"a": 1, "b":\n'),
        ("typed.jsonl", b'{"a": 1, "b": 2}\n' * 20_000 + b'{"a": 1, "b": "x"}\n'),
    ],
)
def test_bad_records_stop_the_read(
    tmp_path: Path, engine: Engine, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    files = store(tmp_path)
    with pytest.raises(Exception, match=rf"error while reading file file://.*{name}"):
        rows_of(files, engine, f"SELECT * FROM `{name}`")
    with pytest.raises(Exception, match=rf"error while reading file file://.*{name}"):
        rows_of(files, engine, f"SELECT sum(b) FROM `{name}`")


def test_damage_behind_a_good_footer_stops_the_read(tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": list(range(10_000))}), path, write_page_checksum=True)
    damaged = bytearray(path.read_bytes())
    damaged[100:2000] = bytes(1900)
    path.write_bytes(damaged)
    with pytest.raises(Exception, match=r"x\.parquet"):
        rows_of(store(tmp_path), engine, "SELECT sum(a) FROM `x.parquet`")


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("a\n1\n")
    (tmp_path / "d.csv").write_text("b\n1\n")
    (tmp_path / "year=2026").mkdir()
    for name in ("shop/orders", "shop/other"):
        (tmp_path / name / "_ematix").mkdir(parents=True)
        (tmp_path / name / "_ematix/000000000001.json").write_text("{}")
    files = store(tmp_path)
    for sql, message in {
        "SELECT * FROM `*.parquet`": r"'a' is BigInt in .*a\.parquet and Text in .*b\.parquet",
        "SELECT * FROM `?.*`": "different formats",
        "SELECT * FROM `[cd].csv`": "different columns: a, b",
        "SELECT * FROM shop": "holds tables of its own, such as .*shop/orders",
        "SELECT * FROM `sho*/*`": "matches several tables",
    }.items():
        with pytest.raises(DataError, match=message):
            files.describe(SourceQuery(sql))
    with pytest.raises(Unsupported, match="is partitioned"):
        files.describe(SourceQuery("SELECT * FROM `./`"))


def test_parquet_that_grew_a_column(tmp_path: Path, engine: Engine) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"b": ["x"], "a": [2]}), tmp_path / "b.parquet")
    assert sorted(rows_of(store(tmp_path), engine, "SELECT a, b FROM `*.parquet`")) == [
        (1, None),
        (2, "x"),
    ]


def test_logical_types_come_through_queries(tmp_path: Path, engine: Engine) -> None:
    columns = (("id", t.UUID()), ("short", t.String(5)), ("at", t.Time()), ("doc", t.JSONB()))
    files = store(tmp_path, "csv")
    land(files, engine, load(columns=columns), [(str(uuid.uuid4()), "x", "01:02:03.000000", "{}")])
    inner = "SELECT id, short, at AS clock, doc FROM shop.orders"
    sql = f"SELECT upper(o.short) AS u, o.* FROM ({inner}) o"
    assert described(files, sql) == [
        ("u", t.Text()), ("id", t.UUID()), ("short", t.String(5)), ("clock", t.Time()),
        ("doc", t.JSONB()),
    ]  # fmt: skip
