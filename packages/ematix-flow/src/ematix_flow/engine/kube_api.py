"""The Kubernetes API, asked through the client that Spark brings, with the same settings.

So a kubeconfig, a service account of the pod, token and certificate files count here as they do
for Spark. What the API refuses becomes one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ematix_flow.errors import ConfigError, EmatixError, EngineError
from ematix_flow.redaction import redact_text

_K8S = "org.apache.spark.deploy.k8s"
_AUTHENTICATION = "spark.kubernetes.authenticate"
_NONE, _UNAUTHORIZED, _FORBIDDEN, _MISSING = 0, 401, 403, 404
_LONGEST = 600


class KubeRefusal(EngineError):
    """The API said no; ``status`` is that of HTTP, 0 if there was none."""

    def __init__(self, what: str, *, fix: str, status: int) -> None:
        super().__init__(what, fix=fix)
        self.status = status


class KubeApi:
    """One API server, one namespace of it."""

    def __init__(self, gateway: Any, conf: Mapping[str, str]) -> None:
        self._jvm = gateway.jvm
        self.namespace = conf["spark.kubernetes.namespace"]
        self.address = conf["spark.master"].removeprefix("k8s://")
        self.spark_conf = getattr(self._jvm, "org.apache.spark.SparkConf")(False)
        for key, value in conf.items():
            self.spark_conf.set(key, value)
        _check_files(conf)
        factory = getattr(self._jvm, f"{_K8S}.SparkKubernetesClientFactory")
        kinds = self._module(f"{_K8S}.SparkKubernetesClientFactory$ClientType$")
        option = getattr(self._jvm, "scala.Option")
        try:
            self._client = factory.createKubernetesClient(
                self.address,
                option.apply(self.namespace),
                _AUTHENTICATION,
                kinds.Driver(),
                self.spark_conf,
                option.empty(),
            )
        except Exception as error:
            raise self._refusal(error, "") from error

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Ask for something of the namespace; ``KubeRefusal`` if it is not given."""
        text = None if body is None else json.dumps(body)
        place = f"/api/v1/namespaces/{quote(self.namespace)}/{path}"
        try:
            answer = self._client.raw(place, method, text)
        except Exception as error:
            raise self._refusal(error, path) from error
        found: dict[str, Any] = json.loads(answer) if answer else {}
        return found

    def pods(self, labels: str) -> list[dict[str, Any]]:
        """All pods with these labels."""
        found: list[dict[str, Any]] = self.call("GET", f"pods?labelSelector={quote(labels)}").get(
            "items", []
        )
        return found

    def executor_pod(self) -> dict[str, Any]:
        """The pod that Spark would ask for, as it makes it of these settings."""
        option = getattr(self._jvm, "scala.Option")
        entries = self._module("org.apache.spark.internal.config.package$")
        manager = getattr(self._jvm, "org.apache.spark.SecurityManager")
        security = manager(self.spark_conf, option.empty(), entries.AUTH_SECRET_FILE_DRIVER())
        security.initializeAuth()
        profiles = self._module("org.apache.spark.resource.ResourceProfile$")
        profile = profiles.getOrCreateDefaultProfile(self.spark_conf)
        confs = getattr(self._jvm, f"{_K8S}.KubernetesConf")
        executor = confs.createExecutorConf(
            self.spark_conf, "1", "spark-check", option.empty(), profile.id()
        )
        name = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder"
        try:
            made = getattr(self._jvm, name)().buildFromFeatures(
                executor, security, self._client, profile
            )
        except Exception as error:
            raise self._refusal(error, "pods") from error
        finally:
            # It would be that of all sessions of this JVM.
            profiles.clearDefaultProfile()
        as_json = getattr(self._jvm, "io.fabric8.kubernetes.client.utils.Serialization").asJson
        pod: dict[str, Any] = json.loads(as_json(made.pod().pod()))
        container = json.loads(as_json(made.pod().container()))
        pod["spec"]["containers"] = [*pod["spec"].get("containers", ()), container]
        return pod

    def _module(self, name: str) -> Any:
        """An ``object`` of Scala."""
        found = getattr(self._jvm, "java.lang.Class").forName(name)
        return found.getField("MODULE$").get(None)

    def _refusal(self, error: Exception, path: str) -> EmatixError:
        status, said = _said(error)
        said = redact_text(said)
        here = f"the Kubernetes API at {self.address}"
        if status == _NONE:
            return _no_answer(here, said, urlsplit(self.address).hostname or "")
        if status == _UNAUTHORIZED:
            return KubeRefusal(
                f"{here} does not know who asks",
                fix="renew the token in the file that kubernetes.authenticate.oauthTokenFile of "
                "[spark] names, or log in again",
                status=status,
            )
        if status == _MISSING and f'namespaces "{self.namespace}" not found' in said:
            return KubeRefusal(
                f"{here} has no namespace {self.namespace!r}",
                fix="create it, or correct kubernetes.namespace in [spark]",
                status=status,
            )
        if status == _FORBIDDEN and "exceeded quota" in said:
            fix = "ask for fewer or smaller executors in [spark], or have the quota raised"
        elif status == _FORBIDDEN:
            fix = "have the rights given that the how-to page on Kubernetes lists"
        else:
            fix = "correct the settings in [spark]"
        what = path.partition("?")[0].partition("/")[0].removesuffix("s") or "request"
        return KubeRefusal(f"{here} refuses a {what}: {said}", fix=fix, status=status)


def _check_files(conf: Mapping[str, str]) -> None:
    for key, value in conf.items():
        is_file = key.startswith(f"{_AUTHENTICATION}.") and key.endswith("File")
        if is_file and not Path(value).is_file():
            raise ConfigError(
                f"{key.removeprefix('spark.')} in [spark] names {value}, which is no file",
                fix="correct its path",
            )


def _said(error: Exception) -> tuple[int, str]:
    """The status and the words of the API, out of an error of its client."""
    java = getattr(error, "java_exception", None)
    words = type(error).__name__
    while java is not None:
        name = str(java.getClass().getSimpleName())
        if name == "KubernetesClientException" and java.getCode() > 0:
            known = java.getStatus()
            message = None if known is None else known.getMessage()
            return int(java.getCode()), str(message or java.getMessage())[:_LONGEST]
        words = f"{name}: {java.getMessage()}"
        java = java.getCause()
    return _NONE, words[:_LONGEST]


def _no_answer(here: str, said: str, host: str) -> EmatixError:
    if "UnknownHost" in said:
        why, fix = f"the host {host} is unknown", "correct the address in master="
    elif "CertPath" in said or "SSL" in said or "certificate" in said.lower():
        why = "its certificate is not one of an authority that is known here"
        fix = "name the file of its authority: kubernetes.authenticate.caCertFile in [spark]"
    else:
        why, fix = said, "check the address in master=, and that it can be reached from here"
    return KubeRefusal(f"{here} cannot be asked: {why}", fix=fix, status=_NONE)
