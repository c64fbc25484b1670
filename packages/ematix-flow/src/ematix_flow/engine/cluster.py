"""The engine on peers: a Spark master in the driver's JVM, and a worker on every peer.

Nothing of it outlives the run: peers end what a silent driver leaves behind, and master and
session die with the driver's JVM. All that goes between machines is authenticated and encrypted
with secrets that are made for the run and travel over mutual TLS.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import logging
import secrets
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ematix_flow.config import tls_files
from ematix_flow.engine import gateway as gateways
from ematix_flow.engine.classic import Host, plan_for, start_host
from ematix_flow.engine.failures import translate
from ematix_flow.engine.peer_client import PeerClient, PeerLost
from ematix_flow.engine.peer_protocol import WORKER_PYTHON, Offer, Order, client_tls
from ematix_flow.engine.protocol import Job
from ematix_flow.engine.settings import (
    EngineSettings,
    broadcast_threshold,
    context_conf,
    seconds_setting,
    shuffle_partitions,
)
from ematix_flow.engine.spark_worker import programs
from ematix_flow.engine.spread import SpreadEngine, executor_conf, own_address
from ematix_flow.errors import EmatixError, EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ematix_flow.peers import Peer

logger = logging.getLogger(__name__)

_MASTER = "org.apache.spark.deploy.master.Master"
_FILTER = "org.apache.spark.ui.JWSFilter"
_START_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_PAUSE = 0.05
# The rest of what a peer lends is for its Python processes.
_HEAP_SHARE = 0.6

T = TypeVar("T")


class Crew:
    """The peers of one run, each kept by a thread that tells it that the driver lives."""

    def __init__(self, peers: Sequence[Peer], *, timeout: float) -> None:
        files = tls_files()
        tls = None if files is None else client_tls(files)
        self.timeout = timeout
        self.run = uuid.uuid4().hex
        seconds = min(_ANSWER_SECONDS, timeout / 2)
        self.clients = [PeerClient(peer, tls, seconds=seconds) for peer in peers]
        self.hosts: list[str] = []
        self.lost: dict[Peer, str] = {}
        self._begun: list[tuple[PeerClient, threading.Thread]] = []
        self._ended = threading.Event()
        self.when_all_are_lost: Callable[[], None] = lambda: None

    @property
    def all_lost(self) -> bool:
        """Whether nobody is left."""
        return len(self.lost) == len(self.clients)

    def offers(self) -> list[Offer]:
        """What each of them lends."""
        return self._each(lambda client: client.offer())

    def begin(self, master: str, conf: dict[str, str]) -> None:
        """Have a Spark worker started on each, and keep them all from now on."""
        order = Order(self.run, master, self.timeout, conf)

        def begin(client: PeerClient) -> str:
            host = client.begin(order, seconds=_START_SECONDS)
            beats = threading.Thread(
                target=self._beat, args=(client,), name="ematix-peer", daemon=True
            )
            self._begun.append((client, beats))
            beats.start()
            return host

        # Of two drivers that ask for the same peers, whoever has the first of them has them all.
        first = min(self.clients, key=lambda client: (client.peer.host, client.peer.port))
        host = begin(first)
        self.hosts = self._each(lambda client: host if client is first else begin(client))

    def end(self) -> None:
        """Let all of them go."""
        self._ended.set()
        begun, self._begun = self._begun, []

        def end(held: tuple[PeerClient, threading.Thread]) -> None:
            client, beats = held
            beats.join()
            # Whoever does not hear it ends by itself.
            if client.peer not in self.lost:
                with contextlib.suppress(EngineError):
                    client.end(self.run)

        if begun:
            with ThreadPoolExecutor(len(begun)) as pool:
                list(pool.map(end, begun))

    def _each(self, ask: Callable[[PeerClient], T]) -> list[T]:
        with ThreadPoolExecutor(len(self.clients)) as pool:
            return list(pool.map(ask, self.clients))

    def _beat(self, client: PeerClient) -> None:
        """Tell one peer, at intervals; one that does not answer keeps no other waiting."""
        answered = time.monotonic()
        while not self._ended.wait(self.timeout / 5) and client.peer not in self.lost:
            try:
                client.beat(self.run)
                answered = time.monotonic()
            except PeerLost as error:
                self._lose(client.peer, error.what)
            except EngineError as error:
                if time.monotonic() - answered > self.timeout:
                    self._lose(client.peer, error.what)
        while self.all_lost and not self._ended.wait(self.timeout / 5):
            # Again and again: what is begun meanwhile would wait for ever.
            self.when_all_are_lost()

    def _lose(self, peer: Peer, reason: str) -> None:
        self.lost[peer] = reason
        logger.warning("%s; its work goes to the others", reason)


class ClusterEngine(SpreadEngine):
    """A session whose work is done by peers, ended with the run that opened it."""

    per_run = True

    def __init__(
        self, spark: SparkSession, settings: EngineSettings, *, host: Host, crew: Crew, slots: int
    ) -> None:
        super().__init__(spark, settings, host=host)
        self.slots = slots
        self._crew = crew
        crew.when_all_are_lost = self._give_up

    @property
    def alive(self) -> bool:
        """Whether JVM and session are there, and at least one peer."""
        return not self._crew.all_lost and super().alive

    @contextlib.contextmanager
    def job(self, description: str) -> Iterator[Job]:
        """Tag all Spark jobs of the block; if they fail for want of peers, it says so."""
        try:
            with super().job(description) as job:
                yield job
        except Exception as error:
            if self._crew.all_lost:
                reasons = "; ".join(self._crew.lost.values())
                raise EngineError(
                    f"all peers are gone: {reasons}", fix="start their flow-workers and run again"
                ) from error
            raise

    def _give_up(self) -> None:
        # The session may be on its way out already.
        with contextlib.suppress(Exception):
            self.cancel_all()

    def stop(self, *, seconds: float = 10.0) -> None:
        """End the session, its peers' workers and its JVM."""
        with contextlib.suppress(Exception):
            if self._host is not None and self._host.jvm.alive:
                self._spark.stop()
        self._crew.end()
        super().stop(seconds=seconds)


def launch_on_peers(settings: EngineSettings) -> ClusterEngine:
    """Start a JVM with a master in it, have every peer join, and open a session on them."""
    if _has_a_session():
        raise EngineError(
            "this process has a Spark session of its own, and can have no other on peers",
            fix="stop it first, or use engine='local'",
        )
    crew = Crew(settings.peers, timeout=peer_timeout())
    offers = crew.offers()
    here = own_address(settings.peers[0].host, settings.peers[0].port)
    plan = plan_for(settings)
    environment = (*plan.environment, ("SPARK_LOCAL_IP", here))
    plan = dataclasses.replace(plan, environment=environment, programs=programs())
    host = start_host(settings, plan)
    try:
        gateways.load_pyspark()
        host.gateway = gateways.connect(*host.jvm.gateway())
        shared = _secured(crew.timeout)
        master = _start_master(host.gateway.jvm, here, shared)
        crew.begin(master, shared)
        slots = sum(offer.cores for offer in offers)
        conf = {
            **context_conf(settings, warehouse=host.workspace.path / "warehouse"),
            **_spread(settings, offers, here=here, master=master, slots=slots),
            **{
                k: v
                for k, v in shared.items()
                if not k.startswith(("spark.ui.", f"spark.{_FILTER}"))
            },
            **dict(settings.conf),
        }
        spark = gateways.open_session(host.gateway, conf, python=WORKER_PYTHON)
        engine = ClusterEngine(spark, settings, host=host, crew=crew, slots=slots)
        _wait_for_all(engine, crew, here)
        return engine
    except BaseException as error:
        ours = isinstance(error, EmatixError) or not isinstance(error, Exception)
        # Asked while there is a JVM to ask.
        known = error if ours else translate(error)
        crew.end()
        if host.gateway is not None:
            gateways.forget(host.gateway)
        host.kill()
        if ours:
            raise
        raise known from error


def _has_a_session() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def peer_timeout() -> float:
    """How long a silent peer, or a silent driver, is waited for."""
    return seconds_setting("PEER_TIMEOUT", 30, least=2, most=600)


def patience(timeout: float) -> dict[str, str]:
    """How long Spark waits for a machine that has fallen silent."""
    return {
        "spark.network.timeout": f"{max(int(timeout), 2)}s",
        "spark.executor.heartbeatInterval": f"{max(int(timeout * 1000 / 6), 500)}ms",
        "spark.network.timeoutInterval": f"{max(int(timeout * 1000 / 4), 500)}ms",
    }


def _secured(timeout: float) -> dict[str, str]:
    """What master, workers, driver and executors agree on: secrets of this run, and patience."""
    key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_urlsafe(32),
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.saslFallback": "false",
        "spark.io.encryption.enabled": "true",
        # Their pages cannot be switched off; nobody is given a token for them.
        "spark.ui.filters": _FILTER,
        f"spark.{_FILTER}.param.secretKey": key,
        "spark.ui.killEnabled": "false",
        "spark.master.rest.enabled": "false",
        "spark.worker.timeout": str(max(int(timeout), 2)),
        "spark.network.timeout": patience(timeout)["spark.network.timeout"],
    }


def _spread(
    settings: EngineSettings, offers: Sequence[Offer], *, here: str, master: str, slots: int
) -> dict[str, str]:
    """What differs on a cluster from one machine."""
    timeout = peer_timeout()
    heap = int(min(offer.memory_bytes for offer in offers) * _HEAP_SHARE)
    return {
        "spark.master": master,
        "spark.driver.host": here,
        "spark.driver.bindAddress": here,
        "spark.executor.memory": f"{heap >> 20}m",
        **patience(timeout),
        "spark.sql.shuffle.partitions": str(shuffle_partitions(slots)),
        # It is held by every peer, so the smallest decides.
        "spark.sql.autoBroadcastJoinThreshold": str(
            min(settings.broadcast_threshold_bytes, broadcast_threshold(heap))
        ),
        **executor_conf(settings.jars),
    }


def _start_master(jvm: Any, host: str, shared: dict[str, str]) -> str:
    conf = getattr(jvm, "org.apache.spark.SparkConf")(False)
    for key, value in shared.items():
        conf.set(key, value)
    started = getattr(jvm, _MASTER).startRpcEnvAndEndpoint(host, 0, 0, conf)
    port = started._1().address().port()
    return f"spark://{f'[{host}]' if ':' in host else host}:{port}"


def _wait_for_all(engine: ClusterEngine, crew: Crew, here: str) -> None:
    """Go on when there is an executor on every peer."""
    tracker: Any = engine.spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + _START_SECONDS
    while True:
        there = Counter(str(info.host()) for info in tracker.getExecutorInfos())
        # The driver counts itself.
        there[here] -= 1
        absent = _absent(crew, there)
        if not absent:
            return
        for peer, reason in crew.lost.items():
            raise EngineError(f"peer {peer} did not join: {reason}", fix="see its log")
        if time.monotonic() > deadline:
            raise EngineError(
                f"peer {absent[0]} did not join within {_START_SECONDS:.0f} seconds",
                fix="check that it can reach this machine, or set EMATIX_FLOW_DRIVER_HOST",
            )
        time.sleep(_PAUSE)


def _absent(crew: Crew, there: Counter[str]) -> list[Peer]:
    left = Counter(there)
    absent = []
    for client, host in zip(crew.clients, crew.hosts, strict=True):
        if left[host] > 0:
            left[host] -= 1
        else:
            absent.append(client.peer)
    return absent
