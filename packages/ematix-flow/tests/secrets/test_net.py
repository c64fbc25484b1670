"""The net of this folder's ``conftest.py`` catches what it is meant to catch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Net, server_passwords

PASSWORD = b"tr0ut-and-salmon"


@pytest.fixture
def net() -> Net:
    return Net(lambda: {PASSWORD})


def test_it_catches_what_is_printed_and_stored(net: Net, tmp_path: Path) -> None:
    net.look("stdout", "postgres://me:tr0ut-and-salmon@host")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.log").write_bytes(b"password " + PASSWORD)
    (tmp_path / "run_log.db").write_bytes(bytes(100) + PASSWORD + bytes(100))
    (tmp_path / "project.toml").write_bytes(PASSWORD)
    net.test = "files"
    net.look_into(tmp_path)
    assert sorted(net.leaks) == [
        "files, logs/run.log",
        "files, run_log.db",
        "the start of the session, stdout",
    ]


def test_it_lets_everything_else_through(net: Net, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("postgres://me:***@host")
    net.look_into(tmp_path)
    net.look("stdout", None)
    net.look("stdout", "trout")
    assert not net.leaks


def test_it_is_spread(pytestconfig: pytest.Config, postgres: object) -> None:
    """This very session is watched, and the server's password is known to the watcher."""
    spread = pytestconfig.pluginmanager.get_plugin("secret-net")
    assert isinstance(spread, Net)
    assert postgres.password.encode() in server_passwords(pytestconfig)  # type: ignore[attr-defined]
    before = list(spread.leaks)
    program = "import sys; print(sys.argv[1])"
    with subprocess.Popen(
        [sys.executable, "-c", program, postgres.password],  # type: ignore[attr-defined]
        stdout=subprocess.PIPE,
    ) as child:
        child.communicate()
    assert len(spread.leaks) == len(before) + 1
    spread.leaks[:] = before
