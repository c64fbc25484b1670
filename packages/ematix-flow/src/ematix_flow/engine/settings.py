"""The settings of an engine, and how the ones a user would tune by hand are derived."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ematix_flow.config import setting
from ematix_flow.engine import delta, machine
from ematix_flow.errors import ConfigError, EngineError
from ematix_flow.peers import Peer

_MIB = 1 << 20
_GIB = 1 << 30
_LOCAL = re.compile(r"local(?:\[(?P<cores>\*|\d+)(?:,\d+)?\])?$")
_REDACTED = "(?i)password|secret|token|credential|access[._]?key|private[._]?key|url"
_SHUFFLE_BLOCK = 128 * _MIB


@dataclass(frozen=True)
class EngineSettings:
    """One engine, fully described: equal settings share one engine in a process.

    ``conf`` wins over everything derived here. ``remote`` and ``conf`` may hold tokens and
    stay out of ``repr``. With ``warm``, the user's warm engine may take the place of a new one;
    with ``sail``, the engine is not Spark but Sail.
    """

    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)
    cores: int = 1
    driver_memory_bytes: int = _GIB
    shuffle_partitions: int = 2
    broadcast_threshold_bytes: int = 16 * _MIB
    conf: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    jars: tuple[str, ...] = ()
    work_dir: Path | None = None
    app_name: str = "ematix-flow"
    warm: bool = field(default=False, compare=False)
    sail: bool = False
    peers: tuple[Peer, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one JVM on this machine."""
        on_others = self.remote is not None or bool(self.peers)
        return not on_others and _LOCAL.match(self.master) is not None


def derive(
    *,
    master: str = "local[*]",
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    jars: Sequence[str] = (),
    work_dir: Path | None = None,
    cores: int | None = None,
    memory_bytes: int | None = None,
    peers: Sequence[Peer] = (),
) -> EngineSettings:
    """Settings for this machine; what is given is kept, the rest follows from it."""
    if remote is not None and not remote.startswith("sc://"):
        raise ConfigError(
            "a Spark Connect address starts with sc://", fix="write it as sc://host:port"
        )
    available = _cores_of(master, machine.cores() if cores is None else cores)
    memory = driver_memory(machine.memory_bytes() if memory_bytes is None else memory_bytes)
    return EngineSettings(
        master=master,
        remote=remote,
        cores=available,
        driver_memory_bytes=memory,
        shuffle_partitions=shuffle_partitions(available),
        broadcast_threshold_bytes=broadcast_threshold(memory),
        conf=tuple(sorted((conf or {}).items())),
        jars=tuple(dict.fromkeys(jars)),
        work_dir=work_dir,
        peers=tuple(peers),
    )


def driver_memory(memory_bytes: int) -> int:
    """A quarter of the memory, between 1 and 8 GiB, never more than half of it."""
    wanted = min(max(memory_bytes // 4, _GIB), 8 * _GIB)
    return max(min(wanted, memory_bytes // 2), 256 * _MIB)


def broadcast_threshold(heap_bytes: int) -> int:
    """What may be held in every heap of that size beside all else, from 10 to 64 MiB."""
    return min(max(heap_bytes // 64, 10 * _MIB), 64 * _MIB)


def shuffle_partitions(cores: int, input_bytes: int | None = None) -> int:
    """Two per core, more where a partition would otherwise exceed 128 MiB."""
    by_size = 0 if input_bytes is None else -(-input_bytes // _SHUFFLE_BLOCK)
    return max(2, 2 * cores, by_size)


def session_conf(settings: EngineSettings) -> dict[str, str]:
    """What any session needs for right results, in process or over Connect."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Columns "userName" and "username" are two columns.
        "spark.sql.caseSensitive": "true",
        # A folder country=01 holds the text 01, not the number 1.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.autoBroadcastJoinThreshold": str(settings.broadcast_threshold_bytes),
        "spark.sql.parquet.filterPushdown": "true",
        "spark.sql.parquet.aggregatePushdown": "true",
        "spark.sql.orc.aggregatePushdown": "true",
    }
    conf.update((key, value) for key, value in settings.conf if key.startswith("spark.sql."))
    return conf


def context_conf(settings: EngineSettings, *, warehouse: Path) -> dict[str, str]:
    """What a SparkContext of our own is started with, session settings included."""
    conf = {
        "spark.master": settings.master,
        "spark.app.name": settings.app_name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": warehouse.as_uri(),
        "spark.redaction.regex": _REDACTED,
        "spark.sql.redaction.options.regex": _REDACTED,
        "spark.executorEnv.TZ": "UTC",
        **session_conf(settings),
    }
    if settings.is_local:
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # One machine: there is no better place to wait for, and no network to spare.
            "spark.locality.wait": "0",
            "spark.shuffle.compress": "false",
            "spark.broadcast.compress": "false",
            "spark.metrics.staticSources.enabled": "false",
        }
    conf.update(settings.conf)
    conf.update(delta.start_conf(settings.jars, conf))
    return conf


def secured_conf(secret: str) -> dict[str, str]:
    """What a session needs for a cluster that lets in only those who know its secret."""
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        # A cluster that knows only the older way is spoken to in that.
        "spark.network.crypto.enabled": "true",
    }


def seconds_setting(name: str, usual: float, *, least: int, most: int) -> float:
    """A time that the environment may set, or the usual one."""
    named = setting(name)
    try:
        seconds = usual if named is None else float(named)
    except ValueError:
        seconds = -1.0
    if not least <= seconds <= most:
        raise EngineError(
            f"EMATIX_FLOW_{name} is {named!r}", fix=f"give seconds, from {least} to {most}"
        )
    return seconds


def _cores_of(master: str, available: int) -> int:
    match = _LOCAL.match(master)
    if match is None:
        return available
    named = match.group("cores")
    if named is None:
        return 1
    return available if named == "*" else max(1, int(named))
