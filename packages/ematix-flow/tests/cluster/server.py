"""A Spark Connect server as its own project starts one, on a machine that has a disk of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ematix_flow.engine.java import find_java
from ematix_flow.engine.jvm import spark_jars

from .crew import wait_until

_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
# What Spark's own launcher opens to it.
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch"),
    *("sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)


@contextlib.contextmanager
def connect_process(
    folder: Path,
    *,
    host: str,
    inside: Sequence[str] = (),
    hidden: Path | None = None,
    token: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run a server for the length of the block; its port. ``hidden`` is empty to its eyes."""
    folder.mkdir()
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.artifact.isolation.enabled": "true",
        **(conf or {}),
    }
    java = [
        *(str(find_java().executable), "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
        *("--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED", f"-Djava.io.tmpdir={folder}"),
        *(f"-D{key}={value}" for key, value in settings.items()),
        *("-cp", f"{spark_jars()[0].parent}/*", _MAIN),
    ]
    hide = "" if hidden is None else f"mount --make-rprivate / && mount -t tmpfs none {hidden} && "
    command = ["unshare", "--mount", "sh", "-c", f'{hide}exec "$@"', "sh", *java]
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("EMATIX_FLOW_")},
        "SPARK_HOME": str(spark_jars()[0].parent.parent),
        "PYSPARK_PYTHON": sys.executable,
        **({} if token is None else {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token}),
    }
    log = folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*inside, *command], env=environment, cwd=folder, stdout=file, stderr=file
        )
    told = "Spark Connect server started at: "
    try:
        wait_until(lambda: told in log.read_text() or process.poll() is not None, what="it is up")
        assert told in log.read_text(), log.read_text()
        yield int(log.read_text().partition(told)[2].split()[0].rpartition(":")[2])
    finally:
        process.kill()
        process.wait()
