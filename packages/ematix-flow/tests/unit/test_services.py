"""The harness around real servers, tried with a tiny one that starts in milliseconds."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from services import process
from services.harness import KEEP, Harness, available
from services.pytest_services import Fleet
from services.service import Endpoint, Service, ServiceError

ROOT = Path(__file__).parents[4]

ECHO = """
import socket, sys
print("listening", flush=True)
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        connection, _ = server.accept()
        with connection:
            connection.sendall(connection.recv(64))
"""


class Echo(Service):
    """Answers every message with itself."""

    name: ClassVar[str] = "echo"
    start_timeout: ClassVar[float] = 20
    program = ECHO

    def install(self) -> None: ...

    def prepare(self, endpoint: Endpoint) -> None:
        (endpoint.home / "echo.py").write_text(self.program)

    def command(self, endpoint: Endpoint) -> list[str]:
        return [sys.executable, str(endpoint.home / "echo.py"), str(endpoint.port)]

    def client(self, endpoint: Endpoint) -> Endpoint:
        return endpoint

    def check(self, endpoint: Endpoint) -> None:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=2) as connection:
            connection.sendall(b"ping")
            if connection.recv(64) != b"ping":
                raise ServiceError("wrong echo")


class Dying(Echo):
    """Says why and ends at once."""

    name: ClassVar[str] = "dying"
    program = "import sys; sys.exit('no space for cats')"


def answers(endpoint: Endpoint) -> bool:
    try:
        Echo().check(endpoint)
    except OSError:
        return False
    return True


@pytest.fixture
def echo(tmp_path: Path) -> Harness:
    return Harness(Echo(), root=tmp_path)


def test_starts_answers_and_leaves_nothing_behind(echo: Harness) -> None:
    endpoint = echo.acquire()
    assert answers(endpoint)
    assert endpoint.home.is_dir()
    echo.release()
    assert not answers(endpoint)
    assert not endpoint.home.exists()
    assert echo.status() is None
    assert "listening" in echo.log.read_text()


def test_second_user_shares_the_server_and_the_last_one_stops_it(
    echo: Harness, tmp_path: Path
) -> None:
    other = Harness(Echo(), root=tmp_path)
    first, second = echo.acquire(), other.acquire()
    assert first == second
    echo.release()
    assert answers(first)
    other.release()
    assert not answers(first)


def test_kept_server_survives_its_users_until_told_to_stop(echo: Harness) -> None:
    endpoint = echo.acquire(KEEP)
    echo.acquire()
    echo.release()
    assert answers(endpoint)
    assert echo.stop()
    assert not answers(endpoint)
    assert not echo.stop()


def test_lease_of_a_process_that_vanished_does_not_keep_the_server(echo: Harness) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    endpoint = echo.acquire(ended.pid)
    echo.acquire()
    echo.release()
    assert not answers(endpoint)


def test_crashed_server_is_replaced(echo: Harness) -> None:
    first = echo.acquire()
    state = echo._read()
    assert state is not None
    os.kill(state.pid, signal.SIGKILL)
    second = echo.acquire()
    assert second.home != first.home
    assert not first.home.exists()
    assert answers(second)
    echo.stop()


def test_failed_start_tells_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"dying did not start.*no space for cats"):
        Harness(Dying(), root=tmp_path).acquire()
    assert Harness(Dying(), root=tmp_path).status() is None


def test_failed_start_fails_the_tests_that_need_it(tmp_path: Path) -> None:
    fleet = Fleet({"dying": Dying(), "echo": Echo()}, root=tmp_path)
    try:
        good, bad = fleet.start("echo"), fleet.start("dying")
        assert fleet.start("echo") is good
        assert answers(good.result())
        with pytest.raises(ServiceError, match="did not start"):
            bad.result()
    finally:
        fleet.release()
    assert not answers(good.result())


def test_credentials_are_private(echo: Harness) -> None:
    endpoint = echo.acquire()
    mode = (echo.folder / "state.json").stat().st_mode
    echo.release()
    assert stat.S_IMODE(mode) == 0o600
    assert endpoint.secret not in repr(endpoint)


def test_stop_spares_a_stranger_with_the_same_id() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process.stop(stranger.pid, "born at another time")
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")


def test_stop_insists_with_a_server_that_ignores_the_first_signal(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True)"
    log = tmp_path / "log"
    command = [sys.executable, "-c", f"{deaf}; signal.pause()"]
    pid = process.launch(command, home=tmp_path, log=log, account=None)
    assert process.wait_until(lambda: "deaf" in log.read_text(), timeout=20)
    process.stop(pid, process.birth(pid), timeout=0.2)
    assert process.birth(pid) == ""


def test_free_port_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", process.free_port())) as server:
        port = server.getsockname()[1]
        assert process.LOW_PORT <= port < process.HIGH_PORT


def test_every_service_file_is_found() -> None:
    assert "postgres" in available()


def test_marker_selects_the_tests_that_use_a_server(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_with(postgres): ...\n"
        "@pytest.mark.services('postgres')\n"
        "def test_named(request): ...\n"
        "def test_without(): ...\n"
    )
    collect = [sys.executable, "-m", "pytest", "-p", "services.pytest_services", "-q"]
    listed = subprocess.run(
        [*collect, "--collect-only", "-m", "not services", f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "test_without" in listed
    assert "test_with\n" not in listed
    assert "test_named" not in listed


MEMBER = """
import os, sys, time
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.replace(sys.argv[1] + ".new", sys.argv[1])
if len(sys.argv) > 2:
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.02)
    sys.exit()
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize("end", ["asked", "killed", "one ends"])
def test_programs_that_end_together(tmp_path: Path, end: str) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    go = tmp_path / "go"
    extra: list[list[str]] = [[], [str(go)] if end == "one ends" else []]
    commands = [
        [sys.executable, "-c", MEMBER, str(file), *more]
        for file, more in zip(files, extra, strict=True)
    ]
    together = subprocess.Popen(
        [sys.executable, str(ROOT / "services" / "together.py"), json.dumps(commands)]
    )
    try:
        assert process.wait_until(lambda: all(f.exists() for f in files), timeout=20)
        born = {int(f.read_text()): process.birth(int(f.read_text())) for f in files}
        assert all(born.values())
        if end == "one ends":
            go.touch()
        else:
            together.send_signal(signal.SIGINT if end == "asked" else signal.SIGKILL)
        assert together.wait(20) == {"asked": 0, "killed": -9, "one ends": 1}[end]
    finally:
        together.kill()
        together.wait()
    assert process.wait_until(
        lambda: all(process.birth(pid) != birth for pid, birth in born.items()), timeout=20
    )
