"""Connector jars: named in the package's lock, fetched once, checked, passed by path.

Fetching is done by the Ivy that lies among PySpark's own jars, so it follows the machine's
Ivy settings and mirrors; no repository is named here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ematix_flow.engine.cache import cache_dir, file_lock, private_folder, put_in_place
from ematix_flow.engine.java import find_java
from ematix_flow.engine.jvm import run_java, spark_jars
from ematix_flow.errors import EngineError, UnknownName

LOCK_FILE = Path(__file__).with_name("jars.lock")
_FETCH_SECONDS = 600.0


@dataclass(frozen=True)
class LockedJar:
    """One jar by Maven coordinate, and the only bytes it may have."""

    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Its name in the cache."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


@lru_cache(maxsize=4)
def read_lock(path: Path = LOCK_FILE) -> dict[str, tuple[LockedJar, ...]]:
    """The lock: short name to its jars, in class-path order."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: tuple(LockedJar(jar["coordinate"], jar["sha256"]) for jar in jars)
        for name, jars in entries.items()
    }


def ensure_jars(names: Sequence[str], *, lock: Path = LOCK_FILE) -> list[Path]:
    """Paths of the jars behind these short names, fetched if need be and always checked."""
    locked = read_lock(lock)
    wanted: dict[LockedJar, None] = {}
    for name in names:
        if name not in locked:
            known = ", ".join(sorted(locked))
            raise UnknownName(f"no connector jar is called {name!r}", fix=f"known are: {known}")
        wanted.update(dict.fromkeys(locked[name]))
    if not wanted:
        return []
    folder = private_folder(cache_dir() / "jars")
    return [_ensure(jar, folder) for jar in wanted]


def _ensure(jar: LockedJar, folder: Path) -> Path:
    path = folder / jar.file_name
    if _is_intact(path, jar):
        return path
    with file_lock(folder / f"{jar.file_name}.lock"):
        if not _is_intact(path, jar):
            _check_and_place(fetch(jar.coordinate, folder), path, jar)
    return path


def _is_intact(path: Path, jar: LockedJar) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    if _digest(path, found.st_size, found.st_mtime_ns) == jar.sha256:
        return True
    path.unlink(missing_ok=True)
    return False


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, mtime_ns: int) -> str:
    """Hashed once per process, and again whenever size or time have changed."""
    return digest_of(path)


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _check_and_place(fetched: Path, path: Path, jar: LockedJar) -> None:
    try:
        found = digest_of(fetched)
        if found != jar.sha256:
            raise EngineError(
                f"{jar.coordinate} was fetched with SHA-256 {found[:16]}…, "
                f"but the lock says {jar.sha256[:16]}…, so it was thrown away",
                fix="check the repository or mirror it came from",
            )
        put_in_place(fetched, path)
    finally:
        shutil.rmtree(fetched.parent, ignore_errors=True)


def fetch(coordinate: str, folder: Path) -> Path:
    """Download one jar, without its dependencies, into a new folder inside ``folder``."""
    group, artifact, version = coordinate.split(":")
    target = Path(tempfile.mkdtemp(prefix="fetching-", dir=folder))
    settings = Path.home() / ".ivy2" / "ivysettings.xml"
    arguments = [
        "-Djava.net.useSystemProxies=true",
        "-cp",
        str(_ivy_jar(spark_jars())),
        "org.apache.ivy.Main",
        *(("-settings", str(settings)) if settings.is_file() else ()),
        "-cache",
        str(target / "ivy"),
        "-dependency",
        group,
        artifact,
        version,
        "-notransitive",
        "-types",
        "jar",
        "bundle",
        "-retrieve",
        f"{target}/[artifact]-[revision].[ext]",
    ]
    try:
        done = run_java(find_java(), arguments, seconds=_FETCH_SECONDS, cwd=target)
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        output = "it took too long"
    fetched = sorted(target.glob("*.jar"))
    if len(fetched) == 1:
        return fetched[0]
    shutil.rmtree(target, ignore_errors=True)
    raise EngineError(
        f"the connector jar {coordinate} could not be fetched ({_reason(output)})",
        fix=f"connect to the network once, or copy {artifact}-{version}.jar into {folder}",
    )


def _ivy_jar(jars: Iterable[Path]) -> Path:
    for jar in jars:
        if jar.name.startswith("ivy-"):
            return jar
    raise EngineError("pyspark's jars hold no Ivy", fix="install pyspark==4.2.0 again")


def _reason(output: str) -> str:
    if "took too long" in output:
        return output
    if "UnknownHostException" in output or "Host " in output or "ConnectException" in output:
        return "no repository could be reached"
    if "not found" in output:
        return "no repository has it"
    return "Ivy found nothing"
