"""The engine as a process: clean exits, SIGKILL, Ctrl-C, both kinds of Java.

A program costs a JVM, so each one here asks as many questions as it can.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ematix_flow.engine.java import bundled_home
from ematix_flow.engine.workspace import sweep
from unit.engine import child

pytestmark = pytest.mark.slow

OPEN = """
import os, sys, threading
from ematix_flow.engine import (
    current_engine, derive, live_progress, open_engine, prepare_engine, translate
)
from ematix_flow.errors import Cancelled, EmatixError
engine = open_engine(derive())
spark = engine.spark
jvm = engine._host.jvm.process.pid
"""

ENDLESS = "spark.range(10**13).selectExpr('sum(hash(id))').collect()"


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "cwd"
    folder.mkdir()
    return folder


def litter(cwd: Path) -> list[Path]:
    """What Spark left in the working folder and in TMPDIR."""
    kept = {"program.py", "out"}
    return [
        *child.temporary(cwd).iterdir(),
        *(path for path in cwd.iterdir() if path.name not in kept),
    ]


def read_all(terminal: int, shown: bytearray) -> None:
    """Collect what is written to a terminal until nobody writes to it any more."""
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 4096):
            shown += chunk


def test_a_program_of_many_parts_leaves_no_trace(cwd: Path) -> None:
    code, out, err = child.run(
        """
import os, pathlib, stat, sys, threading
from ematix_flow.engine import (
    current_engine, derive, live_progress, open_engine, prepare_engine, translate
)
before = dict(os.environ)
settings = derive(conf={"spark.my.password": "hunter22"})
prepare_engine(settings)
engine = open_engine(settings)
spark = engine.spark
print("one engine:", open_engine(settings) is engine, current_engine() is engine)
print("environment:", sorted(n for n in os.environ if before.get(n) != os.environ[n]))
print("pandas:", "pandas" in sys.modules)

jvm = engine._host.jvm.process.pid
print("seen in ps:", "hunter22" in pathlib.Path(f"/proc/{jvm}/cmdline").read_text())
print("seen in SET:", any("hunter22" in str(row) for row in spark.sql("SET").collect()))
print("folder:", oct(stat.S_IMODE(engine.workspace.path.stat().st_mode)))
print("log:", oct(stat.S_IMODE(engine.log.stat().st_mode)))

from pyspark.sql.functions import udf
with engine.job("python") as job, live_progress(engine, job, "python"):
    worker = udf(lambda x: f"{sys.executable} {os.environ['TZ']}")
    print("worker:", spark.range(3).select(worker("id")).first()[0])
    spark.range(100).write.parquet("out")
while job.progress().active:
    pass
print("progress:", job.progress().tasks_done > 0)

def read(label):
    try:
        url = "jdbc:postgresql://127.0.0.1:1/db?user=u&password=hunter22"
        options = {"url": url, "driver": "org.postgresql.Driver", "dbtable": "t"}
        spark.read.format("jdbc").options(**options).load()
    except Exception as error:
        print(label, type(translate(error)).__name__, translate(error))
read("before:")
engine.require_jars(["postgres"])
read("after:")
thread = threading.Thread(target=read, args=("thread:",))
thread.start()
thread.join()
print("jvm:", jvm)
""",
        cwd=cwd,
    )
    assert (code, err) == (0, "")
    said = dict(line.split(": ", 1) for line in out.splitlines())
    assert said["one engine"] == "True True"
    # PySpark itself keeps these two for its sockets.
    assert said["environment"] == "['SPARK_AUTH_SOCKET_TIMEOUT', 'SPARK_BUFFER_SIZE']"
    assert said["pandas"] == "False", "starting must not pay for importing pandas"
    assert (said["seen in ps"], said["seen in SET"]) == ("False", "False")
    assert (said["folder"], said["log"]) == ("0o700", "0o600")
    assert said["worker"] == f"{sys.executable} UTC"
    assert said["progress"] == "True"
    assert "org.postgresql.Driver" in said["before"]
    assert said["after"].startswith(
        "Transient connection 'jdbc': Connection to 127.0.0.1:1 refused"
    )
    assert said["thread"] == said["after"]
    assert "hunter22" not in out
    assert not child.exists(int(said["jvm"]))
    assert litter(cwd) == []


def test_the_bundled_java_runs_spark(cwd: Path) -> None:
    code, out, err = child.run(
        OPEN + "print(spark.range(100).count(), engine._host.jvm.plan.java.home)",
        cwd=cwd,
        env={"JAVA_HOME": str(bundled_home())},
    )
    assert (code, err) == (0, "")
    assert out == f"100 {bundled_home()}\n"
    assert litter(cwd) == []


def test_nothing_outlives_a_killed_program(cwd: Path) -> None:
    program = f"""
from pyspark.sql.functions import udf
spark.range(2).select(udf(lambda x: 1)("id")).collect()
print(jvm, flush=True)
{ENDLESS}
"""
    with child.start(OPEN + program, cwd=cwd) as process:
        assert process.stdout is not None
        jvm = int(process.stdout.readline())
        family = child.descendants(process.pid)
        assert jvm in family
        assert len(family) > 1, "the Python workers belong to the family too"
        process.kill()
        child.wait_until(
            lambda: not any(map(child.exists, family)), what="the JVM and its workers end"
        )
    sweep(child.temporary(cwd))
    assert litter(cwd) == []


def test_ctrl_c_cancels_and_leaves_the_engine_usable(cwd: Path) -> None:
    program = f"""
def tell(job):
    while not job.progress().active:
        pass
    print("running", flush=True)
try:
    with engine.job("endless") as job, live_progress(engine, job, "endless work"):
        threading.Thread(target=tell, args=(job,)).start()
        {ENDLESS}
except Cancelled as error:
    print(error, flush=True)
while job.progress().active:
    pass
print([spark.range(n).count() for n in (5, 7)], flush=True)
try:
    with engine.job("waiting") as job, live_progress(engine, job, "waiting"):
        print("waiting", flush=True)
        threading.Event().wait()
except Cancelled as error:
    print(error, flush=True)
print(spark.range(4).count(), flush=True)
"""
    ours, theirs = os.openpty()
    env = {"COLUMNS": "120", "TERM": "xterm"}
    with child.start(OPEN + program, cwd=cwd, env=env, stderr=theirs) as process:
        os.close(theirs)
        shown = bytearray()
        reader = threading.Thread(target=read_all, args=(ours, shown))
        reader.start()
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        family = child.descendants(process.pid)
        child.wait_until(lambda: b"stage 1 of" in shown, what="the bar is drawn")
        # As a terminal does it: every process of the foreground group gets the signal.
        os.killpg(process.pid, signal.SIGINT)
        ended = "endless work: cancelled by Ctrl-C, nothing was written\n"
        assert process.stdout.readline() == ended
        assert process.stdout.readline() == "[5, 7]\n"
        assert process.stdout.readline() == "waiting\n"
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=child.PATIENCE)
    reader.join(child.PATIENCE)
    os.close(ours)
    assert b"endless work" in shown
    assert b"running" not in shown, "standard output is not for the terminal"
    assert rest == "waiting: cancelled by Ctrl-C, nothing was written\n4\n"
    assert process.returncode == 0
    assert not any(map(child.exists, family))


def test_a_lost_jvm_is_one_sentence_and_the_next_engine_works(cwd: Path) -> None:
    code, out, err = child.run(
        OPEN
        + """
os.kill(jvm, 9)
engine._host.jvm.process.wait()
try:
    spark.range(3).count()
except Exception as error:
    print(translate(error))
print(engine.alive, current_engine())
try:
    open_engine(derive(conf={"spark.driver.memory": "900000g"}))
except EmatixError as error:
    print(error)
again = open_engine(derive())
print(again is not engine, again.spark.range(3).count())
again.stop()
print(current_engine())
""",
        cwd=cwd,
    )
    assert (code, err) == (0, "")
    lost, state, failed, working, ended = out.splitlines()
    assert lost.startswith("Spark's JVM ended unexpectedly")
    assert state == "False None"
    assert "Spark's JVM ended while starting" in failed
    assert "heap" in failed
    assert working == "True 3"
    assert ended == "None"
    assert litter(cwd) == []


def test_a_session_of_the_user_is_used_and_left_alone(cwd: Path) -> None:
    code, out, _ = child.run(
        """
from pyspark.sql import SparkSession
mine = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "Asia/Tokyo").getOrCreate()
)
from ematix_flow.engine import current_engine, derive, open_engine
engine = open_engine(derive())
print(engine.spark.sparkContext is mine.sparkContext, current_engine() is engine)
print(engine.spark.conf.get("spark.sql.session.timeZone"))
print(mine.conf.get("spark.sql.session.timeZone"))
engine.stop()
print(mine.range(3).count())
""",
        cwd=cwd,
    )
    assert code == 0
    assert out.splitlines() == ["True True", "UTC", "Asia/Tokyo", "3"]


def test_a_program_that_leaves_during_an_early_start_leaves_nothing(cwd: Path) -> None:
    code, _, err = child.run(
        "from ematix_flow.engine import derive, prepare_engine\nprepare_engine(derive())\n", cwd=cwd
    )
    assert (code, err) == (0, "")
    assert litter(cwd) == []


def test_importing_the_engine_loads_no_pyspark() -> None:
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, ematix_flow.engine\n"
            "print({'pyspark', 'py4j', 'pandas', 'pyarrow', 'rich'} & set(sys.modules))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout == "set()\n"
