"""Loads into a folder of files: every type, every format, all or nothing."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlglot import exp, parse_one

from backends.file_loads import (
    COLUMNS,
    NAME,
    data_names,
    everything_below,
    frame,
    land,
    load,
    rows_of,
    store,
)
from ematix_flow import types as t
from ematix_flow.backends.base import FoundColumn, SourceQuery
from ematix_flow.backends.manifest import ManifestLog
from ematix_flow.change import Assertion, Change, Counts, Insert
from ematix_flow.errors import (
    ConfigError,
    DataError,
    EmptySource,
    Fenced,
    Permanent,
    Transient,
    UnknownName,
    Unsupported,
)
from ematix_flow.model import Column, Table, TableName

if TYPE_CHECKING:
    from ematix_flow.engine.session import Engine

FORMATS = ("parquet", "csv", "orc", "json_lines")
TEXTS = [
    "", None, " lead", "trail ", "new\nline", "cr\ronly", "crlf\r\nx", "nul\x00x", "\x00", "😀",
    'q"uote', '""', "'", ",", ";", "\\", '\\"', "a\\", "#c", "\\N", "\t", "null", "NULL", "\ufeffb",
    "\u2028", "{x}", "日付", "$1", "a" * 5000,
    'a\n"b",\x00é', '"\x00"', 'x\x00,"\n\x00', '\\\\"', "\\\n", 'a"\\,b',
]  # fmt: skip
UTC = dt.timezone.utc


def all_types() -> tuple[tuple[tuple[str, t.ColumnType], ...], list[tuple[Any, ...]]]:
    single = struct.unpack("f", struct.pack("f", 0.1))[0]
    instants = [
        dt.datetime(2, 1, 2, tzinfo=UTC),
        dt.datetime(2026, 3, 29, 1, 30, 0, 600000, tzinfo=UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ]
    bare = [moment.replace(tzinfo=None) for moment in instants]
    values: dict[str, tuple[t.ColumnType, list[Any]]] = {
        "small": (t.SmallInt(), [-32768, 0, 32767]),
        "integer": (t.Integer(), [-(2**31), 0, 2**31 - 1]),
        "big": (t.BigInt(), [-(2**63), 0, 2**63 - 1]),
        "single": (t.Float(), [single, math.inf, -0.0]),
        "double": (t.Double(), [0.1, -math.inf, 5e-324]),
        "flag": (t.Boolean(), [True, False, True]),
        "text": (t.Text(), ["", "a\n\"b\",\x00é😀", " x "]),
        "short": (t.String(5), ["", "abc", "é"]),
        "exact": (
            t.Numeric(38, 10),
            [Decimal("9" * 28 + "." + "9" * 10), Decimal("-1E-10"), Decimal(0)],
        ),
        "day": (t.Date(), [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(9999, 12, 31)]),
        "clock": (t.Time(), ["00:00:00.000000", "12:34:56.000001", "23:59:59.999999"]),
        "moment": (t.Timestamp(), bare),
        "instant": (t.TimestampTZ(), instants),
        "document": (t.JSON(), ['{"a": [1, null]}', "null", '"x"']),
        "binary_document": (t.JSONB(), ['{"a":1}', "[]", "1.50"]),
        "identity": (t.UUID(), ["00000000-0000-0000-0000-000000000000"] * 3),
        "raw": (t.Bytes(), [b"", b"\x00\xff\r\n" * 50, bytes(range(256))]),
        "texts": (t.Array(t.Text()), [[], ["", None, 'a"b,\n'], ["x"]]),
        "numbers": (t.Array(t.BigInt()), [[], [None, 2**63 - 1], [-1]]),
        "doubles": (t.Array(t.Double()), [[], [math.inf, None, 0.1], [5e-324]]),
        "exacts": (t.Array(t.Numeric(20, 3)), [[], [Decimal("12345678901234567.891")], [None]]),
        "days": (t.Array(t.Date()), [[], [dt.date(2026, 1, 1), None], []]),
        "moments": (t.Array(t.Timestamp()), [[], [bare[1], None], bare]),
        "instants": (t.Array(t.TimestampTZ()), [[], [instants[1], None], instants]),
        "raws": (t.Array(t.Bytes()), [[], [b"", None, b"\xff"], []]),
        "nested": (t.Array(t.Array(t.Timestamp())), [[], [[bare[0]], None, []], [[None]]]),
    }  # fmt: skip
    columns = tuple((name, kind) for name, (kind, _) in values.items())
    rows = [tuple(listed[n] for _, listed in values.values()) for n in range(3)]
    return columns, [*rows, tuple(None for _ in columns)]


@pytest.mark.parametrize("format", FORMATS)
def test_every_type_comes_back(tmp_path: Path, engine: Engine, format: str) -> None:
    columns, rows = all_types()
    files = store(tmp_path, format)
    counts = land(files, engine, load(columns=columns), rows)
    assert counts == Counts(read=4, inserted=4)
    back = files.read(engine, SourceQuery("SELECT * FROM shop.orders"))
    given = frame(engine, rows, columns)
    assert [f.dataType for f in back.schema] == [f.dataType for f in given.schema]
    assert sorted(map(repr, back.collect())) == sorted(map(repr, given.collect()))
    described = files.describe(SourceQuery("SELECT * FROM shop.orders"))
    assert [(c.name, c.type) for c in described] == list(columns)


@pytest.mark.parametrize("format", FORMATS)
def test_not_a_number_comes_back(tmp_path: Path, engine: Engine, format: str) -> None:
    columns = (("single", t.Float()), ("double", t.Double()), ("many", t.Array(t.Double())))
    files = store(tmp_path, format)
    land(files, engine, load(columns=columns), [(math.nan, math.nan, [math.nan])])
    [(single, double, many)] = rows_of(files, engine)
    assert math.isnan(single)
    assert math.isnan(double)
    assert math.isnan(many[0])


def test_days_that_orc_would_move_are_refused(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path, "orc")
    columns = (("id", t.BigInt()), ("days", t.Array(t.Date())))
    with pytest.raises(Exception, match="cannot hold the days from 1582-10-05"):
        land(files, engine, load(columns=columns), [(1, [None, dt.date(1582, 10, 10)])])
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"csv_delimiter": ";", "csv_quote": "'"},
        {"csv_escape": "\\"},
        {"csv_delimiter": "\t", "csv_null_value": "<null>"},
    ],
)
def test_any_text_survives_any_csv(
    tmp_path: Path, engine: Engine, options: dict[str, str], header: bool
) -> None:
    columns = (("a", t.Text()), ("n", t.BigInt()), ("z", t.Text()))
    rows = [(text, n, text) for n, text in enumerate(TEXTS)]
    files = store(tmp_path, "csv", csv_header=header, **options)
    counts = land(files, engine, load(columns=columns), rows)
    assert counts.inserted == len(rows)
    assert sorted(rows_of(files, engine), key=lambda r: r[1]) == rows


def test_csv_is_what_other_programs_expect(tmp_path: Path, engine: Engine) -> None:
    columns = (("id", t.BigInt()), ("note", t.Text()), ("at", t.TimestampTZ()))
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC)
    texts = [text for text in TEXTS if text is not None and "\x00" not in text]
    land(
        store(tmp_path, "csv"),
        engine,
        load(columns=columns),
        [(n, text, moment) for n, text in enumerate(texts)],
    )
    [name] = data_names(tmp_path / "shop/orders")
    with (tmp_path / "shop/orders" / name).open(newline="", encoding="utf-8") as file:
        header, *records = csv.reader(file)
    assert header == ["id", "note", "at"]
    assert sorted(records, key=lambda r: int(r[0])) == [
        [str(n), text, "2026-01-02T03:04:05.000060Z"] for n, text in enumerate(texts)
    ]


def test_a_single_column_of_nulls_is_not_lost_in_csv(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path, "csv")
    rows = [(None,), ("",), (None,), ("x",)]
    assert land(files, engine, load(columns=(("a", t.Text()),)), rows).inserted == 4
    assert sorted(rows_of(files, engine), key=repr) == sorted(rows, key=repr)


def test_a_value_that_reads_as_null_is_refused(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path, "csv", csv_null_value="NA")
    with pytest.raises(Exception, match="which is how these CSV files write NULL"):
        land(files, engine, load(), [(1, "NA")])
    assert everything_below(tmp_path) == []


def test_json_lines_are_what_other_programs_expect(tmp_path: Path, engine: Engine) -> None:
    columns = (
        ("id", t.BigInt()), ("exact", t.Numeric(38, 2)), ("raw", t.Bytes()), ("day", t.Date()),
        ("note", t.Text()), ("tags", t.Array(t.Text())),
    )  # fmt: skip
    big = Decimal("123456789012345678901234567890.12")
    row = (2**60, big, b"\xff\x00", dt.date(2026, 1, 2), None, ["a", None])
    land(store(tmp_path, "json_lines"), engine, load(columns=columns), [row])
    [name] = data_names(tmp_path / "shop/orders")
    assert name.endswith(".jsonl")
    text = (tmp_path / "shop/orders" / name).read_text()
    assert json.loads(text, parse_float=Decimal) == {
        "id": 2**60,
        "exact": big,
        "raw": "/wA=",
        "day": "2026-01-02",
        "note": None,
        "tags": ["a", None],
    }


@pytest.mark.parametrize("format", FORMATS)
def test_append_adds_and_truncate_replaces(tmp_path: Path, engine: Engine, format: str) -> None:
    files = store(tmp_path, format)
    assert files.inspect(NAME) is None
    first, second, third = load(), load(), load("truncate")
    assert land(files, engine, first, [(1, "a"), (2, None)]) == Counts(read=2, inserted=2)
    assert land(files, engine, second, [(3, "")]) == Counts(read=1, inserted=1)
    assert sorted(rows_of(files, engine)) == [(1, "a"), (2, None), (3, "")]
    assert len(data_names(tmp_path / "shop/orders")) == 2
    expected = Counts(read=1, inserted=1, deleted=3)
    assert land(files, engine, third, [(9, "z")]) == expected
    assert rows_of(files, engine) == [(9, "z")]
    assert data_names(tmp_path / "shop/orders") == [
        f"{third.run.run_id}-00000.{files.written_as(third).extension}"
    ]
    assert files.committed(third.run.run_id, NAME) == expected
    assert files.committed(first.run.run_id, NAME) == Counts(read=2, inserted=2)
    assert files.committed("never", NAME) is None
    assert not (tmp_path / "shop/orders/_ematix/stage").exists()


def test_an_empty_source_is_refused_or_empties(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path)
    land(files, engine, load(), [(1, "a")])
    before = everything_below(tmp_path)
    with pytest.raises(EmptySource, match=r"would empty shop\.orders"):
        land(files, engine, load("truncate"), [])
    assert everything_below(tmp_path) == before
    assert land(files, engine, load("truncate", allow_empty=True), []) == Counts(deleted=1)
    assert rows_of(files, engine) == []
    assert files.inspect(NAME) is not None
    assert land(files, engine, load(), []) == Counts()
    assert data_names(tmp_path / "shop/orders") == []


def test_a_dry_run_counts_and_leaves_nothing(tmp_path: Path, engine: Engine) -> None:
    root = tmp_path / "not" / "yet"
    files = store(root)
    assert land(files, engine, load(), [(1, "a")], keep=False) == Counts(read=1, inserted=1)
    assert everything_below(tmp_path) == []
    land(files, engine, load(), [(1, "a"), (2, "b")])
    before = everything_below(tmp_path)
    counts = land(files, engine, load("truncate"), [(3, "c")], keep=False)
    assert counts == Counts(read=1, inserted=1, deleted=2)
    assert everything_below(tmp_path) == before
    assert sorted(rows_of(files, engine)) == [(1, "a"), (2, "b")]


def test_a_dry_run_does_not_fence_a_run(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path)
    with files.land(load()) as landing:
        staged = landing.stage(engine, frame(engine, [(1, "a")]))
        land(files, engine, load(), [(2, "b")], keep=False)
        landing.commit(staged, keep=True)
    assert rows_of(files, engine) == [(1, "a")]


def test_points_are_announced_in_order(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path)
    folder = tmp_path / "shop/orders"
    seen: list[tuple[str, int, int]] = []

    def announce(point: str) -> None:
        names = data_names(folder) if folder.exists() else []
        seen.append((point, len(names), len(ManifestLog(folder).numbers())))

    land(files, engine, load(), [(1, "a")])
    land(files, engine, load("truncate", announce=announce), [(2, "b")])
    assert seen == [("staging", 1, 1), ("staged", 1, 1), ("committing", 2, 1), ("committed", 2, 2)]
    assert len(data_names(folder)) == 1


@pytest.mark.parametrize("point", ["staging", "staged", "committing"])
def test_a_failure_before_the_commit_leaves_no_trace(
    tmp_path: Path, engine: Engine, point: str
) -> None:
    files = store(tmp_path)

    def fail(at: str) -> None:
        if at == point:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        land(files, engine, load(announce=fail), [(1, "a")])
    assert everything_below(tmp_path) == []
    land(files, engine, load(), [(1, "a")])
    before = everything_below(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        land(files, engine, load("truncate", announce=fail), [(2, "b")])
    assert everything_below(tmp_path) == before
    assert rows_of(files, engine) == [(1, "a")]


def test_a_failure_after_the_commit_keeps_it(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path)
    land(files, engine, load(), [(1, "a")])

    def fail(at: str) -> None:
        if at == "committed":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        land(files, engine, load("truncate", announce=fail), [(2, "b")])
    assert rows_of(files, engine) == [(2, "b")]
    assert len(data_names(tmp_path / "shop/orders")) == 1


def test_commits_of_other_pipelines_in_between_are_kept(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path)

    def intrude(at: str) -> None:
        if at == "committing":
            land(files, engine, load(pipeline="other"), [(2, "b")])

    land(files, engine, load(announce=intrude), [(1, "a")])
    assert sorted(rows_of(files, engine)) == [(1, "a"), (2, "b")]
    newest = ManifestLog(tmp_path / "shop/orders").newest()
    assert newest is not None
    assert newest.fences == {"copy": 1, "other": 1}


def test_a_run_that_was_overtaken_is_fenced(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path)

    def overtake(at: str) -> None:
        if at == "committing":
            land(files, engine, load(), [(1, "retry")])

    with pytest.raises(Fenced, match="another run of pipeline 'copy'"):
        land(files, engine, load(announce=overtake), [(1, "zombie")])
    assert rows_of(files, engine) == [(1, "retry")]
    assert len(data_names(tmp_path / "shop/orders")) == 1


def test_files_that_were_there_before_are_kept(tmp_path: Path, engine: Engine) -> None:
    folder = tmp_path / "shop/orders"
    folder.mkdir(parents=True)
    (folder / "old.csv").write_text("id,note\n1,mine\n2,\n")
    files = store(tmp_path, "csv")
    assert files.inspect(NAME) is not None
    assert land(files, engine, load(), [(3, "new")]) == Counts(read=1, inserted=1)
    assert sorted(rows_of(files, engine)) == [(1, "mine"), (2, None), (3, "new")]
    assert (folder / "old.csv").exists()
    (folder / "later.csv").write_text("id,note\n8,not ours\n")
    assert land(files, engine, load("truncate"), [(4, "only")]).deleted == 3
    assert rows_of(files, engine) == [(4, "only")]
    assert not (folder / "old.csv").exists()
    assert (folder / "later.csv").exists()


def test_a_failed_first_load_keeps_foreign_files(tmp_path: Path, engine: Engine) -> None:
    folder = tmp_path / "shop/orders"
    folder.mkdir(parents=True)
    (folder / "old.csv").write_text("id,note\n1,mine\n")

    def fail(at: str) -> None:
        if at == "committing":
            raise KeyboardInterrupt

    files = store(tmp_path, "csv")
    for mode in ("append", "truncate"):
        with pytest.raises(KeyboardInterrupt):
            land(files, engine, load(mode, announce=fail), [(2, "b")])
        assert everything_below(folder) == ["old.csv"]


def test_options_may_change_between_loads(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path, "csv")
    land(files, engine, load(), [(1, "a;b")])
    land(files, engine, load(csv_delimiter=";", csv_header=False), [(2, "c,d")])
    assert sorted(rows_of(files, engine)) == [(1, "a;b"), (2, "c,d")]


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "gzip", "zstd"])
def test_parquet_compression(tmp_path: Path, engine: Engine, codec: str) -> None:
    import pyarrow.parquet as pq

    land(store(tmp_path), engine, load(parquet_compression=codec), [(1, "a" * 1000)])
    [name] = data_names(tmp_path / "shop/orders")
    found = pq.read_metadata(tmp_path / "shop/orders" / name).row_group(0).column(1).compression
    assert found == codec.upper()


def test_small_loads_make_one_file(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path, "csv", csv_escape="\\")
    rows = engine.spark.range(0, 1000, numPartitions=8).selectExpr("id", "'x\\n\"' AS note")
    with files.land(load()) as landing:
        counts = landing.commit(landing.stage(engine, rows), keep=True)
    assert counts.inserted == 1000
    assert len(data_names(tmp_path / "shop/orders")) == 1
    assert rows_of(files, engine, "SELECT count(*), sum(id) FROM shop.orders") == [(1000, 499500)]


def test_steps_over_incoming_and_current(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path)
    land(files, engine, load(), [(1, "a"), (2, "b")])

    def select(sql: str) -> exp.Select:
        parsed = parse_one(sql, dialect="spark")
        assert isinstance(parsed, exp.Select)
        return parsed

    text = "SELECT i.id, concat(i.note, '{!}') AS note FROM incoming AS i"
    more = Insert(select(f"{text} LEFT ANTI JOIN current AS c ON c.id = i.id"))
    never = Assertion(
        select("SELECT id FROM incoming WHERE id < 0"), lambda rows: DataError(f"negative {rows}")
    )
    change = Change((more,), (never,))
    counts = land(files, engine, load(change=change), [(2, "x"), (7, "y")])
    assert counts == Counts(read=2, inserted=1)
    assert sorted(rows_of(files, engine)) == [(1, "a"), (2, "b"), (7, "y{!}")]
    with pytest.raises(DataError, match=r"negative \[\(-1,\)\]"):
        land(files, engine, load(change=change), [(-1, "x")])

    def intrude(at: str) -> None:
        if at == "committing":
            land(files, engine, load(pipeline="other"), [(3, "c")])

    with pytest.raises(Transient, match="has changed since this run read it"):
        land(files, engine, load(change=change, announce=intrude), [(8, "x")])
    assert sorted(rows_of(files, engine)) == [(1, "a"), (2, "b"), (3, "c"), (7, "y{!}")]


def test_names_and_places(tmp_path: Path, engine: Engine) -> None:
    columns = tuple(
        (name, t.Text()) for name in ("order", "userName", "select", "a b", "日付", "x.y")
    )
    name = TableName("my schema", "Größe {1}")
    rows = [tuple("abcdef")]
    for format in FORMATS:
        files = store(tmp_path / f"we[i]rd {{x}} 100% {format}", format)
        land(files, engine, load(columns=columns, name=name), rows)
        assert rows_of(files, engine, "SELECT * FROM `my schema`.`Größe {1}`") == rows
    prefixed = store(tmp_path / "p")
    land(prefixed, engine, load(prefix="events/raw"), [(1, "a")])
    assert prefixed.locate(NAME, "events/raw") == str(tmp_path / "p/events/raw")
    assert prefixed.inspect(NAME, "events/raw") is not None
    assert rows_of(prefixed, engine, "SELECT * FROM `events/raw`") == [(1, "a")]
    assert rows_of(prefixed, engine, "SELECT * FROM events.raw") == [(1, "a")]


def test_what_a_plan_shows(tmp_path: Path) -> None:
    files = store(tmp_path)
    folder = tmp_path / "shop/orders"
    assert files.ddl(load()) == [f"-- creates the folder {folder} of parquet files"]
    assert files.steps_sql(load(), "these rows") == [
        "-- incoming is these rows",
        f"INSERT INTO `{folder}` SELECT `id`, `note` FROM incoming",
    ]
    assert files.steps_sql(load("truncate"), "these rows")[1:] == [
        f"INSERT OVERWRITE `{folder}` SELECT `id`, `note` FROM incoming"
    ]
    assert everything_below(tmp_path) == []


def test_the_found_table_is_the_declared_one(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path, "csv")
    land(files, engine, load(), [(1, "a")])
    found = files.inspect(NAME)
    assert found is not None
    assert found.columns == tuple(
        FoundColumn(name, kind, str(kind), True) for name, kind in COLUMNS
    )


@pytest.mark.parametrize(
    ("format", "options", "error", "message"),
    [
        ("csv", {"parquet_compression": "zstd"}, ConfigError, "an option of parquet files"),
        ("parquet", {"csv_delimiter": ";"}, ConfigError, "an option of csv files"),
        ("parquet", {"csv_read_options": {}}, ConfigError, "an option of csv files"),
        ("orc", {"json_read_options": {"batch_size": 1}}, ConfigError, "option of json_lines"),
        ("parquet", {"parquet_compression": "zst"}, ConfigError, "did you mean 'zstd'"),
        ("csv", {"csv_delimiter": "||"}, ConfigError, "not a single character"),
        ("csv", {"csv_delimiter": '"'}, ConfigError, "give each its own character"),
        ("csv", {"csv_read_options": {"delimeter": ";"}}, UnknownName, "did you mean 'delimiter'"),
        ("csv", {"csv_read_options": {"has_header": 1}}, ConfigError, "True or False"),
        ("csv", {"csv_read_options": {"null_regex": "("}}, ConfigError, "regular expression"),
        ("csv", {"csv_read_options": {"terminator": "ab"}}, ConfigError, "CR LF"),
        ("json_lines", {"json_read_options": {"batch_size": 0}}, ConfigError, "above 0"),
        ("json_lines", {"json_read_options": {"batch": 5}}, UnknownName, "did you mean"),
    ],
)
def test_options_that_cannot_be_right(
    tmp_path: Path, format: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        store(tmp_path, format, **options)
    with pytest.raises(error, match=message):
        store(tmp_path, format).land(load(**options))


def test_what_files_cannot_hold(tmp_path: Path) -> None:
    table = Table(NAME, (Column(type=t.Text(), name="a`b"),))
    store(tmp_path, "parquet").check_table(table)
    with pytest.raises(Unsupported, match="backtick"):
        store(tmp_path, "orc").check_table(table)
    with pytest.raises(Unsupported, match="cannot be the name of a folder"):
        store(tmp_path).locate(TableName("a/b", "c"), None)
    with pytest.raises(DataError, match="leads out of the folder"):
        store(tmp_path / "lake").locate(NAME, "../elsewhere")


def test_a_place_that_cannot_be_written(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "shop").write_text("a file where a folder must be")
    with pytest.raises(Permanent, match=r"connection 'lake': .*shop"):
        land(store(tmp_path), engine, load(), [(1, "a")])
    assert everything_below(tmp_path) == ["shop"]


def test_a_listed_file_that_is_gone_is_named(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path)
    land(files, engine, load(), [(1, "a")])
    [name] = data_names(tmp_path / "shop/orders")
    (tmp_path / "shop/orders" / name).unlink()
    with pytest.raises(DataError, match=f"{name} is listed in manifest 1"):
        rows_of(files, engine)


def test_a_file_replaced_before_it_is_read_asks_to_run_again(
    tmp_path: Path, engine: Engine
) -> None:
    files = store(tmp_path)
    land(files, engine, load(), [(1, "a")])
    [name] = data_names(tmp_path / "shop/orders")
    found = files.store.table(("shop", "orders"))
    land(files, engine, load("truncate"), [(2, "b")])
    with pytest.raises(Transient, match=f"{name} was removed by a load .* run again"):
        found.load(engine.spark)


def test_a_damaged_file_of_ours_is_noticed(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path)
    land(files, engine, load(), [(n, str(n)) for n in range(10_000)])
    [name] = data_names(tmp_path / "shop/orders")
    path = tmp_path / "shop/orders" / name
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 3] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(Exception, match=name):
        rows_of(files, engine, "SELECT sum(id) AS s, max(note) AS m FROM shop.orders")


def test_a_live_connection(tmp_path: Path, engine: Engine) -> None:
    files = store(tmp_path, "csv")
    land(files, engine, load(), [(1, "a"), (2, None)])
    with files.open() as conn:
        conn.ping()
        assert conn.info() == {"kind": "object_store_local", "path": str(tmp_path), "format": "csv"}
        assert conn.query("SELECT id FROM shop.orders ORDER BY id", max_rows=1) == [{"id": 1}]
        assert conn.read_df("SELECT * FROM shop.orders ORDER BY id")["id"].tolist() == [1, 2]
        with pytest.raises(Unsupported, match="runs no statements"):
            conn.execute("DROP TABLE shop.orders")
    with (
        store(tmp_path / "absent").open() as conn,
        pytest.raises(Permanent, match="does not exist"),
    ):
        conn.ping()
