"""A run log that is down: runs go on, records wait in files, whoever comes next delivers them."""

from __future__ import annotations

import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ematix_flow import config
from ematix_flow.errors import RunLogUnavailable
from ematix_flow.run import undelivered
from ematix_flow.run.log import MemoryRunLog, open_run_log
from ematix_flow.run.records import RunRecord
from ematix_flow.run.undelivered import BufferedRunLog, Undelivered
from services import process
from services.postgres import Postgres
from services.s3 import S3
from services.service import Endpoint, Service

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


class Failing(MemoryRunLog):
    """Is down when told, or after so many words."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.words: int | None = None
        self.told: list[str] = []

    def begin(self, record: RunRecord) -> None:
        self._say(f"begin {record.run_id}")
        super().begin(record)

    def heartbeat(self, run_id: str) -> None:
        self._say(f"heartbeat {run_id}")
        super().heartbeat(run_id)

    def finish(self, record: RunRecord) -> None:
        self._say(f"finish {record.run_id}")
        super().finish(record)

    def running(self, pipeline: str) -> list[RunRecord]:
        self._say("running")
        return super().running(pipeline)

    def _say(self, word: str) -> None:
        if self.down or self.words == 0:
            raise RunLogUnavailable("the run log at postgres://u:hunter22@h/db is down")
        if self.words is not None:
            self.words -= 1
        self.told.append(word)


@pytest.fixture
def log() -> Failing:
    return Failing()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "undelivered" / "x"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was down is tried again at once."""
    monkeypatch.setattr(undelivered, "_PAUSE", 0.0)


def record(number: int, **fields: object) -> RunRecord:
    return RunRecord(
        run_id=f"run-{number}",
        pipeline="orders",
        target="t",
        trigger="cli",
        started_at=NOON + timedelta(minutes=number),
        **fields,  # type: ignore[arg-type]  # by name
    )


def test_a_run_goes_on_and_is_delivered_by_the_next(log: Failing, folder: Path) -> None:
    log.down = True
    first = BufferedRunLog(lambda: log, folder)
    with pytest.warns(UserWarning, match="goes on, and its records are delivered later") as seen:
        first.begin(record(1))
    assert "hunter22" not in str(seen[0].message)
    # Said once; another warning would be an error here.
    first.heartbeat("run-1")
    first.finish(record(1).closed("failed", finished_at=NOON))
    first.begin(record(2))
    first.close()
    assert {stat.S_IMODE(f.stat().st_mode) for f in folder.glob("*.json")} == {0o600}
    log.down = False
    second = BufferedRunLog(lambda: log, folder)
    assert [r.status for r in second.list()] == ["running", "failed"]
    # An end tells everything: that it had begun is not said again, and never after it.
    assert log.told == ["finish run-1", "begin run-2"]
    assert list(folder.glob("*.json")) == []
    second.close()


def test_what_waits_is_told_while_the_log_is_down(log: Failing, folder: Path) -> None:
    log.down = True
    held = BufferedRunLog(lambda: log, folder)
    with pytest.warns(UserWarning, match="delivered later"):
        held.begin(record(1))
    assert held.running("orders") == [record(1)]
    with pytest.raises(RunLogUnavailable):
        held.reached().running("orders")
    with pytest.raises(RunLogUnavailable):
        held.insist().running("orders")
    held.close()


def test_an_end_that_gets_through_is_not_undone_by_the_beginning_that_waits(
    log: Failing, folder: Path
) -> None:
    held = BufferedRunLog(lambda: log, folder)
    log.down = True
    with pytest.warns(UserWarning, match="delivered later"):
        held.begin(record(1))
    log.down = False
    held.finish(record(1).closed("succeeded", finished_at=NOON))
    held.close()
    other = BufferedRunLog(lambda: log, folder)
    assert [r.status for r in other.list()] == ["succeeded"]
    other.close()


@pytest.mark.parametrize("words", range(6))
def test_a_log_that_goes_down_while_it_is_told(log: Failing, folder: Path, words: int) -> None:
    """Whatever got through before, all is there in the end, in the right order."""
    log.down = True
    held = BufferedRunLog(lambda: log, folder)
    with pytest.warns(UserWarning, match="delivered later"):
        held.heartbeat("run-0")
    for number in range(5):
        held.begin(record(number))
        held.finish(record(number).closed("failed", finished_at=NOON))
    log.down, log.words = False, words
    held.close()
    log.words = None
    other = BufferedRunLog(lambda: log, folder)
    assert [r.run_id for r in other.list()] == [f"run-{n}" for n in (4, 3, 2, 1, 0)]
    ends = [word for word in log.told if word.startswith("finish")]
    assert list(dict.fromkeys(ends)) == [f"finish run-{n}" for n in range(5)]
    other.close()


def test_delivering_twice_changes_nothing(log: Failing, folder: Path) -> None:
    """As after a crash between delivering and removing the file."""
    waiting = Undelivered(folder)
    waiting.keep("begun", record(1))
    waiting.keep("finished", record(1).closed("succeeded", finished_at=NOON))
    waiting.keep("begun", record(2))
    files = {f: f.read_bytes() for f in folder.glob("*.json")}
    assert waiting.deliver(log) == 3
    before = log.list()
    log.finish(record(2).closed("succeeded", finished_at=NOON))
    for file, content in files.items():
        file.write_bytes(content)
    assert waiting.deliver(log) == 3
    assert [r.status for r in before] == ["running", "succeeded"]
    assert [r.status for r in log.list()] == ["succeeded", "succeeded"]


def test_processes_that_deliver_at_once(folder: Path) -> None:
    waiting = Undelivered(folder)
    for number in range(10):
        waiting.keep("finished", record(number).closed("failed", finished_at=NOON))
    log = Failing()
    start = threading.Barrier(6, timeout=30)

    def deliver() -> None:
        start.wait()
        Undelivered(folder).deliver(log)

    threads = [threading.Thread(target=deliver) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waiting.deliver(log)
    assert sorted(log.told) == sorted(f"finish run-{n}" for n in range(10))
    assert waiting.files() == []


class Picky(Failing):
    """Does not take one record, as a column may be too narrow for it."""

    def finish(self, record: RunRecord) -> None:
        if record.run_id == "run-1":
            raise RunLogUnavailable("value too long")
        super().finish(record)


def test_what_is_refused_while_others_are_taken_is_put_aside(folder: Path) -> None:
    log, waiting = Picky(), Undelivered(folder)
    waiting.keep("finished", record(1).closed("failed", finished_at=NOON))
    with pytest.raises(RunLogUnavailable, match="value too long"):
        waiting.deliver(log)
    held = BufferedRunLog(lambda: log, folder)
    held.begin(record(0))
    assert len(waiting.files()) == 1
    for number in (2, 3):
        waiting.keep("finished", record(number).closed("failed", finished_at=NOON))
    assert waiting.deliver(log) == 3
    assert [r.run_id for r in log.list()] == ["run-3", "run-2", "run-0"]
    assert [f.suffix for f in folder.iterdir() if f.suffix] == [".refused"]
    held.close()


def test_a_run_does_not_deliver_for_ever(log: Failing, folder: Path) -> None:
    waiting = Undelivered(folder)
    for number in range(4):
        waiting.keep("finished", record(number).closed("failed", finished_at=NOON))
    assert waiting.deliver(log, seconds=-1) == 0
    assert len(waiting.files()) == 4
    assert waiting.deliver(log) == 4
    assert [r.run_id for r in log.list()] == ["run-3", "run-2", "run-1", "run-0"]


WRITER = """
import sys
from datetime import datetime, timezone
from pathlib import Path
from ematix_flow.run.records import RunRecord
from ematix_flow.run.undelivered import Undelivered

waiting = Undelivered(Path(sys.argv[1]))
number = 0
while True:
    waiting.keep("finished", RunRecord(
        run_id=f"r{number}", pipeline="p", target="t", trigger="cli", status="failed",
        started_at=datetime.now(timezone.utc), error_text="word " * 20_000,
    ))
    print(number, flush=True)
    number += 1
"""


def test_a_killed_writer_leaves_whole_records_only(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(3)]
        child.kill()
        said += child.stdout.readlines()
    kept = Undelivered(folder).waiting()
    assert len(kept) >= len([s for s in said if s.endswith("\n")]) >= 3
    assert {len(k.record.error_text or "") for k in kept} == {100_000}


def test_a_file_that_is_none_of_ours_stays_and_stops_nothing(log: Failing, folder: Path) -> None:
    waiting = Undelivered(folder)
    waiting.keep("finished", record(1).closed("failed", finished_at=NOON))
    (folder / "0.json").write_text("{")
    assert waiting.deliver(log) == 1
    assert [f.name for f in folder.glob("*.json")] == ["0.json"]


def test_a_full_disk_is_a_warning(log: Failing, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    log.down = True
    held = BufferedRunLog(lambda: log, tmp_path / "file" / "x")
    with pytest.warns(UserWarning, match="delivered later"):
        held.begin(record(1))


def test_a_log_that_is_down_is_not_asked_again_at_once(
    log: Failing, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undelivered, "_PAUSE", 30.0)
    opened = []

    def open_log() -> MemoryRunLog:
        opened.append(1)
        raise RunLogUnavailable("down")

    with pytest.warns(UserWarning, match="delivered later"):
        held = BufferedRunLog(open_log, folder)
    held.begin(record(1))
    held.heartbeat("run-1")
    held.close()
    assert len(opened) == 1


def test_the_folder_tells_logs_apart_but_not_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def note(_: object, folder: Path) -> None:
        seen.append(folder)

    monkeypatch.setattr(undelivered, "BufferedRunLog", note)
    monkeypatch.setattr("ematix_flow.run.object_log.BufferedRunLog", note)
    for url in ("postgres://u:secret-1@h/db", "postgres://u:secret-2@h/db"):
        open_run_log(url)
    assert seen[0] == seen[1]
    assert seen[0].parent == config.home() / "undelivered"
    for url in ("postgres://u:x@h/db2", "s3://b/p?endpoint=http://a", "s3://b/p?endpoint=http://b"):
        open_run_log(url)
    assert len(set(seen)) == 4


Server = tuple[str, Callable[[], None], Callable[[], None]]


@pytest.fixture(
    params=[pytest.param(s, marks=pytest.mark.services(s.name)) for s in (S3, Postgres)],
    ids=lambda service: service.name,
)
def stoppable(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """The URL for a log on a server of this test's own, and how to start and to stop that."""
    service: Service = request.param()
    service.install()
    account = service.run_as()
    # Not below the folder of the test, which that account cannot enter.
    home = Path(tempfile.mkdtemp(prefix="ematix-stoppable-"))
    if account is not None:
        shutil.chown(home, account, account)
    endpoint = Endpoint(process.free_port(), home, secrets.token_hex(16))
    service.prepare(endpoint)
    running: list[tuple[int, str]] = []

    def answers() -> bool:
        try:
            service.check(endpoint)
        except Exception:  # noqa: BLE001 - whatever it is, it does not answer yet
            return False
        return True

    def start() -> None:
        command = service.command(endpoint)
        pid = process.launch(command, home=home, log=tmp_path / "server.log", account=account)
        running.append((pid, process.birth(pid)))
        assert process.wait_until(answers, timeout=60)

    def stop() -> None:
        while running:
            process.stop(*running.pop())

    try:
        start()
        server = service.client(endpoint)
        url = server.url
        if service.name == "s3":
            url = f"s3://{server.create_bucket()}/log?endpoint={server.url}"
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
        yield url, start, stop
    finally:
        stop()
        shutil.rmtree(home)


def test_a_server_stopped_in_the_middle_of_runs(stoppable: Server) -> None:
    url, start, stop = stoppable
    log = open_run_log(url)
    log.begin(record(1))
    log.begin(record(2))
    log.finish(record(1).closed("succeeded", finished_at=NOON))
    stop()
    with pytest.warns(UserWarning, match=r"the run log .* cannot be .*delivered later"):
        log.finish(record(2).closed("failed", finished_at=NOON))
    log.begin(record(3))
    log.finish(record(3).closed("succeeded", finished_at=NOON))
    with pytest.raises(RunLogUnavailable):
        log.standings(["shop"])
    log.close()
    start()
    later = open_run_log(url)
    found = later.list()
    assert [(r.run_id, r.status) for r in found] == [
        ("run-3", "succeeded"),
        ("run-2", "failed"),
        ("run-1", "succeeded"),
    ]
    assert later.running("orders") == []
    assert list(config.home().glob("undelivered/*/*.json")) == []
    later.close()
