"""The engine over Spark Connect, against a private server of our own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ematix_flow.engine import machine
from ematix_flow.engine.connect_server import connect_server
from ematix_flow.engine.settings import derive
from unit.engine import child

CLIENT = """
import os, threading
from ematix_flow.engine import current_engine, derive, live_progress, open_engine, translate
from ematix_flow.errors import EmatixError

try:
    open_engine(derive(remote=os.environ["REMOTE"].replace("token=", "token=wrong")))
except EmatixError as error:
    print("wrong token:", error)

engine = open_engine(derive(remote=os.environ["REMOTE"]))
spark = engine.spark
print("kind:", engine.kind, engine.alive, current_engine() is engine)
print("near:", not engine.distributed, engine.slots)
print("zone:", spark.conf.get("spark.sql.session.timeZone"))
print("case:", spark.sql("SELECT 1 AS userName, 2 AS username").select("username").first()[0])
with engine.job("counting") as job, live_progress(engine, job, "counting"):
    print("count:", spark.range(1000).selectExpr("sum(id)").first()[0])
    # The server reports at intervals; a query may be over before the first.
    for size in (10**power for power in range(6, 11)):
        spark.range(size).selectExpr("sum(hash(id))").first()
        if job.progress().tasks_total:
            break
done = job.progress()
print("progress:", done.active, done.tasks_done == done.tasks_total > 0)

with engine.job("endless") as job:
    stop = threading.Timer(0.5, job.cancel)
    stop.start()
    try:
        while True:
            spark.range(10**13).selectExpr("sum(hash(id))").collect()
    except Exception as error:
        print("cancelled:", type(translate(error)).__name__)
    stop.join()

def failing(label, work):
    try:
        work()
    except Exception as error:
        print(f"{label}:", type(translate(error)).__name__, translate(error))

from pyspark.sql.functions import udf
failing("cast", lambda: spark.sql("SELECT CAST('abc' AS INT)").collect())
failing("column", lambda: spark.sql("SELECT nope FROM range(3)").collect())
failing("udf", lambda: spark.range(3).select(udf(lambda x: 1 // 0)("id")).collect())
engine.require_jars(["postgres"])
options = {"url": "jdbc:postgresql://127.0.0.1:1/db", "dbtable": "t"}
reader = spark.read.format("jdbc").option("driver", "org.postgresql.Driver").options(**options)
failing("jdbc", lambda: reader.load().schema)
engine.stop()
print("mode:", "SPARK_CONNECT_MODE_ENABLED" in os.environ, current_engine())
"""


def test_a_private_server_serves_the_same_protocol(tmp_path: Path) -> None:
    cwd = tmp_path / "client"
    cwd.mkdir()
    with connect_server(derive()) as server:
        token = server.remote.partition("token=")[2]
        assert token not in repr(server)
        assert token not in Path(f"/proc/{server.process_id}/cmdline").read_text()
        listening = subprocess.run(
            [
                "python3",
                "-c",
                f"import socket; socket.create_connection(('127.0.0.1', {server.port}))",
            ],
            check=False,
        )
        assert listening.returncode == 0
        code, out, err = child.run(CLIENT, cwd=cwd, env={"REMOTE": server.remote})
    assert not child.exists(server.process_id)
    assert (code, err) == (0, "")
    assert token not in out
    said = dict(line.split(": ", 1) for line in out.splitlines())
    assert said["wrong token"].startswith("the Spark Connect server refused the token")
    assert said["kind"] == "spark-connect True True"
    assert said["near"] == f"True {machine.cores()}"
    assert said["zone"] == "UTC"
    assert said["case"] == "2"
    assert said["count"] == str(sum(range(1000)))
    assert said["progress"] == "False True"
    assert said["cancelled"] == "Cancelled"
    assert said["cast"].startswith("BadValue 'abc' is not a valid INT")
    assert said["column"].startswith("DataError there is no column 'nope'")
    assert "ZeroDivisionError" in said["udf"]
    assert "Connection to 127.0.0.1:1 refused" in said["jdbc"]
    assert said["mode"] == "False None"
