"""What a cluster does not give: one sentence for each, no token in it, and nothing left behind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import work
from ematix_flow.engine.kube_api import KubeRefusal
from ematix_flow.engine.kube_pods import Pods
from ematix_flow.engine.session import current_engine
from ematix_flow.engine.workspace import Workspace
from ematix_flow.errors import ConfigError, EngineError
from ematix_flow.pipeline import Pipeline
from quick_java import quick_java

from .apis import api_of, jvm
from .conftest import IMAGE, Project
from .kubelet import Kubelet

_MERGE = "application/merge-patch+json"
Changed = dict[str, str]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Any]:
    """One JVM for all questions."""
    with quick_java(), jvm() as opened:
        yield opened


def of_nobody(project: Project) -> Changed:
    project.token_file.write_text("this-is-no-token-of-anybody")
    return {}


def in_no_namespace(project: Project) -> Changed:
    project.token_file.write_text(project.kube.token)
    return {"kubernetes_namespace": "nowhere"}


def without_rights(project: Project) -> Changed:
    project.token_file.write_text(project.kube.account_token(project.namespace, "stranger"))
    return {}


def beyond_the_quota(project: Project) -> Changed:
    quota: dict[str, Any] = {
        "metadata": {"name": "small"},
        "spec": {"hard": {"requests.cpu": "1", "requests.memory": "8Gi"}},
    }
    path = f"/api/v1/namespaces/{project.namespace}/resourcequotas"
    project.kube.call("POST", path, quota)
    # A controller would say what is used.
    hard = quota["spec"]["hard"]
    status = {"status": {"hard": hard, "used": {"requests.cpu": "0", "requests.memory": "0"}}}
    project.kube.call("PATCH", f"{path}/small/status", status, kind=_MERGE)
    return {"executor_cores": "4"}


def with_a_wrong_label(project: Project) -> Changed:
    return {"kubernetes_executor_label_team": "not a label"}


def of_an_unknown_authority(project: Project) -> Changed:
    return {"kubernetes_authenticate_caCertFile": ""}


def ask(gateway: Any, project: Project, given: Changed) -> None:
    """Whether such pods may be made."""
    folder = Workspace()
    try:
        api = api_of(gateway, project, given, folder)
        Pods(api, "check").check(api.executor_pod())
    finally:
        folder.remove()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (of_nobody, "does not know who asks; renew the token in the file"),
        (in_no_namespace, "has no namespace 'nowhere'; create it, or correct"),
        (without_rights, "refuses a pod: pods .* is forbidden: .*; have the rights given"),
        (beyond_the_quota, "refuses a pod: .* exceeded quota: small.*; ask for fewer or smaller"),
        (with_a_wrong_label, "refuses a pod: .* is invalid: metadata.labels: .*; correct the"),
        (of_an_unknown_authority, "cannot be asked: its certificate is not one of an authority"),
    ],
)
def test_before_anything_is_made(
    gateway: Any, project: Project, wrong: Callable[[Project], Changed], says: str
) -> None:
    given = project.settings(**wrong(project))
    token = project.token_file.read_text().strip()
    with pytest.raises(KubeRefusal) as caught:
        ask(gateway, project, given)
    said = str(caught.value)
    assert re.search(says, said), said
    assert "\n" not in said
    assert token not in said
    assert project.left() == {}


def test_a_pod_that_is_as_it_should_be_is_not_made_either(gateway: Any, project: Project) -> None:
    ask(gateway, project, project.settings())
    assert project.left() == {}


@pytest.fixture
def pipeline(project: Project, databases: tuple[str, str], tmp_path: Path) -> Pipeline:
    from types import SimpleNamespace

    work.fill(databases[0])
    hold: Any = SimpleNamespace(Hold=lambda folder: lambda batches: batches)
    return work.pipeline(hold, work.Gate(tmp_path / "gate"), [], master=project.master)


def refused(pipeline: Pipeline, project: Project) -> str:
    with pytest.raises((ConfigError, EngineError)) as caught:
        pipeline.sync()
    assert current_engine() is None
    said = str(caught.value)
    assert "\n" not in said
    assert project.token_file.read_text().strip() not in said
    assert project.left().get("secrets", []) == []
    return said


def test_no_image(pipeline: Pipeline, project: Project) -> None:
    project.write(kubernetes_container_image="")
    assert "needs an image with ematix-flow in it; add kubernetes.container.image" in refused(
        pipeline, project
    )
    assert project.left() == {}


@pytest.mark.slow
def test_an_image_that_cannot_be_pulled(
    pipeline: Pipeline, project: Project, kubelet: Kubelet
) -> None:
    project.write(kubernetes_container_image="registry.example/nothing:1", executor_instances="1")
    said = refused(pipeline, project)
    assert re.search(
        r"executor pod ematix-flow-\w+-exec-1 is pending \(ImagePullBackOff: Back-off pulling "
        r"registry.example/nothing:1\); correct kubernetes.container.image in \[spark\]",
        said,
    ), said


@pytest.mark.slow
def test_an_image_of_other_versions(pipeline: Pipeline, project: Project, tmp_path: Path) -> None:
    """The container says what is wrong, and so does the run."""
    program = tmp_path / "image" / "flow-worker"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho starting >&2\n"
        "echo 'flow-worker: error: the image has pyspark 4.1.1 instead of 4.2.0' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    project.write(executor_instances="1")
    node = tmp_path / "node"
    node.mkdir()
    with Kubelet(
        project.kube, project.namespace, node, frozenset({IMAGE}), programs=program.parent
    ):
        said = refused(pipeline, project)
    assert re.search(
        r"executor pod \S+ is failed \(exit code 1: the image has pyspark 4.1.1 instead of", said
    ), said


@pytest.mark.slow
@pytest.mark.soak
def test_pods_that_nobody_runs(
    pipeline: Pipeline, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_POD_TIMEOUT", "3")
    said = refused(pipeline, project)
    assert re.search(r"pod \S+-exec-\d is pending, and was not up within 3 seconds", said), said
    assert project.left() == {}
