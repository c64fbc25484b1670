"""The manifests that we ship, as a real API server sees them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from services.kube import KubeServer, Refused

from .conftest import DEPLOY, SHIPPED, endpoint_of, manifests


@pytest.mark.parametrize("name", SHIPPED)
def test_the_server_takes_them(kube: KubeServer, name: str) -> None:
    with kube.namespace() as namespace:
        for manifest in manifests(name):
            if manifest["kind"] == "RoleBinding":
                manifest["subjects"][0]["namespace"] = namespace
            path = f"{endpoint_of(manifest, namespace)}?dryRun=All&fieldValidation=Strict"
            assert kube.call("POST", path, manifest)["kind"] == manifest["kind"]


def test_a_field_that_does_not_exist_would_be_seen(kube: KubeServer) -> None:
    with kube.namespace() as namespace:
        workers: dict[str, Any] = next(
            m for m in manifests("flow-worker.yaml") if m["kind"] == "StatefulSet"
        )
        workers["spec"]["template"]["spec"]["containers"][0]["comand"] = ["flow-worker"]
        path = f"{endpoint_of(workers, namespace)}?dryRun=All&fieldValidation=Strict"
        with pytest.raises(Refused, match="unknown field"):
            kube.call("POST", path, workers)


def test_workers_answer_to_the_name_that_peers_are_given() -> None:
    service, workers = manifests("flow-worker.yaml")
    assert service["spec"]["clusterIP"] == "None"
    assert workers["spec"]["serviceName"] == service["metadata"]["name"]
    labels = workers["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= service["spec"]["selector"].items()
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == service["spec"]["ports"][0]["port"]
    assert f"0.0.0.0:{port['containerPort']}" in container["command"]


def test_the_page_shows_what_is_shipped() -> None:
    page = (DEPLOY.parents[1] / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', page, re.M | re.S))
    shipped = {path.name: path.read_text(encoding="utf-8") for path in DEPLOY.iterdir()}
    assert len(shipped) == 3
    assert blocks.items() >= shipped.items()
