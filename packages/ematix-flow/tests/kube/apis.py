"""The API of a namespace as a driver asks it, without a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ematix_flow.engine import gateway as gateways
from ematix_flow.engine.classic import plan_for, start_host
from ematix_flow.engine.kube_api import KubeApi
from ematix_flow.engine.kube_pods import pod_conf
from ematix_flow.engine.session import open_now
from ematix_flow.engine.settings import derive
from ematix_flow.engine.workspace import Workspace

from .conftest import Project


@contextmanager
def jvm() -> Iterator[Any]:
    """The gateway to a JVM with Spark's classes; a process can have one of them."""
    engine = open_now()
    if engine is not None:
        engine.stop()
    settings = derive()
    host = start_host(settings, plan_for(settings))
    try:
        gateways.load_pyspark()
        host.gateway = gateways.connect(*host.jvm.gateway())
        gateways.hold(host.gateway)
        yield host.gateway
    finally:
        gateways.forget(host.gateway)
        host.kill()


def api_of(gateway: Any, project: Project, given: Mapping[str, str], folder: Workspace) -> KubeApi:
    """Asked with these settings of ``[spark]``."""
    conf = {f"spark.{key}": value for key, value in given.items() if value}
    ours = pod_conf(conf, "check", secret=b"0" * 32, workspace=folder)
    told = {"spark.master": project.master, "spark.driver.host": "127.0.0.1"}
    return KubeApi(gateway, {**ours, **told, "spark.app.name": "ematix-flow"})


@contextmanager
def opened(project: Project) -> Iterator[KubeApi]:
    folder = Workspace()
    try:
        with jvm() as gateway:
            yield api_of(gateway, project, project.settings(), folder)
    finally:
        folder.remove()
