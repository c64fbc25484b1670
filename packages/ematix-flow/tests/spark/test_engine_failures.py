"""Real failures of Spark, and the one sentence each becomes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow.engine import translate
from ematix_flow.errors import (
    BadValue,
    DataError,
    EmatixError,
    EngineError,
    Permanent,
    SourceLocation,
    Transient,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def failure_of(work: Callable[[], Any], **options: str) -> EmatixError:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what we ask
        work()
    found = translate(caught.value, **options)
    assert found.__cause__ is caught.value
    text = str(found)
    assert "\n" not in text
    assert "\tat " not in text
    assert "org.apache.spark" not in text
    assert "SQLSTATE" not in text
    assert len(text) < 700
    assert str(pickle.loads(pickle.dumps(found))) == text  # noqa: S301 - our own bytes
    return found


@pytest.mark.parametrize(
    ("query", "kind", "sentence"),
    [
        (
            "SELECT CAST(x AS INT) FROM VALUES ('1'), ('abc') t(x)",
            BadValue,
            "'abc' is not a valid INT",
        ),
        (
            "SELECT CAST(x AS DATE) FROM VALUES ('soon') t(x)",
            BadValue,
            "'soon' is not a valid DATE",
        ),
        (
            "SELECT CAST(x AS INT) FROM VALUES (99999999999L) t(x)",
            BadValue,
            "99999999999 is too large for INT",
        ),
        (
            "SELECT CAST(x AS DECIMAL(3,1)) FROM VALUES ('12345.6') t(x)",
            BadValue,
            "12345.6 does not fit DECIMAL(3,1)",
        ),
        ("SELECT 1 / x FROM VALUES (0) t(x)", BadValue, "division by zero"),
        ("SELECT x + 1 FROM VALUES (2147483647) t(x)", BadValue, "overflow"),
        ("SELECT nope FROM VALUES (1) t(name)", DataError, "there is no column 'nope'"),
        ("SELECT * FROM nosuch.thing", DataError, "there is no table or view 'nosuch.thing'"),
        ("SELEC 1", DataError, "the SQL is not valid: Syntax error at or near 'SELEC'"),
        ("SELECT raise_error('by hand')", DataError, "by hand"),
        ("SELECT nofunction(1)", DataError, "nofunction"),
    ],
)
def test_queries(spark: SparkSession, query: str, kind: type[EmatixError], sentence: str) -> None:
    found = failure_of(lambda: spark.sql(query).collect())
    assert type(found) is kind
    assert sentence in str(found)


def test_a_failed_cast_inside_a_write(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT CAST(x AS INT) AS y FROM VALUES ('abc') t(x)")
    found = failure_of(lambda: frame.write.parquet(str(tmp_path / "out")))
    assert str(found).startswith("'abc' is not a valid INT")


def test_long_values_are_cut(spark: SparkSession) -> None:
    query = "SELECT CAST(repeat('secret row ', 1000) AS INT) FROM range(1)"
    found = failure_of(lambda: spark.sql(query).collect())
    assert isinstance(found, BadValue)
    assert len(found.what) < 120


def test_missing_and_broken_files(spark: SparkSession, tmp_path: Path) -> None:
    missing = failure_of(lambda: spark.read.parquet(str(tmp_path / "missing")))
    assert str(missing).startswith(f"there is no file or folder {tmp_path / 'missing'}")

    spark.range(1000).coalesce(1).write.parquet(str(tmp_path / "whole"))
    (whole,) = (tmp_path / "whole").glob("*.parquet")
    content = whole.read_bytes()
    damaged = {
        "truncated": content[: len(content) // 2],
        "garbage": b"PAR1" + b"garbage" * 9 + b"PAR1",
        "text": b"a,b,c\n1,2,3\n",
    }
    for name, data in damaged.items():
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(data)
        found = failure_of(lambda p=path: spark.read.schema("id LONG").parquet(str(p)).collect())
        assert isinstance(found, DataError)
        assert str(found).startswith(f"{path} is not a complete Parquet or ORC file")


def test_files_that_go_while_they_are_read(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1000).repartition(2).write.parquet(str(tmp_path / "rows"))
    listed = spark.read.parquet(str(tmp_path / "rows"))
    for file in (tmp_path / "rows").glob("*.parquet"):
        file.unlink()
    found = failure_of(listed.collect)
    assert type(found) is Transient
    assert "was removed while it was read" in str(found)
    assert str(tmp_path / "rows") in str(found)


def test_a_malformed_record_is_not_quoted(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("1,2\nmy card is 4111,x\n")
    reader = spark.read.option("mode", "FAILFAST").schema("a INT, b INT")
    found = failure_of(lambda: reader.csv(str(tmp_path / "in.csv")).collect())
    assert isinstance(found, BadValue)
    assert str(tmp_path / "in.csv") in str(found)
    assert "4111" not in str(found)


def test_a_folder_that_cannot_be_written(spark: SparkSession) -> None:
    found = failure_of(lambda: spark.range(3).write.parquet("/proc/nowhere"))
    assert str(found).startswith("/proc/nowhere cannot be written")


def test_a_full_disk(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")

    def work() -> None:
        def fill(rows: Iterator[Any]) -> Iterator[Any]:
            with open(tmp_path / "full", "wb", buffering=0) as file:
                file.write(b"x")
            yield from rows

        spark.range(3).mapInArrow(fill, "id LONG").collect()

    assert "No space left on device" in str(failure_of(work))


def test_a_python_function_is_named_with_its_line(spark: SparkSession) -> None:
    from pyspark.sql.functions import udf

    @udf("int")
    def boom(x):  # type: ignore[no-untyped-def]
        return 1 // (x - x)

    found = failure_of(lambda: spark.range(3).select(boom("id")).collect())
    assert isinstance(found, EngineError)
    assert "ZeroDivisionError: integer division or modulo by zero" in str(found)
    assert isinstance(found.where, SourceLocation)
    assert found.where.file == __file__
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "1 // (x - x)" in lines[found.where.line - 1]


def test_a_secret_in_a_python_error_is_masked(spark: SparkSession) -> None:
    def fail(rows: Iterator[Any]) -> Iterator[Any]:
        raise ValueError("cannot reach postgresql://me:hunter22@host/db, password=hunter22")
        yield from rows

    found = failure_of(lambda: spark.range(3).mapInArrow(fail, "id LONG").collect())
    assert "ValueError: cannot reach" in str(found)
    assert "hunter22" not in str(found)


def test_a_python_worker_that_dies(spark: SparkSession) -> None:
    def die(rows: Iterator[Any]) -> Iterator[Any]:
        import os

        os._exit(3)
        yield from rows

    found = failure_of(lambda: spark.range(3).mapInArrow(die, "id LONG").collect())
    assert str(found).startswith("a Python worker process ended without a word")


def jdbc(spark: SparkSession, url: str, driver: str = "org.postgresql.Driver") -> None:
    options = {"url": url, "driver": driver, "dbtable": "t"}
    spark.read.format("jdbc").options(**options).load()


def test_databases_that_cannot_be_reached(spark: SparkSession) -> None:
    url = "jdbc:postgresql://127.0.0.1:1/db?user=me&password=hunter22"
    refused = failure_of(lambda: jdbc(spark, url), connection="orders")
    assert isinstance(refused, Transient)
    assert refused.connection == "orders"
    assert "Connection to 127.0.0.1:1 refused" in str(refused)
    assert "hunter22" not in str(refused)

    unknown = failure_of(lambda: jdbc(spark, "jdbc:postgresql://nowhere.invalid/db"))
    assert isinstance(unknown, Permanent)
    assert "the host nowhere.invalid is unknown" in str(unknown)


def test_what_spark_lacks(spark: SparkSession) -> None:
    driver = failure_of(lambda: jdbc(spark, "jdbc:x://host/db", driver="com.example.Driver"))
    assert "Spark lacks a class it needs: com.example.Driver" in str(driver)
    source = failure_of(lambda: spark.read.format("floppy").load("x"))
    assert "Spark has no data source 'floppy'" in str(source)


def test_other_errors_keep_their_place_in_the_users_code() -> None:
    found = failure_of(lambda: [1, 2].index(3))
    assert "ValueError: 3 is not in list" in str(found)
    assert found.where is not None
    assert found.where.file == __file__


def test_our_own_errors_pass_through() -> None:
    error = BadValue("as it is")
    assert translate(error) is error
