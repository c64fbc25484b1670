"""What an engine does when its executors are other machines: code and jars are sent to them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.config import setting
from ematix_flow.engine import shipping
from ematix_flow.engine.classic import ClassicEngine, launch
from ematix_flow.engine.jars import ensure_jars
from ematix_flow.engine.protocol import Job
from ematix_flow.engine.settings import EngineSettings, shuffle_partitions
from ematix_flow.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_JOINING_SECONDS = 10.0
_PAUSE = 0.05
_ANSWER = "15s"
_REACHING_SECONDS = 10.0
_ADDRESS = re.compile(r"(?P<host>\[[^\]]+\]|[^:/,]+):(?P<port>\d+)")


class SpreadEngine(ClassicEngine):
    """A session of this process whose executors do not see its disk."""

    _shipped: str | None = None

    def require_jars(self, names: Sequence[str]) -> None:
        """Put connector jars on the class path here and on every executor."""
        for jar in ensure_jars(names):
            if jar not in self._jars:
                self._append_to_class_path(jar)
                self._context._jsc.addJar(str(jar))
                self._jars.add(jar)

    @contextlib.contextmanager
    def job(self, description: str) -> Iterator[Job]:
        """Tag all Spark jobs of the block; the user's modules are sent along."""
        self._ship()
        with super().job(description) as job:
            yield job

    def send_file(self, file: Path) -> str:
        """Let all executors fetch a file of this machine; returns its name there."""
        # Executors keep what they were sent, by name.
        named = self.workspace.take(file)
        self._context.addFile(str(named))
        return named.name

    def bring(self, rows: DataFrame) -> Generator[bytes, None, None]:
        """The only column of rows, partition by partition, in their order."""
        from pyspark import StorageLevel

        kept = rows.persist(StorageLevel.DISK_ONLY)
        try:
            # All partitions at once; afterwards they come here one by one.
            kept.count()
            for row in kept.toLocalIterator():
                yield row[0]
        finally:
            kept.unpersist()

    def _import_path(self) -> str:
        """Paths of this machine mean nothing on another."""
        return ""

    def _ship(self) -> None:
        files = shipping.own_files()
        digest = shipping.digest_of(files)
        if not files or digest == self._shipped:
            return
        archive = self.workspace.folder("modules") / f"modules-{digest}.zip"
        shipping.pack(files, archive)
        self._context.addFile(str(archive))
        # The last is looked into first, by processes that have imported none before it.
        self._context._python_includes = [*(self._context._python_includes or ()), archive.name]
        self._context.environment["EMATIX_SHIPPED"] = digest
        self._shipped = digest


class MasterEngine(SpreadEngine):
    """A session on a cluster that was there before and stays after."""

    @property
    def slots(self) -> int:
        """How many tasks run at once on the executors that have joined by now."""
        return int(self._context.defaultParallelism)

    def wait_for_one(self) -> None:
        """Come back when there is an executor; a full cluster may give one later."""
        tracker: Any = self._context._jsc.sc().statusTracker()
        deadline = time.monotonic() + _JOINING_SECONDS
        # The driver counts itself.
        while len(tracker.getExecutorInfos()) == 1 and time.monotonic() < deadline:
            time.sleep(_PAUSE)


def launch_on_master(settings: EngineSettings) -> ClassicEngine:
    """Open a session on a cluster that is there already."""
    conf = executor_conf(settings.jars)
    masters = [(m["host"].strip("[]"), int(m["port"])) for m in _ADDRESS.finditer(settings.master)]
    if settings.master.startswith("spark://") and masters:
        masters = _reachable(masters)
        here = own_address(*masters[0])
        conf |= driver_address(here, secured="spark.authenticate" in dict(settings.conf))
    whole = tuple(sorted({**conf, **dict(settings.conf)}.items()))

    def knock(jvm: Any) -> None:
        # Spark itself would try for a minute, and then end without a reason.
        if "spark.driver.host" in conf:
            _knock(jvm, masters, dict(whole))

    engine = launch(dataclasses.replace(settings, conf=whole), kind=MasterEngine, first=knock)
    if isinstance(engine, MasterEngine):
        engine.wait_for_one()
        if "spark.sql.shuffle.partitions" not in dict(whole):
            number = str(shuffle_partitions(engine.slots))
            engine.spark.conf.set("spark.sql.shuffle.partitions", number)
    return engine


def _knock(jvm: Any, masters: Sequence[tuple[str, int]], settings: Mapping[str, str]) -> None:
    """Refuse to go on if no master of a standalone cluster lets this process in."""
    conf = getattr(jvm, "org.apache.spark.SparkConf")(False)
    for key, value in {**settings, "spark.rpc.lookupTimeout": _ANSWER}.items():
        conf.set(key, value)
    entries = getattr(getattr(jvm, "org.apache.spark.internal.config.package$"), "MODULE$")
    none = getattr(jvm, "scala.Option").empty()
    secured = getattr(jvm, "org.apache.spark.SecurityManager")(
        conf, none, entries.AUTH_SECRET_FILE()
    )
    bound, here = settings["spark.driver.bindAddress"], settings["spark.driver.host"]
    rpc = getattr(getattr(jvm, "org.apache.spark.rpc.RpcEnv$"), "MODULE$")
    environment = rpc.create("knock", bound, here, 0, conf, secured, 1, True)
    try:
        for host, port in masters:
            address = getattr(jvm, "org.apache.spark.rpc.RpcAddress")(host, port)
            # Why not is told to the log of the JVM, and guessed below.
            with contextlib.suppress(Exception):
                environment.setupEndpointRef(address, "Master")
                return
    finally:
        environment.shutdown()
    raise EngineError(
        f"the master at {_shown(masters)} does not let this process in",
        fix="check EMATIX_FLOW_MASTER_SECRET or master_secret",
    )


def _reachable(masters: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those at whose address anybody listens."""
    found = []
    for address in masters:
        with contextlib.suppress(OSError):
            socket.create_connection(address, _REACHING_SECONDS).close()
            found.append(address)
    if not found:
        raise EngineError(
            f"the master at {_shown(masters)} cannot be reached",
            fix="check its address, and that it runs",
        )
    return found


def _shown(masters: Sequence[tuple[str, int]]) -> str:
    return " or ".join(f"{host}:{port}" for host, port in masters)


def executor_conf(jars: Sequence[str]) -> dict[str, str]:
    """What executors on other machines are started with."""
    conf = {
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC -Dfile.encoding=UTF-8",
        # A task that takes far longer than its like is begun once more on another machine.
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "3",
        "spark.speculation.minTaskRuntime": "10s",
        "spark.speculation.interval": "1s",
    }
    paths = ensure_jars(jars)
    if paths:
        conf["spark.jars"] = ",".join(jar.as_uri() for jar in paths)
    return conf


def driver_address(here: str, *, secured: bool) -> dict[str, str]:
    """By which address others reach the driver, and on which it listens."""
    bound = here
    try:
        with socket.create_server((here, 0), family=_family(here)):
            pass
    except OSError:
        # That of a gateway before this machine.
        if secured:
            bound = "::" if ":" in here else "0.0.0.0"  # noqa: S104 - who asks must know a secret
    return {"spark.driver.host": here, "spark.driver.bindAddress": bound}


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def own_address(host: str, port: int) -> str:
    """The address of this machine on the way to another; no packet is sent."""
    named = setting("DRIVER_HOST")
    if named is not None:
        return named
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, *_, address = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise EngineError(
            f"there is no way to {host} ({error.strerror or error})",
            fix="check the address, or set EMATIX_FLOW_DRIVER_HOST",
        ) from error
