"""The engine on Kubernetes: executors in pods that are there for the length of a run.

The driver is this process. Before Spark asks for anything, the API is shown the very pod that it
would ask for; after the run, however it ended, neither pods nor the secret of the run are left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ematix_flow.engine import gateway as gateways
from ematix_flow.engine.classic import Host, plan_for, start_host
from ematix_flow.engine.cluster import patience, peer_timeout
from ematix_flow.engine.failures import translate
from ematix_flow.engine.kube_api import KubeApi
from ematix_flow.engine.kube_pods import Pods, PodState, driver_pod, executor_image, pod_conf
from ematix_flow.engine.peer_protocol import WORKER_PYTHON
from ematix_flow.engine.protocol import Job
from ematix_flow.engine.settings import (
    EngineSettings,
    context_conf,
    seconds_setting,
    shuffle_partitions,
)
from ematix_flow.engine.spark_worker import programs
from ematix_flow.engine.spread import SpreadEngine, driver_address, executor_conf, own_address
from ematix_flow.errors import EmatixError, EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_HTTPS_PORT = 443
_PAUSE = 0.2
# Once there is one executor, the others are waited for no longer than this.
_LATECOMERS_SECONDS = 30.0
# The client would ask an API that does not answer for minutes.
_RETRIES = ("kubernetes.request.retry.backoffLimit", "3")


class KubeEngine(SpreadEngine):
    """A session whose work is done in pods, ended with the run that opened it."""

    per_run = True

    def __init__(
        self,
        spark: SparkSession,
        settings: EngineSettings,
        *,
        host: Host,
        pods: Pods,
        wanted: int,
        slots: int,
    ) -> None:
        super().__init__(spark, settings, host=host)
        self.slots = slots
        self._wanted = wanted
        self._pods = pods
        self._timeout = pod_timeout()
        self._lost: str | None = None
        self._ended = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="ematix-executors", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether JVM and session are there, and pods to be hoped for."""
        return self._lost is None and super().alive

    @contextlib.contextmanager
    def job(self, description: str) -> Iterator[Job]:
        """Tag all Spark jobs of the block; if they fail for want of pods, it says so."""
        try:
            with super().job(description) as job:
                yield job
        except Exception as error:
            trouble = self._pods.trouble
            # Spark gives up, with its JVM, when executors fail again and again.
            gave_up = self._host is not None and not self._host.jvm.alive
            if self._lost is None and gave_up and trouble is not None and trouble.has_ended:
                self._lost = f"executor pods end again and again: {trouble}"
            if self._lost is not None:
                raise EngineError(self._lost, fix="see the pod's log, and run again") from error
            raise

    def begin(self) -> None:
        """Go on when the executors are there, or one of them and the others do not come."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                there = self._executors()
            except Exception as error:
                # Spark gives up, with its JVM, when executors fail again and again.
                trouble = self._pods.trouble
                if trouble is None or not trouble.has_ended:
                    raise
                raise _not_up(trouble) from error
            if there >= self._wanted:
                break
            hopeless = self._pods.hopeless
            # As many as were asked for: it is not the one machine that some were sent to.
            if not there and len(hopeless) >= self._wanted:
                raise _not_up(hopeless[-1])
            now = time.monotonic()
            if there:
                deadline = min(deadline, now + _LATECOMERS_SECONDS)
            if now > deadline:
                if there:
                    logger.warning("%d of %d executors are there", there, self._wanted)
                    break
                raise self._late()
            time.sleep(_PAUSE)
        self._pods.calm_down()
        self._watching.start()

    def _late(self) -> EngineError:
        state = self._pods.trouble
        if state is None:
            return EngineError(
                f"Spark has made no executor pod within {self._timeout:.0f} seconds",
                fix=f"see {self.log}",
            )
        if state.phase == "Running":
            return EngineError(
                f"{state}, and has not reached the driver within {self._timeout:.0f} seconds",
                fix="check that pods can reach this machine, or set EMATIX_FLOW_DRIVER_HOST",
            )
        return EngineError(
            f"{state}, and was not up within {self._timeout:.0f} seconds",
            fix="see what the cluster lacks, or set EMATIX_FLOW_POD_TIMEOUT",
        )

    def _executors(self) -> int:
        tracker: Any = self._context._jsc.sc().statusTracker()
        # The driver counts itself.
        return len(tracker.getExecutorInfos()) - 1

    def _watch(self) -> None:
        """Stop what would wait for ever for a pod."""
        seen = time.monotonic()
        while not self._ended.wait(1.0):
            # The session may be on its way out.
            with contextlib.suppress(Exception):
                if self._executors() > 0:
                    seen = time.monotonic()
            if time.monotonic() - seen > self._timeout:
                trouble = self._pods.trouble
                self._lost = "there are no executors any more" + (f": {trouble}" if trouble else "")
                # Again and again: what is begun meanwhile would wait for ever.
                with contextlib.suppress(Exception):
                    self.cancel_all()

    def stop(self, *, seconds: float = 10.0) -> None:
        """End the session, its pods and its JVM."""
        self._ended.set()
        if self._watching.is_alive():
            self._watching.join()
        # While there is a JVM to ask.
        with contextlib.suppress(Exception):
            if self._host is not None and self._host.jvm.alive:
                self._spark.stop()
        with contextlib.suppress(Exception):
            self._pods.remove()
        super().stop(seconds=seconds)


def launch_on_kubernetes(settings: EngineSettings) -> KubeEngine:
    """Start a JVM, have the API look at what will be asked of it, and open a session on pods."""
    given = dict(settings.conf)
    executor_image(given)
    plan = plan_for(settings)
    plan = dataclasses.replace(
        plan,
        # Executors would be told to use the driver's.
        environment=(*plan.environment, ("SPARK_LOCAL_DIRS", "")),
        properties=(*plan.properties, _RETRIES),
        programs=programs(),
    )
    host = start_host(settings, plan)
    run, engine, pods = uuid.uuid4().hex[:12], None, None
    try:
        gateways.load_pyspark()
        host.gateway = gateways.connect(*host.jvm.gateway())
        gateways.hold(host.gateway)
        secret = secrets.token_bytes(32)
        conf = {
            **context_conf(settings, warehouse=host.workspace.path / "warehouse"),
            **executor_conf(settings.jars),
            **patience(peer_timeout()),
            **_driver_address(settings.master, given),
            **pod_conf(given, run, secret=secret, workspace=host.workspace),
        }
        wanted = int(conf["spark.executor.instances"])
        slots = wanted * int(conf["spark.executor.cores"])
        conf["spark.sql.shuffle.partitions"] = str(shuffle_partitions(slots))
        api = KubeApi(host.gateway, conf)
        pods = Pods(api, run)
        pods.check(api.executor_pod())
        pods.sweep()
        inside = driver_pod(api, given)
        if inside is not None:
            conf["spark.kubernetes.driver.pod.name"] = inside
        pods.keep_secret(secret, inside)
        pods.watch()
        spark = gateways.open_session(host.gateway, conf, python=WORKER_PYTHON)
        engine = KubeEngine(spark, settings, host=host, pods=pods, wanted=wanted, slots=slots)
        engine.begin()
        return engine
    except BaseException as error:
        ours = isinstance(error, EmatixError) or not isinstance(error, Exception)
        # Asked while there is a JVM to ask.
        known = error if ours else translate(error)
        if engine is not None:
            engine.stop()
        else:
            if pods is not None:
                with contextlib.suppress(Exception):
                    pods.remove()
            if host.gateway is not None:
                gateways.forget(host.gateway)
            host.kill()
        if ours:
            raise
        raise known from error


def pod_timeout() -> float:
    """How long pods may take to come up, and a run may be without any."""
    return seconds_setting("POD_TIMEOUT", 300, least=1, most=86400)


def _driver_address(master: str, given: dict[str, str]) -> dict[str, str]:
    if "spark.driver.host" in given:
        return {}
    server = urlsplit(master.removeprefix("k8s://"))
    here = own_address(server.hostname or "", server.port or _HTTPS_PORT)
    return driver_address(here, secured=True)


def _not_up(state: PodState) -> EngineError:
    if state.displaced:
        return EngineError(f"executor {state}", fix="see what the cluster lacks, and run again")
    if state.phase == "Failed":
        return EngineError(f"executor {state}", fix="see the pod's log, and correct its image")
    return EngineError(
        f"executor {state}", fix="correct kubernetes.container.image in [spark], or its secrets"
    )
