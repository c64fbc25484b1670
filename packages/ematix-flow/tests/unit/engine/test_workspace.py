"""Work folders are private, and those of dead processes are swept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.engine.workspace import Workspace, sweep
from ematix_flow.errors import ConfigError


def test_a_workspace_is_private_and_leaves_nothing(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert workspace.path.stat().st_mode & 0o777 == 0o700
    secret = workspace.write("conf", "token")
    assert secret.stat().st_mode & 0o777 == 0o600
    workspace.folder("local")
    workspace.remove()
    workspace.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_living_workspace_is_not_swept(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    sweep(tmp_path)
    assert workspace.path.is_dir()
    workspace.remove()


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from ematix_flow.engine.workspace import Workspace\n"
        "Workspace(Path(sys.argv[1])).folder('local'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    other = tmp_path / "not-ours"
    other.mkdir()
    workspace = Workspace(tmp_path)
    assert not left.exists()
    assert other.is_dir()
    workspace.remove()


def test_a_folder_that_cannot_hold_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TMPDIR"):
        Workspace(tmp_path / "missing")
