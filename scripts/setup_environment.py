"""Builds .venv from requirements.lock, every download checked against its hash.

Runs on the machine's own Python with the standard library only. It is idempotent, and quick
when neither the lock nor the packages' metadata changed since the last time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "setup.stamp"
OLDEST, NEWEST = (3, 10), (3, 13)


def main() -> None:
    """Bring .venv up to date, or say in one line why that is impossible."""
    if os.name == "nt":
        sys.exit("setup: Windows is supported through WSL; run `make setup` inside WSL")
    packages = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
    wanted = fingerprint([LOCK, *(package / "pyproject.toml" for package in packages)])
    if STAMP.is_file() and STAMP.read_text() == wanted and PYTHON.exists():
        return
    say("creating .venv from requirements.lock (a minute or two the first time)")
    if not python_works():
        create_venv()
    install_uv()
    run([UV, "pip", "sync", "--quiet", "--require-hashes", LOCK])
    editable = [argument for package in packages for argument in ("--editable", package)]
    run([UV, "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", *editable])
    say("building the class archive that makes Spark start faster")
    archive = subprocess.run([PYTHON, "-m", "ematix_flow.engine.archive"], check=False, cwd=ROOT)
    if archive.returncode:
        say("the class archive could not be built; everything works, Spark starts slower")
    STAMP.write_text(wanted)
    say("done")


def fingerprint(files: list[Path]) -> str:
    """Return a digest that changes when any input of the environment does."""
    digest = hashlib.sha256()
    for path in [*files, Path(__file__)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def python_works() -> bool:
    """Tell whether .venv holds a Python that starts and that we support."""
    if not PYTHON.exists():
        return False
    supported = f"import sys; sys.exit(not {OLDEST} <= sys.version_info[:2] <= {NEWEST})"
    return subprocess.run([PYTHON, "-c", supported], check=False).returncode == 0


def create_venv() -> None:
    """Create .venv, installing Debian's venv package when it is missing and we may."""
    python = supported_python()
    if VENV.exists():
        shutil.rmtree(VENV)
    if try_venv(python):
        return
    if shutil.which("uv"):
        run(["uv", "venv", "--quiet", "--python", python, VENV])
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say("this Python cannot create virtual environments; installing python3-venv")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "-qq", "update"], environment)
        install = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "python3-venv"]
        run(install, environment)
        if try_venv(python):
            return
    sys.exit(
        f"setup: {python} cannot create a virtual environment; install its venv package"
        " (Debian, Ubuntu: sudo apt-get install python3-venv) and run `make setup` again"
    )


def supported_python() -> str:
    """Return this Python if we support it, else another one from PATH."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return sys.executable
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    sys.exit(
        f"setup: Python 3.{OLDEST[1]} to 3.{NEWEST[1]} is needed and this is"
        f" {sys.version.split()[0]}; install one, or name it: make setup PYTHON=/path/to/python3.12"
    )


def try_venv(python: str) -> bool:
    """Create .venv with pip in it; on failure leave nothing behind."""
    result = subprocess.run([python, "-m", "venv", VENV], check=False, capture_output=True)
    works = result.returncode == 0 and (VENV / "bin" / "pip").exists()
    if not works and VENV.exists():
        shutil.rmtree(VENV)
    return works


def install_uv() -> None:
    """Install the locked uv into .venv unless that very version is there."""
    requirement = locked_requirement("uv")
    version = requirement.split("==")[1].split()[0]
    if UV.exists():
        answer = subprocess.run([UV, "--version"], check=False, capture_output=True, text=True)
        if answer.stdout.split()[1:2] == [version]:
            return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "uv.txt"
        file.write_text(requirement)
        if (VENV / "bin" / "pip").exists():
            pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            run([*pip, "--require-hashes", "-r", file])
        else:  # .venv was made by a uv from PATH, or an earlier sync removed pip
            uv = UV if UV.exists() else "uv"
            run([uv, "pip", "install", "--quiet", "--python", PYTHON, "-r", file])


def locked_requirement(name: str) -> str:
    """Cut one package with its hashes out of the lock."""
    lines = LOCK.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{name}=="))
    end = start + 1
    while end < len(lines) and lines[end].startswith("    --hash"):
        end += 1
    return "\n".join(lines[start:end]) + "\n"


def run(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
    """Run a command from the repository's root; end with its exit code if it fails."""
    # uv finds the environment by this name; another one may be active in the caller's shell.
    environment = {**(environment or os.environ), "VIRTUAL_ENV": str(VENV)}
    result = subprocess.run(command, check=False, cwd=ROOT, env=environment)
    if result.returncode:
        words = " ".join(str(word) for word in command[:4])
        sys.exit(f"setup: `{words} …` failed with exit code {result.returncode}")


def say(text: str) -> None:
    """Tell the person at the keyboard what is happening."""
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    main()
