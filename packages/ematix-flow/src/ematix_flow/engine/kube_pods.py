"""The executor pods of one run on Kubernetes: what they are made of, how they are, their end.

All that a run leaves with the API carries its label. The secret that executors show is an object
of Kubernetes' own, owned by the pods that read it from its first moment: with the last of them the
cluster removes it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ematix_flow.engine.kube_api import KubeApi, KubeRefusal
from ematix_flow.engine.peer_protocol import own_versions
from ematix_flow.engine.workspace import Workspace
from ematix_flow.errors import ConfigError
from ematix_flow.redaction import redact_text, remember_secret

logger = logging.getLogger(__name__)

IMAGE = "spark.kubernetes.container.image"
_EXECUTOR_IMAGE = "spark.kubernetes.executor.container.image"
_TOKEN_FILE = "spark.kubernetes.authenticate.oauthTokenFile"  # noqa: S105 - a name
VERSIONS_VARIABLE = "EMATIX_DRIVER_VERSIONS"
_RUN = "ematix-flow/run"
_MANAGER = "app.kubernetes.io/managed-by"
_OURS = f"{_MANAGER}=ematix-flow"
_SECRET_FOLDER = "/var/run/secrets/ematix-flow"  # noqa: S105 - a path
_SECRET_KEY = "spark"  # noqa: S105 - a name
# Where Kubernetes tells a pod of itself.
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# What no waiting mends.
_HOPELESS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
_LONGEST = 400
_GONE = 404
_PAUSE, _LONG_PAUSE = 0.2, 3.0
_FORGOTTEN = timedelta(hours=1)
_GIVEN_UP = timedelta(hours=25)


@dataclass(frozen=True)
class PodState:
    """How a pod is, in the words of the cluster."""

    name: str
    uid: str
    phase: str
    reason: str = ""
    message: str = ""
    displaced: bool = False

    @classmethod
    def read(cls, pod: Mapping[str, Any]) -> PodState:
        """From what the API says of it."""
        meta, status = pod["metadata"], pod.get("status", {})
        phase = status.get("phase", "Pending")
        reason, message = status.get("reason", ""), status.get("message", "")
        # Of a container that has failed by itself, nothing is said of the pod.
        displaced = phase == "Failed" and bool(reason)
        for condition in status.get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                reason, message = condition.get("reason", ""), condition.get("message", "")
        for container in status.get("containerStatuses", ()):
            held = container.get("state", {})
            waiting, ended = held.get("waiting"), held.get("terminated")
            if waiting and not displaced:
                reason, message = waiting.get("reason", ""), waiting.get("message", "")
            elif ended and not displaced:
                reason = f"exit code {ended.get('exitCode')}"
                message = _last_word(ended.get("message", "")) or ended.get("reason", "")
        told = redact_text(message)[:_LONGEST]
        return cls(meta["name"], meta["uid"], phase, reason, told, displaced)

    @property
    def is_hopeless(self) -> bool:
        """Whether it has ended, or will never begin, for a reason that others share.

        Where the cluster has taken its place away, another may keep its own.
        """
        ended = self.phase == "Failed" and not self.displaced
        return ended or self.reason in _HOPELESS

    @property
    def has_ended(self) -> bool:
        """Whether it is none of those that run, or may still come to."""
        return self.is_hopeless or self.displaced

    def __str__(self) -> str:
        told = ": ".join(part for part in (self.reason, self.message) if part)
        return f"pod {self.name} is {self.phase.lower()}" + (f" ({told})" if told else "")


def _last_word(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for beginning in ("flow-worker: error: ", "Caused by: "):
        telling = [line for line in lines if line.startswith(beginning)]
        if telling:
            return telling[-1].removeprefix(beginning)
    return lines[-1] if lines else ""


class Pods:
    """What one run has with the API, from its first request to its end."""

    def __init__(self, api: KubeApi, run: str) -> None:
        self._api = api
        self._run = run
        self._secret: dict[str, Any] | None = None
        self._owners: set[str] = set()
        self._pause = _PAUSE
        self._stopped = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="ematix-pods", daemon=True)
        self.seen: dict[str, PodState] = {}

    @property
    def hopeless(self) -> list[PodState]:
        """Those that have ended, or will never begin, as others would."""
        return [state for state in self.seen.values() if state.is_hopeless]

    @property
    def trouble(self) -> PodState | None:
        """The state that says most of why there are no executors; the latest of several."""
        latest = reversed(list(self.seen.values()))
        states = sorted(latest, key=lambda s: (not s.is_hopeless, not s.reason))
        return states[0] if states else None

    def check(self, pod: dict[str, Any]) -> None:
        """Have the API take or refuse such a pod, without making it."""
        self._api.call("POST", "pods?dryRun=All", pod)

    def keep_secret(self, secret: bytes, driver_pod: str | None) -> None:
        """Give the secret of this run to the cluster, for the executors to read.

        If this process is no pod, it is made with the first of them: nothing else could own it,
        and it would outlive a driver that is killed. The API may refuse it now.
        """
        owners = []
        if driver_pod is not None:
            uid = self._api.call("GET", f"pods/{driver_pod}")["metadata"]["uid"]
            owners.append(_owner(driver_pod, uid))
        self._secret = {
            "metadata": {
                "name": secret_name(self._run),
                "labels": {_MANAGER: "ematix-flow", _RUN: self._run},
                "ownerReferences": owners,
            },
            "type": "Opaque",
            "data": {_SECRET_KEY: base64.b64encode(secret).decode()},
        }
        self._api.call("POST", "secrets" if owners else "secrets?dryRun=All", self._secret)

    def watch(self) -> None:
        """Keep account of the pods from now on: Spark removes at once what has failed."""
        self._watching.start()

    def calm_down(self) -> None:
        """Look less often: the executors are there, whatever has become of others."""
        self._pause = _LONG_PAUSE
        self.seen = {}

    def _watch(self) -> None:
        while not self._stopped.wait(self._pause):
            # The API may be away for a while.
            with contextlib.suppress(Exception):
                self.look()

    def look(self) -> None:
        """See how the pods are; new ones become owners of the secret."""
        states = [PodState.read(pod) for pod in self._api.pods(f"{_RUN}={self._run}")]
        self.seen = {**self.seen, **{state.name: state for state in states}}
        fresh = [state for state in states if state.uid not in self._owners]
        if fresh and self._secret is not None:
            meta = self._secret["metadata"]
            owners = [*meta["ownerReferences"], *(_owner(s.name, s.uid) for s in fresh)]
            self._share({**self._secret, "metadata": {**meta, "ownerReferences": owners}})
            meta["ownerReferences"] = owners
            self._owners.update(state.uid for state in fresh)

    def _share(self, secret: dict[str, Any]) -> None:
        """Make the secret what it is to be; with its last owner the cluster removes it."""
        try:
            self._api.call("PUT", f"secrets/{secret_name(self._run)}", secret)
        except KubeRefusal as refusal:
            if refusal.status != _GONE:
                raise
            self._api.call("POST", "secrets", secret)

    def remove(self) -> None:
        """Take away all that is left; what cannot be is told of."""
        self._stopped.set()
        if self._watching.is_alive():
            self._watching.join()
        doomed = [f"pods?labelSelector={_RUN}%3D{self._run}"]
        if self._secret is not None:
            doomed.append(f"secrets/{secret_name(self._run)}")
        for path in doomed:
            try:
                self._api.call("DELETE", path)
            except KubeRefusal as refusal:
                if refusal.status != _GONE:
                    logger.warning("left behind in namespace %s: %s", self._api.namespace, refusal)

    def sweep(self, *, ended: timedelta = _FORGOTTEN, waiting: timedelta = _GIVEN_UP) -> None:
        """Take away old pods of runs whose driver was killed with its JVM.

        They have ended, or have waited for longer than a run is likely to.
        """
        patience = {"Failed": ended, "Succeeded": ended, "Pending": waiting}
        now = datetime.now(timezone.utc)
        for pod in self._api.pods(f"{_OURS},{_RUN}"):
            meta = pod["metadata"]
            made = datetime.fromisoformat(meta["creationTimestamp"].replace("Z", "+00:00"))
            limit = patience.get(pod.get("status", {}).get("phase", ""))
            if limit is not None and made < now - limit:
                # Another run may sweep, too.
                with contextlib.suppress(KubeRefusal):
                    self._api.call("DELETE", f"pods/{meta['name']}")


def secret_name(run: str) -> str:
    """Of the secret, and the beginning of the names of the pods."""
    return f"ematix-flow-{run}"


def _owner(name: str, uid: str) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}


def executor_image(given: Mapping[str, str]) -> str:
    """The image, which nobody can guess."""
    image = given.get(_EXECUTOR_IMAGE) or given.get(IMAGE)
    if not image:
        raise ConfigError(
            "a run on Kubernetes needs an image with ematix-flow in it",
            fix='add kubernetes.container.image = "…" to [spark] in .ematix-flow.toml',
        )
    return image


def pod_conf(
    given: Mapping[str, str], run: str, *, secret: bytes, workspace: Workspace
) -> dict[str, str]:
    """What Spark is told of the pods: what the user says, our defaults, and what is ours."""
    executor_image(given)
    held = workspace.path / "spark-secret"
    held.touch(mode=0o600)
    held.write_bytes(secret)
    versions = own_versions()
    conf = {
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "2g",
        # Beside the JVM there are Python processes.
        "spark.executor.memoryOverheadFactor": "0.4",
        "spark.kubernetes.namespace": _own_namespace() or "default",
        "spark.kubernetes.executor.disableConfigMap": "true",
        # We wait for executors ourselves, and see why they do not come.
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        "spark.executor.maxNumFailures": "20",
        # How soon a pod is replaced that has gone without a word; Spark would take its time.
        "spark.kubernetes.executor.apiPollingInterval": "5s",
        "spark.kubernetes.executor.missingPodDetectDelta": "10s",
        **given,
        "spark.kubernetes.executor.podNamePrefix": secret_name(run),
        f"spark.kubernetes.executor.label.{_MANAGER}": "ematix-flow",
        f"spark.kubernetes.executor.label.{_RUN}": run,
        f"spark.kubernetes.executor.secrets.{secret_name(run)}": _SECRET_FOLDER,
        "spark.authenticate": "true",
        "spark.authenticate.secret.driver.file": str(held),
        # The first for an executor's first question, the second for all that follow.
        "spark.authenticate.secret.file": f"{_SECRET_FOLDER}/{_SECRET_KEY}",
        "spark.authenticate.secret.executor.file": f"{_SECRET_FOLDER}/{_SECRET_KEY}",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.saslFallback": "false",
        "spark.io.encryption.enabled": "true",
        f"spark.executorEnv.{VERSIONS_VARIABLE}": json.dumps(vars(versions), sort_keys=True),
    }
    if "spark.kubernetes.executor.podTemplateFile" not in given:
        template = workspace.write("executor-pod.json", json.dumps(_TEMPLATE))
        conf["spark.kubernetes.executor.podTemplateFile"] = str(template)
    if _TOKEN_FILE in given:
        conf[_TOKEN_FILE] = _bare_token(Path(given[_TOKEN_FILE]), workspace)
    return conf


_TEMPLATE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        # Executors ask nothing of the API.
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "executor",
                "command": ["flow-worker"],
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
    },
}


def _bare_token(file: Path, workspace: Workspace) -> str:
    """The file, or a copy without the line break that Spark would send, and quote, with it."""
    try:
        text = file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"kubernetes.authenticate.oauthTokenFile in [spark] names {file}, which cannot be read",
            fix="correct its path",
        ) from error
    token = text.strip()
    if not token or len(token.split()) > 1:
        raise ConfigError(f"{file} does not hold a token", fix="write one into it, and no more")
    remember_secret(token)
    return str(file.expanduser() if text == token else workspace.write("token", token))


def _own_namespace() -> str | None:
    """The namespace of the pod in which we run, if it is one."""
    try:
        return (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def driver_pod(api: KubeApi, given: Mapping[str, str]) -> str | None:
    """The pod in which we run, with which all of the run may end."""
    named = given.get("spark.kubernetes.driver.pod.name")
    if named is not None or _own_namespace() != api.namespace:
        return named
    name = os.environ.get("HOSTNAME") or None
    if name is not None:
        try:
            api.call("GET", f"pods/{name}")
        except KubeRefusal:
            return None
    return name
