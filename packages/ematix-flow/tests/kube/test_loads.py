"""Loads by executor pods: the API server is real, the node is a stand-in made of processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import work
from cluster.crew import descendants, wait_until
from cluster.work import Gate, Running
from ematix_flow import ematix
from ematix_flow.connections import ObjectStoreLocalConnection
from ematix_flow.engine.session import current_engine
from ematix_flow.errors import EngineError
from ematix_flow.registry import register_connection

from .conftest import IMAGE, Project
from .kubelet import Kubelet

pytestmark = pytest.mark.slow

# As the gate of the other clusters; here a pod is known by its name.
MODULE = work.GATE.replace(
    'os.popen("ip -4 -o addr show scope global").read().split()[3].partition("/")[0]',
    'os.environ["SPARK_EXECUTOR_POD_NAME"]',
)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(work, "GATE", MODULE)
    yield from work.user_module(tmp_path)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def held(running: Running, gate: Gate, kubelet: Kubelet, pods: int) -> None:
    """Wait until so many pods hold a task of the load."""

    def settled() -> bool:
        kubelet.check()
        return len(gate.hosts) >= pods or running._outcome is not None

    wait_until(settled, what="all pods are at work", seconds=90)
    if running._outcome is not None:
        running.result()


def test_a_load_of_which_a_pod_is_lost(
    *,
    project: Project,
    kubelet: Kubelet,
    databases: tuple[str, str],
    module: ModuleType,
    gate: Gate,
) -> None:
    driver = {"metadata": {"name": "driver"}, "spec": {"containers": [{"name": "d", "image": "d"}]}}
    made = project.kube.call("POST", f"/api/v1/namespaces/{project.namespace}/pods", driver)
    project.write(
        kubernetes_driver_pod_name="driver",
        kubernetes_executor_label_team="data",
        kubernetes_executor_node_selector_disk="ssd",
        kubernetes_container_image_pullSecrets="registry",
    )
    expected = work.fill(databases[0])
    running = Running(work.pipeline(module, gate, [], master=project.master))
    held(running, gate, kubelet, 2)

    pods = [p for p in project.items("pods") if p["metadata"]["name"] != "driver"]
    assert len(pods) == 2
    (secret,) = project.items("secrets")
    owners = {made["metadata"]["uid"], *(pod["metadata"]["uid"] for pod in pods)}
    assert {owner["uid"] for owner in secret["metadata"]["ownerReferences"]} == owners
    for pod in pods:
        check_pod(pod, secret, made)

    # As a cluster does that finds all owners gone.
    held_by = f"/api/v1/namespaces/{project.namespace}/secrets/{secret['metadata']['name']}"
    project.kube.call("DELETE", held_by)
    lost, kept = sorted(gate.hosts)
    path = f"/api/v1/namespaces/{project.namespace}/pods/{lost}?gracePeriodSeconds=0"
    project.kube.call("DELETE", path)
    wait_until(lambda: len(gate.hosts) == 3, what="another pod takes its place", seconds=90)
    gate.open()
    result = running.result()
    assert (result.path, result.counts.inserted) == ("spark", work.ROWS)
    assert work.loaded(databases[1]) == expected
    assert work.litter(databases[1]) == []
    assert kept in gate.hosts

    assert current_engine() is None
    wait_until(lambda: project.left() == {"pods": ["driver"]}, what="the pods are gone")
    assert kubelet.running == []


class CrowdedNode(Kubelet):
    """Has no room for the first pod that it is given."""

    def _begin(self, uid: str, pod: dict[str, Any]) -> None:
        if len(self.pods_seen) > 1:
            super()._begin(uid, pod)
            return
        gone = {"terminated": {"exitCode": 137, "reason": "Error"}}
        status = {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory.",
            "containerStatuses": [
                {
                    "name": "executor",
                    "image": "",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": gone,
                }
            ],
        }
        path = f"{self._path('pods', pod['metadata']['name'])}/status"
        self.kube.call("PATCH", path, {"status": status}, kind="application/merge-patch+json")


def test_a_pod_that_is_evicted_before_it_begins_is_replaced(
    *,
    project: Project,
    databases: tuple[str, str],
    module: ModuleType,
    gate: Gate,
    tmp_path: Path,
) -> None:
    project.write(executor_instances="1")
    expected = work.fill(databases[0])
    gate.open()
    node = tmp_path / "node"
    node.mkdir()
    with CrowdedNode(project.kube, project.namespace, node, frozenset({IMAGE})) as kubelet:
        work.pipeline(module, gate, [], master=project.master).sync()
        assert len(kubelet.pods_seen) == 2
        assert work.loaded(databases[1]) == expected
        wait_until(lambda: project.left() == {}, what="nothing is left")


@pytest.mark.soak
def test_a_load_that_loses_all_pods_for_good(
    *,
    project: Project,
    kubelet: Kubelet,
    databases: tuple[str, str],
    module: ModuleType,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_POD_TIMEOUT", "30")
    project.write(executor_instances="1")
    work.fill(databases[0])
    running = Running(work.pipeline(module, gate, [], master=project.master))
    held(running, gate, kubelet, 1)
    kubelet.images = frozenset()
    (lost,) = gate.hosts
    path = f"/api/v1/namespaces/{project.namespace}/pods/{lost}?gracePeriodSeconds=0"
    project.kube.call("DELETE", path)
    with pytest.raises(EngineError) as caught:
        running.result()
    assert re.match(
        r"there are no executors any more: pod \S+-exec-2 is pending \(ImagePullBackOff: ",
        str(caught.value),
    ), caught.value
    assert work.loaded(databases[1]) == []
    wait_until(lambda: project.left() == {}, what="nothing is left")


def check_pod(pod: dict[str, Any], secret: dict[str, Any], driver: dict[str, Any]) -> None:
    """Exactly what is promised, and nothing secret."""
    meta, spec = pod["metadata"], pod["spec"]
    run = secret["metadata"]["labels"]["ematix-flow/run"]
    assert meta["name"].startswith(f"ematix-flow-{run}-exec-")
    assert (
        meta["labels"].items()
        >= {
            "app.kubernetes.io/managed-by": "ematix-flow",
            "ematix-flow/run": run,
            "spark-role": "executor",
            "team": "data",
        }.items()
    )
    assert [owner["uid"] for owner in meta["ownerReferences"]] == [driver["metadata"]["uid"]]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["image"] == IMAGE
    assert [*container["command"], *container["args"]] == ["flow-worker", "executor"]
    # 512 MiB of heap, and the least that Spark adds to it.
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": "896Mi"},
        "limits": {"memory": "896Mi"},
    }
    variables = {v["name"]: v.get("value", "") for v in container["env"]}
    assert "_SPARK_AUTH_SECRET" not in variables
    shown = str(pod)
    assert secret["data"]["spark"] not in shown
    (volume,) = [v for v in spec["volumes"] if "secret" in v]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]


@pytest.mark.soak
def test_a_load_of_shared_files_from_a_script(
    project: Project, kubelet: Kubelet, databases: tuple[str, str], tmp_path: Path
) -> None:
    project.write(executor_instances="1")
    folder = tmp_path / "lake"
    folder.mkdir()
    rows = {"event_id": list(range(500)), "name": [f"n{i}" for i in range(500)]}
    pq.write_table(pa.table(rows), folder / "events.parquet")
    register_connection(ObjectStoreLocalConnection(name="lake", path=str(folder), shared=True))

    @ematix.pipeline(
        target=work.Events,
        target_connection="warehouse",
        source_connection="lake",
        source_table="events.parquet",
        mode="merge",
        master=project.master,
    )
    def load_files(conn: Any) -> None:
        return None

    load_files.sync()
    assert work.loaded(databases[1]) == list(zip(rows["event_id"], rows["name"], strict=True))
    wait_until(lambda: project.left() == {}, what="nothing is left")


DRIVER = """
import os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {folder!r}]
from ematix_flow.connections import PostgresConnection
from ematix_flow.registry import register_connection
from cluster import work
import gate_of_user
register_connection(PostgresConnection(name="origin", url=os.environ["ORIGIN"]))
register_connection(PostgresConnection(name="warehouse", url=os.environ["WAREHOUSE"]))
gate = work.Gate.__new__(work.Gate)
gate.folder = Path({gate!r})
work.pipeline(gate_of_user, gate, [], master={master!r}).sync()
"""


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("with_jvm", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_driver_that_is_killed(
    *,
    with_jvm: bool,
    project: Project,
    kubelet: Kubelet,
    databases: tuple[str, str],
    gate: Gate,
    tmp_path: Path,
) -> None:
    project.write(executor_instances="1")
    work.fill(databases[0])
    program = DRIVER.format(
        tests=str(Path(__file__).parents[1]),
        folder=str(tmp_path),
        gate=str(gate.folder),
        master=project.master,
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "ORIGIN": databases[0], "WAREHOUSE": databases[1]},
        cwd=project.folder,
    )
    try:
        wait_until(
            lambda: bool(gate.hosts) or driver.poll() is not None, what="at work", seconds=120
        )
        assert driver.poll() is None
        (pod,) = project.items("pods")
        (secret,) = project.items("secrets")
        # With its last owner, the cluster removes it.
        owners = secret["metadata"]["ownerReferences"]
        assert [owner["uid"] for owner in owners] == [pod["metadata"]["uid"]]
        below = descendants(driver.pid) if with_jvm else []
        for process in [driver.pid, *below]:
            os.kill(process, signal.SIGKILL)
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: kubelet.running == [], what="the executor ends", seconds=60)
    if with_jvm:
        ended = (["Failed"], ["Succeeded"])
        wait_until(
            lambda: [pod["status"]["phase"] for pod in project.items("pods")] in ended,
            what="its end is told",
        )
        sweep(project)
    wait_until(lambda: project.items("pods") == [], what="the pod is gone")
    assert work.loaded(databases[1]) == []


def sweep(project: Project) -> None:
    """What the next run does first, without its patience."""
    from ematix_flow.engine.kube_pods import Pods

    from .apis import opened

    with opened(project) as api:
        Pods(api, "another").sweep(ended=timedelta())
