"""Runs that a cluster does not let begin: one sentence, no token in it, and nothing left behind."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster import work
from ematix_flow.engine.session import current_engine
from ematix_flow.errors import ConfigError, EngineError
from ematix_flow.pipeline import Pipeline

from .conftest import IMAGE, Project
from .kubelet import Kubelet


@pytest.fixture
def pipeline(project: Project, databases: tuple[str, str], tmp_path: Path) -> Pipeline:
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


@pytest.mark.parametrize("count", ["0", "many", "1.5"])
def test_a_wrong_number(pipeline: Pipeline, project: Project, count: str) -> None:
    project.write(executor_instances=count)
    said = refused(pipeline, project)
    assert "spark.executor.instances in [spark] must be a whole number; write 1 or more" in said


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
    # It is not tried again.
    assert len(kubelet.pods_seen) == 1


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
    monkeypatch.setenv("EMATIX_FLOW_POD_TIMEOUT", "12")
    said = refused(pipeline, project)
    assert re.search(r"pod \S+-exec-\d is pending, and was not up within 12 seconds", said), said
    assert project.left() == {}
