"""Starts the JVM that runs Spark, directly: no spark-submit, no second JVM to plan the first.

The JVM answers PySpark's gateway protocol, ignores the terminal's Ctrl-C, writes to a log
file instead of the console, and ends when its standard input closes, so it cannot outlive us.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ematix_flow.engine.java import Java
from ematix_flow.engine.workspace import Workspace
from ematix_flow.errors import ConfigError, EngineError

GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
START_SECONDS = 120.0
_FEW_CORES = 2

# Packages of the JDK that Spark reaches into by reflection.
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    # Not Spark's: lets a connector jar join the class path of a running engine.
    "jdk.internal.loader",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.util.calendar",
)

# Flags that only some versions of Java know.
_BY_VERSION = {
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED": range(24),
    "--enable-native-access=ALL-UNNAMED": range(22, 1000),
    "--sun-misc-unsafe-memory-access=allow": range(23, 1000),
}

# A worker's error may quote a URL; the JVM cannot know which values are secret, but their shape.
_WITHOUT_PASSWORDS = r"%replace{%m%n%ex}{([A-Za-z][A-Za-z0-9+.-]*://[^\\s:/@]*):\\S*@}{$1:***@}"

# The gateway class is Spark's "interpreter": unless its logger names the level of the root,
# Spark prints two lines about the level it chose.
LOGGING = f"""\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = Console
appender.file.name = file
appender.file.target = SYSTEM_ERR
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: {_WITHOUT_PASSWORDS}
logger.gateway.name = {GATEWAY}
logger.gateway.level = warn
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


@dataclass(frozen=True)
class JvmPlan:
    """All that decides how a JVM is started. Properties may be secret: never in ``ps``.

    A variable of ``environment`` that is empty is taken away.
    """

    java: Java
    heap_bytes: int
    cores: int
    connector_jars: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    programs: tuple[tuple[str, str], ...] = ()

    @property
    def collector(self) -> str:
        """Parallel collection pays from three cores on; below it only costs start-up."""
        return "Serial" if self.cores <= _FEW_CORES else "Parallel"


@lru_cache(maxsize=1)
def spark_jars() -> tuple[Path, ...]:
    """PySpark's own jars in a fixed order, which the class archive relies on."""
    from importlib.util import find_spec

    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("pyspark is not installed", fix="pip install ematix-flow again")
    folder = Path(next(iter(spec.submodule_search_locations))) / "jars"
    jars = tuple(sorted(folder.glob("*.jar")))
    if not jars:
        raise ConfigError(
            f"pyspark at {folder.parent} has no jars (a Connect-only client?)",
            fix="install the full package: pip install pyspark==4.2.0",
        )
    return jars


def base_flags(plan: JvmPlan) -> list[str]:
    """The flags that decide whether a class archive fits, class path excluded."""
    flags = [
        f"-XX:+Use{plan.collector}GC",
        f"-Xmx{max(plan.heap_bytes >> 20, 256)}m",
        "-Xss4m",
        "-XX:-UsePerfData",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djava.awt.headless=true",
        # JDBC converts timestamps through the JVM's zone, whatever the session's zone is.
        "-Duser.timezone=UTC",
        "-Dfile.encoding=UTF-8",
        "-Dlog4j2.disableJmx=true",
        "-Dlog4j2.shutdownHookEnabled=false",
    ]
    return [*flags, *(flag for flag, known in _BY_VERSION.items() if plan.java.major in known)]


class Jvm:
    """A running JVM and the address of its gateway."""

    def __init__(self, plan: JvmPlan, workspace: Workspace, *, log: Path) -> None:
        self.plan = plan
        self.log = log
        self._address = workspace.path / "gateway"
        logging = workspace.write("log4j2.properties", LOGGING)
        temporary = workspace.folder("tmp")
        # By environment, as Spark warns about its own setting of the same meaning.
        local = {"SPARK_LOCAL_DIRS": str(workspace.folder("local"))}
        environment = {**local, **os.environ, **dict(plan.environment)}
        for name, value in plan.environment:
            if not value:
                del environment[name]
        if plan.programs:
            folder = workspace.folder("bin")
            for name, text in plan.programs:
                workspace.write(f"bin/{name}", text).chmod(0o700)
            environment["PATH"] = os.pathsep.join((str(folder), environment.get("PATH", "")))
        class_path = os.pathsep.join(map(str, (*spark_jars(), *plan.connector_jars)))
        arguments = [
            *base_flags(plan),
            *plan.flags,
            f"-Dlog4j2.configurationFile={logging.as_uri()}",
            f"-Djava.io.tmpdir={temporary}",
            # A crash report belongs beside the log, not into the user's folder.
            f"-XX:ErrorFile={log}.crash",
            "-XX:-CreateCoredumpOnCrash",
            *(f"-D{name}={value}" for name, value in plan.properties),
            "-cp",
            class_path,
            GATEWAY,
        ]
        argument_file = workspace.write("jvm.args", "\n".join(map(_quoted, arguments)) + "\n")
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self.process = subprocess.Popen(
                [str(plan.java.executable), f"@{argument_file}"],
                stdin=subprocess.PIPE,
                stdout=descriptor,
                stderr=descriptor,
                env=_environment(environment, self._address),
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(
                f"Java could not be started from {plan.java.home} ({error.strerror or error})",
                fix="check JAVA_HOME",
            ) from error
        finally:
            os.close(descriptor)

    def gateway(self, *, seconds: float = START_SECONDS) -> tuple[int, str]:
        """Port and secret of the gateway, once it is up."""
        deadline = time.monotonic() + seconds
        while not self._address.exists():
            if self.process.poll() is not None:
                raise EngineError(
                    f"Spark's JVM ended while starting ({self._exit()}): {self._first_line()}",
                    fix=f"see {self.log}",
                )
            if time.monotonic() > deadline:
                self.kill()
                raise EngineError(
                    f"Spark's JVM did not come up within {seconds:.0f} seconds",
                    fix=f"see {self.log}",
                )
            time.sleep(0.005)
        content = self._address.read_bytes()
        self._address.unlink()
        port, length = struct.unpack(">ii", content[:8])
        return port, content[8 : 8 + length].decode()

    @property
    def alive(self) -> bool:
        """Whether the process is still there."""
        return self.process.poll() is None

    def close(self, *, seconds: float = 10.0) -> None:
        """Let it end by itself: close its input, wait, and kill what does not leave."""
        self._close_input()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once. Its work folder is ours to remove, so nothing is lost."""
        self.process.kill()
        self._close_input()
        self.process.wait()

    def _close_input(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _exit(self) -> str:
        code = self.process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _first_line(self) -> str:
        try:
            with self.log.open(encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file if line.strip()]
        except OSError:
            return "no output"
        empty = ("Error occurred during initialization of VM", "Error: Could not create the Java")
        telling = [line for line in lines if not line.startswith(empty)]
        return telling[0][:300] if telling else "no output"


def _environment(base: Mapping[str, str], address: Path) -> dict[str, str]:
    environment = dict(base)
    spoken = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG", "")
    if "utf" not in spoken.lower():
        # File names outside ASCII are unreadable to a JVM in the C locale.
        environment["LC_ALL"] = "C.UTF-8"
    environment["SPARK_CONNECT_MODE"] = "0"
    environment["PYTHONPATH"] = python_path()
    environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(address)
    return environment


def python_path() -> str:
    """This process's import path, so that Python workers find the same modules."""
    here = os.getcwd()
    return os.pathsep.join(dict.fromkeys(entry or here for entry in sys.path))


def _quoted(argument: str) -> str:
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def run_java(
    java: Java, arguments: Sequence[str], *, seconds: float, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Java to its end and hand back what it said."""
    return subprocess.run(
        [str(java.executable), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=seconds,
        check=False,
        cwd=cwd,
    )
