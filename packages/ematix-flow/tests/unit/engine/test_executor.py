"""``flow-worker executor``: the command that a pod's variables become; no JVM is started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ematix_flow.cli.worker import main
from ematix_flow.engine.executor import check_pod, check_versions, executor_command
from ematix_flow.engine.java import Java
from ematix_flow.engine.peer_protocol import own_versions
from ematix_flow.errors import EngineError

POD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "flow-exec-3",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dsecond=a b",
    "SPARK_JAVA_OPT_0": "--add-modules=jdk.incubator.vector",
}


def java(home: Path, modules: str) -> Java:
    home.mkdir()
    (home / "release").write_text(f'JAVA_VERSION="21"\nMODULES="{modules}"\n')
    return Java(home, 21, "21")


def test_the_command_of_an_executor(tmp_path: Path) -> None:
    whole = java(tmp_path / "jdk", "java.base jdk.incubator.vector")
    command = executor_command(POD, whole, tmp_path / "log4j2.properties")
    assert command[0] == str(tmp_path / "jdk" / "bin" / "java")
    # In the order of their numbers, one word each.
    assert command[1:4] == ["--add-modules=jdk.incubator.vector", "-Dsecond=a b", "-Dlast=1"]
    assert "-Xmx512m" in command
    backend = command.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    told = command[backend + 1 :]
    assert dict(zip(told[::2], told[1::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "flow-exec-3",
    }


def test_a_small_java_is_not_asked_for_modules_that_it_lacks(tmp_path: Path) -> None:
    command = executor_command(POD, java(tmp_path / "jre", "java.base"), tmp_path / "log")
    assert command[1] == "-Dsecond=a b"


def test_jars_of_the_image_come_first(tmp_path: Path) -> None:
    small = java(tmp_path / "jre", "java.base")
    command = executor_command({**POD, "SPARK_CLASSPATH": "/extra/*"}, small, tmp_path / "log")
    assert command[command.index("-cp") + 1].startswith("/extra/*:")


def test_outside_of_a_pod(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_pod(POD)
    for name in POD:
        monkeypatch.delenv(name, raising=False)
    assert main(["executor"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("flow-worker: error: flow-worker executor is for pods that Spark makes")
    assert "SPARK_DRIVER_URL is not set" in said


def test_versions_of_the_driver() -> None:
    own = own_versions()
    check_versions({})
    check_versions({"EMATIX_DRIVER_VERSIONS": json.dumps(vars(own))})
    other = replace(own, pyspark="4.1.1")
    with pytest.raises(EngineError, match=f"the image has pyspark {own.pyspark} instead of 4.1.1"):
        check_versions({"EMATIX_DRIVER_VERSIONS": json.dumps(vars(other))})
