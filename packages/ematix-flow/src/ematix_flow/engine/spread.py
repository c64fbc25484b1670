"""What an engine does when its executors are other machines: code and jars are sent to them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
from collections.abc import Iterator, Sequence

from ematix_flow.config import setting
from ematix_flow.engine import shipping
from ematix_flow.engine.classic import ClassicEngine, launch
from ematix_flow.engine.jars import ensure_jars
from ematix_flow.engine.protocol import Job
from ematix_flow.engine.settings import EngineSettings
from ematix_flow.errors import EngineError

_STANDALONE = re.compile(r"spark://(?P<host>\[[^\]]+\]|[^:/,]+):(?P<port>\d+)")


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
        # The newest is looked into first.
        self._context._python_includes = [archive.name, *(self._context._python_includes or ())]
        self._shipped = digest


def launch_on_master(settings: EngineSettings) -> ClassicEngine:
    """Open a session on a cluster that is there already."""
    conf = executor_conf(settings.jars)
    found = _STANDALONE.match(settings.master)
    if found is not None:
        here = own_address(found["host"].strip("[]"), int(found["port"]))
        conf |= {"spark.driver.host": here, "spark.driver.bindAddress": here}
    whole = tuple(sorted({**conf, **dict(settings.conf)}.items()))
    return launch(dataclasses.replace(settings, conf=whole), kind=SpreadEngine)


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
