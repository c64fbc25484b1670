"""The warm engine: real ``flow`` processes, one real engine, and every way for it to be lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from unit.engine import child

pytestmark = pytest.mark.slow

FLOW = [sys.executable, "-m", "ematix_flow.cli.main"]

PIPELINES = """
import os
from pathlib import Path
from typing import Annotated

from pyspark.sql.functions import lit, udf
from pyspark.sql.types import StringType

import wording
from ematix_flow import BigInt, Text, ematix, pk


@ematix.connection
class warehouse:
    kind = "duckdb"
    path = "warehouse.duckdb"


@ematix.connection
class lake:
    kind = "delta_local"
    path = "lake"


@ematix.table(schema="shop")
class Words:
    number: Annotated[BigInt, pk()]
    word: Text
    shop: Text
    folder: Text


@udf(StringType())
def worded(number):
    return wording.of(number)


@udf(StringType())
def shop(_):
    return os.environ.get("SHOP", "none")


@udf(StringType())
def folder(_):
    return os.getcwd()


def words(spark):
    rows = spark.range(3).withColumnRenamed("id", "number")
    return rows.select(
        "number", worded("number").alias("word"), shop("number").alias("shop"),
        folder("number").alias("folder"),
    )


@ematix.pipeline(
    target=Words, source_connection="warehouse", target_connection="warehouse", mode="truncate"
)
def load_words(spark):
    return words(spark)


@ematix.pipeline(
    target=Words, source_connection="warehouse", target_connection="lake", mode="merge"
)
def load_lake(spark):
    return words(spark)


@ematix.pipeline(
    target=Words, source_connection="warehouse", target_connection="warehouse", mode="append"
)
def never_ends(spark):
    def wait(batches):
        import time

        Path("working").touch()
        time.sleep(600)
        yield from batches

    endless = spark.range(1).mapInArrow(wait, "id BIGINT").withColumnRenamed("id", "number")
    return endless.select("number", *(lit("").alias(name) for name in ("word", "shop", "folder")))


@ematix.pipeline(
    target=Words, source_connection="warehouse", target_connection="warehouse", mode="truncate"
)
def takes_a_while(spark):
    def wait(batches):
        import time

        time.sleep(40)
        yield from batches

    slow = spark.range(1).mapInArrow(wait, "id BIGINT").withColumnRenamed("id", "number")
    return slow.select("number", *(lit("").alias(name) for name in ("word", "shop", "folder")))
"""

WORDING = """
def of(number):
    return "{} " + str(number)
"""


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Shop:
    """A project folder, a home, and the ``flow`` command in them."""

    folder: Path
    home: Path

    def environment(self, **more: str) -> dict[str, str]:
        own = ("EMATIX_FLOW_HOME", "EMATIX_FLOW_ENGINE", "EMATIX_FLOW_MASTER", "SHOP")
        kept = {k: v for k, v in os.environ.items() if k not in own and not k.startswith("SPARK_")}
        return {**kept, "EMATIX_FLOW_HOME": str(self.home), **more}

    def flow(self, *arguments: str, cwd: Path | None = None, **more: str) -> Said:
        ended = subprocess.run(
            [*FLOW, *arguments],
            cwd=cwd or self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=child.PATIENCE,
            check=False,
        )
        return Said(ended.returncode, ended.stdout, ended.stderr)

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[str]]:
        (self.folder / "working").unlink(missing_ok=True)
        with subprocess.Popen(
            [*FLOW, "run", name],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                child.wait_until((self.folder / "working").exists, what=f"{name} is at work")
                yield process
            finally:
                process.kill()

    def python(self, code: str, **more: str) -> Said:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=child.PATIENCE,
            check=False,
        )
        return Said(ended.returncode, ended.stdout, ended.stderr)

    def say(self, greeting: str) -> None:
        (self.folder / "wording.py").write_text(WORDING.format(greeting))

    @property
    def status(self) -> dict[str, Any]:
        told = self.flow("engine", "status", "--format", "json")
        document: dict[str, Any] = told.json
        assert told.code == (0 if document["usable"] else 1)
        return document

    @property
    def slot(self) -> Path:
        (found,) = (self.home / "engine").iterdir()
        return found

    def words(self) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.folder / "warehouse.duckdb"), read_only=True) as target:
            columns = "number, word, shop, folder"
            return target.execute(f"SELECT {columns} FROM shop.words ORDER BY 1").fetchall()

    def expected(self, greeting: str, shop: str) -> list[tuple[Any, ...]]:
        return [(n, f"{greeting} {n}", shop, str(self.folder)) for n in range(3)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    base = tmp_path_factory.mktemp("shop").resolve()
    held = Shop(base / "project", base / "home")
    held.folder.mkdir()
    (held.folder / "pipelines.py").write_text(PIPELINES)
    (held.folder / ".ematix-flow.toml").write_text('[project]\nmodules = ["pipelines.py"]\n')
    held.say("number")
    yield held
    held.flow("engine", "stop", "--all")


@pytest.fixture
def up(shop: Shop) -> Shop:
    """The shop with its engine up."""
    started = shop.flow("engine", "start")
    assert started.code == 0, started.err
    return shop


ASK = """
import sys
from ematix_flow.cli.main import main

code = main(["engine", "status"])
heavy = {"duckdb", "grpc", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "sqlglot"}
print(code, heavy & set(sys.modules))
"""


def test_nothing_is_started_by_asking(shop: Shop) -> None:
    assert shop.python(ASK).out == "no engine is running in this folder\n1 set()\n"
    told = shop.flow("engine", "status")
    assert (told.code, told.out) == (1, "no engine is running in this folder\n")
    assert shop.flow("engine", "stop").out == "no engine was running in this folder\n"
    missing = shop.flow("engine", "logs")
    assert missing.code == 2
    assert "no engine has been started in this folder" in missing.err


def test_two_starts_at_once_give_one_private_engine(shop: Shop) -> None:
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(shop.flow, "engine", "start", "--format", "json") for _ in range(2)]
    told = [one.result().json for one in both]
    assert sorted(one["started"] for one in told) == [False, True]
    assert len({one["process_id"] for one in told}) == 1
    token = (shop.slot / "token").read_text()
    assert stat.S_IMODE((shop.slot / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(shop.slot.stat().st_mode) == 0o700
    assert token not in (shop.slot / "record.json").read_text()
    shown = [shop.flow("engine", *one) for one in (["status"], ["logs"], ["start"])]
    shown.append(shop.flow("doctor"))
    assert not any(token in said.out + said.err for said in shown)
    family = {told[0]["process_id"]} | child.descendants(told[0]["process_id"])
    assert len(family) > 1
    for process in family:
        assert token not in Path(f"/proc/{process}/cmdline").read_text()
    assert "warm engine" in shown[-1].out
    assert "runs in this folder use it" in shown[-1].out


def test_runs_use_it_and_its_python_is_the_clients(up: Shop) -> None:
    before = up.status["process_id"]
    first = up.flow("run", "load_words", "--log-level", "debug", SHOP="north")
    assert first.code == 0, first.err
    assert "attached to the warm engine" in first.err
    assert up.words() == up.expected("number", "north")
    # The same engine, other code and other variables.
    up.say("nummer")
    second = up.flow("run", "load_words", SHOP="south")
    assert second.code == 0, second.err
    assert up.words() == up.expected("nummer", "south")
    merged = up.flow("run", "load_lake", "--log-level", "debug")
    assert merged.code == 0, merged.err
    assert "attached to the warm engine" in merged.err
    assert "3 inserted" in merged.out
    assert "3 unchanged" in up.flow("run", "load_lake").out
    counted = up.flow("dry-run", "load_words", "--log-level", "debug")
    assert "attached to the warm engine" in counted.err
    assert up.status["process_id"] == before
    jvm = json.loads((up.slot / "record.json").read_text())["jvm_process_id"]
    child.wait_until(lambda: not any((up.slot / "clients").iterdir()), what="sessions are closed")
    child.wait_until(lambda: not child.descendants(jvm), what="their Python processes are gone")


def test_who_must_not_use_it_does_not(up: Shop, tmp_path: Path) -> None:
    told = up.flow("engine", "status", cwd=tmp_path)
    assert told.code == 1
    assert told.out.splitlines()[0] == "no engine is running in this folder"
    assert str(up.folder) in told.out
    other = up.flow("engine", "status", AWS_PROFILE="other")
    assert other.code == 1
    assert "it was started with other environment variables" in other.out
    local = up.flow("engine", "status", "--format", "json", EMATIX_FLOW_ENGINE="local")
    assert (local.code, local.json["reason"]) == (1, "the engine is set to local")
    wrong = up.flow("engine", "status", EMATIX_FLOW_ENGINE="remote")
    assert wrong.code == 2
    assert "EMATIX_FLOW_ENGINE is 'remote'; it may be auto, local, sail or distributed" in wrong.err


ATTACH = """
import logging
logging.basicConfig(level="DEBUG", format="%(message)s")
from ematix_flow.engine.session import configured
from ematix_flow.engine.warm_session import attach_to_warm
engine = attach_to_warm(configured())
print(None if engine is None else engine.spark.range(5).count())
"""


def test_a_wrong_token_is_not_tried_twice(up: Shop) -> None:
    held = (up.slot / "token").read_text()
    try:
        (up.slot / "token").write_text("wrong")
        told = up.python(ATTACH)
        assert told.out == "None\n"
        assert "the warm engine is not used: it was started with another token" in told.err
        # As one who has both: the server itself refuses.
        record = json.loads((up.slot / "record.json").read_text())
        digests = "from ematix_flow.engine.warm import *\n" + (
            "import hashlib; print(hashlib.sha256(b'wrong').hexdigest(), read_by_java('wrong'))"
        )
        token, environment = up.python(digests).out.split()
        forged = {**record, "token": token, "environment": environment}
        (up.slot / "record.json").write_text(json.dumps(forged))
        told = up.python(ATTACH)
        assert told.out == "None\n"
        assert "refused the token" in told.err
        (up.slot / "record.json").write_text(json.dumps(record))
    finally:
        (up.slot / "token").write_text(held)
    assert up.python(ATTACH).out == "5\n"


def test_interrupted_and_killed_clients_leave_it_usable(up: Shop) -> None:
    before = up.status["process_id"]
    jvm = json.loads((up.slot / "record.json").read_text())["jvm_process_id"]
    with up.running("never_ends") as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=child.PATIENCE)
        assert process.returncode == 130
        assert "cancelled" in err
    child.wait_until(lambda: not child.descendants(jvm), what="the interrupted work has ended")
    with up.running("never_ends") as process:
        process.kill()
    child.wait_until(lambda: not child.descendants(jvm), what="the orphaned work has ended")
    assert up.flow("run", "load_words").code == 0
    assert up.status["process_id"] == before


LATER = """
import subprocess, sys
from ematix_flow.engine.session import current_engine
from pipelines import load_words

assert load_words.sync().rows_inserted == 3
print(current_engine())
subprocess.run([sys.executable, "-m", "ematix_flow.cli.main", "engine", "stop"], check=True)
assert load_words.sync().rows_inserted == 3
print(current_engine().kind)
"""


def test_a_program_outlives_the_engine(up: Shop) -> None:
    told = up.python(LATER, SHOP="late")
    assert told.code == 0, told.err
    assert told.out.splitlines() == ["None", "the engine is stopped", "spark"]
    assert up.words() == up.expected("nummer", "late")


@pytest.mark.parametrize("victim", ["process_id", "jvm_process_id"])
def test_a_killed_engine_is_seen_and_replaced(up: Shop, victim: str) -> None:
    record = json.loads((up.slot / "record.json").read_text())
    os.kill(record[victim], signal.SIGKILL)
    child.wait_until(
        lambda: (
            not child.exists(record["process_id"]) and not child.exists(record["jvm_process_id"])
        ),
        what="neither half outlives the other",
    )
    told = up.status
    assert told["state"] == ("dead" if victim == "process_id" else "off")
    assert up.python(ATTACH).out == "None\n"
    # What is left, with a process of the same number, is still nobody's engine.
    left = {**record, "process_id": os.getpid(), "jvm_process_id": os.getpid()}
    (up.slot / "record.json").write_text(json.dumps(left))
    assert up.status["state"] == "dead"
    assert up.flow("engine", "stop").out == "no engine was running in this folder\n"
    assert not (up.slot / "record.json").exists()


@pytest.mark.parametrize("victim", ["process_id", "jvm_process_id"])
def test_a_run_ends_with_its_engine(up: Shop, victim: str) -> None:
    record = json.loads((up.slot / "record.json").read_text())
    with up.running("never_ends") as process:
        os.kill(record[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=child.PATIENCE)
    assert process.returncode == 1
    assert "the warm engine of this folder has ended in the middle of the run; run it again" in err
    assert "RETRIES_EXCEEDED" not in err
    assert up.flow("run", "load_words").code == 0


def test_it_ends_when_idle(shop: Shop) -> None:
    started = shop.flow("engine", "start", "--idle-timeout", "0.02", "--format", "json").json
    assert started["idle_timeout_seconds"] == pytest.approx(1.2)
    child.wait_until(lambda: not child.exists(started["process_id"]), what="it ended by itself")
    assert shop.status["state"] == "off"


@pytest.mark.soak
def test_it_does_not_end_at_work(shop: Shop) -> None:
    started = shop.flow("engine", "start", "--idle-timeout", "0.5", "--format", "json").json
    ended = shop.flow("run", "takes_a_while", "--log-level", "debug")
    assert ended.code == 0, ended.err
    assert "attached to the warm engine" in ended.err
    child.wait_until(lambda: not child.exists(started["process_id"]), what="it ended by itself")
