"""``flow-worker executor``: what the container of an executor pod runs, in any image that has us.

It becomes the JVM of the executor. What Spark's own image does with a script is done here with the
Java, the jars and the Python of this installation.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ematix_flow.engine.java import Java, find_java
from ematix_flow.engine.jvm import LOGGING, spark_jars
from ematix_flow.engine.kube_pods import VERSIONS_VARIABLE
from ematix_flow.engine.peer_protocol import Versions, own_versions
from ematix_flow.engine.spark_worker import programs
from ematix_flow.errors import ConfigError, EngineError

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
# The options of the backend, and the variables by which a pod is told of them.
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def become_executor() -> NoReturn:
    """Replace this process by the executor that the pod's variables describe."""
    check_pod(os.environ)
    check_versions(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="ematix-flow-executor-"))
    for name, text in programs():
        program = folder / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING, encoding="utf-8")
    java = find_java()
    command = executor_command(os.environ, java, logging)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(folder), os.environ.get("PATH", ""))),
        "SPARK_HOME": str(spark_jars()[0].parent.parent),
        "JAVA_HOME": str(java.home),
    }
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)  # noqa: S606 - a list of words, no shell


def check_pod(environment: Mapping[str, str]) -> None:
    """Refuse to work where Spark has not said what for."""
    missing = [name for name in _ARGUMENTS.values() if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"flow-worker executor is for pods that Spark makes, and {missing[0]} is not set",
            fix="leave it to a run with master='k8s://…'",
        )


def check_versions(environment: Mapping[str, str]) -> None:
    """Refuse to work for a driver of other versions."""
    told = environment.get(VERSIONS_VARIABLE)
    if told is None:
        return
    differing = Versions(**json.loads(told)).differences(own_versions())
    if differing:
        raise EngineError(
            f"the image has {' and '.join(differing)}",
            fix="build the image with the versions of the driver",
        )


def executor_command(environment: Mapping[str, str], java: Java, logging: Path) -> list[str]:
    """The command line of the executor's JVM."""
    numbered = sorted(
        (int(found[1]), value)
        for name, value in environment.items()
        if (found := _OPTION.fullmatch(name))
    )
    options = [value for _, value in numbered if _is_known(value, java)]
    jars = str(spark_jars()[0].parent / "*")
    class_path = [path for path in (environment.get("SPARK_CLASSPATH"), jars) if path]
    return [
        str(java.executable),
        *options,
        # Only so does Spark look for its secret in a file.
        "-Dspark.master=k8s://",
        f"-Xmx{environment.get('SPARK_EXECUTOR_MEMORY', '1g')}",
        f"-Dlog4j2.configurationFile={logging.as_uri()}",
        "-cp",
        os.pathsep.join(class_path),
        _BACKEND,
        *(word for option, name in _ARGUMENTS.items() for word in (option, environment[name])),
    ]


def _is_known(option: str, java: Java) -> bool:
    """Whether this Java has the modules that an option adds; a small one may lack them."""
    if not option.startswith("--add-modules="):
        return True
    try:
        release = (java.home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    listed = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    return listed is None or option.partition("=")[2] in listed[1].split()
