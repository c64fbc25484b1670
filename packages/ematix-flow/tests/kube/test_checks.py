"""What the API server is asked before anything is made: one sentence for each of its refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.engine import kube_pods
from ematix_flow.engine.kube_api import KubeRefusal
from ematix_flow.engine.kube_pods import Pods
from ematix_flow.engine.workspace import Workspace
from quick_java import quick_java

from .apis import api_of, jvm
from .conftest import Project

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
        (without_rights, "refuses a pod: pods is forbidden: .*; have the rights given"),
        (beyond_the_quota, "refuses a pod: .* exceeded quota: small.*; ask for fewer or smaller"),
        (with_a_wrong_label, "refuses a pod: .* is invalid: metadata.labels: .*; correct the"),
        (of_an_unknown_authority, "cannot be asked: its certificate is not one of an authority"),
    ],
)
def test_what_is_refused(
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


def test_a_driver_that_is_a_pod_knows_itself(
    gateway: Any, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "namespace").write_text(f"{project.namespace}\n")
    monkeypatch.setattr(kube_pods, "_ACCOUNT", account)
    pod = {"metadata": {"name": "me"}, "spec": {"containers": [{"name": "d", "image": "d"}]}}
    project.kube.call("POST", f"/api/v1/namespaces/{project.namespace}/pods", pod)
    folder = Workspace()
    try:
        api = api_of(gateway, project, project.settings(kubernetes_namespace=""), folder)
    finally:
        folder.remove()
    assert api.namespace == project.namespace
    found = {}
    for host in ("me", "another", ""):
        monkeypatch.setenv("HOSTNAME", host)
        found[host] = kube_pods.driver_pod(api, {})
    assert found == {"me": "me", "another": None, "": None}
    named = {"spark.kubernetes.driver.pod.name": "you"}
    assert kube_pods.driver_pod(api, named) == "you"


def made_pod(project: Project, run: str) -> str:
    """A pod of a run, as Spark labels it, that nobody tends; its uid."""
    labels = {"app.kubernetes.io/managed-by": "ematix-flow", "ematix-flow/run": run}
    pod = {
        "metadata": {"name": f"ematix-flow-{run}-exec-1", "labels": labels},
        "spec": {"containers": [{"name": "executor", "image": "i"}]},
    }
    made = project.kube.call("POST", f"/api/v1/namespaces/{project.namespace}/pods", pod)
    return str(made["metadata"]["uid"])


def test_there_is_no_secret_without_an_owner(gateway: Any, project: Project) -> None:
    """Nobody would remove it after a driver that is killed at that moment."""
    folder = Workspace()
    try:
        pods = Pods(api_of(gateway, project, project.settings(), folder), "r1")
        pods.keep_secret(b"0" * 32, None)
        pods.look()
        assert project.left() == {}
        uid = made_pod(project, "r1")
        pods.look()
        (secret,) = project.items("secrets")
        assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [uid]
        pods.remove()
        assert project.items("secrets") == []
    finally:
        folder.remove()


def test_a_secret_that_may_not_be_made_is_refused_at_once(gateway: Any, project: Project) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{project.namespace}/roles/ematix-flow"
    role = project.kube.call("GET", path)
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] != ["secrets"]]
    project.kube.call("PUT", path, role)
    folder = Workspace()
    try:
        api = api_of(gateway, project, project.settings(), folder)
        with pytest.raises(KubeRefusal, match="secrets is forbidden"):
            Pods(api, "r1").keep_secret(b"0" * 32, None)
    finally:
        folder.remove()


def test_pods_that_nobody_waits_for_are_swept(gateway: Any, project: Project) -> None:
    made_pod(project, "dead")
    folder = Workspace()
    try:
        pods = Pods(api_of(gateway, project, project.settings(), folder), "r1")
        pods.sweep(ended=timedelta())
        assert len(project.items("pods")) == 1
        pods.sweep(waiting=timedelta())
        assert project.items("pods") == []
    finally:
        folder.remove()
