"""What users install: the wheel, alone in a clean environment, with the locked dependencies."""

from __future__ import annotations

import configparser
import importlib.metadata
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = Path(__file__).parents[2]
ROOT = PACKAGE.parents[1]
SOURCE = PACKAGE / "src"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command without this checkout on its path; return what it printed."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    result = subprocess.run(
        command, cwd=cwd, env=environment, check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, and the wheel built from nothing but it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, PACKAGE)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    return next(distributions.glob("*.whl"))


def dependencies(name: str, extras: Iterable[str] = (), seen: set[str] | None = None) -> set[str]:
    """Name everything that installing a distribution brings along, as the metadata says."""
    seen = set() if seen is None else seen
    for text in importlib.metadata.requires(name) or ():
        wanted = Requirement(text)
        marker = wanted.marker
        applies = marker is None or any(marker.evaluate({"extra": x}) for x in ("", *extras))
        if applies and canonicalize_name(wanted.name) not in seen:
            seen.add(canonicalize_name(wanted.name))
            dependencies(wanted.name, wanted.extras, seen)
    return seen


def locked(names: set[str]) -> str:
    """Cut the named distributions, with versions and hashes, out of the lock."""
    entries = re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock").read_text())
    return "\n".join(entry for entry in entries if entry.partition("==")[0] in names)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment that holds the wheel and its dependencies only."""
    folder = tmp_path_factory.mktemp("clean")
    venv, needed = folder / "venv", folder / "requirements.txt"
    needed.write_text(locked(dependencies("ematix-flow")))
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--quiet", "--python", sys.executable, venv)
    install = [uv, "pip", "install", "--quiet", "--python", venv, "--no-deps"]
    # With the lock's hashes uv takes what `make setup` has downloaded; it fetches nothing.
    run(*install, "--require-hashes", "--requirement", needed)
    run(*install, wheel)
    run(uv, "pip", "check", "--python", venv)
    return venv / "bin"


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == expected
    assert {"ematix_flow/py.typed", "ematix_flow/engine/jars.lock"} <= names


def test_wheel_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
        metadata = archive.read(names["METADATA"]).decode()
        entry_points = archive.read(names["entry_points.txt"]).decode()
        licence = archive.read(names["licenses/LICENSE"]).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert licence == (ROOT / "LICENSE").read_text()
    parsed = configparser.ConfigParser()
    parsed.read_file(io.StringIO(entry_points))
    assert parsed["console_scripts"]["flow"] == "ematix_flow.cli.main:main"
    assert parsed["console_scripts"]["flow-worker"] == "ematix_flow.cli.worker:main"
    assert {"duckdb", "object_store_local", "postgres", "sqlite"} <= {
        *parsed["ematix_flow.backends"]
    }
    assert {"append", "truncate"} <= {*parsed["ematix_flow.modes"]}


def test_source_archive_can_be_read_without_the_repository(distributions: Path) -> None:
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/ematix_flow/__init__.py"} <= names


def test_installed_package_imports_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    show = "import ematix_flow; print(ematix_flow.__file__, ematix_flow.__version__)"
    file, version = run(environment / "python", "-c", show, cwd=tmp_path).split()
    assert Path(file).is_relative_to(environment.parent)
    assert version in (PACKAGE / "pyproject.toml").read_text()


def test_every_entry_point_loads(environment: Path, tmp_path: Path) -> None:
    load = (
        "from importlib.metadata import distribution\n"
        "for point in distribution('ematix-flow').entry_points:\n"
        "    print(point.group, point.name, point.load().__name__)\n"
    )
    loaded = run(environment / "python", "-c", load, cwd=tmp_path)
    assert "ematix_flow.backends postgres Postgres" in loaded
    assert "ematix_flow.modes append Append" in loaded


def test_installed_command_answers(environment: Path, tmp_path: Path) -> None:
    assert "run" in run(environment / "flow", "--help", cwd=tmp_path)
