"""A node of the cluster, made of processes: it stands in for a scheduler and a kubelet.

Each pod is bound to it, and its container's command becomes a process of this machine with the
container's variables and nothing else. Its state is told to the API as a kubelet tells it. There
are no images and no mounts: paths of volumes are replaced by folders in the variables.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.kube import KubeServer, Refused

NODE = "node-1"
ADDRESS = "127.0.0.1"
_MERGE = "application/merge-patch+json"
_PAUSE = 0.1


@dataclass
class Container:
    """The one container of a pod."""

    pod: str
    process: subprocess.Popen[bytes]
    log: Path
    told: bool = False
    asked_to_end: float | None = None

    def ask_to_end(self) -> None:
        self.asked_to_end = time.monotonic()
        self.process.terminate()

    def kill(self) -> None:
        """With all that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)


@dataclass
class Kubelet:
    """Runs the pods of one namespace.

    ``images`` are those that can be pulled, ``programs`` is the folder of what is in them.
    """

    kube: KubeServer
    namespace: str
    folder: Path
    images: frozenset[str]
    programs: Path = Path(sys.executable).parent
    containers: dict[str, Container] = field(default_factory=dict)
    pods_seen: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        for container in self.containers.values():
            container.kill()
            container.process.wait()
        self.check()

    def check(self) -> None:
        """Raise what has stopped it, if anything has."""
        if self._trouble is not None:
            raise self._trouble

    @property
    def running(self) -> list[str]:
        """The pods whose process is there."""
        held = list(self.containers.values())
        return sorted(c.pod for c in held if c.process.poll() is None)

    def log_of(self, pod: str) -> str:
        found = [
            c.log.read_text(errors="replace") for c in self.containers.values() if c.pod == pod
        ]
        return "\n".join(found)

    def _path(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def _work(self) -> None:
        try:
            while not self._stopped.wait(_PAUSE):
                self._round()
        except BaseException as error:  # noqa: BLE001 - raised by the test
            self._trouble = error

    def _round(self) -> None:
        listed = self.kube.call("GET", self._path("pods"))["items"]
        there = {pod["metadata"]["uid"]: pod for pod in listed}
        for uid, pod in there.items():
            self.pods_seen[uid] = pod
            try:
                self._tend(uid, pod)
            except Refused as refusal:
                # Whoever made the pod may remove it at any time.
                if refusal.status not in (404, 409):
                    raise
        for uid, container in self.containers.items():
            if uid not in there:
                container.kill()

    def _tend(self, uid: str, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        container = self.containers.get(uid)
        if "deletionTimestamp" in pod["metadata"]:
            self._end(name, container)
        elif container is not None:
            if container.process.poll() is not None and not container.told:
                self._tell_of_end(name, container)
        elif not pod["spec"].get("nodeName"):
            binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
            self.kube.call("POST", f"{self._path('pods', name)}/binding", binding)
        elif pod["status"]["phase"] == "Pending":
            self._begin(uid, pod)

    def _begin(self, uid: str, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if not pod["metadata"].get("labels"):
            # A pod that only has to be there.
            self._tell(name, "Running", {"running": {}})
            return
        (spec,) = pod["spec"]["containers"]
        if spec["image"] not in self.images:
            reason = {"reason": "ImagePullBackOff", "message": f"Back-off pulling {spec['image']}"}
            self._tell(name, "Pending", {"waiting": reason})
            return
        folder = self.folder / uid
        # There already if something of the pod was not yet there.
        folder.mkdir(exist_ok=True)
        log = folder / "container.log"
        program, *arguments = [*spec["command"], *spec["args"]]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(self.programs / program), *arguments],
                env=self._variables(pod, spec, folder),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.containers[uid] = Container(name, process, log)
        self._tell(name, "Running", {"running": {}})

    def _variables(self, pod: dict[str, Any], spec: dict[str, Any], folder: Path) -> dict[str, str]:
        paths = {
            mount["mountPath"]: self._volume(pod, mount["name"], folder)
            for mount in spec["volumeMounts"]
        }
        fields = {"status.podIP": ADDRESS, "metadata.name": pod["metadata"]["name"]}
        # What an image would set.
        found = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS", ""),
        }
        for variable in spec["env"]:
            if "valueFrom" in variable:
                value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                value = variable.get("value", "")
                for path, real in paths.items():
                    value = value.replace(path, str(real))
            found[variable["name"]] = value
        return found

    def _volume(self, pod: dict[str, Any], name: str, folder: Path) -> Path:
        (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == name]
        place = folder / name
        place.mkdir(exist_ok=True)
        if "secret" in volume:
            secret = self.kube.call("GET", self._path("secrets", volume["secret"]["secretName"]))
            for key, value in secret["data"].items():
                (place / key).write_bytes(base64.b64decode(value))
        else:
            assert "emptyDir" in volume, volume
        return place

    def _tell_of_end(self, name: str, container: Container) -> None:
        code = container.process.returncode
        log = container.log.read_text(errors="replace")[-2048:] if code else ""
        ended = {"exitCode": code if code >= 0 else 128 - code, "message": log}
        self._tell(name, "Failed" if code else "Succeeded", {"terminated": ended})
        container.told = True

    def _tell(self, name: str, phase: str, state: dict[str, Any]) -> None:
        container = {
            "name": "executor",
            "image": "",
            "imageID": "",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        ready = {"type": "Ready", "status": "True" if "running" in state else "False"}
        status = {
            "phase": phase,
            "podIP": ADDRESS,
            "conditions": [ready],
            "containerStatuses": [container],
        }
        path = f"{self._path('pods', name)}/status"
        self.kube.call("PATCH", path, {"status": status}, kind=_MERGE)

    def _end(self, name: str, container: Container | None) -> None:
        """Ask the process to end, insist after a while, and let the pod go."""
        if container is not None and container.process.poll() is None:
            now = time.monotonic()
            if container.asked_to_end is None:
                container.ask_to_end()
            elif now - container.asked_to_end > 10:
                container.kill()
            return
        self.kube.call("DELETE", f"{self._path('pods', name)}?gracePeriodSeconds=0")
