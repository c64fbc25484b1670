"""How pods are, in one line, and what Spark is told of them; nothing is asked."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ematix_flow.engine.kube import pod_timeout
from ematix_flow.engine.kube_api import KubeApi
from ematix_flow.engine.kube_pods import Pods, PodState, pod_conf
from ematix_flow.engine.workspace import Workspace
from ematix_flow.errors import ConfigError, EngineError

GIVEN = {"spark.kubernetes.container.image": "registry.example/flow:1"}
TOKEN_FILE = "spark.kubernetes.authenticate.oauthTokenFile"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    made = Workspace(tmp_path)
    yield made
    made.remove()


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "exec-1", "uid": "u"}, "status": status}


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"state": state}]


@pytest.mark.parametrize(
    ("given", "says", "hopeless"),
    [
        (pod(phase="Running"), "pod exec-1 is running", False),
        (pod(), "pod exec-1 is pending", False),
        (
            pod(
                phase="Pending",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available",
                    }
                ],
            ),
            "pod exec-1 is pending (Unschedulable: 0/3 nodes are available)",
            False,
        ),
        (
            pod(phase="Pending", containerStatuses=container(waiting={"reason": "ErrImagePull"})),
            "pod exec-1 is pending (ErrImagePull)",
            False,
        ),
        (
            pod(
                phase="Pending", containerStatuses=container(waiting={"reason": "InvalidImageName"})
            ),
            "pod exec-1 is pending (InvalidImageName)",
            True,
        ),
        (
            pod(
                phase="Failed",
                containerStatuses=container(terminated={"exitCode": 137, "reason": "OOMKilled"}),
            ),
            "pod exec-1 is failed (exit code 137: OOMKilled)",
            True,
        ),
        (
            pod(
                phase="Failed",
                containerStatuses=container(
                    terminated={
                        "exitCode": 1,
                        "message": "a\nflow-worker: error: no; do\npassword=hunter2\n",
                    }
                ),
            ),
            "pod exec-1 is failed (exit code 1: no; do)",
            True,
        ),
        (
            pod(phase="Failed", reason="Evicted", message="token=abcdef was low"),
            "pod exec-1 is failed (Evicted: token=*** was low)",
            False,
        ),
        (
            pod(
                phase="Failed",
                reason="Evicted",
                containerStatuses=container(terminated={"exitCode": 137, "reason": "Error"}),
            ),
            "pod exec-1 is failed (Evicted)",
            False,
        ),
        (
            pod(
                phase="Failed",
                reason="Evicted",
                containerStatuses=container(waiting={"reason": "ContainerCreating"}),
            ),
            "pod exec-1 is failed (Evicted)",
            False,
        ),
    ],
)
def test_how_a_pod_is(given: dict[str, Any], says: str, hopeless: bool) -> None:
    state = PodState.read(given)
    assert str(state) == says
    assert state.is_hopeless is hopeless
    assert state.has_ended is (hopeless or state.phase == "Failed")


def test_of_several_troubles_the_latest_is_told() -> None:
    pods = Pods(cast(KubeApi, None), "r1")
    assert pods.trouble is None
    states = [
        PodState("exec-1", "u1", "Pending"),
        PodState("exec-2", "u2", "Pending", "Unschedulable", "of yesterday"),
        PodState("exec-3", "u3", "Pending", "Unschedulable", "of today"),
        PodState("exec-4", "u4", "Failed", "exit code 1", "of yesterday"),
        PodState("exec-5", "u5", "Failed", "exit code 1", "of today"),
        PodState("exec-6", "u6", "Pending"),
    ]
    told = []
    for count in range(1, len(states) + 1):
        pods.seen = {state.name: state for state in states[:count]}
        assert pods.trouble is not None
        told.append(pods.trouble.name)
    assert told == ["exec-1", "exec-2", "exec-3", "exec-4", "exec-5", "exec-5"]
    pods.calm_down()
    assert pods.trouble is None


def test_what_is_given_wins_over_defaults_but_not_over_what_is_ours(workspace: Workspace) -> None:
    given = {**GIVEN, "spark.executor.memory": "7g", "spark.authenticate": "false"}
    conf = pod_conf(given, "r1", secret=b"hidden", workspace=workspace)
    assert conf["spark.executor.memory"] == "7g"
    assert conf["spark.executor.memoryOverheadFactor"] == "0.4"
    assert conf["spark.authenticate"] == "true"
    assert "hidden" not in json.dumps(conf)
    held = Path(conf["spark.authenticate.secret.driver.file"])
    assert held.read_bytes() == b"hidden"
    assert stat.S_IMODE(held.stat().st_mode) == 0o600


def test_a_template_of_the_users_takes_the_place_of_ours(workspace: Workspace) -> None:
    key = "spark.kubernetes.executor.podTemplateFile"
    ours = pod_conf(GIVEN, "r1", secret=b"s", workspace=workspace)[key]
    spec = json.loads(Path(ours).read_text())["spec"]
    assert spec["containers"][0]["command"] == ["flow-worker"]
    given = {**GIVEN, key: "mine.yaml"}
    assert pod_conf(given, "r1", secret=b"s", workspace=workspace)[key] == "mine.yaml"


def test_a_token_with_a_line_break_is_given_to_spark_without(
    workspace: Workspace, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    for text in ("abc.def", "abc.def\n"):
        file.write_text(text)
        given = {**GIVEN, TOKEN_FILE: str(file)}
        told = Path(pod_conf(given, "r1", secret=b"s", workspace=workspace)[TOKEN_FILE])
        assert told.read_text() == "abc.def"
        assert (told == file) is (text == "abc.def")
    assert stat.S_IMODE(told.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "two words", None])
def test_a_file_without_a_token(workspace: Workspace, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        pod_conf({**GIVEN, TOKEN_FILE: str(file)}, "r1", secret=b"s", workspace=workspace)
    assert str(file) in str(caught.value)
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize("text", ["0.5", "86401", "soon"])
def test_patience_has_bounds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pod_timeout() == 300.0
    monkeypatch.setenv("EMATIX_FLOW_POD_TIMEOUT", text)
    with pytest.raises(EngineError, match="give seconds, from 1 to 86400"):
        pod_timeout()
