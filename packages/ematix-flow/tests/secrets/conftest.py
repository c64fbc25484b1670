"""A net under the whole suite: the test server's password must turn up nowhere.

This file is loaded when the suite is collected, so its net sees every test: what each printed,
what its commands and subprocesses said and, at the end, every run log, log file and stage that
was left in a temporary folder.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from services.pytest_services import FLEET

# What a test writes for the user of its story; there a password may stand.
_WRITTEN_BY_HAND = (".toml", ".py", ".txt")
_LARGEST = 64 << 20


class Net:
    """Looks for passwords in all that is said, and remembers whose words they were in."""

    def __init__(self, passwords: Callable[[], set[bytes]]) -> None:
        self.passwords = passwords
        self.leaks: list[str] = []
        self.test = "the start of the session"

    def look(self, where: str, said: str | bytes | None) -> None:
        """Note a leak."""
        content = said.encode(errors="replace") if isinstance(said, str) else said
        if content and any(password in content for password in self.passwords()):
            self.leaks.append(f"{self.test}, {where}")

    def look_into(self, folder: Path) -> None:
        """Search every file that was left behind."""
        for path in folder.rglob("*"):
            if path.suffix in _WRITTEN_BY_HAND or path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_size <= _LARGEST:
                self.look(str(path.relative_to(folder)), path.read_bytes())

    def looking_at(self, read: Callable[..., Any], where: str) -> Callable[..., Any]:
        """A function that reads output, and lets us see it too."""

        def reading(*arguments: Any, **options: Any) -> Any:
            said = read(*arguments, **options)
            for part in said:
                self.look(where, part)
            return said

        return reading

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Know whose words the next ones are."""
        self.test = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at what pytest has captured of a test."""
        for title, text in report.sections:
            self.look(title, text)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Search what is left; a leak fails the session."""
        self.test = "left behind"
        factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]  # pytest has no public way to ask for it outside a test
        self.look_into(factory.getbasetemp())
        if self.leaks:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where."""
        if self.leaks:
            terminalreporter.section("a server's password leaked", red=True)
            for leak in dict.fromkeys(self.leaks):
                terminalreporter.line(leak)


def server_passwords(config: pytest.Config) -> set[bytes]:
    """Of every server started so far, plain and as a URL spells it."""
    found: set[bytes] = set()
    for start in config.stash[FLEET]._starting.values():
        if start.done() and start.exception() is None and start.result().secret:
            secret = start.result().secret
            found |= {secret.encode(), quote(secret, safe="").encode()}
    return found


def pytest_configure(config: pytest.Config) -> None:
    """Spread the net."""
    net = Net(lambda: server_passwords(config))
    config.pluginmanager.register(net, "secret-net")
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    for owner, name in ((subprocess.Popen, "communicate"), (pytest.CaptureFixture, "readouterr")):
        patch.setattr(owner, name, net.looking_at(getattr(owner, name), name))
