"""A namespace of a real API server for each test, an account with the rights that we ship."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ematix_flow.connections import PostgresConnection
from ematix_flow.registry import register_connection
from quick_java import quick_java
from services.kube import KubeServer

from .kubelet import Kubelet

DEPLOY = Path(__file__).resolve().parents[4] / "deploy" / "kubernetes"
ACCOUNT = "ematix-flow"
IMAGE = "registry.example/pipelines:1"
SHIPPED = sorted(path.name for path in DEPLOY.glob("*.yaml"))
_GROUPS = {
    "v1": "/api/v1",
    "apps/v1": "/apis/apps/v1",
    "batch/v1": "/apis/batch/v1",
    "rbac.authorization.k8s.io/v1": "/apis/rbac.authorization.k8s.io/v1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Building the API server takes minutes, once: these wait for it, and come last."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))
    items.sort(key=lambda item: here in item.path.parents)


def manifests(name: str) -> list[dict[str, Any]]:
    """The objects of a file that we ship."""
    with (DEPLOY / name).open() as file:
        return list(yaml.safe_load_all(file))


def endpoint_of(manifest: dict[str, Any], namespace: str) -> str:
    """Where the API takes such an object."""
    plural = f"{manifest['kind'].lower()}s"
    return f"{_GROUPS[manifest['apiVersion']]}/namespaces/{namespace}/{plural}"


@dataclass(frozen=True)
class Project:
    """A folder with settings, and the namespace that they name."""

    kube: KubeServer
    folder: Path
    namespace: str
    token_file: Path

    @property
    def master(self) -> str:
        return f"k8s://{self.kube.url}"

    def settings(self, **changed: str) -> dict[str, str]:
        """What stands in ``[spark]``; ``_`` is written for a dot."""
        given = {
            "kubernetes.namespace": self.namespace,
            "kubernetes.container.image": IMAGE,
            "kubernetes.authenticate.oauthTokenFile": str(self.token_file),
            "kubernetes.authenticate.caCertFile": str(self.kube.ca_file),
            "executor.memory": "512m",
        }
        return given | {key.replace("_", "."): value for key, value in changed.items()}

    def write(self, **changed: str) -> None:
        """The project file; a setting that is empty is left out."""
        lines = [f'"{key}" = "{value}"' for key, value in self.settings(**changed).items() if value]
        (self.folder / ".ematix-flow.toml").write_text("\n".join(["[spark]", *lines, ""]))

    def left(self) -> dict[str, list[str]]:
        """What there is in the namespace, by kind."""
        return {
            kind: [item["metadata"]["name"] for item in self.items(kind)]
            for kind in ("pods", "secrets", "configmaps", "services")
            if self.items(kind)
        }

    def items(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.kube.call(
            "GET", f"/api/v1/namespaces/{self.namespace}/{kind}"
        )["items"]
        return found


@pytest.fixture
def project(kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project whose account may do what the shipped role allows, and no more."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with kube.namespace() as namespace, quick_java():
        for manifest in manifests("pipelines.yaml"):
            if manifest["kind"] == "RoleBinding":
                manifest["subjects"][0]["namespace"] = namespace
            if manifest["kind"] != "CronJob":
                kube.call("POST", endpoint_of(manifest, namespace), manifest)
        token = tmp_path / "token.txt"
        # As `kubectl create token` writes it.
        token.write_text(f"{kube.account_token(namespace, ACCOUNT)}\n")
        made = Project(kube, folder, namespace, token)
        made.write()
        yield made


@pytest.fixture
def kubelet(project: Project, tmp_path: Path) -> Iterator[Kubelet]:
    folder = tmp_path / "node"
    folder.mkdir()
    with Kubelet(project.kube, project.namespace, folder, frozenset({IMAGE})) as node:
        yield node


@pytest.fixture
def databases(postgres: Any) -> Iterator[tuple[str, str]]:
    """Where rows come from, and where they go."""
    urls = (postgres.create_database(), postgres.create_database())
    for name, url in zip(("origin", "warehouse"), urls, strict=True):
        register_connection(PostgresConnection(name=name, url=url))
    yield urls
    for url in urls:
        postgres.drop_database(url.rsplit("/", 1)[1])
