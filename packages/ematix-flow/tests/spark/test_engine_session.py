"""The shared engine of the tests: right settings, jobs that can be followed and cancelled."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ematix_flow.engine import Engine, Job, current_engine, open_engine, translate
from ematix_flow.engine.classic import ClassicEngine
from ematix_flow.engine.settings import derive
from ematix_flow.errors import Cancelled, EngineError
from unit.engine import child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def cancelled() -> Iterator[list[BaseException]]:
    errors: list[BaseException] = []
    yield errors
    assert all(isinstance(translate(error), Cancelled) for error in errors)


def endless(spark: SparkSession) -> None:
    spark.range(10**13).selectExpr("sum(hash(id))").collect()


def run_in_thread(work: object, errors: list[BaseException]) -> threading.Thread:
    def body() -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001 - looked at by the test
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread


def test_names_that_differ_in_case_are_two_columns(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS userName, 2 AS username")
    assert frame.select("username").first() == (2,)
    assert frame.select("userName").first() == (1,)


def test_time_is_utc_everywhere(spark: SparkSession) -> None:
    text = "2024-07-01 12:00:00"
    (row,) = spark.sql(f"SELECT unix_timestamp(TIMESTAMP '{text}'), current_timezone()").collect()
    moment = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.timezone.utc)
    assert row[0] == int(moment.timestamp())
    assert row[1] == "UTC"


def test_folders_keep_their_text(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT 1 AS id, '01' AS code").write.partitionBy("code").parquet(str(tmp_path / "t"))
    assert spark.read.parquet(str(tmp_path / "t")).select("code").first() == ("01",)


def test_nothing_is_dropped_into_the_working_folder(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TEMP VIEW v AS SELECT 1")
    dropped = {"spark-warehouse", "metastore_db", "derby.log", "artifacts"}
    assert not dropped & {path.name for path in Path.cwd().iterdir()}


def test_the_same_settings_are_the_same_engine(engine: Engine) -> None:
    assert open_engine(derive(jars=("postgres",))) is engine
    assert open_engine(derive()) is engine, "fewer jars are no reason for another engine"
    assert current_engine() is engine
    assert engine.kind == "spark"


def test_a_job_is_cancelled_from_another_thread(
    engine: Engine, cancelled: list[BaseException]
) -> None:
    jobs: list[Job] = []

    def work() -> None:
        with engine.job("endless") as job:
            jobs.append(job)
            endless(engine.spark)

    thread = run_in_thread(work, cancelled)
    child.wait_until(lambda: bool(jobs) and jobs[0].progress().active, what="the job runs")
    seen = jobs[0].progress()
    assert seen.stages_total >= 1
    assert 0 <= seen.tasks_done < seen.tasks_total
    jobs[0].cancel()
    thread.join(child.PATIENCE)
    assert len(cancelled) == 1
    child.wait_until(lambda: not jobs[0].progress().active, what="the job ends")


def test_cancelling_one_job_spares_the_others(
    engine: Engine, cancelled: list[BaseException]
) -> None:
    jobs: list[Job] = []

    def work() -> None:
        with engine.job("endless") as job:
            jobs.append(job)
            endless(engine.spark)

    thread = run_in_thread(work, cancelled)
    child.wait_until(lambda: bool(jobs) and jobs[0].progress().active, what="the job runs")
    with engine.job("short") as short:
        jobs[0].cancel()
        assert engine.spark.range(1000).count() == 1000
    thread.join(child.PATIENCE)
    assert len(cancelled) == 1
    # Spark's books are kept by listeners, a moment behind the work itself.
    child.wait_until(lambda: not short.progress().active, what="the short job ends")
    done = short.progress()
    assert done.tasks_done == done.tasks_total > 0
    assert done.stages_done == done.stages_total


def test_a_busy_engine_is_not_replaced_and_cancel_all_frees_it(
    engine: Engine, cancelled: list[BaseException]
) -> None:
    assert isinstance(engine, ClassicEngine)
    thread = run_in_thread(lambda: endless(engine.spark), cancelled)
    child.wait_until(lambda: engine.is_busy, what="the job runs")
    with pytest.raises(EngineError, match="busy"):
        open_engine(derive(conf={"spark.sql.shuffle.partitions": "3"}))
    engine.cancel_all()
    thread.join(child.PATIENCE)
    assert len(cancelled) == 1
    assert current_engine() is engine


def test_what_failed_in_a_job_comes_out_as_it_is(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), engine.job("failing"):
        raise ZeroDivisionError
    assert engine.spark.range(3).count() == 3
