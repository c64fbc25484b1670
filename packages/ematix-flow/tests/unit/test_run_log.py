"""The run log: what goes in comes out, from many processes, and it never stops a run."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ematix_flow.change import Counts
from ematix_flow.errors import Cancelled, ConfigError, DataError, UnknownName
from ematix_flow.run import sqlite_log
from ematix_flow.run.log import MemoryRunLog, NullRunLog, RunLog, open_run_log
from ematix_flow.run.logs import (
    capture_run_log,
    configure_logging,
    current_run_id,
    read_run_log,
    run_log_file,
)
from ematix_flow.run.records import RunRecord, effective_status, status_of, this_host, utc_now
from ematix_flow.run.sqlite_log import SqliteRunLog

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(folder))
    for name in ("EMATIX_FLOW_RUN_LOG_URL", "EMATIX_FLOW_RUN_LOG_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture(params=["sqlite", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunLog]:
    made: RunLog = (
        SqliteRunLog(tmp_path / "log.db") if request.param == "sqlite" else MemoryRunLog()
    )
    yield made
    made.close()


def started(
    run_id: str, *, pipeline: str = "orders", minute: int = 0, **fields: object
) -> RunRecord:
    return RunRecord.opened(
        run_id=run_id,
        pipeline=pipeline,
        target="shop.orders",
        trigger="cli",
        **{"started_at": NOON + timedelta(minutes=minute), **fields},
    )


def full_record() -> RunRecord:
    """A record in which no field has its default."""
    values: dict[str, object] = {}
    for number, field in enumerate(dataclasses.fields(RunRecord), start=1):
        if field.name in ("started_at", "finished_at", "heartbeat_at", "slot"):
            values[field.name] = NOON + timedelta(seconds=number, microseconds=number)
        elif field.name in ("attempt", "pid", "bytes") or field.name.startswith("rows_"):
            values[field.name] = number
        else:
            values[field.name] = f"{field.name} 日付"
    values |= {
        "kind": "stream",
        "trigger": "web",
        "status": "failed",
        "parameters": {"day": "2026-01-31"},
        "metrics": {"stages": 3, "nested": {"a": [1, 2.5, None]}},
    }
    return RunRecord(**values)  # type: ignore[arg-type]  # built by name


def test_every_field_survives(log: RunLog) -> None:
    record = full_record()
    defaults = {
        f.name: f.default
        for f in dataclasses.fields(RunRecord)
        if f.default is not dataclasses.MISSING
    }
    assert {n for n, v in defaults.items() if getattr(record, n) == v} == set()
    log.begin(record)
    assert log.get(record.run_id) == [record]


def test_a_run_from_start_to_end(log: RunLog) -> None:
    record = started("a1")
    log.begin(record)
    assert log.running("orders") == [record]
    assert log.running("others") == []
    log.heartbeat("a1")
    (alive,) = log.running("orders")
    assert alive.heartbeat_at is not None
    assert record.heartbeat_at is not None
    assert alive.heartbeat_at > record.heartbeat_at
    done = record.closed("succeeded", counts=Counts(read=5, inserted=3, deleted=1))
    log.finish(done)
    assert log.running("orders") == []
    assert log.last("orders", declared_in="") == done
    assert (done.rows_read, done.rows_written, done.status) == (5, 3, "succeeded")
    log.heartbeat("a1")
    assert log.last("orders", declared_in="") == done


def test_a_run_that_was_never_begun_is_still_recorded(log: RunLog) -> None:
    done = started("a1").closed("failed", error=DataError("no such column", fix="rename it"))
    log.finish(done)
    assert log.get("a1") == [done]
    assert (done.error_class, done.error_text) == ("DataError", "no such column; rename it")


def test_the_first_word_stands_unless_it_was_lost(log: RunLog) -> None:
    record = started("a1")
    log.begin(record)
    log.finish(record.closed("succeeded"))
    log.finish(record.closed("lost"))
    assert [r.status for r in log.get("a1")] == ["succeeded"]
    other = started("b1")
    log.begin(other)
    log.finish(other.closed("lost"))
    log.finish(other.closed("succeeded"))
    assert [r.status for r in log.get("b1")] == ["succeeded"]


def test_one_row_per_run_target_and_step(log: RunLog) -> None:
    first = started("a1")
    second = dataclasses.replace(first, target="shop.items")
    third = dataclasses.replace(first, step="post")
    for record in (first, second, third):
        log.begin(record)
        log.finish(record.closed("succeeded"))
    assert [(r.target, r.step) for r in log.get("a1")] == [
        ("shop.orders", "load"),
        ("shop.items", "load"),
        ("shop.orders", "post"),
    ]


def test_list_filters_and_orders(log: RunLog) -> None:
    for minute in range(6):
        pipeline = "orders" if minute % 2 else "items"
        record = started(f"id{minute}", pipeline=pipeline, minute=minute)
        log.begin(record)
        log.finish(record.closed("failed" if minute == 3 else "succeeded"))
    assert [r.run_id for r in log.list()] == ["id5", "id4", "id3", "id2", "id1", "id0"]
    assert [r.run_id for r in log.list(limit=2)] == ["id5", "id4"]
    assert [r.run_id for r in log.list(pipeline="orders")] == ["id5", "id3", "id1"]
    assert [r.run_id for r in log.list(pipeline="orders", status="failed")] == ["id3"]
    latest = log.last("items", declared_in="")
    assert latest is not None
    assert latest.run_id == "id4"
    assert log.last("nothing", declared_in="") is None


def test_list_refuses_what_finds_nothing(log: RunLog) -> None:
    with pytest.raises(UnknownName, match="did you mean 'failed'"):
        log.list(status="failde")
    with pytest.raises(ConfigError, match="shows nothing"):
        log.list(limit=0)


def test_get_takes_the_beginning_of_an_id(log: RunLog) -> None:
    for run_id in ("abc1", "abc2", "abd", "abc"):
        log.begin(started(run_id))
    assert [r.run_id for r in log.get("abd")] == ["abd"]
    assert [r.run_id for r in log.get("abc2")] == ["abc2"]
    assert [r.run_id for r in log.get("abc")] == ["abc"]
    assert log.get("x") == []
    with pytest.raises(UnknownName, match="4 runs have an id that starts with 'ab'"):
        log.get("ab")


def test_a_dead_process_means_lost_at_once(log: RunLog) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    now = utc_now()
    record = started("a1", pid=child.pid, started_at=now)
    log.begin(record)
    assert effective_status(record, now) == "running"
    assert [r.run_id for r in log.list(status="running")] == ["a1"]
    child.kill()
    # Without being waited for the killed child is a zombie, which still answers signals.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert effective_status(record, now) == "lost"
    child.communicate()
    assert effective_status(record, now) == "lost"
    assert log.list(status="running") == []
    assert [r.status for r in log.list(status="lost")] == ["running"]


def test_a_silent_process_is_lost_after_a_minute() -> None:
    record = started("a1", host="elsewhere", pid=1, heartbeat_at=NOON)
    assert effective_status(record, NOON + timedelta(seconds=59)) == "running"
    assert effective_status(record, NOON + timedelta(seconds=61)) == "lost"
    done = record.closed("failed")
    assert effective_status(done, NOON + timedelta(days=9)) == "failed"


def test_a_record_says_where_it_ran() -> None:
    record = started("a1")
    assert (record.host, record.pid) == (this_host(), os.getpid())
    assert record.code_version
    shown = json.loads(json.dumps(record.to_dict(now=NOON)))
    assert shown["status"] == "running"
    assert shown["started_at"] == "2026-01-31T12:00:00+00:00"


def test_statuses_of_errors() -> None:
    assert status_of(Cancelled("stopped")) == "cancelled"
    assert status_of(KeyboardInterrupt()) == "cancelled"
    assert status_of(ValueError("x")) == "failed"


def test_a_record_refuses_an_unknown_status() -> None:
    with pytest.raises(ConfigError, match="status='done'"):
        started("a1").closed("done")


def test_no_secret_is_stored(tmp_path: Path) -> None:
    log = SqliteRunLog(tmp_path / "log.db")
    record = started("a1", parameters={"api_token": "abc-token-1", "day": "Monday"})
    log.begin(record)
    log.finish(
        record.closed("failed", error=ValueError("cannot reach postgres://u:hunter22@host/db"))
    )
    (kept,) = log.get("a1")
    log.close()
    assert kept.parameters == {"api_token": "***", "day": "Monday"}
    stored = b"".join(p.read_bytes() for p in tmp_path.glob("log.db*"))
    assert b"hunter22" not in stored
    assert b"abc-token-1" not in stored


WRITER = """
import sys
from pathlib import Path
from ematix_flow.run.records import RunRecord
from ematix_flow.run.sqlite_log import SqliteRunLog

me, count = sys.argv[2], int(sys.argv[3])
input()
log = SqliteRunLog(Path(sys.argv[1]))
for number in range(count):
    record = RunRecord.opened(
        run_id=f"{me}-{number}", pipeline=me, target="t", trigger="cli"
    )
    log.begin(record)
    log.heartbeat(record.run_id)
    log.finish(record.closed("succeeded", bytes=number))
log.close()
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path, writers, count = tmp_path / "log.db", 5, 40
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WRITER, str(path), f"w{n}", str(count)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(writers)
    ]
    for process in processes:
        # All wait for a line, so that they also create the file at the same moment.
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    log = SqliteRunLog(path)
    kept = log.list(limit=10_000)
    log.close()
    assert {(r.run_id, r.bytes, r.status) for r in kept} == {
        (f"w{w}-{n}", n, "succeeded") for w in range(writers) for n in range(count)
    }
    assert len(kept) == writers * count


def test_threads_share_one_log(log: RunLog) -> None:
    def write(me: int) -> None:
        for number in range(20):
            record = started(f"{me}-{number}")
            log.begin(record)
            log.finish(record.closed("succeeded"))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.list(status="succeeded", limit=1000)) == 80


def test_file_and_folder_are_private(home: Path) -> None:
    open_run_log().close()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "run_log.db").stat().st_mode) == 0o600


def test_where_the_log_is(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def path_of(url: str | None = None) -> Path:
        log = open_run_log(url)
        assert isinstance(log, SqliteRunLog)
        log.close()
        return log.path.resolve()

    assert path_of() == home / "run_log.db"
    (tmp_path / ".ematix-flow.toml").write_text('[project]\nrun_log = "sqlite://toml.db"\n')
    assert path_of() == tmp_path / "toml.db"
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_PATH", str(tmp_path / "path.db"))
    assert path_of() == tmp_path / "path.db"
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_URL", f"sqlite:///{tmp_path}/env.db")
    assert path_of() == tmp_path / "env.db"
    monkeypatch.setenv("LOG_FOLDER", str(tmp_path / "deep" / "er"))
    assert path_of("${LOG_FOLDER}/arg.db") == tmp_path / "deep" / "er" / "arg.db"
    assert path_of("file://plain.db") == tmp_path / "plain.db"


def test_memory_is_one_log_per_process() -> None:
    open_run_log("memory://").begin(started("shared-1"))
    assert len(open_run_log("memory://").get("shared-1")) == 1


def test_an_unknown_store_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sqlite'"):
        open_run_log("sqlit://x.db")
    with pytest.raises(ConfigError, match="no path"):
        open_run_log("sqlite://")


def test_an_unwritable_place_warns_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="will not be recorded"):
        log = open_run_log(str(tmp_path / "file" / "log.db"))
    assert isinstance(log, NullRunLog)
    log.begin(started("a1"))
    assert log.list() == []


def test_a_broken_file_warns_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_text("certainly not a database, but long enough" * 50)
    with pytest.warns(UserWarning, match="not a database"):
        log = open_run_log(str(tmp_path / "log.db"))
    assert isinstance(log, NullRunLog)


def test_a_log_that_fails_later_does_not_stop_the_run(tmp_path: Path) -> None:
    log = SqliteRunLog(tmp_path / "log.db")
    with sqlite3.connect(tmp_path / "log.db") as other:
        other.execute("DROP TABLE runs")
    other.close()
    with pytest.warns(UserWarning, match="cannot be written"):
        log.begin(started("a1"))
    log.finish(started("a1").closed("succeeded"))
    with pytest.raises(ConfigError, match="cannot be read"):
        log.list()
    log.close()


def test_newer_code_migrates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = SqliteRunLog(tmp_path / "log.db")
    first.begin(started("a1"))
    first.close()
    steps = (*sqlite_log._MIGRATIONS, ("CREATE TABLE later (x INTEGER)",))
    monkeypatch.setattr(sqlite_log, "_MIGRATIONS", steps)
    for _ in range(2):
        second = SqliteRunLog(tmp_path / "log.db")
        assert len(second.get("a1")) == 1
        second.close()
    with sqlite3.connect(tmp_path / "log.db") as raw:
        assert raw.execute("SELECT version FROM schema_version").fetchall() == [(len(steps),)]
        assert raw.execute("SELECT * FROM later").fetchall() == []
    raw.close()


def test_a_failed_migration_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteRunLog(tmp_path / "log.db").close()
    broken = (*sqlite_log._MIGRATIONS, ("CREATE TABLE half (x INTEGER)", "NOT SQL"))
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_log, "_MIGRATIONS", broken)
        with pytest.raises(sqlite3.OperationalError):
            SqliteRunLog(tmp_path / "log.db")
    log = SqliteRunLog(tmp_path / "log.db")
    log.begin(started("a1"))
    assert len(log.list()) == 1
    log.close()


def test_older_code_refuses(tmp_path: Path) -> None:
    SqliteRunLog(tmp_path / "log.db").close()
    with sqlite3.connect(tmp_path / "log.db") as raw:
        raw.execute("UPDATE schema_version SET version = 99")
    raw.close()
    with pytest.raises(ConfigError, match=r"newer version.*schema is 99.*upgrade ematix-flow"):
        open_run_log(str(tmp_path / "log.db"))


def test_queries_use_an_index(tmp_path: Path) -> None:
    log = SqliteRunLog(tmp_path / "log.db")
    asked = "EXPLAIN QUERY PLAN SELECT * FROM runs"
    for rest in ("ORDER BY started_at DESC", "WHERE pipeline = 'x' ORDER BY started_at DESC"):
        plan = str(log._connection.execute(f"{asked} {rest}").fetchall())
        assert "INDEX runs_by" in plan
        assert "TEMP B-TREE" not in plan
    log.close()


def test_log_lines_carry_the_run_and_no_secret(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("ematix_flow.test")
    restore = configure_logging("warning", "json")
    try:
        with capture_run_log("run-1") as path:
            logger.info("only in the file")
            logger.warning("password=%s", "hunter22")
        logger.warning("outside")
    finally:
        restore()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(x["run_id"], x["message"], x["level"]) for x in lines] == [
        ("run-1", "password=***", "warning"),
        (None, "outside", "warning"),
    ]
    kept = read_run_log("run-1")
    assert kept is not None
    assert len(kept) == 2
    assert kept[0].endswith("INFO ematix_flow.test [run-1] only in the file")
    assert path == home / "logs" / "run-1.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert current_run_id.get() is None
    assert logging.getLogger("ematix_flow").handlers == []


def test_text_lines_and_traces(capsys: pytest.CaptureFixture[str]) -> None:
    restore = configure_logging("error", "text")
    try:
        logging.getLogger("ematix_flow.x").warning("not shown")
        try:
            raise ValueError("token=abcdef123")
        except ValueError:
            logging.getLogger("ematix_flow.x").exception("it broke")
    finally:
        restore()
    shown = capsys.readouterr().err
    assert "ERROR ematix_flow.x [-] it broke" in shown
    assert "Traceback" in shown
    assert "abcdef123" not in shown
    assert "not shown" not in shown


def test_runs_in_threads_keep_their_lines_apart() -> None:
    restore = configure_logging("error", "text")
    both = threading.Barrier(2, timeout=30)

    def run(run_id: str) -> None:
        with capture_run_log(run_id):
            both.wait()
            logging.getLogger("ematix_flow.x").info("line of %s", run_id)
            both.wait()

    threads = [threading.Thread(target=run, args=(f"r{n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    restore()
    for run_id in ("r0", "r1"):
        lines = read_run_log(run_id)
        assert lines is not None
        assert [line.rpartition("line of ")[2] for line in lines] == [run_id]


def test_an_unwritable_log_folder_warns_once(home: Path) -> None:
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file where a folder should be")
    with pytest.warns(UserWarning, match="going on without it") as seen, capture_run_log("r1"):
        logging.getLogger("ematix_flow.x").warning("still works")
    assert len(seen) == 1


def test_a_run_id_cannot_leave_the_folder() -> None:
    assert read_run_log("unknown") is None
    for bad in ("../../etc/passwd", "", "a/b", ".."):
        with pytest.raises(ConfigError, match="not the id of a run"):
            run_log_file(bad)


def test_unknown_levels_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'debug'"):
        configure_logging("debgu")
    with pytest.raises(ConfigError, match="known are"):
        configure_logging("info", "xml")
